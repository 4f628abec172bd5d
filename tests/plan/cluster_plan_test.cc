#include "src/plan/cluster_plan.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/plan/aggregated_plan.h"
#include "src/plan/split_length.h"
#include "tests/test_seed.h"

namespace baton::plan {

using scheduler::DeviceLimits;
using scheduler::FindDevice;
using scheduler::kFirstShare;
using scheduler::RooflineModel;

namespace {

using ::testing::HasSubstr;

// A prompt token takes 1 ms, a decode step 4 ms and 1 ms a row.
StepModel SimpleSteps() {
  return StepModel::OfMeasurements(
      {.prefill = {.fixed_us = 0, .prefill_token_us = 1'000, .decode_row_us = 0, .key_us = 0},
       .decode = {.fixed_us = 4'000, .prefill_token_us = 0, .decode_row_us = 1'000, .key_us = 0}});
}

PlanInput SimpleInput() {
  return {.load = {.rate_per_s = 4, .input_tokens = 100, .output_tokens = 101},
          .objective = {.ttft_us = 500'000, .itl_us = 20'000},
          .steps = SimpleSteps(),
          .memory = {.device_bytes = 0,
                     .weight_bytes = 0,
                     .kv_block_bytes = 16'000,
                     .block_tokens = 16},
          .num_layers = 10,
          .kv_bytes_per_token = 1'000,
          .link_bytes_per_s = 1e6};
}

// Llama-3.1-8B in bf16, as in roofline_test.
PlanInput Llama8bOnH200(double share) {
  const RooflineModel model = {.num_layers = 32,
                               .layer_weight_bytes = 436'207'616,
                               .layer_flops_per_row = 436'207'616,
                               .attention_flops_per_key = 16'384,
                               .kv_bytes_per_token = 131'072,
                               .output_weight_bytes = 1'050'673'152,
                               .output_flops_per_row = 1'050'673'152,
                               .num_launches = 292};
  const DeviceLimits& device = *FindDevice("NVIDIA H200");
  return {.load = {.rate_per_s = 4, .input_tokens = 2048, .output_tokens = 256},
          .objective = {.ttft_us = 500'000, .itl_us = 50'000},
          .steps = StepModel::OfDevice(device, model, share),
          .memory = {.device_bytes = device.memory_bytes,
                     .weight_bytes = 16'060'000'000,
                     .kv_block_bytes = uint64_t{131'072} * 64,
                     .block_tokens = 64},
          .num_layers = 32,
          .kv_bytes_per_token = 131'072,
          .link_bytes_per_s = device.link_bytes_per_s * share};
}

ClusterPlan MustPlan(const PlanInput& input) {
  const StatusOr<ClusterPlan> plan = PlanCluster(input);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : ClusterPlan();
}

std::string ErrorOf(const PlanInput& input) {
  return std::string(PlanCluster(input).status().message());
}

TEST(ClusterPlanTest, PrefillHasTheHandComputedWait) {
  const PrefillPlan one = MustPlan(SimpleInput()).prefill;
  EXPECT_EQ(one.num_workers, 1u);
  EXPECT_EQ(one.chunk, 96u) << "whole blocks within 100 ms";
  EXPECT_DOUBLE_EQ(one.prompt_us, 100'000);
  EXPECT_DOUBLE_EQ(one.utilization, 0.4);
  EXPECT_DOUBLE_EQ(one.ttft_p50_us, 100'000);
  EXPECT_NEAR(one.ttft_p99_us, 407'407, 1);
  // 4 a second for 407 ms are 1.6, so 2, and one that crosses: each 101 tokens, 7 blocks.
  EXPECT_EQ(one.kv_bytes, 3u * 7 * 16'000);

  PlanInput tight = SimpleInput();
  tight.objective.ttft_us = 400'000;
  const PrefillPlan two = MustPlan(tight).prefill;
  EXPECT_EQ(two.num_workers, 2u);
  // rho 0.2; 62.5 ms * ln(20) = 187.2 ms.
  EXPECT_NEAR(two.ttft_p99_us, 287'233, 1);
}

TEST(ClusterPlanTest, DecodeHasTheHandComputedBatch) {
  const DecodePlan plan = MustPlan(SimpleInput()).decode;
  EXPECT_EQ(plan.num_workers, 1u);
  EXPECT_EQ(plan.max_batch, 16u) << "4 + 16 ms";
  EXPECT_EQ(plan.bound, BatchBound::kObjective);
  // 400 gaps a second * (4 + B) ms <= B from B = 3 on.
  EXPECT_DOUBLE_EQ(plan.mean_batch, 2.8);
  EXPECT_DOUBLE_EQ(plan.itl_p50_us, 7'000);
  EXPECT_EQ(plan.batch_p99, 7u) << "Poisson of mean 2.8";
  EXPECT_DOUBLE_EQ(plan.itl_p99_us, 11'000);
  EXPECT_EQ(plan.kv_bytes, 7u * 13 * 16'000) << "201 tokens are 13 blocks";
}

// 100 tokens are 7 blocks of 16,000 bytes; the prompt takes 100 ms in chunks of 96 and 4 tokens.
TEST(ClusterPlanTest, TheTransferHidesBehindAllLayersButOne) {
  PlanInput input = SimpleInput();
  input.link_bytes_per_s = 2e6;  // 56 ms
  const TransferPlan plan = MustPlan(input).transfer;
  EXPECT_EQ(plan.bytes_per_request, 112'000u) << "whole blocks";
  EXPECT_DOUBLE_EQ(plan.need_bytes_per_s, 448'000);
  EXPECT_DOUBLE_EQ(plan.transfer_us, 56'000);
  EXPECT_NEAR(plan.exposed_us, 5'600, 1e-6) << "a tenth: the last of ten layers";
  EXPECT_NEAR(plan.second_token_us, 5'600 + 1.5 * 7'000, 1e-6);
  EXPECT_DOUBLE_EQ(plan.link_utilization, 0.224);
  EXPECT_TRUE(plan.link_carries);

  input.link_bytes_per_s = 1e6;  // 112 ms, of which 90 ms hide
  EXPECT_NEAR(MustPlan(input).transfer.exposed_us, 22'000, 1e-6);
  input.link_bytes_per_s = 0;
  EXPECT_FALSE(MustPlan(input).transfer.link_is_known);
  EXPECT_DOUBLE_EQ(MustPlan(input).transfer.second_token_us, 1.5 * 7'000);
  EXPECT_TRUE(MustPlan(input).transfer.link_carries) << "nothing is known of it";
}

TEST(ClusterPlanTest, AStateCrossesWithTheLastChunk) {
  PlanInput input = SimpleInput();
  input.link_bytes_per_s = 10e6;
  input.memory.state_blocks = 10;
  const TransferPlan plan = MustPlan(input).transfer;
  EXPECT_EQ(plan.bytes_per_request, (7u + 10) * 16'000);
  EXPECT_DOUBLE_EQ(plan.transfer_us, 27'200);
  // The last block and ten of state take 17.6 ms; nine tenths of 4 ms hide.
  EXPECT_NEAR(plan.exposed_us, 17'600 - 3'600, 1e-6);

  // In one chunk of 96 tokens nine tenths of 96 ms hide: the last layer alone is left.
  input.load.input_tokens = 96;
  EXPECT_NEAR(MustPlan(input).transfer.exposed_us, 25'600 / 10, 1e-6);
}

TEST(ClusterPlanTest, AStateTakesItsBlocksInEachPool) {
  PlanInput input = SimpleInput();
  input.memory.state_blocks = 10;
  EXPECT_EQ(MustPlan(input).decode.kv_bytes, 7u * (13 + 10) * 16'000) << "7 at times";
  EXPECT_EQ(MustPlan(input).prefill.kv_bytes, 3u * (7 + 10) * 16'000);
  // 1.25 MB hold 3 sequences of 23 blocks, and held 6 of 13.
  input.memory.device_bytes = 2'500'000;
  input.memory.weight_bytes = 1'000'000;
  EXPECT_EQ(MaxSequences(input), 3u);
}

// Phi-3-mini: 2,047 tokens and a chunk of 512 lie in 161 blocks at most, and 2 more are kept.
TEST(ClusterPlanTest, AWindowHoldsAndMovesItsBlocks) {
  const PlanMemory memory = {.kv_block_bytes = 10, .block_tokens = 16, .window = 2047};
  EXPECT_EQ(memory.BlocksFor(4096), 256u);
  EXPECT_EQ(memory.HeldBlocks(4096), 163u);
  EXPECT_EQ(memory.HeldKvBytes(4096), 1'630u);
  EXPECT_EQ(memory.HeldBlocks(2000), 125u) << "shorter than that";
  EXPECT_EQ(memory.CrossingBlocks(4096), 128u);
  EXPECT_EQ(memory.CrossingBlocks(2046), 128u);

  PlanInput input = SimpleInput();
  input.load.input_tokens = 2'000;
  input.memory.device_bytes = 5'000'000;
  input.memory.weight_bytes = 1'000'000;
  EXPECT_EQ(MaxSequences(input), 1u) << "3.5 MB, 132 blocks each";
  input.memory.window = 100;
  EXPECT_EQ(MaxSequences(input), 5u) << "42 blocks each";
  EXPECT_EQ(input.HandOffBytes(2'000), 7u * 16'000);
  input.memory.device_bytes = 2'500'000;
  EXPECT_EQ(MaxSequences(input), 1u);
  EXPECT_THAT(ErrorOf(input), HasSubstr("does not fit")) << "the prefill worker's 126 blocks";
}

TEST(ClusterPlanTest, LinksThatDoNotCarryTheLoadAreToldAndNotSplit) {
  PlanInput input = SimpleInput();
  input.objective = {.ttft_us = 3'000'000, .itl_us = 18'000};
  input.load = {.rate_per_s = 1, .input_tokens = 400, .output_tokens = 65};
  input.link_bytes_per_s = 500'000;  // 400,000 must cross: 80 %
  ClusterPlan plan = MustPlan(input);
  ASSERT_EQ(plan.num_workers(), 2u);
  EXPECT_DOUBLE_EQ(plan.transfer.link_utilization, 0.8);
  EXPECT_TRUE(plan.transfer.link_carries);
  EXPECT_TRUE(CompareWithAggregated(input, plan).split_helps);
  input.link_bytes_per_s = 499'000;
  plan = MustPlan(input);
  EXPECT_FALSE(plan.transfer.link_carries);
  EXPECT_FALSE(CompareWithAggregated(input, plan).split_helps);
}

// The decode worker runs 3 streams in steps of 7 ms, and a step with a chunk takes 100 ms at most.
// A prompt of n tokens takes n ms at either worker. The decode worker alone costs
// n (1 + 7 / 93) + 3 n = 4.075 n, which must be below 7 / 8 of what the pair costs.
TEST(SplitLengthTest, APairPaysFromTheLengthThatIsComputedByHand) {
  PlanInput input = SimpleInput();
  input.objective.itl_us = 200'000;
  const auto from = [](const PlanInput& asked) {
    const SplitLength split = FindSplitLength(asked, MustPlan(asked), 1000);
    EXPECT_TRUE(split.is_known);
    return split.from_tokens;
  };
  EXPECT_EQ(from(input), 16u) << "KV crosses as fast as it is computed: a block or more";
  // 20 blocks of state take 320 ms. 80 tokens: 326 ms < 7/8 of 400 ms; 96: 391 ms > 7/8 of 416 ms.
  input.memory.state_blocks = 20;
  EXPECT_EQ(from(input), 96u);
  // Twice the speed: 160 ms and half a ms a token. 32 tokens: 130 ms < 154 ms; 48: 196 ms > 161 ms.
  input.link_bytes_per_s = 2e6;
  EXPECT_EQ(from(input), 48u);
  // A fifth of the speed: a token takes 5 ms to cross, and 4.375 of them are more than 4.075.
  input.link_bytes_per_s = 0.2e6;
  EXPECT_EQ(from(input), 0u) << "at no length";
  input.link_bytes_per_s = 0;
  EXPECT_FALSE(FindSplitLength(input, MustPlan(input), 1000).is_known);
}

TEST(SplitLengthTest, AChunkThatWouldMissTheItlIsNeverComputedBesideStreams) {
  PlanInput input = SimpleInput();
  input.memory.state_blocks = 20;
  // A step of 7 ms and a block of 16 ms are more than 7/8 of 20 ms.
  EXPECT_EQ(FindSplitLength(input, MustPlan(input), 1000).from_tokens, 16u);
  // Without streams nobody waits but the client: 16 tokens take 16 ms there, 336 ms by the pair.
  input.load.output_tokens = 1;
  const SplitLength idle = FindSplitLength(input, MustPlan(input), 1000);
  EXPECT_TRUE(idle.is_known);
  EXPECT_EQ(idle.from_tokens, 0u) << "KV takes longer to cross than to be computed";
}

TEST(StepModelTest, KeysBeyondAWindowCostTheOtherLayersAlone) {
  const KeyWindow window = {.tokens = 4, .share = 0.75};
  // Rows at 0..5 see 1, 2, .. 6 keys, 21 in all; with the window 1, 2, 3, 4, 4, 4.
  EXPECT_DOUBLE_EQ(window.RunKeys(0, 6), 0.25 * 21 + 0.75 * 18);
  EXPECT_DOUBLE_EQ(window.RunKeys(0, 4), 10);
  EXPECT_DOUBLE_EQ(window.RunKeys(100, 2), 0.25 * (101 + 102) + 0.75 * 8);
  EXPECT_DOUBLE_EQ(window.RowKeys(100, 3), 3 * (25 + 3));
  EXPECT_DOUBLE_EQ(window.RowKeys(3, 2), 6);
  EXPECT_DOUBLE_EQ(KeyWindow().RunKeys(100, 2), 203);

  const MeasuredWeights weights = {
      .prefill = {.fixed_us = 0, .prefill_token_us = 0, .decode_row_us = 0, .key_us = 1},
      .decode = {.fixed_us = 0, .prefill_token_us = 0, .decode_row_us = 0, .key_us = 10}};
  const StepModel steps = StepModel::OfMeasurements(weights, window);
  EXPECT_DOUBLE_EQ(steps.StepUs({.chunk_tokens = 6}), 18.75);
  EXPECT_DOUBLE_EQ(steps.StepUs({.chunk_tokens = 2, .first_pos = 100}), 56.75);
  EXPECT_DOUBLE_EQ(steps.StepUs({.decode_rows = 3, .context = 100}), 840);
}

TEST(StepModelTest, ADeviceReadsTheWindowOfLayersThatHaveOne) {
  const DeviceLimits& device = *FindDevice("NVIDIA H200");
  RooflineModel model;
  model.num_layers = 1;
  model.kv_bytes_per_token = 4'300'000;  // 1 us
  const StepModel full = StepModel::OfDevice(device, model, 1);
  const StepModel half = StepModel::OfDevice(device, model, 1, {.tokens = 64, .share = 0.5});
  const PlannedStep step = {.decode_rows = 2, .context = 1000};
  EXPECT_NEAR(full.StepUs(step), 2'000, 1e-6);
  EXPECT_NEAR(half.StepUs(step), 2 * (500 + 32), 1e-6);
  // A chunk reads each position once: 1,016, and of them 16 + 63 by the window.
  const PlannedStep chunk = {.chunk_tokens = 16, .first_pos = 1000};
  EXPECT_NEAR(full.StepUs(chunk), 1'016, 1e-6);
  EXPECT_NEAR(half.StepUs(chunk), 548, 1e-6) << "547.5, in whole positions";
}

TEST(ClusterPlanTest, MemoryBoundsTheBatch) {
  PlanInput input = SimpleInput();
  // 90 % of 2.5 MB less 1 MB of weights holds 6 sequences of 13 blocks.
  input.memory.device_bytes = 2'500'000;
  input.memory.weight_bytes = 1'000'000;
  EXPECT_EQ(MaxSequences(input), 6u);
  const DecodePlan plan = MustPlan(input).decode;
  EXPECT_EQ(plan.max_batch, 6u);
  EXPECT_EQ(plan.bound, BatchBound::kMemory);
  EXPECT_EQ(plan.num_workers, 2u) << "one would have 7 at times";
  EXPECT_LE(plan.kv_bytes, 1'250'000u);
}

TEST(ClusterPlanTest, LlamaOnAnH200HasItsRooflinesTimes) {
  const ClusterPlan best = MustPlan(Llama8bOnH200(1));
  // 36.19 + 1.39 ms (roofline_test), launches of four chunks, and four output layers of one row.
  EXPECT_NEAR(best.prefill.prompt_us, 36'187 + 1'393 + 4 * (263 + 244), 200);
  EXPECT_EQ(best.num_workers(), 2u);
  EXPECT_EQ(best.decode.bound, BatchBound::kRows);
  EXPECT_EQ(best.transfer.bytes_per_request, uint64_t{2048} * 131'072);
  const ClusterPlan half = MustPlan(Llama8bOnH200(kFirstShare));
  EXPECT_NEAR(half.prefill.prompt_us / best.prefill.prompt_us, 2, 1e-9);
  EXPECT_GT(half.prefill.ttft_p99_us, 2 * best.prefill.ttft_p99_us);
}

TEST(ClusterPlanTest, WhatCannotBeMetSaysWhatItTakes) {
  PlanInput input = SimpleInput();
  input.objective.itl_us = 2'000;
  EXPECT_THAT(ErrorOf(input), HasSubstr("ITL 2 ms cannot be met: one step takes at least 5 ms"));
  input = SimpleInput();
  input.objective.ttft_us = 50'000;
  EXPECT_THAT(ErrorOf(input), HasSubstr("TTFT 50 ms cannot be met: a prompt of 100 tokens takes"));
  input = SimpleInput();
  input.memory.device_bytes = 1'000'000;
  input.memory.weight_bytes = 1'000'000;
  EXPECT_THAT(ErrorOf(input), HasSubstr("the model does not fit"));
  EXPECT_THAT(ErrorOf(input), HasSubstr("need 1.2 MiB, a worker has 878.9 KiB"));
  for (const double rate : {0.0, -1.0, std::nan("")}) {
    input = SimpleInput();
    input.load.rate_per_s = rate;
    EXPECT_THAT(ErrorOf(input), HasSubstr("is not above 0"));
  }
  input = SimpleInput();
  input.load.rate_per_s = 1e6;
  EXPECT_THAT(ErrorOf(input), HasSubstr("more than 1024 prefill workers"));
}

// A load that some cluster carries, of any size: at three times its rate, 1024 workers are busy for
// 2.4 % of the time, and so the wait of the 99th percentile is within a prompt of 0.4 s.
PlanInput RandomInput(TestRandom* random) {
  PlanInput input = random->OneIn(2) ? SimpleInput() : Llama8bOnH200(random->OneIn(2) ? 1 : 0.5);
  input.load.rate_per_s = random->Between(1, 200) / 10.0;
  input.load.input_tokens = random->Between(1, 400);
  input.load.output_tokens = random->Between(1, 300);
  input.objective.ttft_us = random->Between(700'000, 3'000'000);
  input.objective.itl_us = random->Between(9'000, 200'000);
  return input;
}

void ExpectWithinObjectives(const PlanInput& input, const ClusterPlan& plan) {
  EXPECT_LE(plan.prefill.ttft_p99_us, input.objective.ttft_us);
  EXPECT_LE(plan.prefill.utilization, kMaxUtilization + 1e-9);
  EXPECT_LE(plan.decode.itl_p99_us, input.objective.itl_us);
  EXPECT_LE(plan.decode.batch_p99, plan.decode.max_batch);
  EXPECT_TRUE(std::isfinite(plan.transfer.second_token_us));
}

TEST(ClusterPlanTest, MoreRateNeverNeedsFewerWorkersAndLooserObjectivesNeverMore) {
  for (const uint64_t seed : TestSeeds(2)) {
    SCOPED_TRACE(testing::Message() << "BATON_TEST_SEED=" << seed);
    TestRandom random(seed);
    for (int i = 0; i < 300; ++i) {
      const PlanInput input = RandomInput(&random);
      const ClusterPlan plan = MustPlan(input);
      ExpectWithinObjectives(input, plan);
      PlanInput other = input;
      other.load.rate_per_s *= 1 + random.Below(100) / 50.0;
      const ClusterPlan busier = MustPlan(other);
      EXPECT_GE(busier.prefill.num_workers, plan.prefill.num_workers);
      EXPECT_GE(busier.decode.num_workers, plan.decode.num_workers);
      other = input;
      other.objective.ttft_us *= 1 + random.Below(100) / 50.0;
      other.objective.itl_us *= 1 + random.Below(100) / 50.0;
      const ClusterPlan looser = MustPlan(other);
      EXPECT_LE(looser.prefill.num_workers, plan.prefill.num_workers);
      EXPECT_LE(looser.decode.num_workers, plan.decode.num_workers);
    }
  }
}

TEST(AggregatedPlanTest, AMixedStepHasTheHandComputedTime) {
  PlanInput input = SimpleInput();
  input.load.rate_per_s = 1;
  const AggregatedRun run = AggregatedWith(input, 1, 50);
  ASSERT_TRUE(run.carries);
  // One row: two steps of 50 + 4 + 1 ms a prompt, each second; the others of 5 ms.
  EXPECT_NEAR(run.utilization, 0.110, 1e-9);
  // 100 gaps of 5.56 ms on average: 0.556 run and 0.556 prompts come meanwhile, 3 at times.
  EXPECT_EQ(run.batch_p99, 3u);
  EXPECT_EQ(run.mixed_gaps, 6u) << "two chunks each, one gap may be long";
  EXPECT_DOUBLE_EQ(run.itl_p50_us, 5'000);
  EXPECT_DOUBLE_EQ(run.itl_p99_us, 50'000 + 4'000 + 3'000);
  EXPECT_DOUBLE_EQ(run.ttft_p50_us, 110'000);
}

TEST(AggregatedPlanTest, MoreThanItComputesIsNotCarried) {
  PlanInput input = SimpleInput();
  input.load.rate_per_s = 20;
  EXPECT_FALSE(AggregatedWith(input, 1, 512).carries);
  EXPECT_FALSE(AggregatedWith(input, 1, 512).Meets({1e9, 1e9}));
}

TEST(AggregatedPlanTest, ShortPromptsAndALooseItlNeedNoSplit) {
  PlanInput input = SimpleInput();
  input.load = {.rate_per_s = 1, .input_tokens = 32, .output_tokens = 65};
  input.objective.itl_us = 100'000;
  const Comparison loose = CompareWithAggregated(input, MustPlan(input));
  EXPECT_FALSE(loose.split_helps);
  EXPECT_EQ(loose.fewest_workers, 1u);
  ASSERT_TRUE(loose.keeps_itl.has_value());
  EXPECT_TRUE(loose.keeps_itl->Meets(input.objective));
}

TEST(AggregatedPlanTest, LongPromptsAndATightItlNeedASplit) {
  PlanInput input = SimpleInput();
  input.load = {.rate_per_s = 1, .input_tokens = 400, .output_tokens = 65};
  input.objective = {.ttft_us = 3'000'000, .itl_us = 18'000};
  const Comparison tight = CompareWithAggregated(input, MustPlan(input));
  EXPECT_TRUE(tight.split_helps);
  EXPECT_GT(tight.whole_chunks.itl_p99_us, 400'000) << "a whole prompt stands in the way";
  EXPECT_FALSE(tight.keeps_itl.has_value()) << "16 tokens and a row take 21 ms";

  // With 25 ms, chunks of 16 keep the itl, but the first token comes later than with a split.
  input.objective.itl_us = 26'000;
  const Comparison middle = CompareWithAggregated(input, MustPlan(input));
  ASSERT_TRUE(middle.keeps_itl.has_value());
  EXPECT_EQ(middle.keeps_itl->chunk, 16u);
  EXPECT_GT(middle.keeps_itl->ttft_p50_us, MustPlan(input).prefill.ttft_p50_us);
}

}  // namespace
}  // namespace baton::plan
