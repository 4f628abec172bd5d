#include "scheduler/batch_limit.h"

#include <algorithm>
#include <cstdint>

#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::scheduler {
namespace {

// A worker whose steps take fixed_us + rows * row_us, give or take `noise` in a hundred.
struct Machine {
  int64_t fixed_us = 0;
  int64_t row_us = 0;
  uint32_t noise = 0;
  TestRandom random{1};

  int64_t StepUs(uint32_t rows) {
    const int64_t us = fixed_us + rows * row_us;
    const int64_t percent = 100 + static_cast<int64_t>(random.Below(2 * noise + 1)) - noise;
    return std::max<int64_t>(1, us * percent / 100);
  }
  double TokensPerUs(uint32_t rows) const {
    return static_cast<double>(rows) / static_cast<double>(fixed_us + rows * row_us);
  }
};

// Steps of a worker that always has more requests than its limit lets in, a few of which come and
// go from step to step.
void RunFull(Machine* machine, BatchLimit* limit, uint32_t num_steps, int64_t* now_us) {
  for (uint32_t i = 0; i < num_steps; ++i) {
    const uint32_t missing = machine->random.Below(limit->limit() / 4 + 1);
    const uint32_t rows = std::max(1u, limit->limit() - missing);
    const int64_t us = machine->StepUs(rows);
    *now_us += us;
    limit->Measure(rows, us, *now_us);
  }
}

// Leaves the limit room to move on machines whose best one is small.
BatchLimitConfig SmallestFour(uint32_t most) {
  BatchLimitConfig config = BatchLimitFor(most, {});
  config.least = 4;
  config.first = 8;
  return config;
}

TEST(BatchLimitTest, BeginsWithTheLeastWhereNothingIsKnown) {
  EXPECT_EQ(BatchLimit(BatchLimitFor(256, {})).limit(), 32u);
  EXPECT_EQ(BatchLimit(BatchLimitFor(3, {})).limit(), 3u) << "--max-batch is an upper bound";
  EXPECT_EQ(BatchLimit(BatchLimitFor(1, {})).limit(), 1u);
}

TEST(BatchLimitTest, BeginsWithWhatADevicesLimitsSay) {
  const StepWeights device = {.fixed_us = 4'000, .prefill_token_us = 20, .decode_row_us = 1'000};
  EXPECT_EQ(BatchLimit(BatchLimitFor(256, device)).limit(), 48u) << "12 x 4";
  EXPECT_EQ(BatchLimit(BatchLimitFor(32, device)).limit(), 32u);
  const StepWeights steep = {.fixed_us = 10, .prefill_token_us = 20, .decode_row_us = 1'000};
  EXPECT_EQ(BatchLimit(BatchLimitFor(256, steep)).limit(), 32u);
}

TEST(BatchLimitTest, GrowsWhileRowsCostNothing) {
  BatchLimit limit(SmallestFour(200));
  Machine machine{.fixed_us = 10'000, .row_us = 0};
  int64_t now_us = 0;
  RunFull(&machine, &limit, 1'000, &now_us);
  EXPECT_EQ(limit.limit(), 200u);
}

TEST(BatchLimitTest, SettlesWhereMoreStreamsAddLittle) {
  BatchLimit limit(SmallestFour(256));
  Machine machine{.fixed_us = 4'000, .row_us = 2'000};
  int64_t now_us = 0;
  RunFull(&machine, &limit, 2'000, &now_us);
  EXPECT_GE(limit.limit(), 18u) << "24 is the best, within a quarter";
  EXPECT_LE(limit.limit(), 32u);
}

TEST(BatchLimitTest, StepsWithoutAFixedCostKeepTheLeast) {
  BatchLimit limit(SmallestFour(256));
  Machine machine{.fixed_us = 0, .row_us = 3'000};
  int64_t now_us = 0;
  RunFull(&machine, &limit, 2'000, &now_us);
  EXPECT_EQ(limit.limit(), 4u) << "one long answer must not keep the only place";
}

TEST(BatchLimitTest, ACrowdOfClientsRunsOnAnyMachine) {
  BatchLimit limit(BatchLimitFor(256, {}));
  Machine machine{.fixed_us = 0, .row_us = 3'000};
  int64_t now_us = 0;
  RunFull(&machine, &limit, 2'000, &now_us);
  EXPECT_GE(limit.limit(), 32u);
  EXPECT_LE(limit.limit(), 40u) << "the least, within a quarter";
}

TEST(BatchLimitTest, FewStreamsSayNothing) {
  BatchLimit limit(SmallestFour(256));
  Machine machine{.fixed_us = 0, .row_us = 3'000};
  for (int64_t i = 0; i < 1'000; ++i) {
    const uint32_t rows = 1 + static_cast<uint32_t>(i % 5);
    limit.Measure(rows, machine.StepUs(rows), i * 10'000);
  }
  EXPECT_EQ(limit.limit(), 8u) << "a light load moves nothing";
}

TEST(BatchLimitTest, AStepThatTheSystemHeldUpMovesNothing) {
  BatchLimit limit(SmallestFour(256));
  Machine machine{.fixed_us = 4'000, .row_us = 2'000};
  int64_t now_us = 0;
  RunFull(&machine, &limit, 2'000, &now_us);
  const uint32_t before = limit.limit();
  limit.Measure(before, 3'000'000, now_us += 3'000'000);
  RunFull(&machine, &limit, 64, &now_us);
  EXPECT_GE(limit.limit(), before * 2 / 3);
  EXPECT_LE(limit.limit(), before * 3 / 2);
}

TEST(BatchLimitTest, FollowsAMachineThatChanges) {
  BatchLimit limit(SmallestFour(256));
  int64_t now_us = 0;
  Machine slow{.fixed_us = 2'000, .row_us = 2'000};
  RunFull(&slow, &limit, 2'000, &now_us);
  EXPECT_LE(limit.limit(), 16u);
  Machine wide{.fixed_us = 8'000, .row_us = 1'000};
  RunFull(&wide, &limit, 20'000, &now_us);
  EXPECT_GE(limit.limit(), 72u) << "96 is the best";
  RunFull(&slow, &limit, 20'000, &now_us);
  EXPECT_LE(limit.limit(), 16u);
}

TEST(BatchLimitTest, AnObjectiveEndsItSooner) {
  BatchLimitConfig config = SmallestFour(256);
  config.itl_objective_us = 20'000;
  BatchLimit limit(config);
  Machine machine{.fixed_us = 8'000, .row_us = 1'000};
  int64_t now_us = 0;
  RunFull(&machine, &limit, 2'000, &now_us);
  EXPECT_LE(limit.limit(), 15u) << "12 rows take 20 ms";
  EXPECT_GE(limit.limit(), 9u);
  config.itl_objective_us = 5'000;
  BatchLimit tight(config);
  RunFull(&machine, &tight, 2'000, &now_us);
  EXPECT_EQ(tight.limit(), 1u) << "none is short enough, and one stream always runs";
}

// 10 streams are few of the 32 that may run at first, and each of their steps is too slow.
TEST(BatchLimitTest, FewStreamsThatMissTheObjectiveLowerIt) {
  BatchLimitConfig config = BatchLimitFor(256, {});
  config.itl_objective_us = 20'000;
  BatchLimit limit(config);
  Machine machine{.fixed_us = 10'000, .row_us = 2'000};
  for (int64_t i = 0; i < 1'000; ++i) limit.Measure(10, machine.StepUs(10), i * 30'000);
  EXPECT_LT(limit.limit(), 10u);
  EXPECT_GE(limit.limit(), 1u);
}

TEST(BatchLimitTest, OneSlowStepAmongShortOnesIsNoMiss) {
  BatchLimitConfig config = BatchLimitFor(256, {});
  config.itl_objective_us = 20'000;
  BatchLimit limit(config);
  for (int64_t i = 0; i < 4'000; ++i) limit.Measure(4, i % 100 == 99 ? 60'000 : 5'000, i * 5'000);
  EXPECT_EQ(limit.limit(), 32u);
}

TEST(BatchLimitTest, LosesLittleThroughputOnAnyMachine) {
  for (const uint64_t seed : TestSeeds(40)) {
    TestRandom random(seed);
    Machine machine{.fixed_us = random.Between(0, 20'000),
                    .row_us = random.Between(20, 4'000),
                    .noise = random.Below(11),
                    .random = TestRandom(seed + 1)};
    const uint32_t most = random.Between(1, 256);
    BatchLimit limit(SmallestFour(most));
    int64_t now_us = 0;
    double sum = 0;
    for (int i = 0; i < 40; ++i) {
      RunFull(&machine, &limit, 200, &now_us);
      ASSERT_GE(limit.limit(), std::min(4u, most)) << "seed " << seed;
      ASSERT_LE(limit.limit(), most) << "seed " << seed;
      if (i >= 20) sum += machine.TokensPerUs(limit.limit()) / 20;
    }
    EXPECT_GE(sum, 0.85 * machine.TokensPerUs(most))
        << "seed " << seed << ", fixed " << machine.fixed_us << ", row " << machine.row_us
        << ", noise " << machine.noise << " %, most " << most << ", limit " << limit.limit();
  }
}

TEST(BatchLimitTest, OneLookMovesItByABoundedShare) {
  for (const uint64_t seed : TestSeeds(20)) {
    TestRandom random(seed);
    BatchLimit limit(SmallestFour(256));
    int64_t now_us = 0;
    for (int i = 0; i < 5'000; ++i) {  // measurements that make no sense
      const uint32_t before = limit.limit();
      now_us += random.Below(100'000);
      limit.Measure(random.Between(1, 300), random.Between(1, 50'000), now_us);
      ASSERT_LE(limit.limit(), 2 * before + 1) << "seed " << seed;
      ASSERT_GE(limit.limit() + 1, before * 2 / 3) << "seed " << seed;
      ASSERT_GE(limit.limit(), 4u) << "seed " << seed;
      ASSERT_LE(limit.limit(), 256u) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace baton::scheduler
