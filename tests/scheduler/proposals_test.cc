// Guesses in decode steps: how many fit, and what is left of wrong ones.
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

#include "kvcache/block_pool.h"
#include "scheduler/proposer.h"
#include "scheduler/scheduler.h"

namespace baton::scheduler {

using kv::BlockHandle;
using kv::BlockPool;
using kv::BlockState;

namespace {

// As many guesses as it may make, all of token 5.
class Eager final : public Proposer {
 public:
  void BeginStep(uint32_t num_rows, bool has_prompts) override {
    begun.emplace_back(num_rows, has_prompts);
  }
  void Propose(const Sequence&, uint32_t max_tokens, std::vector<TokenId>* out) override {
    asked.push_back(max_tokens);
    out->insert(out->end(), max_tokens, TokenId{5});
  }

  std::vector<std::pair<uint32_t, bool>> begun;
  std::vector<uint32_t> asked;
};

SchedulerConfig Config() {
  SchedulerConfig config;
  config.block_size = 4;
  config.max_batch_tokens = 24;
  config.max_chunk = 16;
  config.max_running = 8;
  config.max_prefilling = 4;
  config.max_waiting = 16;
  return config;
}

SequenceSpec Spec(uint64_t id, uint32_t num_tokens, uint32_t max_tokens) {
  SequenceSpec spec;
  spec.id = SequenceId(id);
  spec.uid = {id, id};
  spec.tokens.resize(num_tokens);
  std::iota(spec.tokens.begin(), spec.tokens.end(), 1);
  spec.num_prompt_tokens = num_tokens;
  spec.limits = {.max_tokens = max_tokens, .max_context = 1'000};
  return spec;
}

// Computes the prompts that were added: each has its first token, 9, then.
void ComputePrompts(Scheduler* scheduler) {
  while (true) {
    const BatchPlan& plan = scheduler->Plan(0);
    const bool decodes_only = plan.shape.prefill_tokens == 0;
    scheduler->Finish(std::vector<ItemResult>(plan.items.size(), {.token = 9}), 10, 0);
    if (decodes_only) return;
  }
}

TEST(ProposalsTest, AcceptedGuessesCountAsComputedAndWrongOnesAreGone) {
  BlockPool pool(64);
  Eager eager;
  Scheduler scheduler(Config(), &pool, nullptr, &eager);
  ASSERT_TRUE(scheduler.AddWaiting(Spec(1, 6, 100), 0).ok());
  ComputePrompts(&scheduler);
  const Sequence* const sequence = scheduler.Find(SequenceId(1));
  const uint32_t num_tokens = sequence->num_tokens();
  const BatchPlan& plan = scheduler.Plan(0);
  ASSERT_EQ(plan.items.size(), 1u);
  const BatchItem& item = plan.items[0];
  EXPECT_EQ(item.num_tokens, 1 + kMaxProposals);
  EXPECT_EQ(item.first_pos, num_tokens - 1);
  EXPECT_EQ(item.proposed.size(), kMaxProposals);
  EXPECT_EQ(plan.shape.decode_rows, 1 + kMaxProposals);
  EXPECT_EQ(plan.shape.logit_rows, 1 + kMaxProposals);
  EXPECT_GE(sequence->table.size() * 4, num_tokens + kMaxProposals) << "each has its place";
  EXPECT_EQ(scheduler.PlanAhead(), nullptr) << "how far it goes is not known yet";
  scheduler.Finish(std::vector<ItemResult>{{.token = 8, .num_accepted = 3}}, 10, 0);
  EXPECT_EQ(sequence->num_tokens(), num_tokens + 4);
  EXPECT_EQ(sequence->num_computed, num_tokens + 3);
  EXPECT_EQ(sequence->spec.tokens.back(), 8);
  EXPECT_EQ(sequence->spec.tokens[num_tokens + 2], 5);
  EXPECT_TRUE(scheduler.Audit().ok());
  scheduler.Plan(0);
  scheduler.Finish(std::vector<ItemResult>{{.token = 8, .finished = true, .num_accepted = 2}}, 10,
                   0);
  EXPECT_FALSE(scheduler.HasWork());
  EXPECT_EQ(pool.num_free(), 64u);
}

TEST(ProposalsTest, AStepLeavesRoomForAPromptAndForTheLastToken) {
  BlockPool pool(64);
  Eager eager;
  Scheduler scheduler(Config(), &pool, nullptr, &eager);
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(scheduler.AddWaiting(Spec(id, 4, 100), 0).ok());
  }
  ComputePrompts(&scheduler);
  eager.asked.clear();
  scheduler.Plan(0);
  // 24 tokens, less a block of 4 and 3 rows.
  EXPECT_EQ(eager.asked, (std::vector<uint32_t>{16, 1}));
  scheduler.Finish(std::vector<ItemResult>(3, {.token = 9, .finished = true}), 10, 0);
  // The output has 3 of its 4 tokens left: at most 2 guesses and the token after them.
  Scheduler other(Config(), &pool, nullptr, &eager);
  ASSERT_TRUE(other.AddWaiting(Spec(9, 4, 4), 0).ok());
  const BatchPlan& prompt = other.Plan(0);
  ASSERT_EQ(prompt.items.size(), 1u);
  other.Finish(std::vector<ItemResult>{{.token = 9}}, 10, 0);
  eager.asked.clear();
  other.Plan(0);
  EXPECT_EQ(eager.asked, (std::vector<uint32_t>{2}));
  other.Finish(std::vector<ItemResult>{{.token = 9, .finished = true, .num_accepted = 2}}, 10, 0);
  EXPECT_EQ(pool.num_free(), 64u);
}

TEST(ProposalsTest, GuessesTakeFreeBlocksOnly) {
  BlockPool pool(8);
  Eager eager;
  Scheduler scheduler(Config(), &pool, nullptr, &eager);
  ASSERT_TRUE(scheduler.AddWaiting(Spec(1, 6, 20), 0).ok());
  ComputePrompts(&scheduler);
  const Sequence* const sequence = scheduler.Find(SequenceId(1));
  std::vector<BlockHandle> held;
  ASSERT_TRUE(pool.Allocate(pool.num_free(), BlockState::kReserved, {7, 7}, &held));
  const uint32_t num_tokens = sequence->num_tokens();
  const uint32_t room = sequence->table.size() * 4 - num_tokens;
  const BatchPlan& plan = scheduler.Plan(0);
  EXPECT_TRUE(plan.preempted.empty());
  ASSERT_EQ(plan.items.size(), 1u);
  EXPECT_EQ(plan.items[0].proposed.size(), std::min(room, kMaxProposals));
  scheduler.Finish(std::vector<ItemResult>{{.token = 9, .finished = true}}, 10, 0);
  for (const BlockHandle block : held) pool.DropRequestRef(block);
}

TEST(ProposalsTest, TheProposerHearsOfPrompts) {
  BlockPool pool(64);
  Eager eager;
  Scheduler scheduler(Config(), &pool, nullptr, &eager);
  ASSERT_TRUE(scheduler.AddWaiting(Spec(1, 4, 100), 0).ok());
  ComputePrompts(&scheduler);
  EXPECT_EQ(eager.begun.back(), (std::pair<uint32_t, bool>{1, false}));
  ASSERT_TRUE(scheduler.AddWaiting(Spec(2, 4, 100), 0).ok());
  const BatchPlan& plan = scheduler.Plan(0);
  EXPECT_EQ(eager.begun.back(), (std::pair<uint32_t, bool>{1, true}));
  EXPECT_GT(plan.shape.prefill_tokens, 0u);
  scheduler.Finish(std::vector<ItemResult>(plan.items.size(), {.token = 9}), 10, 0);
}

}  // namespace
}  // namespace baton::scheduler
