// A pool whose threads come and go with the cores that its member holds: every task runs once, the
// results are those of one thread, and no more threads run than there are cores.
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/mutex.h"
#include "src/device/core_share.h"
#include "src/device/thread_pool.h"

namespace baton::device {
namespace {

void SleepUs(int64_t us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

// Two members with homes of two cores and one, and the pool of the first.
class LentPoolTest : public ::testing::Test {
 protected:
  LentPoolTest() {
    budget_ = *CoreBudget::Create(std::vector<uint32_t>{2, 1});
    mine_ = *CoreShare::Attach(budget_->fd(), 0);
    other_ = *CoreShare::Attach(budget_->fd(), 1);
    pool_ = std::make_unique<ThreadPool>(
        ThreadPool::Options{.num_threads = mine_->max_cores(), .cores = mine_.get()});
  }

  // Rows of sums that depend on every bit of the order within a row, and on no other row.
  std::vector<float> Sums(uint32_t num_rows) {
    std::vector<float> sums(num_rows);
    pool_->Run(num_rows, [&](uint32_t row, uint32_t) { sums[row] = SumOfRow(row); });
    return sums;
  }
  static float SumOfRow(uint32_t row) {
    float sum = 0;
    for (uint32_t i = 1; i < 300; ++i) sum += 1.0f / static_cast<float>(i * (row + 1));
    return sum;
  }

  std::unique_ptr<CoreBudget> budget_;
  std::unique_ptr<CoreShare> mine_;
  std::unique_ptr<CoreShare> other_;
  std::unique_ptr<ThreadPool> pool_;  // ends before the cores
};

TEST_F(LentPoolTest, EveryTaskRunsOnceAndWithTheSameBitsWhileCoresComeAndGo) {
  std::vector<float> expected;
  for (uint32_t row = 0; row < 97; ++row) expected.push_back(SumOfRow(row));
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> num_steps{0};
  std::thread borrower([&] {
    std::mt19937 random(3);
    while (!stop) {
      other_->BeginStep();
      ++num_steps;
      SleepUs(random() % 200);
      // It has no pool; its vacant seats go back when they are asked for, or at the end.
      if (other_->HasNews()) (void)other_->TakeNews();
      other_->EndSteps();
      SleepUs(random() % 200);
    }
  });
  std::mt19937 random(7);
  for (int step = 0; step < 300 || num_steps < 50; ++step) {
    mine_->BeginStep();
    for (int region = 0; region < 4; ++region) ASSERT_EQ(Sums(97), expected);
    if (random() % 3 == 0) mine_->EndSteps();
    if (random() % 5 == 0) SleepUs(50);
  }
  stop = true;
  borrower.join();
  mine_->EndSteps();
}

TEST_F(LentPoolTest, AThreadLeavesBetweenTwoTasksAndComesBackWithinTheRegion) {
  mine_->BeginStep();
  ASSERT_EQ(mine_->num_vacant(), 2u);
  std::atomic<int> phase{0};
  std::atomic<uint32_t> running{0};
  std::atomic<uint32_t> most_while_lent{0};
  std::thread borrower([&] {
    while (phase != 1) SleepUs(20);
    other_->BeginStep();  // waits for one task at most
    phase = 2;
    while (phase != 3) SleepUs(20);
    other_->EndSteps();
    phase = 4;
  });
  std::vector<std::atomic<uint32_t>> runs(1500);

  Mutex mutex;
  std::set<uint32_t> threads_at_end;
  pool_->Run(runs.size(), [&](uint32_t task, uint32_t thread) {
    const int seen = phase;
    const uint32_t now = ++running;
    SleepUs(seen == 4 ? 200 : 50);
    // A task that began after the core was lent: two threads are left.
    if (seen == 2) {
      uint32_t most = most_while_lent;
      while (now > most && !most_while_lent.compare_exchange_weak(most, now)) {
      }
    }
    if (task == 100 && phase == 0) phase = 1;
    if (task >= 600 && phase == 2) phase = 3;
    if (seen == 4) {
      MutexLock lock(mutex);
      threads_at_end.insert(thread);
    }
    --running;
    ++runs[task];
  });
  borrower.join();
  for (const auto& count : runs) ASSERT_EQ(count.load(), 1u);
  // On a machine that stands still for 0.1 s the borrower may have taken the core by itself.
  EXPECT_TRUE(most_while_lent <= 2u || other_->Stats().num_seized > 0);
  EXPECT_EQ(phase.load(), 4);
  EXPECT_EQ(threads_at_end.size(), 3u) << "the third came back before the region's end";
  mine_->EndSteps();
}

TEST_F(LentPoolTest, WithoutLentCoresTheCallerAndItsHomeDoEverything) {
  other_->BeginStep();
  // All three cores are the other's until it is asked.
  std::atomic<bool> begun{false};
  std::thread gives_back([&] {
    while (!begun) {
      if (other_->HasNews()) (void)other_->TakeNews();
      SleepUs(20);
    }
  });
  mine_->BeginStep();
  begun = true;
  gives_back.join();
  if (other_->HasNews()) (void)other_->TakeNews();
  std::atomic<uint32_t> running{0};
  std::atomic<uint32_t> most{0};
  for (int region = 0; region < 5; ++region) {
    pool_->Run(32, [&](uint32_t, uint32_t) {
      const uint32_t now = ++running;
      uint32_t seen = most;
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      SleepUs(20);
      --running;
    });
  }
  EXPECT_LE(most.load(), 2u) << "a home of two";
  other_->EndSteps();
  mine_->EndSteps();
}

TEST_F(LentPoolTest, OutsideOfStepsTheCallerWorksAlone) {
  std::set<uint32_t> threads;
  pool_->Run(50, [&](uint32_t, uint32_t thread) { threads.insert(thread); });
  EXPECT_EQ(threads, std::set<uint32_t>{0});
  for (uint32_t core = 0; core < budget_->num_cores(); ++core) {
    EXPECT_EQ(budget_->word(core).load(), kFreeCore);
  }
}

TEST_F(LentPoolTest, AnIdleMemberHoldsNothingSoonAfterItsLastStep) {
  for (int round = 0; round < 20; ++round) {
    mine_->BeginStep();
    (void)Sums(64);
    mine_->EndSteps();
    bool all_free = false;
    for (int i = 0; i < 20'000 && !all_free; ++i) {
      all_free = true;
      for (uint32_t core = 0; core < budget_->num_cores(); ++core) {
        all_free = all_free && budget_->word(core).load() == kFreeCore;
      }
      if (!all_free) SleepUs(50);
    }
    ASSERT_TRUE(all_free);
  }
}

}  // namespace
}  // namespace baton::device
