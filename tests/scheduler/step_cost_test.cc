#include "scheduler/step_cost.h"

#include <cmath>

#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::scheduler {
namespace {

// A machine with known costs.
int64_t TrueUs(const StepShape& shape) {
  return 300 + 700 * int64_t{shape.prefill_tokens} + 2'500 * int64_t{shape.decode_rows} +
         static_cast<int64_t>(shape.attention_keys) / 4;
}

StepShape Prefill(uint32_t first_pos, uint32_t num_tokens) {
  StepShape shape;
  shape.AddPrefill(first_pos, num_tokens);
  return shape;
}

StepShape RandomShape(TestRandom* random) {
  StepShape shape;
  if (random->OneIn(2)) shape.AddPrefill(random->Below(2'000), random->Between(1, 256));
  const uint32_t rows = random->Below(9) + (shape.prefill_tokens == 0 ? 1 : 0);
  for (uint32_t i = 0; i < rows; ++i) shape.AddDecode(random->Below(2'000));
  return shape;
}

TEST(StepShapeTest, CountsTheKeysThatEachRowReads) {
  StepShape shape;
  shape.AddPrefill(10, 3);  // rows read 11, 12 and 13 keys
  EXPECT_EQ(shape.prefill_tokens, 3u);
  EXPECT_EQ(shape.attention_keys, 36u);
  EXPECT_EQ(shape.kv_tokens, 13u) << "a chunk reads a position once";
  EXPECT_EQ(shape.logit_rows, 0u);
  shape.AddDecode(20);
  EXPECT_EQ(shape.decode_rows, 1u);
  EXPECT_EQ(shape.attention_keys, 57u);
  EXPECT_EQ(shape.kv_tokens, 34u);
  EXPECT_EQ(shape.logit_rows, 1u);
  const StepShape before = shape;
  shape.AddPrefill(10, 0);
  EXPECT_EQ(shape, before) << "no rows read nothing";
}

TEST(StepCostTest, StartsFromTheGivenWeights) {
  StepShape shape = Prefill(100, 64);
  for (int i = 0; i < 3; ++i) shape.AddDecode(500);
  const StepCost unknown;
  EXPECT_EQ(unknown.PredictUs(shape), 64 * 1'000 + 3 * 5'000);
  const StepCost known(
      {.fixed_us = 4'000, .prefill_token_us = 20, .decode_row_us = 7, .key_us = 1});
  EXPECT_EQ(known.PredictUs(shape),
            4'000 + 64 * 20 + 3 * 7 + static_cast<int64_t>(shape.attention_keys));
  EXPECT_EQ(known.num_measurements(), 0u);
}

TEST(StepCostTest, LearnsAnyMachineWithinAFewHundredMixedSteps) {
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(testing::Message() << "BATON_TEST_SEED=" << seed);
    TestRandom random(seed);
    StepCost cost;
    for (int i = 0; i < 600; ++i) {
      const StepShape shape = RandomShape(&random);
      const double noise = 0.95 + 0.1 * random.Below(1'000) / 1'000;
      cost.Measure(shape, std::llround(static_cast<double>(TrueUs(shape)) * noise));
    }
    double worst = 0;
    double sum = 0;
    for (int i = 0; i < 200; ++i) {
      const StepShape shape = RandomShape(&random);
      const double error = std::abs(static_cast<double>(cost.PredictUs(shape) - TrueUs(shape))) /
                           static_cast<double>(TrueUs(shape));
      worst = std::max(worst, error);
      sum += error;
    }
    EXPECT_LT(sum / 200, 0.10);
    EXPECT_LT(worst, 0.60);
  }
}

TEST(StepCostTest, FollowsAMachineThatDecodesOnly) {
  StepCost cost;
  StepShape shape;
  for (int i = 0; i < 4; ++i) shape.AddDecode(100);
  for (int i = 0; i < 10; ++i) cost.Measure(shape, 8'000);
  EXPECT_NEAR(static_cast<double>(cost.PredictUs(shape)), 8'000, 80);
  EXPECT_EQ(cost.decode_step_us(), 8'000);
  EXPECT_EQ(cost.prefill_tokens_per_s(), 0);
  cost.Measure(Prefill(0, 100), 50'000);
  EXPECT_NEAR(cost.prefill_tokens_per_s(), 2'000, 1);
  EXPECT_EQ(cost.num_measurements(), 11u);
}

TEST(StepCostTest, ImpossibleMeasurementsAreIgnored) {
  StepCost cost;
  const StepShape shape = Prefill(0, 64);
  const int64_t before = cost.PredictUs(shape);
  cost.Measure(shape, 0);
  cost.Measure(shape, -5);
  cost.Measure(StepShape{}, 100);
  EXPECT_EQ(cost.PredictUs(shape), before);
  EXPECT_EQ(cost.num_measurements(), 0u);
  for (int i = 0; i < 50; ++i) cost.Measure(shape, 1);
  EXPECT_GE(cost.PredictUs(shape), 0) << "no weight becomes negative";
}

TEST(StepCostTest, MaxChunkIsTheLargestThatKeepsTheTarget) {
  TestRandom random(5);
  StepCost cost;
  for (int i = 0; i < 300; ++i) {
    const StepShape shape = RandomShape(&random);
    cost.Measure(shape, TrueUs(shape));
  }
  for (int i = 0; i < 200; ++i) {
    const StepShape base = RandomShape(&random);
    const uint32_t first_pos = random.Below(3'000);
    const uint32_t limit = random.Below(600);
    const int64_t target_us = random.Between(0, 300'000);
    const uint32_t chunk = cost.MaxChunk(
        base,
        {.first_pos = first_pos, .limit = limit, .layers_us = target_us, .total_us = target_us});
    ASSERT_LE(chunk, limit);
    StepShape with = base;
    with.AddPrefill(first_pos, chunk);
    if (chunk > 0) {
      EXPECT_LE(cost.PredictUs(with), target_us);
    }
    StepShape more = base;
    more.AddPrefill(first_pos, chunk + 1);
    if (chunk < limit) {
      EXPECT_GT(cost.PredictUs(more), target_us);
    }
  }
}

// A quarter of a token's work more for a row of a prompt with logits.
TEST(StepCostTest, ALogRowCostsItsShareOfATokenAndALogitOfADecodeRowNothingMore) {
  const StepCost cost({.prefill_token_us = 1'000, .decode_row_us = 500}, 0.25);
  StepShape shape;
  shape.AddPrefill(0, 8);
  EXPECT_EQ(cost.PredictUs(shape), 8'000);
  shape.logit_rows = 8;
  EXPECT_EQ(cost.PredictUs(shape), 10'000);
  shape.AddDecode(10);
  EXPECT_EQ(cost.PredictUs(shape), 10'500);
}

// Prompts with and without log-probabilities teach each other nothing that is wrong.
TEST(StepCostTest, LoggedPromptsLeaveThePredictionOfPlainOnes) {
  StepCost cost({}, 0.25);
  const StepShape plain = Prefill(0, 64);
  StepShape logged = plain;
  logged.logit_rows = 64;
  for (int i = 0; i < 20; ++i) cost.Measure(plain, 64'000);
  for (int i = 0; i < 20; ++i) cost.Measure(logged, 80'000);
  EXPECT_NEAR(static_cast<double>(cost.PredictUs(plain)), 64'000, 640);
  EXPECT_NEAR(static_cast<double>(cost.PredictUs(logged)), 80'000, 800);
}

TEST(StepCostTest, TheLogRowsOfAChunkCountInTheTotalAlone) {
  const StepCost cost({.prefill_token_us = 1'000}, 0.25);
  const auto chunk = [&cost](bool logs, int64_t layers_us, int64_t total_us) {
    return cost.MaxChunk(
        {}, {.limit = 100, .logs = logs, .layers_us = layers_us, .total_us = total_us});
  };
  EXPECT_EQ(chunk(false, 40'000, 40'000), 40u);
  EXPECT_EQ(chunk(true, 40'000, 80'000), 40u) << "the layers bind";
  EXPECT_EQ(chunk(true, 40'000, 40'000), 32u) << "the output layer's rows bind";
}

TEST(StepCostTest, AStepInWhichTheProcessStoodStillIsNoMeasurement) {
  StepShape prefill;
  prefill.AddPrefill(0, 100);
  StepCost cost;
  for (int i = 0; i < 50; ++i) cost.Measure(prefill, 100'000);
  const double before = cost.prefill_tokens_per_s();
  for (const int64_t stopped_us : {10'000'000, 500'000}) {
    cost.Measure(prefill, 100'000 + stopped_us);
    EXPECT_EQ(cost.prefill_tokens_per_s(), before) << stopped_us;
    EXPECT_LE(cost.PredictUs(prefill), 160'000);
    for (int i = 0; i < 20; ++i) cost.Measure(prefill, 100'000);
  }
  cost.Measure(prefill, 300'000);
  EXPECT_LT(cost.prefill_tokens_per_s(), before) << "slower, and no stop";
  // A machine that has become so slow is believed.
  for (int i = 0; i < 50; ++i) cost.Measure(prefill, 10'000'000);
  EXPECT_NEAR(cost.prefill_tokens_per_s(), 10, 1);
}

// A large model on a slow machine, of which only prompts are known.
TEST(StepCostTest, TheFirstStepOfItsKindIsBelievedHoweverSlow) {
  StepCost cost;
  cost.Measure(Prefill(0, 8), 10'000);
  StepShape decode;
  decode.AddDecode(8);
  cost.Measure(decode, 2'000'000);
  EXPECT_EQ(cost.decode_step_us(), 2'000'000);
}

}  // namespace
}  // namespace baton::scheduler
