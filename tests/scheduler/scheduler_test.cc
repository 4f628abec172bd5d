#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "src/base/priority.h"
#include "tests/scheduler/toy_checks.h"

namespace baton::scheduler {

using kv::BlockHandle;
using kv::BlockPool;
using kv::BlockState;

namespace {

// The items of a plan as "sequence:first_pos+num_tokens".
std::vector<std::string> Items(const BatchPlan& plan) {
  std::vector<std::string> items;
  for (const BatchItem& item : plan.items) {
    items.push_back(fmt::format("{}:{}+{}", item.id, item.first_pos, item.num_tokens));
  }
  return items;
}

TEST(SchedulerTest, TheFirstChunkIsAsLongAsTheFirstEstimateAllows) {
  SchedulerConfig config = ToyConfig();
  const auto first_chunk = [&config] {
    ToyWorker worker(config, 64);
    EXPECT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, Chatty(90), Limits(1)), 0).ok());
    return worker.scheduler().Plan(0).shape.prefill_tokens;
  };
  config.max_chunk = 90;
  config.max_batch_tokens = 128;
  config.target_step_us = 17'000;
  EXPECT_EQ(first_chunk(), 16u) << "1 ms a token on a machine that nobody knows";
  config.first_cost.prefill_token_us = 100;
  EXPECT_EQ(first_chunk(), 90u);
  config.first_cost.fixed_us = 12'900;
  EXPECT_EQ(first_chunk(), 40u) << "41 tokens would fit; chunks end with a block";
}

// The next turn of a long chat, of which one block is new.
TEST(SchedulerTest, WhatTheCacheHasOfAPromptIsNotLeft) {
  for (const bool prefix_cache : {false, true}) {
    SchedulerConfig config = ToyConfig();
    config.max_prefilling = 1;
    ToyWorker worker(config, 64, prefix_cache);
    const auto add = [&worker](uint64_t uid, std::vector<TokenId> prompt) {
      // Two tokens: the sequence outlives the step that is looked at.
      SequenceSpec spec = worker.Spec(uid, std::move(prompt), Limits(2));
      EXPECT_TRUE(worker.scheduler().AddWaiting(std::move(spec), worker.now_us()).ok());
    };
    std::vector<TokenId> chat = Chatty(160);
    add(1, chat);
    RunToEnd(worker);
    std::vector<TokenId> other(60, 7);
    other[0] = kToyChatty;
    add(2, other);
    const std::vector<TokenId> turn = Prompt(6, 300);
    chat.insert(chat.end(), turn.begin(), turn.end());
    add(3, chat);
    const BatchPlan plan = worker.Step();
    ASSERT_FALSE(plan.items.empty());
    EXPECT_EQ(plan.items[0].sequence->spec.uid.lo, prefix_cache ? 3u : 2u);
    RunToEnd(worker);
  }
}

TEST(SchedulerTest, ALastChunkIsPlannedWithItsLogits) {
  SchedulerConfig config = ToyConfig();
  config.target_step_us = 16'000;  // 16 tokens, until a step was measured
  ToyWorker worker(config, 64);
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, Chatty(20), Limits(3)), 0).ok());
  const BatchPlan chunk = worker.Step();
  ASSERT_EQ(chunk.shape.prefill_tokens, 16u);
  EXPECT_EQ(chunk.shape.logit_rows, 0u);
  EXPECT_EQ(worker.Step().shape.logit_rows, 1u) << "the last four tokens";
  EXPECT_EQ(worker.Step().shape.logit_rows, 1u) << "a decode row";
}

TEST(SchedulerTest, APromptIsChunkedAtBlockBoundariesThenDecodes) {
  ToyWorker worker(ToyConfig(), 64);
  worker.cost = [](const StepShape&) { return 10; };
  const auto prompt = Chatty(70);
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, prompt, Limits(3)), 0).ok());
  for (int i = 0; i < 20; ++i) {  // a fast machine, soon known as such
    StepShape shape;
    shape.AddPrefill(0, 32);
    const_cast<StepCost&>(worker.scheduler().cost()).Measure(shape, 10);
  }
  BatchPlan plan = worker.Step();
  EXPECT_THAT(Items(plan), testing::ElementsAre("1:0+32"));
  EXPECT_THAT(plan.started, testing::ElementsAre(SequenceId(1)));
  EXPECT_FALSE(plan.items[0].wants_logits);
  plan = worker.Step();
  EXPECT_THAT(Items(plan), testing::ElementsAre("1:32+32"));
  EXPECT_TRUE(plan.started.empty());
  plan = worker.Step();
  EXPECT_THAT(Items(plan), testing::ElementsAre("1:64+6"));
  EXPECT_TRUE(plan.items[0].wants_logits);
  EXPECT_FALSE(plan.items[0].ends_prompt);
  EXPECT_THAT(Items(worker.Step()), testing::ElementsAre("1:70+1"));
  EXPECT_THAT(Items(worker.Step()), testing::ElementsAre("1:71+1"));
  EXPECT_FALSE(worker.scheduler().HasWork());
  ExpectOutputs(worker, 1, prompt, Limits(3));
  EXPECT_EQ(worker.pool().num_free(), 64u);
}

// Decoding sequences of 8 tokens each with so many output tokens left.
void StartDecoding(ToyWorker& worker, const std::vector<uint32_t>& max_tokens) {
  for (uint64_t i = 0; i < max_tokens.size(); ++i) {
    const SequenceSpec spec = worker.Spec(i + 1, Chatty(8), Limits(max_tokens[i] + 1));
    EXPECT_TRUE(worker.scheduler().AddWaiting(spec, 0).ok());
  }
  while (worker.scheduler().Load().num_running < max_tokens.size()) worker.Step();
}

TEST(SchedulerTest, AStepIsPlannedAheadOfTheTokensThatFeedIt) {
  ToyWorker worker(ToyConfig(), 64);
  StartDecoding(worker, {5, 1, 5});
  Scheduler& scheduler = worker.scheduler();
  const BatchPlan now = scheduler.Plan(0);
  ASSERT_EQ(now.items.size(), 3u);
  const BatchPlan* const planned = scheduler.PlanAhead();
  ASSERT_NE(planned, nullptr);
  const BatchPlan ahead = *planned;
  ASSERT_EQ(ahead.items.size(), 2u) << "the second will have its last token";
  EXPECT_EQ(ahead.items[0].fed_by, 0u);
  EXPECT_EQ(ahead.items[1].fed_by, 2u);
  for (const BatchItem& item : ahead.items) {
    EXPECT_EQ(item.first_pos, now.items[item.fed_by].first_pos + 1);
    EXPECT_TRUE(item.is_decode && item.wants_logits && !item.ends_prompt);
  }
  // The third stops early: its row ahead is for nothing, and its blocks stay until then.
  const ItemResult results[] = {{7, false}, {8, true}, {kToyStop, true}};
  scheduler.Finish(results, 10, 0);
  EXPECT_EQ(scheduler.Find(now.items[1].id), nullptr);
  ASSERT_NE(scheduler.Find(now.items[2].id), nullptr);
  EXPECT_FALSE(scheduler.Find(now.items[2].id)->table.empty());
  EXPECT_EQ(scheduler.Find(now.items[0].id)->spec.tokens.back(), 7);
  EXPECT_EQ(scheduler.plan().items.size(), 2u) << "the step ahead is the planned one";
  // Behind it only the first goes on.
  const BatchPlan* const next = scheduler.PlanAhead();
  ASSERT_NE(next, nullptr);
  ASSERT_EQ(next->items.size(), 1u);
  EXPECT_EQ(next->items[0].fed_by, 0u);
  scheduler.Finish(std::vector<ItemResult>{{9, false}, {1, false}}, 10, 0);
  EXPECT_EQ(scheduler.Find(now.items[2].id), nullptr);
  scheduler.Finish(std::vector<ItemResult>{{10, true}}, 10, 0);
  EXPECT_FALSE(scheduler.HasWork());
  EXPECT_EQ(worker.pool().num_free(), 64u);
}

TEST(SchedulerTest, APromptThatAwaitsIsComputedButForItsLastChunk) {
  ToyWorker worker(ToyConfig(), 64);
  const SequenceLimits limits = Limits(3);
  const SequenceSpec awaiting = worker.Spec(1, Chatty(10), limits);
  const SequenceSpec small = worker.Spec(2, Chatty(4), limits);
  const SequenceSpec other = worker.Spec(3, Chatty(9), limits);
  for (const SequenceSpec& spec : {awaiting, small, other}) {
    ASSERT_TRUE(worker.scheduler().AddWaiting(spec, 0).ok());
  }
  worker.scheduler().SetAwaiting(awaiting.id, true);
  worker.scheduler().SetAwaiting(small.id, true);
  EXPECT_EQ(worker.scheduler().Load().num_awaiting, 2u);
  EXPECT_THAT(Items(worker.Step()), ::testing::UnorderedElementsAre("1:0+8", "3:0+9"));
  worker.Step();
  worker.Step();
  ExpectOutputs(worker, 3, Chatty(9), limits);
  EXPECT_TRUE(worker.scheduler().HasWork());
  EXPECT_TRUE(worker.scheduler().Plan(0).empty()) << "both wait for an event";
  worker.scheduler().SetAwaiting(awaiting.id, false);
  worker.scheduler().SetAwaiting(small.id, false);
  EXPECT_THAT(Items(worker.Step()), ::testing::UnorderedElementsAre("1:8+2", "2:0+4"));
  RunToEnd(worker);
  ExpectOutputs(worker, 1, Chatty(10), limits);
  ExpectOutputs(worker, 2, Chatty(4), limits);
  EXPECT_EQ(worker.pool().num_free(), 64u);
}

TEST(SchedulerTest, APlanWithoutItemsStillCopiesTheStateOfAHit) {
  SchedulerConfig config = ToyConfig();
  config.state_blocks = 2;
  ToyWorker worker(config, 64, /*prefix_cache=*/true);
  const SequenceLimits limits = Limits(3);
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, Chatty(10), limits), 0).ok());
  RunToEnd(worker);
  const SequenceSpec again = worker.Spec(2, Chatty(10), limits);
  ASSERT_TRUE(worker.scheduler().AddWaiting(again, 0).ok());
  worker.scheduler().SetAwaiting(again.id, true);
  const BatchPlan plan = worker.Step();
  EXPECT_TRUE(plan.empty()) << "all that is left of the prompt awaits";
  EXPECT_EQ(plan.copies.size(), 2u);
  EXPECT_GT(worker.num_hit_tokens, 0u);
  worker.scheduler().SetAwaiting(again.id, false);
  RunToEnd(worker);
  ExpectOutputs(worker, 2, Chatty(10), limits);
}

TEST(SchedulerTest, AChunkGoesOnPastACheckpointAndEndsBeforeTheNext) {
  SchedulerConfig config = ToyConfig();
  config.state_blocks = 2;
  config.checkpoint_tokens = 16;
  ToyWorker worker(config, 64, /*prefix_cache=*/true);
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, Chatty(70), Limits(3)), 0).ok());
  std::vector<std::string> seen;
  for (int i = 0; i < 5; ++i) {
    const BatchPlan plan = worker.Step();
    ASSERT_EQ(plan.checkpoints.size(), 1u);
    seen.push_back(fmt::format("{} copies {}", Items(plan)[0], plan.checkpoints[0].num_tokens));
  }
  EXPECT_THAT(seen,
              ::testing::ElementsAre("1:0+28 copies 16", "1:28+16 copies 32", "1:44+16 copies 48",
                                     "1:60+4 copies 64", "1:64+6 copies 68"));
  RunToEnd(worker);
  ExpectOutputs(worker, 1, Chatty(70), Limits(3));
}

TEST(SchedulerTest, APromptThatCameByAHandOffLeavesAStateAtTheFirstBorderAfterIt) {
  SchedulerConfig config = ToyConfig(WorkerRole::kDecode);
  config.state_blocks = 2;
  for (const uint32_t num_tokens : {10u, 12u}) {
    ToyWorker worker(config, 64, /*prefix_cache=*/true);
    const SequenceSpec spec = worker.Spec(1, Chatty(num_tokens), Limits(8));
    std::vector<BlockHandle> blocks;
    ASSERT_TRUE(worker.pool().Allocate(worker.scheduler().BlocksToReserve(num_tokens, 1),
                                       BlockState::kReserved, spec.uid, &blocks));
    worker.Bind(spec, blocks);
    RunToEnd(worker);
    ExpectOutputs(worker, 1, Chatty(num_tokens), Limits(8));
    std::vector<TokenId> next = Chatty(num_tokens);
    const std::vector<TokenId>& answer = worker.outputs[{1, 0}];
    next.insert(next.end(), answer.begin(), answer.end());
    ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(2, next, Limits(3)), 0).ok());
    RunToEnd(worker);
    ExpectOutputs(worker, 2, next, Limits(3));
    EXPECT_EQ(worker.num_hit_tokens, num_tokens == 10 ? 12u : 16u);
  }
}

// A plan ahead has no checkpoints, so it would pass over the border.
TEST(SchedulerTest, AStepThatLeavesACheckpointIsNotPlannedAhead) {
  SchedulerConfig config = ToyConfig(WorkerRole::kDecode);
  config.state_blocks = 2;
  ToyWorker worker(config, 64, /*prefix_cache=*/true);
  const SequenceSpec spec = worker.Spec(1, Chatty(10), Limits(8));
  std::vector<BlockHandle> blocks;
  ASSERT_TRUE(worker.pool().Allocate(worker.scheduler().BlocksToReserve(10, 1),
                                     BlockState::kReserved, spec.uid, &blocks));
  worker.Bind(spec, blocks);
  ASSERT_EQ(worker.scheduler().Plan(0).items[0].first_pos, 10u);
  EXPECT_EQ(worker.scheduler().PlanAhead(), nullptr) << "token 12 is at a border";
  worker.scheduler().Finish(std::vector<ItemResult>{{7, false}}, 10, 0);
  EXPECT_EQ(worker.scheduler().Plan(0).checkpoints.size(), 1u);
  EXPECT_NE(worker.scheduler().PlanAhead(), nullptr);
}

TEST(SchedulerTest, WhatHoldsNoNumbersIsFoundByNoOtherPrompt) {
  SchedulerConfig config = ToyConfig();
  config.state_blocks = 2;
  ToyWorker worker(config, 64, /*prefix_cache=*/true);
  const SequenceLimits limits = Limits(3);
  worker.is_bad = [](const BatchItem& item) { return item.sequence->spec.uid.lo == 1; };
  for (const uint64_t uid : {1, 2, 3}) {
    ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(uid, Chatty(40), limits), 0).ok());
    RunToEnd(worker);
    ExpectOutputs(worker, uid, Chatty(40), limits);
    EXPECT_EQ(worker.num_hit_tokens > 0, uid == 3) << "prompt " << uid;
  }
}

TEST(SchedulerTest, ARowWithoutATokenIsComputedAgainAndHoldsNobody) {
  ToyWorker worker(ToyConfig(), 64);
  StartDecoding(worker, {9, 9});
  const BatchPlan plan = worker.scheduler().Plan(0);
  ASSERT_EQ(plan.items.size(), 2u);
  const SequenceId late = plan.items[0].id;
  const uint32_t position = plan.items[0].first_pos;
  worker.scheduler().Finish(std::vector<ItemResult>{{.retry = true}, {7, false}}, 10, 0);
  EXPECT_EQ(worker.scheduler().Load().num_awaiting, 1u);
  const BatchPlan others = worker.scheduler().Plan(0);
  ASSERT_EQ(others.items.size(), 1u);
  EXPECT_EQ(others.items[0].id, plan.items[1].id);
  worker.scheduler().Finish(std::vector<ItemResult>{{8, false}}, 10, 0);
  worker.scheduler().SetAwaiting(late, false);
  const BatchPlan again = worker.scheduler().Plan(0);
  ASSERT_EQ(again.items.size(), 2u);
  EXPECT_EQ(again.items[0].id, late);
  EXPECT_EQ(again.items[0].first_pos, position);
  worker.scheduler().Finish(std::vector<ItemResult>{{.retry = true}, {7, true}}, 10, 0);
  EXPECT_TRUE(worker.scheduler().Remove(late)) << "a cancel while it awaits";
  EXPECT_EQ(worker.scheduler().Load().num_awaiting, 0u);
  EXPECT_FALSE(worker.scheduler().HasWork());
  EXPECT_EQ(worker.pool().num_free(), 64u);
  EXPECT_TRUE(worker.scheduler().Audit().ok());
}

TEST(SchedulerTest, PromptsThatAwaitLeaveHalfOfThePlacesToOthers) {
  ToyWorker worker(ToyConfig(), 64);
  for (uint64_t uid = 1; uid <= 6; ++uid) {
    const SequenceSpec spec = worker.Spec(uid, Chatty(9), Limits(2));
    ASSERT_TRUE(worker.scheduler().AddWaiting(spec, 0).ok());
    worker.scheduler().SetAwaiting(spec.id, true);
  }
  EXPECT_EQ(worker.Step().items.size(), 2u) << "of max_prefilling 4";
  const SequenceSpec free = worker.Spec(9, Chatty(9), Limits(2));
  ASSERT_TRUE(worker.scheduler().AddWaiting(free, 0).ok());
  EXPECT_THAT(Items(worker.Step()), ::testing::ElementsAre("7:0+9"));
}

TEST(SchedulerTest, NothingIsPlannedAheadWhereTheNextStepMayBeAnother) {
  {
    ToyWorker worker(ToyConfig(), 64);
    StartDecoding(worker, {5});
    ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(9, Chatty(90), Limits(5)), 0).ok());
    ASSERT_FALSE(worker.scheduler().Plan(0).empty());
    EXPECT_EQ(worker.scheduler().PlanAhead(), nullptr) << "a prompt is being computed";
  }
  {
    ToyWorker worker(ToyConfig(), 64);
    StartDecoding(worker, {1});
    ASSERT_FALSE(worker.scheduler().Plan(0).empty());
    EXPECT_EQ(worker.scheduler().PlanAhead(), nullptr) << "the only one will be at its end";
  }
  {
    // Each needs a block for its next token but one; there is one.
    ToyWorker worker(ToyConfig(), 64);
    StartDecoding(worker, {40, 40});
    const uint32_t block_size = ToyConfig().block_size;
    while ((worker.scheduler().Plan(0).items[0].first_pos + 2) % block_size != 1) {
      worker.scheduler().Finish(std::vector<ItemResult>(2, {1, false}), 10, 0);
    }
    std::vector<BlockHandle> others;
    ASSERT_TRUE(worker.pool().Allocate(worker.pool().num_free() - 1, BlockState::kReserved, {0, 77},
                                       &others));
    EXPECT_EQ(worker.scheduler().PlanAhead(), nullptr) << "nobody loses blocks for a step ahead";
    worker.scheduler().Finish(std::vector<ItemResult>(2, {1, false}), 10, 0);
    EXPECT_TRUE(worker.scheduler().Plan(0).preempted.size() == 1) << "but for the step itself";
    for (const BlockHandle& block : others) worker.pool().DropRequestRef(block);
  }
}

TEST(SchedulerTest, StepsStayNearTheirTargetOnceTheMachineIsKnown) {
  SchedulerConfig config = ToyConfig();
  config.max_batch_tokens = 1'024;
  config.max_chunk = 512;
  config.target_step_us = 20'000;
  config.target_mixed_step_us = 5'000;
  ToyWorker worker(config, 4'000);
  const auto chatty = Chatty(8);
  const auto prompt = Chatty(2'000);
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, prompt, Limits(1, 4'000)), 0).ok());
  std::vector<int64_t> alone;
  while (worker.scheduler().HasWork()) alone.push_back(worker.cost(worker.Step().shape));
  EXPECT_LE(*std::max_element(alone.begin() + 3, alone.end()), 24'000);
  EXPECT_GE(*std::max_element(alone.begin() + 3, alone.end()), 12'000) << "and use it";

  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(2, chatty, Limits(900)), 0).ok());
  for (int i = 0; i < 60; ++i) worker.Step();
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(3, prompt, Limits(1, 4'000)), 0).ok());
  int64_t slowest = 0;
  uint32_t steps = 0;
  while (!worker.finished[{3, 0}]) {
    const BatchPlan plan = worker.Step();
    EXPECT_EQ(plan.num_decode_items(), 1u) << "decode never pauses for a prompt";
    slowest = std::max(slowest, worker.cost(plan.shape));
    ++steps;
  }
  EXPECT_LE(slowest, 6'500);
  EXPECT_LE(steps, 100u) << "the prompt takes its share of every step";
}

// Streams that begin together share the steps of their decode worker. A prompt that comes alone
// waits for nobody, and a long one makes no step longer.
TEST(SchedulerTest, APrefillWorkerWithAQueueEndsSeveralShortPromptsInAStep) {
  SchedulerConfig config = ToyConfig(WorkerRole::kPrefill);
  config.max_batch_tokens = 1'024;
  config.max_chunk = 512;
  config.max_prefilling = 16;
  config.max_waiting = 100;
  config.target_step_us = 20'000;
  ToyWorker worker(config, 4'000);
  uint64_t uid = 0;
  const auto add = [&](int num_prompts, int num_tokens) {
    for (int i = 0; i < num_prompts; ++i) {
      const auto spec = worker.Spec(++uid, Prompt(num_tokens), Limits(5, 4'000));
      ASSERT_TRUE(worker.scheduler().AddWaiting(spec, worker.now_us()).ok());
    }
  };
  // The slowest step until nothing waits, and the most prompts that ended in one.
  struct Steps {
    int64_t slowest_us = 0;
    size_t most_done = 0;
  };
  const auto run = [&] {
    Steps steps;
    while (worker.scheduler().HasWork()) {
      steps.slowest_us = std::max(steps.slowest_us, worker.cost(worker.Step().shape));
      steps.most_done = std::max(steps.most_done, worker.done.size());
      for (const SequenceId id : worker.done) EXPECT_TRUE(worker.scheduler().Remove(id));
    }
    return steps;
  };
  add(1, 2'000);
  run();  // now its speed is known: 0.1 ms a token
  add(40, 64);
  const Steps crowded = run();
  EXPECT_GE(crowded.most_done, 8u) << "four targets have twelve of them";
  EXPECT_LE(crowded.slowest_us, 80'000) << "four targets at most";
  add(20, 64);
  EXPECT_GE(run().most_done, 8u) << "half of 128 ms has ten of them";
  add(5, 64);
  const Steps few = run();
  EXPECT_LE(few.most_done, 3u) << "as many as end within the target";
  EXPECT_LE(few.slowest_us, 24'000);
  add(5, 1'000);
  EXPECT_LE(run().slowest_us, 24'000) << "half a second waits, and no prompt is short";
  add(1, 1'000);
  for (int i = 0; i < 3; ++i) worker.Step();
  worker.AdvanceUs(20'000'000);  // the long one comes first for its age
  add(40, 64);
  EXPECT_LE(worker.cost(worker.Step().shape), 24'000) << "it does not share its steps with many";
}

// A loose objective lets chunks grow beyond the usual bound of steps with decode rows, a tight one
// cuts them; neither stops the prompt.
TEST(SchedulerTest, ChunksBesideDecodeRowsFitIntoTheObjective) {
  struct Case {
    int64_t itl_objective_us;
    int64_t slowest_us;  // of a step, with three tenths for the estimate
    int64_t fullest_us;  // that some step reaches
  };
  for (const Case& c : {Case{3'000, 3'400, 1'500}, Case{12'000, 13'600, 6'500}}) {
    SchedulerConfig config = ToyConfig();
    config.max_batch_tokens = 1'024;
    config.max_chunk = 512;
    config.target_step_us = 20'000;
    config.target_mixed_step_us = 5'000;
    config.itl_objective_us = c.itl_objective_us;
    ToyWorker worker(config, 4'000);
    const auto chatty = Chatty(8);
    const auto prompt = Chatty(2'000);
    ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, prompt, Limits(1, 4'000)), 0).ok());
    while (worker.scheduler().HasWork()) worker.Step();  // now its speed is known
    ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(2, chatty, Limits(900)), 0).ok());
    for (int i = 0; i < 60; ++i) worker.Step();
    ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(3, prompt, Limits(1, 4'000)), 0).ok());
    int64_t slowest = 0;
    while (!worker.finished[{3, 0}]) {
      const BatchPlan plan = worker.Step();
      ASSERT_EQ(plan.num_decode_items(), 1u) << "decode never pauses for a prompt";
      slowest = std::max(slowest, worker.cost(plan.shape));
    }
    EXPECT_LE(slowest, c.slowest_us) << "objective " << c.itl_objective_us;
    EXPECT_GE(slowest, c.fullest_us) << "objective " << c.itl_objective_us;
  }
}

TEST(SchedulerTest, OneBlockOfAPromptIsComputedHoweverSlowTheStep) {
  ToyWorker worker(ToyConfig(), 64);
  worker.cost = [](const StepShape&) { return 1'000'000; };
  const auto prompt = Chatty(20);
  for (uint64_t uid = 1; uid <= 2; ++uid) {
    ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(uid, Chatty(4), Limits(50)), 0).ok());
  }
  for (int i = 0; i < 10; ++i) worker.Step();
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(3, prompt, Limits(1)), 0).ok());
  for (uint32_t i = 0; i < 5; ++i) {
    const BatchPlan plan = worker.Step();
    EXPECT_EQ(plan.num_decode_items(), 2u);
    EXPECT_EQ(plan.shape.prefill_tokens, 4u);
  }
  ExpectOutputs(worker, 3, prompt, Limits(1));
}

TEST(SchedulerTest, AShortPromptOvertakesALongOneWhichStillEnds) {
  ToyWorker worker(ToyConfig(), 1'000);
  const auto long_prompt = Chatty(2'000);
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, long_prompt, Limits(1, 4'000)), 0).ok());
  for (int i = 0; i < 3; ++i) worker.Step();
  const auto short_prompt = Chatty(6);
  ASSERT_TRUE(
      worker.scheduler().AddWaiting(worker.Spec(2, short_prompt, Limits(1)), worker.now_us()).ok());
  const BatchPlan plan = worker.Step();
  ASSERT_GE(plan.items.size(), 1u);
  EXPECT_EQ(plan.items[0].id, SequenceId(2));
  EXPECT_TRUE((worker.finished[{2, 0}]));
  RunToEnd(worker);
  EXPECT_TRUE((worker.finished[{1, 0}]));
}

TEST(SchedulerTest, TheSmallerPriorityIsComputedFirstUntilTheOtherHasAged) {
  SchedulerConfig config = ToyConfig();
  config.max_prefilling = 1;
  ToyWorker worker(config, 1'000);
  const auto add = [&](uint64_t uid, int32_t priority, int64_t arrival_us) {
    SequenceSpec spec = worker.Spec(uid, Chatty(6), Limits(1));
    spec.priority = priority;
    ASSERT_TRUE(worker.scheduler().AddWaiting(std::move(spec), arrival_us).ok());
  };
  add(1, 1, 0);
  add(2, 0, kPriorityStepUs - 1);
  add(3, -1, kPriorityStepUs - 1);
  add(4, 0, kPriorityStepUs + 1);
  std::vector<SequenceId> order;
  while (worker.scheduler().HasWork()) {
    for (const BatchItem& item : worker.Step().items) order.push_back(item.id);
  }
  EXPECT_EQ(order, (std::vector{SequenceId(3), SequenceId(2), SequenceId(1), SequenceId(4)}));
}

TEST(SchedulerTest, ALongPromptIsNotStarvedByAStreamOfShortOnes) {
  SchedulerConfig config = ToyConfig();
  config.aging_tokens_per_s = 500;
  ToyWorker worker(config, 1'000);
  worker.cost = [](const StepShape& shape) { return 1'000 * int64_t{shape.prefill_tokens}; };
  config.target_step_us = 16'000;
  const auto long_prompt = Chatty(2'000);
  const int64_t start_us = worker.now_us();
  ASSERT_TRUE(
      worker.scheduler().AddWaiting(worker.Spec(1, long_prompt, Limits(1, 4'000)), start_us).ok());
  // Short prompts arrive faster than the machine (1000 tokens a second) computes.
  uint64_t uid = 100;
  while (!worker.finished[{1, 0}]) {
    const auto prompt = Chatty(30);
    (void)worker.scheduler().AddWaiting(worker.Spec(++uid, prompt, Limits(1)), worker.now_us());
    worker.Step();
    ASSERT_LT(worker.now_us() - start_us, 20'000'000) << "2000 tokens at an aging of 500 a second";
  }
  EXPECT_GT(worker.now_us() - start_us, 2'500'000) << "it did yield to short ones";
}

TEST(SchedulerTest, TheYoungestLosesItsBlocksAndIsReplayed) {
  ToyWorker worker(ToyConfig(), 12);
  const SequenceLimits limits = Limits(30);
  std::vector<std::vector<TokenId>> prompts;
  for (uint64_t uid = 1; uid <= 3; ++uid) {
    prompts.push_back(Chatty(9 + static_cast<uint32_t>(uid)));
    ASSERT_TRUE(worker.scheduler()
                    .AddWaiting(worker.Spec(uid, prompts.back(), limits), worker.now_us())
                    .ok());
    worker.AdvanceUs(1);
  }
  std::vector<SequenceId> preempted;
  while (worker.scheduler().HasWork()) {
    const BatchPlan plan = worker.Step();
    preempted.insert(preempted.end(), plan.preempted.begin(), plan.preempted.end());
  }
  ASSERT_FALSE(preempted.empty());
  EXPECT_EQ(preempted[0], SequenceId(3));
  EXPECT_THAT(preempted, testing::Not(testing::Contains(SequenceId(1)))) << "the oldest goes on";
  EXPECT_EQ(worker.scheduler().Load().num_preemptions, preempted.size());
  for (uint64_t uid = 1; uid <= 3; ++uid) ExpectOutputs(worker, uid, prompts[uid - 1], limits);
}

TEST(SchedulerTest, AllBlocksHeldByWaitingChoicesIsNoDeadlock) {
  // Two bound sequences may run, two more hold blocks and wait; growth must take from those.
  SchedulerConfig config = ToyConfig(WorkerRole::kDecode);
  config.max_running = 2;
  ToyWorker worker(config, 12);
  const SequenceLimits limits = Limits(12);
  std::vector<std::vector<TokenId>> prompts;
  for (uint64_t uid = 1; uid <= 4; ++uid) {
    prompts.push_back(Chatty(8));
    SequenceSpec spec = worker.Spec(uid, prompts.back(), limits);
    std::vector<BlockHandle> blocks;
    ASSERT_TRUE(worker.pool().Allocate(3, BlockState::kReserved, spec.uid, &blocks));
    worker.Bind(spec, blocks);
    worker.AdvanceUs(1);
  }
  ASSERT_EQ(worker.pool().num_free(), 0u);
  RunToEnd(worker);
  EXPECT_GT(worker.scheduler().Load().num_preemptions, 0u);
  for (uint64_t uid = 1; uid <= 4; ++uid) ExpectOutputs(worker, uid, prompts[uid - 1], limits);
}

TEST(SchedulerTest, WhatCanNeverFitIsRefusedForGood) {
  ToyWorker worker(ToyConfig(), 8);  // 32 tokens
  uint64_t uid = 0;
  auto code = [&](uint32_t prompt, uint32_t max_tokens, uint32_t context, uint32_t n) {
    return worker.scheduler()
        .AddWaiting(worker.Spec(++uid, Prompt(prompt), Limits(max_tokens, context), n), 0)
        .code();
  };
  EXPECT_EQ(code(33, 1, 100, 1), StatusCode::kOutOfRange);
  EXPECT_EQ(code(20, 14, 100, 1), StatusCode::kOutOfRange) << "its 33rd token needs KV";
  EXPECT_EQ(code(20, 5, 20, 1), StatusCode::kOutOfRange) << "the context is full";
  EXPECT_EQ(code(25, 1, 100, 2), StatusCode::kOutOfRange) << "7 blocks and one a choice";
  EXPECT_EQ(code(0, 1, 100, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(20, 13, 100, 1), StatusCode::kOk);
  EXPECT_EQ(code(20, 100, 33, 1), StatusCode::kOk) << "the context is the limit";
  EXPECT_EQ(code(24, 1, 100, 2), StatusCode::kOk);
  const Status status = worker.scheduler().AddWaiting(worker.Spec(99, Prompt(40), Limits(1)), 0);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("the pool has 8"));
  RunToEnd(worker);
}

TEST(SchedulerTest, TheQueueIsBounded) {
  ToyWorker worker(ToyConfig(), 8);
  for (uint32_t i = 0; i < 16; ++i) {
    ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(i, Prompt(4), Limits(1)), 0).ok());
  }
  EXPECT_EQ(worker.scheduler().AddWaiting(worker.Spec(99, Prompt(4), Limits(1)), 0).code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(worker.scheduler().Load().num_waiting, 16u);
  EXPECT_EQ(worker.scheduler().Load().backlog_tokens, 64u);
  EXPECT_GT(worker.scheduler().Load().backlog_us, 0);
  RunToEnd(worker);
  EXPECT_EQ(worker.scheduler().Load().backlog_tokens, 0u);
}

// One token, stop at once, full context, lengths around block boundaries, one and many choices.
class CornerTest : public testing::TestWithParam<std::tuple<uint32_t, uint32_t, uint32_t>> {};

TEST_P(CornerTest, LocalAndBoundSequencesSayTheSame) {
  const auto [prompt_tokens, max_tokens, n] = GetParam();
  for (const uint32_t context : {prompt_tokens + 1, prompt_tokens + 2, 1'000u}) {
    const SequenceLimits limits = Limits(max_tokens, context);
    const auto prompt = Prompt(prompt_tokens, static_cast<TokenId>(max_tokens));
    ToyWorker local(ToyConfig(), 100);
    ASSERT_TRUE(local.scheduler().AddWaiting(local.Spec(1, prompt, limits, n), 0).ok());
    RunToEnd(local);
    ExpectOutputs(local, 1, prompt, limits, n);
    EXPECT_EQ(local.pool().num_free(), 100u);

    ToyWorker bound(ToyConfig(WorkerRole::kDecode), 100);
    const SequenceSpec spec = bound.Spec(1, prompt, limits, n);
    ASSERT_TRUE(bound.scheduler().CanReserve(spec).ok());
    std::vector<BlockHandle> blocks;
    ASSERT_TRUE(bound.pool().Allocate(bound.scheduler().BlocksToReserve(prompt_tokens, n),
                                      BlockState::kReserved, spec.uid, &blocks));
    for (uint32_t i = 0; i < (prompt_tokens + 3) / 4; ++i) {
      bound.pool().SetState(blocks[i], BlockState::kReceiving);
    }
    bound.Bind(spec, blocks);
    RunToEnd(bound);
    ExpectOutputs(bound, 1, prompt, limits, n);
    EXPECT_EQ(bound.pool().num_free(), 100u);
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, CornerTest,
                         testing::Combine(testing::Values(1, 3, 4, 5, 7, 8, 9, 31, 32, 33, 65),
                                          testing::Values(1, 2, 9), testing::Values(1, 2, 5)));

TEST(SchedulerTest, APrefillWorkerKeepsADonePromptUntilItIsRemoved) {
  ToyWorker worker(ToyConfig(WorkerRole::kPrefill), 10);
  // Longer than decode could ever hold here: a prefill worker needs the prompt's blocks only.
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, Prompt(40), Limits(500), 3), 0).ok());
  while (worker.done.empty()) worker.Step();
  EXPECT_THAT(worker.done, testing::ElementsAre(SequenceId(1)));
  const Sequence* sequence = worker.scheduler().Find(SequenceId(1));
  ASSERT_NE(sequence, nullptr);
  EXPECT_EQ(sequence->state, SequenceState::kPromptDone);
  EXPECT_EQ(sequence->num_computed, 40u);
  EXPECT_EQ(sequence->table.size(), 10u);
  EXPECT_EQ(worker.scheduler().Load().num_prompt_done, 1u);
  EXPECT_FALSE(worker.scheduler().HasWork());

  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(2, Prompt(5), Limits(5)), 0).ok());
  EXPECT_TRUE(worker.Step().empty()) << "all blocks are exported: it waits";
  EXPECT_TRUE(worker.scheduler().Remove(SequenceId(1)));
  EXPECT_FALSE(worker.scheduler().Remove(SequenceId(1)));
  EXPECT_FALSE(worker.Step().empty());
  EXPECT_THAT(worker.done, testing::ElementsAre(SequenceId(2)));
}

TEST(SchedulerTest, ReservationsYieldToSequencesThatAreOwedBlocks) {
  ToyWorker worker(ToyConfig(WorkerRole::kDecode), 10);
  const auto spec = [&] { return worker.Spec(50, Prompt(8), Limits(4)); };
  EXPECT_TRUE(worker.scheduler().CanReserve(spec()).ok());
  std::vector<BlockHandle> held;
  ASSERT_TRUE(worker.pool().Allocate(7, BlockState::kReserved, {}, &held));
  EXPECT_TRUE(worker.scheduler().CanReserve(spec()).ok()) << "3 are free, 2 + 1 are needed";
  ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, Prompt(16), Limits(2)), 0).ok());
  EXPECT_TRUE(worker.Step().empty());
  EXPECT_EQ(worker.scheduler().CanReserve(spec()).code(), StatusCode::kResourceExhausted)
      << "a prompt waits for blocks";
  EXPECT_EQ(worker.scheduler().CanReserve(worker.Spec(51, Prompt(41), Limits(2))).code(),
            StatusCode::kOutOfRange);
  for (const BlockHandle& handle : held) worker.pool().DropRequestRef(handle);
  RunToEnd(worker);
}

TEST(SchedulerTest, RemoveInEveryStateReturnsTheBlocks) {
  for (int steps = 0; steps < 12; ++steps) {
    ToyWorker worker(ToyConfig(), 40);
    const auto prompt = Chatty(40);
    ASSERT_TRUE(worker.scheduler().AddWaiting(worker.Spec(1, prompt, Limits(20)), 0).ok());
    for (int i = 0; i < steps; ++i) worker.Step();
    EXPECT_TRUE(worker.scheduler().Remove(SequenceId(1)));
    EXPECT_EQ(worker.scheduler().Find(SequenceId(1)), nullptr);
    EXPECT_EQ(worker.pool().num_free(), 40u) << "after " << steps << " steps";
    EXPECT_FALSE(worker.scheduler().HasWork());
    EXPECT_TRUE(worker.scheduler().Audit().ok());
  }
}

TEST(SchedulerTest, ReplayedOutputCountsAsOutput) {
  ToyWorker worker(ToyConfig(), 40);
  const auto prompt = Chatty(10);
  const auto output = ToyOutput(prompt, 0, Limits(6));
  SequenceSpec spec = worker.Spec(1, prompt, Limits(6));
  spec.tokens.insert(spec.tokens.end(), output.begin(), output.begin() + 4);
  worker.outputs[{1, 0}].assign(output.begin(), output.begin() + 4);
  ASSERT_TRUE(worker.scheduler().AddWaiting(std::move(spec), 0).ok());
  RunToEnd(worker);
  ExpectOutputs(worker, 1, prompt, Limits(6));
}

TEST(SequenceLimitsTest, StopBeatsLengthAndTheContextCounts) {
  const SequenceLimits limits = Limits(3, 10);
  EXPECT_EQ(limits.After(4, 1, false), FinishReason::kNone);
  EXPECT_EQ(limits.After(4, 1, true), FinishReason::kStop);
  EXPECT_EQ(limits.After(4, 3, false), FinishReason::kLength);
  EXPECT_EQ(limits.After(4, 3, true), FinishReason::kStop);
  EXPECT_EQ(limits.After(8, 1, false), FinishReason::kNone);
  EXPECT_EQ(limits.After(8, 2, false), FinishReason::kLength);
  EXPECT_EQ(Limits(0xffffffff, 100).MaxTotalTokens(50), 100u) << "no overflow";
}

using SchedulerDeathTest = testing::Test;

TEST(SchedulerDeathTest, MisuseStopsTheProcess) {
  BlockPool pool(40);
  Scheduler scheduler(ToyConfig(), &pool);
  SequenceSpec spec;
  spec.id = SequenceId(1);
  spec.tokens = Prompt(5);
  spec.num_prompt_tokens = 5;
  spec.limits = Limits(5);
  ASSERT_TRUE(scheduler.AddWaiting(spec, 0).ok());
  EXPECT_DEATH((void)scheduler.AddWaiting(spec, 0), "sequence 1 exists already");
  ASSERT_FALSE(scheduler.Plan(0).empty());
  EXPECT_DEATH(scheduler.Remove(SequenceId(1)), "during a step");
  EXPECT_DEATH(scheduler.Plan(0), "before the last one is finished");
  EXPECT_DEATH(scheduler.Finish({}, 0, 0), "0 results for 1 items");
}

}  // namespace
}  // namespace baton::scheduler
