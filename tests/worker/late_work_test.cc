// Work that a worker leaves for later is done: all of it, in order, while the worker lives.
#include "src/worker/late_work.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/thread.h"

namespace baton::worker {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr LateWorkWaits kAtOnce{.quiet = milliseconds(0)};

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
                       }},
                      kAtOnce);
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
                         }},
                        kAtOnce);
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
                        }},
                        kAtOnce);
    diary.WaitFor(1);
  }
  EXPECT_EQ(diary.WaitFor(2), (std::vector<std::string>{"measure", "stopped"}));
}

TEST(LateWorkTest, ItGoesOnOnceThereWereNoRequestsForAWhile) {
  constexpr milliseconds kQuiet{200};
  std::vector<steady_clock::time_point> begins;
  std::atomic<bool> may_return{false};
  Diary diary;
  LateWork work({[&](const auto&) {
                  begins.push_back(steady_clock::now());
                  diary.Write("fill");
                  while (!may_return) std::this_thread::yield();
                  return begins.size() < 2;
                }},
                {.quiet = kQuiet});
  diary.WaitFor(1);
  const steady_clock::time_point busy = steady_clock::now();
  work.OnBusy();
  may_return = true;
  diary.WaitFor(2);
  work.Stop();
  EXPECT_GE(begins[1] - busy, kQuiet);
}

TEST(LateWorkTest, AStartsFirstRequestComesBeforeIt) {
  const steady_clock::time_point start = steady_clock::now();
  steady_clock::time_point begin;
  Diary diary;
  LateWork work({[&](const auto&) {
                  begin = steady_clock::now();
                  diary.Write("fill");
                  return false;
                }},
                {.quiet = milliseconds(100)});
  diary.WaitFor(1);
  work.Stop();
  EXPECT_GE(begin - start, milliseconds(100));
}

TEST(LateWorkTest, RequestsThatNeverEndHoldItUpForALimitedTime) {
  Diary diary;
  LateWork work({[&](const auto&) {
                  diary.Write("fill");
                  return false;
                }},
                {.quiet = std::chrono::hours(1), .longest = milliseconds(50)});
  work.OnBusy();
  EXPECT_EQ(diary.WaitFor(1)[0], "fill");
}

TEST(LateWorkTest, ItsEndDoesNotWaitForItsTurn) {
  Diary diary;
  {
    const LateWork work({[&](const auto&) {
                          diary.Write("fill");
                          return false;
                        }},
                        {.quiet = std::chrono::hours(1), .longest = std::chrono::hours(1)});
  }
  EXPECT_TRUE(diary.WaitFor(0).empty());
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
                          }},
                          kAtOnce);
      EXPECT_GE(std::stoi(diary.WaitFor(1)[0]), above);
    });
    worker.join();
  }
}

}  // namespace
}  // namespace baton::worker
