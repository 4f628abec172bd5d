#include "src/device/thread_pool.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace baton::device {
namespace {

int64_t ProcessCpuUs() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

void SleepMs(int ms) {
  const timespec pause = {ms / 1000, (ms % 1000) * 1'000'000};
  nanosleep(&pause, nullptr);
}

class ThreadPoolTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(ThreadPoolTest, RunsEveryTaskExactlyOnceForManyJobs) {
  ThreadPool pool(GetParam());
  for (uint32_t num_tasks : {0u, 1u, 2u, 3u, 7u, 64u, 1000u}) {
    for (int round = 0; round < 50; ++round) {
      std::vector<std::atomic<uint32_t>> runs(num_tasks);
      pool.Run(num_tasks, [&](uint32_t task, uint32_t thread) {
        EXPECT_LT(thread, pool.num_threads());
        runs[task].fetch_add(1, std::memory_order_relaxed);
      });
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1u);
    }
  }
}

TEST_P(ThreadPoolTest, WritesOfTasksAreVisibleToTheNextJob) {
  ThreadPool pool(GetParam());
  std::vector<uint64_t> values(97);  // plain memory: TSan sees a missing edge
  std::iota(values.begin(), values.end(), 0);
  for (int round = 0; round < 2000; ++round) {
    pool.Run(97, [&](uint32_t task, uint32_t) { ++values[(task + round) % 97]; });
  }
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], i + 2000);
}

TEST_P(ThreadPoolTest, NoTwoTasksShareAThreadIndexAtOnce) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> inside(pool.num_threads());
  for (int round = 0; round < 200; ++round) {
    pool.Run(16, [&](uint32_t, uint32_t thread) {
      EXPECT_EQ(inside[thread].fetch_add(1), 0);
      auto scratch = pool.scratch(thread);
      scratch[0] = std::byte{1};
      scratch[scratch.size() - 1] = std::byte{2};
      inside[thread].fetch_sub(1);
    });
  }
}

TEST_P(ThreadPoolTest, WorksAfterItsWorkersHaveGoneToSleep) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 5; ++round) {
    SleepMs(5);
    std::atomic<uint32_t> sum{0};
    pool.Run(100, [&](uint32_t task, uint32_t) { sum += task; });
    EXPECT_EQ(sum.load(), 4950u);
  }
}

TEST_P(ThreadPoolTest, ASleepingOwnerIsWokenByTheLastTask) {
  ThreadPool pool(GetParam());
  // Tasks that outlast the owner's spin, whoever runs them.
  std::atomic<uint32_t> finished{0};
  for (int round = 0; round < 5; ++round) {
    pool.Run(pool.num_threads(), [&](uint32_t task, uint32_t) {
      SleepMs(1 + static_cast<int>(task));
      ++finished;
    });
  }
  EXPECT_EQ(finished.load(), 5 * pool.num_threads());
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 5, 16));

TEST(ThreadPool, IdleWorkersUseNoProcessorTime) {
  ThreadPool pool(8);
  pool.Run(8, [](uint32_t, uint32_t) {});
  SleepMs(20);  // past every spin
  const int64_t before_us = ProcessCpuUs();
  SleepMs(200);
  EXPECT_LT(ProcessCpuUs() - before_us, 20'000);
}

TEST(ThreadPool, StartsAndStopsWithoutAJob) {
  for (int i = 0; i < 20; ++i) ThreadPool pool(4);
}

TEST(ThreadPool, RangesCoverEverythingAndRespectTheirMinimum) {
  ThreadPool pool(4);
  for (uint32_t total : {0u, 1u, 15u, 16u, 17u, 31u, 32u, 33u, 1009u}) {
    std::vector<std::atomic<uint32_t>> hits(total);
    pool.RunRanges(total, 16, 8, [&](TaskRange range, uint32_t) {
      EXPECT_TRUE(range.size() >= 16 || range.size() == total) << range.size() << " of " << total;
      for (uint32_t i = range.begin; i < range.end; ++i) ++hits[i];
    });
    for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1u);
  }
}

TEST(ThreadPool, ShrinkingRangesCoverEverythingAndRespectTheirBounds) {
  constexpr uint32_t kMin = 16;
  constexpr uint32_t kMax = 600;
  for (uint32_t threads : {1u, 2u, 3u, 5u}) {
    ThreadPool pool(threads);
    for (uint32_t total : {0u, 1u, 15u, 16u, 31u, 32u, 33u, 64u, 95u, 96u, 97u, 1009u, 4096u}) {
      std::vector<std::atomic<uint32_t>> hits(total);
      std::atomic<uint32_t> num_ranges = 0;
      pool.RunShrinking(total, kMin, kMax, [&](TaskRange range, uint32_t) {
        EXPECT_TRUE(range.size() >= kMin * 3 / 8 || range.size() == total)
            << range.size() << " of " << total;
        EXPECT_TRUE(range.size() <= kMax || threads == 1) << range.size() << " of " << total;
        ++num_ranges;
        for (uint32_t i = range.begin; i < range.end; ++i) ++hits[i];
      });
      for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1u);
      const uint32_t num_longest = (total + kMax - 1) / kMax;
      EXPECT_LE(num_ranges.load(), threads == 1 ? 1 : std::max(3 * threads, num_longest));
      // Enough for every thread is divided among all of them.
      if (total >= kMin * threads) {
        EXPECT_GE(num_ranges.load(), threads);
      }
    }
  }
}

TEST(ShrinkingPart, RangesFollowEachOtherAndShrinkFromRoundToRound) {
  for (uint32_t total : {48u, 97u, 1009u, 4000000000u}) {
    for (uint32_t rounds : {1u, 2u, 3u}) {
      for (uint32_t threads : {2u, 3u, 16u}) {
        uint32_t next = 0;
        uint32_t largest = total;  // that a range of this round may have
        for (uint32_t part = 0; part < rounds * threads; ++part) {
          const TaskRange range = ShrinkingPart(total, rounds, rounds * threads, part);
          EXPECT_EQ(range.begin, next);
          EXPECT_LE(range.size(), largest);
          next = range.end;
          if (part % threads + 1 == threads) largest = range.size() * 2 / 3 + 2;
        }
        EXPECT_EQ(next, total);
      }
    }
  }
}

TEST(PartOf, PartsAreContiguousAndEven) {
  for (uint32_t total : {0u, 1u, 5u, 97u, 4000000000u}) {
    for (uint32_t parts : {1u, 2u, 3u, 7u, 256u}) {
      uint32_t next = 0;
      for (uint32_t part = 0; part < parts; ++part) {
        const TaskRange range = PartOf(total, parts, part);
        EXPECT_EQ(range.begin, next);
        EXPECT_LE(range.size(), total / parts + 1);
        EXPECT_GE(range.size(), total / parts);
        next = range.end;
      }
      EXPECT_EQ(next, total);
    }
  }
}

}  // namespace
}  // namespace baton::device
