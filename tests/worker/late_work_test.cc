// Work that a worker leaves for later is done: all of it, in order, while the worker lives.
#include "src/worker/late_work.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/thread.h"

namespace baton::worker {
namespace {

// Words of the tasks so far.
class Diary {
 public:
  void Write(const std::string& word) {
    const std::lock_guard lock(mutex_);
    words_.push_back(word);
    change_.notify_all();
  }
  std::vector<std::string> WaitFor(size_t num_words) {
    std::unique_lock lock(mutex_);
    change_.wait(lock, [&] { return words_.size() >= num_words; });
    return words_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable change_;
  std::vector<std::string> words_;
};

TEST(LateWorkTest, DoesOneTaskAfterAnotherUntilEachIsDone) {
  Diary diary;
  int num_left = 3;
  const LateWork work({[&](const auto&) {
                         diary.Write("fill");
                         return --num_left > 0;
                       },
                       [&](const auto&) {
                         diary.Write("measure");
                         return false;
                       }});
  EXPECT_EQ(diary.WaitFor(4), (std::vector<std::string>{"fill", "fill", "fill", "measure"}));
}

TEST(LateWorkTest, ItsEndWaitsForOneCallOnly) {
  Diary diary;
  {
    const LateWork work({[&](const auto&) {
                           diary.Write("fill");
                           return true;
                         },
                         [&](const auto&) {
                           diary.Write("measure");
                           return false;
                         }});
    diary.WaitFor(2);
  }
  for (const std::string& word : diary.WaitFor(2)) EXPECT_EQ(word, "fill");
}

TEST(LateWorkTest, ALongCallHearsOfTheEnd) {
  Diary diary;
  {
    const LateWork work({[&](const std::atomic<bool>& stops) {
      diary.Write("measure");
      while (!stops) std::this_thread::yield();
      diary.Write("stopped");
      return true;
    }});
    diary.WaitFor(1);
  }
  EXPECT_EQ(diary.WaitFor(2), (std::vector<std::string>{"measure", "stopped"}));
}

int OwnNice() { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); }

// Also in a worker that somebody started by nice(1).
TEST(LateWorkTest, StepsComeFirst) {
  for (const int steps : {0, 12}) {
    std::thread worker([steps] {
      if (steps > 0) LowerThisThread(steps);
      constexpr int kLowest = 19;
      const int above = std::min(OwnNice() + 1, kLowest);
      Diary diary;
      const LateWork work({[&](const auto&) {
        diary.Write(std::to_string(OwnNice()));
        return false;
      }});
      EXPECT_GE(std::stoi(diary.WaitFor(1)[0]), above);
    });
    worker.join();
  }
}

}  // namespace
}  // namespace baton::worker
