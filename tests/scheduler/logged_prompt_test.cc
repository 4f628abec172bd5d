// Chunks of prompts whose log-probabilities are wanted: as long as those of plain prompts, as far
// as the rows of logits and the time of a step allow.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"
#include "src/base/limits.h"
#include "tests/scheduler/toy_worker.h"

namespace baton::scheduler {
namespace {

constexpr uint32_t kPromptTokens = 1'600;
constexpr uint32_t kNumBlocks = 1'000;

// A worker of blocks of 16 tokens. Each token of a prompt takes 1.43 ms, a row of logits of a
// prompt `output_row_tokens` as much: at 0.3 the demo model on two cores.
class LoggedPromptTest : public testing::Test {
 protected:
  static SchedulerConfig Config(double output_row_tokens) {
    SchedulerConfig config;
    config.block_size = 16;
    config.target_mixed_step_us = 60'000;
    config.output_row_tokens = output_row_tokens;
    config.first_cost.prefill_token_us = 1'430;
    config.first_cost.decode_row_us = 1'000;
    return config;
  }

  static std::function<int64_t(const StepShape&)> CostOf(const SchedulerConfig& config) {
    return [row_tokens = config.output_row_tokens](const StepShape& shape) {
      const double log_rows = shape.logit_rows - shape.decode_rows;
      const double tokens = shape.prefill_tokens + row_tokens * log_rows;
      return static_cast<int64_t>(1'430 * tokens) + 1'000 * int64_t{shape.decode_rows};
    };
  }

  static void Add(ToyWorker* worker, uint64_t uid, bool logs, uint32_t max_tokens = 1) {
    std::vector<TokenId> prompt(logs || max_tokens == 1 ? kPromptTokens : 16);
    std::iota(prompt.begin(), prompt.end(), static_cast<TokenId>(uid));
    prompt[0] = kToyChatty;
    SequenceSpec spec = worker->Spec(uid, std::move(prompt), {max_tokens, 4'000});
    spec.logs_prompt = logs;
    ASSERT_TRUE(worker->scheduler().AddWaiting(std::move(spec), worker->now_us()).ok());
  }

  // The chunks of the steps until nothing is left to compute, but the last one.
  static std::vector<uint32_t> Chunks(ToyWorker* worker) {
    std::vector<uint32_t> chunks;
    for (int step = 0; worker->scheduler().Load().backlog_tokens > 0; ++step) {
      EXPECT_LT(step, 1'000) << "no end";
      const BatchPlan plan = worker->Step();
      EXPECT_LE(worker->cost(plan.shape),
                limits::kMaxLoggedStepTimes * worker->scheduler().config().target_step_us);
      chunks.push_back(plan.shape.prefill_tokens);
    }
    if (!chunks.empty()) chunks.pop_back();
    return chunks;
  }
};

TEST_F(LoggedPromptTest, ItsChunksAreAsLongAsAPlainPromptsBeforeAndAfterIt) {
  const SchedulerConfig config = Config(0.3);
  ToyWorker worker(config, kNumBlocks);
  worker.cost = CostOf(config);
  for (const bool logs : {false, true, true, false, true}) {
    Add(&worker, logs ? 2 : 1, logs);
    const std::vector<uint32_t> chunks = Chunks(&worker);
    EXPECT_EQ(chunks, std::vector<uint32_t>(chunks.size(), 64)) << (logs ? "logged" : "plain");
    EXPECT_EQ(chunks.size(), kPromptTokens / 64 - 1) << "100 ms are 69 tokens, whole blocks 64";
    worker.outputs.clear();
  }
}

TEST_F(LoggedPromptTest, ALargeOutputLayerMakesAStepAtMostTwiceAsLong) {
  const SchedulerConfig config = Config(2.0);
  ToyWorker worker(config, kNumBlocks);
  worker.cost = CostOf(config);
  Add(&worker, 1, /*logs=*/true);
  const std::vector<uint32_t> chunks = Chunks(&worker);
  EXPECT_EQ(chunks, std::vector<uint32_t>(chunks.size(), 32)) << "46 rows of 3 tokens' work";
}

TEST_F(LoggedPromptTest, BesideDecodeRowsTheOutputLayersRowsCountInTheStep) {
  const SchedulerConfig config = Config(0.3);
  ToyWorker worker(config, kNumBlocks);
  worker.cost = CostOf(config);
  Add(&worker, 1, /*logs=*/false, /*max_tokens=*/500);
  while (worker.Step().num_decode_items() == 0) continue;
  Add(&worker, 2, /*logs=*/false);
  std::vector<uint32_t> chunks = Chunks(&worker);
  EXPECT_EQ(chunks, std::vector<uint32_t>(chunks.size(), 32)) << "59 ms are 41 tokens";
  Add(&worker, 3, /*logs=*/true);
  chunks = Chunks(&worker);
  EXPECT_EQ(chunks, std::vector<uint32_t>(chunks.size(), 16)) << "and 31 of those with logits";
}

TEST_F(LoggedPromptTest, AFastMachineComputesAsManyRowsAsLogitsHaveRoomFor) {
  SchedulerConfig config = Config(0.3);
  config.first_cost.prefill_token_us = 10;
  ToyWorker worker(config, kNumBlocks);
  worker.cost = [](const StepShape& shape) { return 10 * int64_t{shape.prefill_tokens}; };
  Add(&worker, 1, /*logs=*/true);
  const std::vector<uint32_t> chunks = Chunks(&worker);
  EXPECT_EQ(chunks, std::vector<uint32_t>(chunks.size(), limits::kMaxPromptLogRows));
}

}  // namespace
}  // namespace baton::scheduler
