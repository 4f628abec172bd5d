// Where every layer has a window a sequence holds the blocks that its rows see, and no more.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/scheduler/toy_checks.h"

namespace baton::scheduler {

using kv::BlockHandle;
using kv::BlockState;

namespace {

// Blocks of 4 tokens and a window of 6: the row at position p sees [p - 5, p].
SchedulerConfig Config(WorkerRole role) {
  SchedulerConfig config = ToyConfig(role);
  config.window = 6;
  config.max_chunk = 8;
  return config;
}

// A chunk of 8 rows sees 13 tokens, which lie in 4 blocks at most.
constexpr uint32_t kMostHeld = 4 + kUnseenBlocksKept;

TEST(WindowTest, BlocksThatNoRowSeesAreReleasedWhileAStreamDecodes) {
  for (const bool prefix_cache : {false, true}) {
    for (const uint32_t num_choices : {1u, 2u}) {
      SCOPED_TRACE(testing::Message() << prefix_cache << " " << num_choices);
      const SchedulerConfig config = Config(WorkerRole::kDecode);
      ToyWorker worker(config, 64, prefix_cache);
      const std::vector<TokenId> prompt = Chatty(21);
      ASSERT_TRUE(
          worker.scheduler().AddWaiting(worker.Spec(1, prompt, Limits(90), num_choices), 0).ok());
      uint32_t most = 0;
      int num_decode_steps = 0;
      while (worker.scheduler().HasWork()) {
        const BatchPlan plan = worker.Step();
        const bool decodes = !plan.items.empty() && plan.items[0].is_decode;
        if (!decodes || !worker.scheduler().HasWork()) continue;
        ++num_decode_steps;
        const uint32_t held = 64 - worker.pool().num_available();
        if (num_decode_steps > 30) most = std::max(most, held);
        worker.scheduler().ForEachSequence([&](const Sequence& sequence) {
          const uint32_t first_seen = sequence.num_computed + 1 - config.window;
          EXPECT_EQ(sequence.table.num_released(),
                    first_seen / config.block_size - kUnseenBlocksKept);
        });
      }
      EXPECT_GT(num_decode_steps, 60);
      EXPECT_LE(most, (3 + kUnseenBlocksKept) * num_choices) << "of 28 blocks and more";
      ExpectOutputs(worker, 1, prompt, Limits(90), num_choices);
      EXPECT_EQ(worker.pool().num_available(), 64u);
      EXPECT_TRUE(worker.pool().Audit().ok()) << worker.pool().Audit();
    }
  }
}

TEST(WindowTest, AHandOffTakesTheBlocksThatItsRowsSee) {
  const SchedulerConfig config = Config(WorkerRole::kDecode);
  for (const bool prefix_cache : {false, true}) {
    for (const uint32_t num_tokens : {5u, 6u, 8u, 9u, 21u}) {
      for (const uint32_t num_choices : {1u, 3u}) {
        SCOPED_TRACE(testing::Message() << num_tokens << " tokens, " << num_choices << " choices");
        const uint32_t num_unseen = num_tokens < 9 ? 0 : (num_tokens + 1 - 6) / 4;
        ToyWorker worker(config, 64, prefix_cache);
        const SequenceSpec spec = worker.Spec(1, Chatty(num_tokens), Limits(40), num_choices);
        const uint32_t need = worker.scheduler().BlocksToReserve(num_tokens, num_choices);
        EXPECT_EQ(need, (num_tokens + 3) / 4 - num_unseen + num_choices);
        std::vector<BlockHandle> blocks;
        ASSERT_TRUE(worker.pool().Allocate(need, BlockState::kReserved, spec.uid, &blocks));
        worker.Bind(spec, blocks);
        worker.scheduler().ForEachSequence([&](const Sequence& sequence) {
          EXPECT_EQ(sequence.table.num_released(), num_unseen);
        });
        RunToEnd(worker);
        ExpectOutputs(worker, 1, Chatty(num_tokens), Limits(40), num_choices);
        EXPECT_EQ(worker.pool().num_available(), 64u);
      }
    }
  }
}

// A pool for a window and a chunk is enough for a prompt of any length, and for its answer.
TEST(WindowTest, APromptHoldsWhatItsChunkSees) {
  const SchedulerConfig config = Config(WorkerRole::kDecode);
  EXPECT_EQ(config.MaxHeldBlocks(), kMostHeld);
  for (const bool prefix_cache : {false, true}) {
    for (const uint32_t num_tokens : {4u, 23u, 24u, 25u, 90u, 93u}) {
      for (const uint32_t num_choices : {1u, 2u}) {
        SCOPED_TRACE(testing::Message() << prefix_cache << " " << num_tokens << " " << num_choices);
        const uint32_t num_blocks = kMostHeld + (num_choices > 1 ? num_choices : 0);
        ToyWorker worker(config, num_blocks, prefix_cache);
        const std::vector<TokenId> prompt = Chatty(num_tokens);
        const Status added =
            worker.scheduler().AddWaiting(worker.Spec(1, prompt, Limits(60), num_choices), 0);
        ASSERT_TRUE(added.ok()) << added;
        RunToEnd(worker);
        ExpectOutputs(worker, 1, prompt, Limits(60), num_choices);
        EXPECT_EQ(worker.pool().num_available(), num_blocks);
      }
    }
  }
}

TEST(WindowTest, APoolWithoutRoomForAWindowAndAChunkTakesNoLongPrompt) {
  ToyWorker worker(Config(WorkerRole::kDecode), kMostHeld - 1);
  EXPECT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, Chatty(8), Limits(12)), 0).ok());
  EXPECT_EQ(worker.scheduler().AddWaiting(worker.Spec(2, Chatty(8), Limits(20)), 0).code(),
            StatusCode::kOutOfRange);
  EXPECT_EQ(worker.scheduler().AddWaiting(worker.Spec(3, Chatty(90), Limits(2)), 0).code(),
            StatusCode::kOutOfRange);
}

TEST(WindowTest, APrefillWorkerHoldsItsPromptWhole) {
  ToyWorker worker(Config(WorkerRole::kPrefill), 23);
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, Chatty(90), Limits(60)), 0).ok());
  while (worker.done.empty()) worker.Step();
  EXPECT_EQ(worker.scheduler().Find(SequenceId(1))->table.num_released(), 0u);
  EXPECT_EQ(worker.pool().num_available(), 0u);
  EXPECT_TRUE(worker.scheduler().Remove(SequenceId(1)));
}

TEST(WindowTest, ACachedPrefixIsHeldFromItsWindowOn) {
  ToyWorker worker(Config(WorkerRole::kDecode), 40, /*prefix_cache=*/true);
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, Chatty(90), Limits(2)), 0).ok());
  RunToEnd(worker);
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(2, Chatty(94), Limits(20)), 0).ok());
  worker.Step();
  EXPECT_EQ(worker.num_hit_tokens, 88u);
  EXPECT_LE(40 - worker.pool().num_available(), kMostHeld);
  RunToEnd(worker);
  ExpectOutputs(worker, 2, Chatty(94), Limits(20), 1);
}

// Two prompts hold the same blocks of a beginning that was cached, and none is free: the first one
// gets no room from what it releases, since the second one holds that too.
TEST(WindowTest, APromptLosesItsBlocksWhereOthersHoldWhatItReleased) {
  ToyWorker worker(Config(WorkerRole::kDecode), 20, /*prefix_cache=*/true);
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, Chatty(60), Limits(1)), 0).ok());
  RunToEnd(worker);
  const std::vector<TokenId> first = Chatty(100);
  std::vector<TokenId> second = first;
  std::fill(second.begin() + 60, second.end(), 7);
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(2, first, Limits(20)), 0).ok());
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(3, second, Limits(20)), 0).ok());
  EXPECT_EQ(worker.Step().items.size(), 2u);
  EXPECT_EQ(worker.num_hit_tokens, 120u);
  std::vector<BlockHandle> others;
  ASSERT_TRUE(
      worker.pool().Allocate(worker.pool().num_available(), BlockState::kReserved, {}, &others));
  const BatchPlan plan = worker.Step();
  EXPECT_EQ(plan.items.size(), 1u) << "the second goes on with what both released";
  EXPECT_EQ(plan.preempted.size(), 1u);
  for (const BlockHandle block : others) worker.pool().DropRequestRef(block);
  RunToEnd(worker);
  ExpectOutputs(worker, 2, first, Limits(20), 1);
  ExpectOutputs(worker, 3, second, Limits(20), 1);
  EXPECT_EQ(worker.pool().num_available(), 20u);
}

}  // namespace
}  // namespace baton::scheduler
