// The parts that a simulation stands on: the event queue, processes and their clocks, the network,
// the fault plan, and the model that carries its prefix through KV.
#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

#include "src/sim/asked_prefixes.h"
#include "src/sim/event_queue.h"
#include "src/sim/sim_client.h"
#include "src/sim/sim_faults.h"
#include "src/sim/sim_model.h"
#include "src/sim/sim_network.h"
#include "src/sim/sim_process.h"
#include "src/sim/sim_workload.h"

namespace baton::sim {

using engine::RequestSpec;
using kernels::AttentionSpan;
using kv::KvLayout;
using kv::KvView;
using model::ModelBatch;
using model::StateCopy;
using router::GenerateResult;

namespace {

TEST(EventQueueTest, RunsInOrderOfTimeThenOfPosting) {
  EventQueue events;
  std::string seen;
  const int64_t start_us = events.now_us();
  events.At(start_us + 20, [&] { seen += 'c'; });
  events.At(start_us + 10, [&] {
    seen += 'a';
    events.At(start_us, [&] { seen += 'b'; });  // the past is now
  });
  events.At(start_us + 20, [&] { seen += 'd'; });
  while (events.RunNext()) {
  }
  EXPECT_EQ(seen, "abcd");
  EXPECT_EQ(events.now_us(), start_us + 20);
}

RequestSpec OrderOf(uint64_t uid, std::string tenant, std::vector<TokenId> prompt) {
  RequestSpec spec;
  spec.key = {{0, uid}, 1};
  spec.num_prompt_tokens = static_cast<uint32_t>(prompt.size());
  spec.tokens = std::move(prompt);
  spec.tenant = std::move(tenant);
  return spec;
}

TEST(AskedPrefixesTest, OnlyAnotherOrderOfTheTenantMakesAHitRight) {
  AskedPrefixes asked(4);
  const RequestSpec mine = OrderOf(1, "a", {1, 2, 3, 4, 5});
  asked.Note(mine);
  asked.Note(OrderOf(2, "b", {1, 2, 3, 4, 5}));
  asked.Note(OrderOf(3, "a", {1, 2, 3, 5, 5}));
  EXPECT_FALSE(asked.MayBeHeld(mine.key)) << "another tenant, another prompt";
  const RequestSpec later = OrderOf(4, "a", {1, 2, 3, 4, 9, 9});
  asked.Note(later);
  asked.Forget(later.key);
  EXPECT_TRUE(asked.MayBeHeld(mine.key)) << "the same first block";
  EXPECT_FALSE(asked.MayBeHeld(later.key)) << "it is over";
}

TEST(AskedPrefixesTest, AnOrderAgainAndAnAnswerMayHaveLeftTheBlock) {
  AskedPrefixes asked(4);
  RequestSpec again = OrderOf(1, "a", {1, 2, 3, 4});
  asked.Note(again);
  again.key.attempt = 2;
  again.tokens.push_back(7);  // replayed
  asked.Note(again);
  EXPECT_TRUE(asked.MayBeHeld(again.key)) << "its own earlier attempt";
  const RequestSpec long_one = OrderOf(2, "a", {6, 6, 6, 6});
  asked.Note(long_one);
  EXPECT_FALSE(asked.MayBeHeld(long_one.key));
  asked.Note(OrderOf(3, "a", {6, 6}));
  EXPECT_TRUE(asked.MayBeHeld(long_one.key)) << "the answer to the short one filled the block";
}

TEST(AskedPrefixesTest, MoreBeginningsThanItKeepsAreNotJudged) {
  AskedPrefixes asked(4);
  const RequestSpec first = OrderOf(1, "a", {0, 0, 0, 0});
  asked.Note(first);
  for (TokenId i = 1; i + 1 < static_cast<TokenId>(AskedPrefixes::kMaxNames); ++i) {
    asked.Note(OrderOf(2, "a", {i, 0, 0, 0}));
  }
  EXPECT_FALSE(asked.MayBeHeld(first.key));
  asked.Note(OrderOf(2, "b", {1, 0, 0, 0}));
  EXPECT_TRUE(asked.MayBeHeld(first.key)) << "orders that it does not keep may have begun likewise";
}

TEST(SimClientTest, ACachedPromptThatItsTenantAskedOnceIsSeen) {
  SimClientDesk desk;
  std::vector<std::string> kinds;
  desk.violate = [&](std::string_view kind, const std::string&) { kinds.emplace_back(kind); };
  desk.now_us = [] { return int64_t{1}; };
  desk.has_no_faults = true;
  SimRequest request = SimWorkload(3, 100, nullptr).Make(1);
  request.request.prompt = std::vector<TokenId>{1, 2, 3, 4, 5};
  GenerateResult result;
  result.timings.cached_tokens = kSimBlock;
  const auto is_foreign = [&] {
    kinds.clear();
    SimClient client(request, &desk, [](SimClient&) {});
    client.OnFinished(result);
    return std::ranges::count(kinds, "foreign prefix") > 0;
  };
  EXPECT_TRUE(is_foreign());
  ++request.number;
  EXPECT_FALSE(is_foreign()) << "the first request may have left it";
  ++request.number;
  request.request.tenant = "another";
  EXPECT_TRUE(is_foreign());
}

TEST(SimProcessTest, AFrozenProcessDoesEverythingAfterwardsInOrder) {
  EventQueue events;
  SimProcess process(&events, 0, "p", 0);
  const int64_t start_us = events.now_us();
  std::string seen;
  process.Freeze(100);
  process.Post(start_us + 10, [&] { seen += 'a'; });
  process.Post(start_us + 20, [&] { seen += 'b'; });
  process.Post(start_us + 100, [&] { seen += 'c'; });
  events.At(start_us + 50, [&] { seen += '-'; });
  while (events.RunNext()) {
  }
  EXPECT_EQ(seen, "-abc");
}

TEST(SimProcessTest, NothingOfOneLifeRunsInAnother) {
  EventQueue events;
  SimProcess process(&events, 0, "p", 0);
  const int64_t start_us = events.now_us();
  int num_run = 0;
  process.Post(start_us + 30, [&] { ++num_run; });
  events.At(start_us + 10, [&] { process.Kill(); });
  events.At(start_us + 15, [&] { process.Post(start_us + 16, [&] { ++num_run; }); });
  events.At(start_us + 20, [&] { process.Revive(); });
  while (events.RunNext()) {
  }
  EXPECT_EQ(num_run, 0);
  EXPECT_TRUE(process.DidHappen(0, start_us + 10));
  EXPECT_FALSE(process.DidHappen(0, start_us + 11));
  EXPECT_TRUE(process.DidHappen(1, start_us + 11));
}

TEST(SimProcessTest, ClocksDriftAndJumpButNeverGoBack) {
  EventQueue events;
  SimProcess process(&events, 0, "p", 100);
  const int64_t before_us = process.NowUs();
  process.JumpClock(5'000'000);
  EXPECT_EQ(process.NowUs(), before_us + 5'000'000);
  process.Spend(300);
  EXPECT_EQ(process.NowUs(), before_us + 5'000'300);
  EXPECT_EQ(process.TakeSpent(), 300);
  EXPECT_NEAR(static_cast<double>(process.TrueUs(process.NowUs() + 700)),
              static_cast<double>(events.now_us() + 700), 1.0);
}

// Two processes and the network between them.
class NetworkTest : public ::testing::Test {
 protected:
  void RunAll() {
    while (events_.RunNext()) {
    }
  }
  EventQueue events_;
  SimNetwork network_{&events_, 2, 1};
  SimProcess a_{&events_, 0, "a", 0};
  SimProcess b_{&events_, 1, "b", 0};
};

TEST_F(NetworkTest, StreamsStayInOrderAndAPartitionHoldsThem) {
  const int64_t start_us = events_.now_us();
  std::string seen;
  network_.Channel(0, 1).blocked_until_us = start_us + 10'000;
  network_.Send(a_, b_, 100'000, [&] { seen += '1'; });
  network_.Send(a_, b_, 1, [&] { seen += '2'; });
  network_.Send(b_, a_, 1, [&] { seen += '<'; });  // the other way is open
  RunAll();
  EXPECT_EQ(seen, "<12");
  EXPECT_GE(events_.now_us(), start_us + 10'000);
  EXPECT_EQ(network_.counts().held, 2u);
}

TEST_F(NetworkTest, WhatADyingProcessSentBeforeArrivesAndNothingAfter) {
  std::string seen;
  network_.Send(a_, b_, 1, [&] { seen += '1'; });
  a_.Spend(1000);  // its step goes on; it dies within
  network_.Send(a_, b_, 1, [&] { seen += '2'; });
  a_.TakeSpent();
  events_.At(events_.now_us() + 500, [&] { a_.Kill(); });
  RunAll();
  EXPECT_EQ(seen, "1");
}

TEST_F(NetworkTest, DataMessagesMeetTheFaultsOfTheirChannel) {
  SimChannel& channel = network_.Channel(0, 1);
  const int64_t until_us = events_.now_us() + 1'000'000;
  channel.duplicate = {until_us, 1.0, 50};
  channel.flip = {until_us, 1.0, 1};
  const DataPassage passage = network_.PassData(a_, b_, 64);
  EXPECT_GT(passage.again_us, passage.arrival_us);
  EXPECT_TRUE(passage.flips_bit);
  network_.EndFaults();
  const DataPassage clean = network_.PassData(a_, b_, 64);
  EXPECT_EQ(clean.again_us, -1);
  EXPECT_FALSE(clean.flips_bit);
}

TEST(FaultPlanTest, AFaultDependsOnSeedAndNumberAlone) {
  const FaultWeights weights = ParseFaults("all").value();
  const ClusterShape shape;
  const FaultPlan plan(5, weights, shape, 1000);
  const FaultPlan same(5, weights, shape, 1000);
  const FaultPlan other(6, weights, shape, 1000);
  uint32_t num_equal = 0;
  std::array<uint32_t, kNumFaultKinds> kinds{};
  for (uint32_t i = 0; i < 2000; ++i) {
    const SimFault fault = plan.Get(i);
    EXPECT_EQ(fault.ToString(shape), same.Get(i).ToString(shape));
    num_equal += fault.ToString(shape) == other.Get(i).ToString(shape) ? 1 : 0;
    ++kinds[static_cast<size_t>(fault.kind)];
    EXPECT_LT(fault.a, shape.num_processes());
    EXPECT_LT(fault.b, shape.num_processes());
  }
  EXPECT_LT(num_equal, 20u);
  for (const uint32_t count : kinds) EXPECT_GT(count, 100u);
}

TEST(FaultPlanTest, WeightsAreReadAndNonsenseIsNamed) {
  EXPECT_EQ(ParseFaults("none").value(), FaultWeights{});
  const FaultWeights weights = ParseFaults("kill,freeze=3").value();
  EXPECT_EQ(weights[static_cast<size_t>(FaultKind::kKill)], 1);
  EXPECT_EQ(weights[static_cast<size_t>(FaultKind::kFreeze)], 3);
  EXPECT_EQ(weights[static_cast<size_t>(FaultKind::kDelay)], 0);
  EXPECT_FALSE(ParseFaults("kil").ok());
  EXPECT_FALSE(ParseFaults("kill=x").ok());
  EXPECT_FALSE(ParseFaults("kill=-1").ok());
}

// The model over an arena of a few blocks, in whatever chunks.
class SimModelTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kNumBlocks = 8;

  std::vector<float> Run(const std::vector<TokenId>& tokens, const std::vector<uint32_t>& chunks) {
    SimModel model(SimStepCost{}, [](int64_t) {});
    std::vector<float> logits(kSimVocab);
    uint32_t first = 0;
    for (const uint32_t size : chunks) {
      const AttentionSpan span{
          .kv = {blocks_}, .first_row = 0, .num_rows = size, .first_pos = first};
      const uint32_t last_row = size - 1;
      const ModelBatch batch{.token_ids = std::span(tokens).subspan(first, size),
                             .spans = {&span, 1},
                             .logit_rows = {&last_row, 1}};
      EXPECT_TRUE(model.Forward(batch, view_, nullptr, logits).ok());
      first += size;
    }
    return logits;
  }

  const KvLayout layout_ = SimLayout();
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kNumBlocks * layout_.BlockStride());
  const KvView view_{bytes_.data(), &layout_, kNumBlocks};
  const std::vector<uint32_t> blocks_ = {3, 0, 5, 1, 7, 2, 6, 4};
};

TEST_F(SimModelTest, ChunksDoNotMatterAndTheReferenceAgrees) {
  std::vector<TokenId> tokens;
  for (TokenId t = 0; t < 27; ++t) tokens.push_back(t * 7 % kSimVocab);
  const std::vector<float> whole = Run(tokens, {27});
  EXPECT_EQ(Run(tokens, {1, 3, 4, 5, 14}), whole);
  SimPrefix prefix;
  for (const TokenId token : tokens) prefix.Append(token);
  std::vector<float> expected(kSimVocab);
  prefix.FillLogits(expected);
  EXPECT_EQ(whole, expected);
}

TEST_F(SimModelTest, EveryByteOfThePrefixCounts) {
  std::vector<TokenId> tokens;
  for (TokenId t = 0; t < 12; ++t) tokens.push_back(t);
  const std::vector<float> right = Run(tokens, {11, 1});
  for (uint32_t block = 0; block < 2; ++block) {
    for (size_t byte = 0; byte < layout_.BlockBytes(); byte += 5) {
      Run(tokens, {11});
      bytes_[blocks_[block] * layout_.BlockStride() + byte] ^= std::byte{0x10};
      SimModel model(SimStepCost{}, [](int64_t) {});
      const AttentionSpan span{.kv = {blocks_}, .first_row = 0, .num_rows = 1, .first_pos = 11};
      const uint32_t row = 0;
      const ModelBatch batch{.token_ids = std::span(tokens).subspan(11, 1),
                             .spans = {&span, 1},
                             .logit_rows = {&row, 1}};
      std::vector<float> logits(kSimVocab);
      EXPECT_TRUE(model.Forward(batch, view_, nullptr, logits).ok());
      EXPECT_NE(logits, right) << "block " << block << " byte " << byte;
    }
  }
}

// A row of a model with a window reads nothing before it.
TEST_F(SimModelTest, AWindowIsReadAndNothingBeforeIt) {
  std::vector<TokenId> tokens;
  for (TokenId t = 0; t < 27; ++t) tokens.push_back(t * 7 % kSimVocab);
  for (const uint32_t window : {2u, 5u, 9u, 27u, 40u}) {
    SimModel model(
        SimStepCost{}, [](int64_t) {}, window);
    const auto run = [&](uint32_t first, uint32_t size) {
      std::vector<float> logits(kSimVocab);
      const AttentionSpan span{
          .kv = {blocks_}, .first_row = 0, .num_rows = size, .first_pos = first};
      const uint32_t last_row = size - 1;
      const ModelBatch batch{.token_ids = std::span(tokens).subspan(first, size),
                             .spans = {&span, 1},
                             .logit_rows = {&last_row, 1}};
      EXPECT_TRUE(model.Forward(batch, view_, nullptr, logits).ok());
      return logits;
    };
    SimPrefix prefix(/*has_states=*/false, window);
    for (const TokenId token : tokens) prefix.Append(token);
    std::vector<float> expected(kSimVocab);
    prefix.FillLogits(expected);
    EXPECT_EQ(run(0, 27), expected);
    run(0, 20);
    // The row at 20 sees [21 - window, 20].
    const uint32_t num_unseen = window < 21 ? (21 - window) / kSimBlock : 0;
    for (uint32_t i = 0; i < num_unseen; ++i) {
      std::fill_n(bytes_.begin() + blocks_[i] * static_cast<std::ptrdiff_t>(layout_.BlockStride()),
                  layout_.BlockBytes(), std::byte{0xA5});
    }
    EXPECT_EQ(run(20, 7), expected) << "window " << window;
    if (window > 10) {  // the last row sees position 16
      run(0, 20);
      bytes_[blocks_[4] * layout_.BlockStride()] ^= std::byte{1};
      EXPECT_NE(run(20, 7), expected) << "window " << window;
    }
  }
}

// The model with a state in block 8, and room for a copy of it in block 9.
class SimStatesTest : public ::testing::Test {
 protected:
  // The logits after tokens [first, end).
  std::vector<float> Run(uint32_t first, uint32_t end, const std::vector<uint32_t>& state,
                         std::span<StateCopy> copies = {}) {
    SimModel model(SimStepCost{}, [](int64_t) {});
    std::vector<float> logits(kSimVocab);
    const AttentionSpan span{.kv = {.blocks = blocks_, .state = state},
                             .first_row = 0,
                             .num_rows = end - first,
                             .first_pos = first};
    const uint32_t last_row = end - first - 1;
    const ModelBatch batch{.token_ids = std::span(tokens_).subspan(first, end - first),
                           .spans = {&span, 1},
                           .logit_rows = {&last_row, 1},
                           .state_copies = copies};
    EXPECT_TRUE(model.Forward(batch, view_, nullptr, logits).ok());
    return logits;
  }

  const std::vector<TokenId> tokens_ = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3};
  const KvLayout layout_ = SimLayout(/*has_states=*/true);
  std::vector<std::byte> bytes_ = std::vector<std::byte>(10 * layout_.BlockStride());
  const KvView view_{bytes_.data(), &layout_, 10};
  const std::vector<uint32_t> blocks_ = {3, 0, 5, 1, 7, 2, 6, 4};
  const std::vector<uint32_t> state_ = {8};
  const std::vector<uint32_t> copied_ = {9};
};

TEST_F(SimStatesTest, ChunksAndCopiesDoNotMatterAndTheReferenceAgrees) {
  StateCopy copy{.num_rows = 12, .blocks = copied_};
  const std::vector<float> whole = Run(0, 18, state_, {&copy, 1});
  EXPECT_TRUE(copy.has_numbers);
  EXPECT_EQ(Run(12, 18, copied_), whole) << "from the copy";
  Run(0, 5, state_);
  Run(5, 6, state_);
  EXPECT_EQ(Run(6, 18, state_), whole);
  SimPrefix prefix(/*has_states=*/true);
  SimPrefix plain;
  for (const TokenId token : tokens_) {
    prefix.Append(token);
    plain.Append(token);
  }
  std::vector<float> expected(kSimVocab);
  prefix.FillLogits(expected);
  EXPECT_EQ(whole, expected);
  plain.FillLogits(expected);
  EXPECT_NE(whole, expected);
}

TEST_F(SimStatesTest, AStateOfAnotherPlaceGivesOtherTokens) {
  const std::vector<float> whole = Run(0, 18, state_);
  EXPECT_NE(Run(12, 18, state_), whole) << "the state has seen the last six already";
}

TEST(SimWorkloadTest, ARequestDependsOnSeedAndNumberAlone) {
  const SimWorkload one(3, 100, nullptr);
  const SimWorkload two(3, 100, nullptr);
  for (const uint64_t number : {0, 17, 1000}) {
    const SimRequest a = one.Make(number);
    const SimRequest b = two.Make(number);
    EXPECT_EQ(a.request.prompt, b.request.prompt);
    EXPECT_EQ(a.uid, b.uid);
    EXPECT_EQ(a.request.sampling.seed, b.request.sampling.seed);
    EXPECT_GE(a.request.prompt.size(), 1u);
    EXPECT_LE(a.request.prompt.size(), SimWorkload::kMaxPrompt);
    EXPECT_LE(a.request.sampling.max_tokens, SimWorkload::kMaxOutput);
  }
}

}  // namespace
}  // namespace baton::sim
