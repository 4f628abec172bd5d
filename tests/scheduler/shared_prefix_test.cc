// Prompts that share a beginning: what the prefix cache keeps of them, and what it gives to one
// that waits.
#include <gtest/gtest.h>

#include <vector>

#include "scheduler/scheduler.h"
#include "tests/scheduler/toy_checks.h"

namespace baton::scheduler {

using kv::BlockHandle;
using kv::BlockState;

namespace {

void Add(ToyWorker& worker, uint64_t uid, const std::vector<TokenId>& prompt, uint32_t max_tokens) {
  const Status added =
      worker.scheduler().AddWaiting(worker.Spec(uid, prompt, Limits(max_tokens)), worker.now_us());
  ASSERT_TRUE(added.ok()) << added;
}

// Tokens that a prompt alone finds in the cache.
uint64_t HitsOf(ToyWorker& worker, uint64_t uid, const std::vector<TokenId>& prompt) {
  const uint64_t before = worker.num_hit_tokens;
  Add(worker, uid, prompt, 1);
  RunToEnd(worker);
  return worker.num_hit_tokens - before;
}

// Blocks that somebody else holds.
std::vector<BlockHandle> Hold(ToyWorker& worker, uint32_t num_blocks) {
  std::vector<BlockHandle> blocks;
  EXPECT_TRUE(worker.pool().Allocate(num_blocks, BlockState::kReserved, {9, 9}, &blocks));
  return blocks;
}

void Drop(ToyWorker& worker, const std::vector<BlockHandle>& blocks) {
  for (const BlockHandle block : blocks) worker.pool().DropRequestRef(block);
}

// Two equal prompts are computed side by side, and the blocks of the first one are indexed. It
// ends, and its idle blocks are given up to somebody who takes all that is left. `num_tokens` of
// the second one's answer come after that.
void TestFrontOfTheOther(uint32_t num_tokens_after) {
  ToyWorker worker(ToyConfig(), 24, /*prefix_cache=*/true);
  const std::vector<TokenId> prompt = Chatty(17);
  Add(worker, 1, prompt, 2);
  Add(worker, 2, prompt, 30);
  ASSERT_EQ(worker.Step().started.size(), 2u);
  while (worker.outputs[{2, 0}].size() + num_tokens_after < 30) worker.Step();
  ASSERT_TRUE((worker.finished[{1, 0}]));
  const uint64_t num_evicted = worker.prefix_stats()->num_evicted;
  Drop(worker, Hold(worker, worker.pool().num_available()));
  ASSERT_GT(worker.prefix_stats()->num_evicted, num_evicted);
  RunToEnd(worker);
  std::vector<TokenId> conversation = prompt;
  const std::vector<TokenId>& answer = worker.outputs[{2, 0}];
  conversation.insert(conversation.end(), answer.begin(), answer.end());
  ASSERT_EQ(conversation.size(), 47u);
  EXPECT_EQ(HitsOf(worker, 3, conversation), 44u) << "11 blocks; the last token was never fed back";
}

TEST(SharedPrefixTest, ASequenceKeepsWhatAnEqualPromptHadComputedFirst) {
  TestFrontOfTheOther(/*num_tokens_after=*/20);
}

TEST(SharedPrefixTest, ASequenceThatEndsKeepsWhatAnEqualPromptHadComputedFirst) {
  TestFrontOfTheOther(/*num_tokens_after=*/1);
}

TEST(SharedPrefixTest, ASequenceThatIsRemovedLeavesItsBlocksToOthers) {
  ToyWorker worker(ToyConfig(WorkerRole::kPrefill), 24, /*prefix_cache=*/true);
  const std::vector<TokenId> prompt = Chatty(17);
  Add(worker, 1, prompt, 2);
  Add(worker, 2, prompt, 2);
  worker.Step();
  ASSERT_EQ(worker.done.size(), 2u);
  ASSERT_TRUE(worker.scheduler().Remove(SequenceId(1)));
  Drop(worker, Hold(worker, worker.pool().num_available()));
  ASSERT_TRUE(worker.scheduler().Remove(SequenceId(2)));
  Add(worker, 3, prompt, 2);
  worker.Step();
  EXPECT_EQ(worker.num_hit_tokens, 16u);
  ASSERT_TRUE(worker.scheduler().Remove(SequenceId(3)));
}

// A prompt that waits finds blocks which nobody has used for longer than those of another. Looking
// for them again and again is no use.
TEST(SharedPrefixTest, APromptThatWaitsKeepsNothingFromBeingGivenUp) {
  ToyWorker worker(ToyConfig(), 20, /*prefix_cache=*/true);
  const std::vector<TokenId> older = Chatty(17);
  std::vector<TokenId> newer(17, 5);
  newer[0] = kToyChatty;
  ASSERT_EQ(HitsOf(worker, 1, older), 0u);
  ASSERT_EQ(HitsOf(worker, 2, newer), 0u);
  const std::vector<BlockHandle> held = Hold(worker, 10);
  std::vector<TokenId> longer = older;
  longer.resize(45, 3);
  Add(worker, 3, longer, 1);  // eight blocks beside its hits, and six are left
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(worker.Step().empty());
    EXPECT_EQ(worker.pool().Counts().of(BlockState::kCached), 8u);
    EXPECT_EQ(worker.pool().num_available(), 10u) << "it holds nothing while it waits";
  }
  Drop(worker, Hold(worker, 3));  // two free ones, and one that is given up
  EXPECT_EQ(worker.prefix_stats()->num_evicted, 1u);
  ASSERT_TRUE(worker.scheduler().Remove(SequenceId(3)));
  Drop(worker, held);
  EXPECT_EQ(HitsOf(worker, 4, newer), 16u);
  EXPECT_EQ(HitsOf(worker, 5, older), 12u);
}

TEST(SharedPrefixTest, APromptThatWaitsStartsOnceAnEqualOneHasComputedWhatItLacks) {
  SchedulerConfig config = ToyConfig();
  config.max_chunk = 8;
  ToyWorker worker(config, 16, /*prefix_cache=*/true);
  const std::vector<TokenId> prompt = Chatty(41);
  Add(worker, 1, prompt, 1);
  ASSERT_EQ(worker.Step().started.size(), 1u);
  Add(worker, 2, prompt, 1);  // eleven blocks, and five are left
  int num_steps = 0;
  while (worker.Step().started.empty()) ASSERT_LT(++num_steps, 10);
  const Sequence* const first = worker.scheduler().Find(SequenceId(1));
  ASSERT_NE(first, nullptr) << "it had to wait for the first one's end";
  EXPECT_EQ(first->state, SequenceState::kPrefilling);
  EXPECT_EQ(worker.num_hit_tokens, 24u) << "six blocks of the first one";
  RunToEnd(worker);
  for (const uint64_t uid : {1, 2}) ExpectOutputs(worker, uid, prompt, Limits(1));
}

TEST(SharedPrefixTest, APromptThatWaitsStartsOnceThereIsRoom) {
  for (const bool prefix_cache : {false, true}) {
    ToyWorker worker(ToyConfig(), 16, prefix_cache);
    std::vector<BlockHandle> held = Hold(worker, 12);
    Add(worker, 1, Chatty(25), 1);  // seven blocks
    for (const size_t num_left : {size_t{12}, size_t{11}, size_t{10}}) {
      held.resize(num_left);
      EXPECT_TRUE(worker.Step().empty());
      EXPECT_TRUE(worker.Step().empty());
      Drop(worker, {held.back()});
    }
    held.pop_back();
    const BatchPlan plan = worker.Step();
    EXPECT_EQ(plan.started.size(), 1u);
    Drop(worker, held);
    RunToEnd(worker);
    ExpectOutputs(worker, 1, Chatty(25), Limits(1));
    EXPECT_EQ(worker.pool().num_available(), 16u);
  }
}

}  // namespace
}  // namespace baton::scheduler
