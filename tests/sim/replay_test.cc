// Loads replayed on the simulated clock: times that follow from the step model alone, what the
// modes do to them, prefixes, and refusals.
#include "src/sim/replay.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/log.h"

namespace baton::sim {

using loadgen::TraceRow;
using plan::MeasuredWeights;
using plan::StepModel;
using router::ServeMode;

namespace {

// A step of a prompt takes 1 ms and 0.1 ms a token, one that decodes 2 ms and 0.1 ms a row.
MeasuredWeights Weights() {
  MeasuredWeights weights;
  weights.prefill = {.fixed_us = 1000, .prefill_token_us = 100, .decode_row_us = 0, .key_us = 0};
  weights.decode = {.fixed_us = 2000, .prefill_token_us = 0, .decode_row_us = 100, .key_us = 0};
  return weights;
}

ReplayOptions Options(const std::vector<TraceRow>* rows) {
  EXPECT_TRUE(InitLog({.role = "sim", .level = LogLevel::kOff}).ok());
  ReplayOptions options;
  options.worker.steps = StepModel::OfMeasurements(Weights());
  options.worker.first_cost = {.fixed_us = 1000, .prefill_token_us = 100, .decode_row_us = 100};
  options.worker.block_tokens = 16;
  options.worker.num_blocks = 4096;
  options.worker.max_context = 8192;
  options.worker.kv_bytes_per_token = 1000;
  options.worker.link_bytes_per_s = 1e9;
  options.ttft_us = 1'000'000;
  options.itl_us = 10'000;
  options.rows = rows;
  return options;
}

ReplayReport MustReplay(const ReplayOptions& options) {
  const StatusOr<ReplayReport> report = Replay(options);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *report : ReplayReport();
}

TEST(ReplayTest, OneRequestTakesWhatItsStepsTake) {
  const std::vector<TraceRow> rows = {{0, 256, 101, {}}};
  const ReplayReport report = MustReplay(Options(&rows));
  EXPECT_EQ(report.num_finished, 1u);
  EXPECT_EQ(report.num_met, 1u);
  EXPECT_EQ(report.num_output_tokens, 101u);
  // 1 ms + 256 x 0.1 ms, and some hops of 50 to 100 us.
  EXPECT_GT(report.ttft_ms.p50, 26.5);
  EXPECT_LT(report.ttft_ms.p50, 27.5);
  EXPECT_EQ(report.itl_ms.count, 99u);
  EXPECT_NEAR(report.itl_ms.p50, 2.1, 0.05);
  // KV of 256 tokens takes 0.256 ms; most of it crosses while the prompt is computed.
  EXPECT_GT(report.second_ms.p50, 2.2);
  EXPECT_LT(report.second_ms.p50, 4.0);
}

// As for the load client: one long gap of a hundred is within the objective, one of fifty is not.
TEST(ReplayTest, TheGapBeforeTheSecondTokenCountsToo) {
  for (const uint32_t num_output : {101u, 51u}) {
    const std::vector<TraceRow> rows = {{0, 256, num_output, {}}};
    ReplayOptions options = Options(&rows);
    options.itl_us = 2'200;
    EXPECT_EQ(MustReplay(options).num_met, num_output == 101 ? 1u : 0u) << num_output;
  }
}

TEST(ReplayTest, SlowLinksShowInTheSecondToken) {
  const std::vector<TraceRow> rows = {{0, 256, 16, {}}};
  ReplayOptions options = Options(&rows);
  options.worker.link_bytes_per_s = 1e6;  // 0.256 s for the prompt
  const ReplayReport report = MustReplay(options);
  EXPECT_LT(report.ttft_ms.p50, 27.5);
  EXPECT_GT(report.second_ms.p50, 200);
  EXPECT_LT(report.second_ms.p50, 300);
}

// 16 blocks of 16 tokens cross beside the prompt's 16.
TEST(ReplayTest, AStateCrossesWithEachPrompt) {
  const std::vector<TraceRow> rows = {{0, 256, 16, {}}};
  ReplayOptions options = Options(&rows);
  options.worker.link_bytes_per_s = 1e6;
  options.worker.state_blocks = 16;
  const ReplayReport report = MustReplay(options);
  EXPECT_EQ(report.num_finished, 1u);
  EXPECT_LT(report.ttft_ms.p50, 27.5);
  EXPECT_GT(report.second_ms.p50, 450);
  EXPECT_LT(report.second_ms.p50, 600);
}

// All blocks of the prompt but the last token's are found, and the state behind them.
TEST(ReplayTest, ARepeatedPromptGoesOnFromItsState) {
  const std::vector<TraceRow> rows = {{0, 1024, 4, {1, 2}}, {2'000'000, 1024, 4, {1, 2}}};
  ReplayOptions options = Options(&rows);
  options.worker.state_blocks = 16;
  const ReplayReport report = MustReplay(options);
  EXPECT_EQ(report.num_finished, 2u);
  EXPECT_EQ(report.num_cached_tokens, 1008u);
  options.worker.prefix_cache = false;
  EXPECT_EQ(MustReplay(options).num_cached_tokens, 0u);
}

TEST(ReplayTest, TheSameOptionsGiveTheSameNumbers) {
  const std::vector<TraceRow> rows = PoissonRows(300, 20, 200, 20, 7);
  ASSERT_EQ(rows.size(), 300u);
  const ReplayReport a = MustReplay(Options(&rows));
  const ReplayReport b = MustReplay(Options(&rows));
  EXPECT_EQ(a.num_finished, 300u);
  EXPECT_EQ(a.num_events, b.num_events);
  EXPECT_EQ(a.ttft_ms.mean, b.ttft_ms.mean);
  EXPECT_EQ(a.e2e_ms.p99, b.e2e_ms.p99);
}

// M/D/1: mean wait = rho / (2 (1 - rho)) services.
TEST(ReplayTest, PromptsWaitAsQueueingTheorySays) {
  const std::vector<TraceRow> rows = PoissonRows(4000, 25, 190, 1, 3);  // 20 ms each, rho 0.5
  const ReplayReport report = MustReplay(Options(&rows));
  EXPECT_EQ(report.num_finished, 4000u);
  EXPECT_NEAR(report.prefill_busy, 0.5, 0.05);
  const double wait_ms = report.ttft_ms.mean - 20;
  EXPECT_GT(wait_ms, 7);  // 10 in theory; prompts that wait share a step's fixed time
  EXPECT_LT(wait_ms, 12);
}

TEST(ReplayTest, LongPromptsHoldUpStreamsOnlyWithoutASplit) {
  std::vector<TraceRow> rows;
  for (int64_t i = 0; i < 400; ++i) {
    rows.push_back({i * 25'000, 32, 60, {}});
    if (i % 40 == 2) rows.push_back({i * 25'000 + 5'000, 4000, 2, {}});
  }
  ReplayOptions split = Options(&rows);
  ReplayOptions whole = split;
  whole.mode = ServeMode::kAggregated;
  whole.num_prefill = 0;
  whole.num_decode = 2;
  const ReplayReport with = MustReplay(split);
  const ReplayReport without = MustReplay(whole);
  EXPECT_EQ(with.num_finished, rows.size());
  EXPECT_EQ(without.num_finished, rows.size());
  EXPECT_LT(with.itl_ms.max, 5);
  EXPECT_GT(without.itl_ms.max, 20);  // a step of a chunk and rows is planned to take 25 ms
}

TEST(ReplayTest, SharedBlocksAreComputedOnce) {
  std::vector<TraceRow> rows;
  for (int64_t i = 0; i < 20; ++i) {
    rows.push_back({i * 1'000'000, 1100, 2, {7, 8, static_cast<uint32_t>(100 + i)}});
  }
  ReplayOptions options = Options(&rows);
  const ReplayReport warm = MustReplay(options);
  EXPECT_EQ(warm.num_prompt_tokens, 20u * 1100);
  EXPECT_EQ(warm.num_cached_tokens, 19u * 1024);
  options.worker.prefix_cache = false;
  const ReplayReport cold = MustReplay(options);
  EXPECT_EQ(cold.num_cached_tokens, 0u);
  EXPECT_GT(cold.ttft_ms.p50, 5 * warm.ttft_ms.p50);
}

TEST(ReplayTest, AdaptiveComputesShortPromptsWhereTheyDecode) {
  const std::vector<TraceRow> rows = PoissonRows(50, 5, 64, 4, 1);
  ReplayOptions options = Options(&rows);
  options.mode = ServeMode::kAdaptive;
  options.local_max_tokens = 100;
  const ReplayReport report = MustReplay(options);
  EXPECT_EQ(report.num_finished, 50u);
  EXPECT_EQ(report.prefill_busy, 0);
}

TEST(ReplayTest, RowsThatDoNotFitAreCountedAndLeftOut) {
  const std::vector<TraceRow> rows = {{0, 8192, 1, {}}, {1000, 10, 2, {}}};
  const ReplayReport report = MustReplay(Options(&rows));
  EXPECT_EQ(report.num_left_out, 1u);
  EXPECT_EQ(report.num_requests, 1u);
  EXPECT_EQ(report.num_finished, 1u);
  EXPECT_EQ(report.MetShare(), 1);
}

TEST(ReplayTest, MoreThanTheClusterCanDoIsRefusedAndSaid) {
  // 50 requests a second of 100 ms each, for 40 s.
  const std::vector<TraceRow> rows = PoissonRows(2000, 50, 1000, 2, 5);
  const ReplayReport report = MustReplay(Options(&rows));
  EXPECT_EQ(report.num_finished + report.num_refused + report.num_failed, 2000u);
  EXPECT_GT(report.num_refused, 0u);
  EXPECT_EQ(report.num_failed, 0u);
  EXPECT_LT(report.MetShare(), 0.9);
}

// A step that decodes takes 4 ms and 2 ms a row, so that answers of 24 tokens take 48 ms at least:
// some 20 a second are served at most. Sixty come.
TEST(ReplayTest, AtThreeTimesItsLoadAClusterServesAsManyAsItCan) {
  for (const ServeMode mode : {ServeMode::kDisagg, ServeMode::kAggregated}) {
    const std::vector<TraceRow> rows = PoissonRows(1800, 60, 64, 24, 7);
    ReplayOptions options = Options(&rows);
    MeasuredWeights weights = Weights();
    weights.prefill.prefill_token_us = 20;
    weights.decode = {.fixed_us = 4000, .prefill_token_us = 20, .decode_row_us = 2000, .key_us = 0};
    options.worker.steps = StepModel::OfMeasurements(weights);
    options.worker.first_cost = {};
    options.mode = mode;
    options.num_prefill = mode == ServeMode::kAggregated ? 0 : 1;
    const ReplayReport report = MustReplay(options);
    const auto early =
        std::ranges::count_if(report.ends_us, [](int64_t end_us) { return end_us <= 15'000'000; });
    EXPECT_GE(early, 0.8 * 20 * 15) << "goodput of the first 15 s";
    EXPECT_GE(report.num_finished, 0.85 * 20 * 30) << "and of all";
    EXPECT_EQ(report.num_failed, 0u);
    EXPECT_EQ(report.num_finished + report.num_refused, 1800u);
    EXPECT_LT(report.refused_ms.p99, 100) << "a refusal comes at once";
    // 24 rows take 52 ms, and a prompt may take its part of a step.
    EXPECT_LT(report.itl_ms.p99, 120);
  }
}

TEST(ReplayTest, WhatCannotBeReplayedIsRefused) {
  const std::vector<TraceRow> rows = {{0, 10, 2, {}}};
  ReplayOptions options = Options(&rows);
  options.num_prefill = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(Replay(options).status()));
  options = Options(&rows);
  options.worker.link_bytes_per_s = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(Replay(options).status()));
  options = Options(&rows);
  options.worker.block_tokens = 7;
  EXPECT_TRUE(absl::IsInvalidArgument(Replay(options).status()));
  options = Options(&rows);
  options.num_decode = 1000;
  EXPECT_TRUE(absl::IsResourceExhausted(Replay(options).status()));
  options = Options(&rows);
  options.worker.num_blocks = 100'000'000;
  EXPECT_TRUE(absl::IsResourceExhausted(Replay(options).status()));
}

}  // namespace
}  // namespace baton::sim
