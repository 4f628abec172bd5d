// The prefix cache in prefill and decode engines, turned by hand: what is found is neither computed
// nor sent again, and no token changes.
#include <array>

#include "gtest/gtest.h"

#include "tests/engine/hand_rig.h"
#include "tests/test_seed.h"

namespace baton::engine {

using kv::BlockState;

namespace {

const HandWorkerOptions kPrefill{.role = WorkerRole::kPrefill};
const HandWorkerOptions kDecode{.role = WorkerRole::kDecode};

// A request for these tokens.
RequestSpec RequestFor(uint64_t number, std::vector<TokenId> tokens, uint32_t max_tokens) {
  RequestSpec spec = ToyRequest(number, 1, max_tokens);
  spec.num_prompt_tokens = static_cast<uint32_t>(tokens.size());
  spec.tokens = std::move(tokens);
  return spec;
}

std::vector<TokenId> TokensOf(uint64_t number, uint32_t num_tokens) {
  return ToyRequest(number, num_tokens, 1).tokens;
}

std::vector<TokenId> operator+(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

uint32_t BlocksFor(size_t num_tokens) {
  return ToyLayout().BlocksFor(static_cast<uint32_t>(num_tokens));
}

// Full blocks of which every token has its KV and the last token of the prompt is not one.
uint32_t HitBlocks(size_t num_common) {
  return static_cast<uint32_t>(num_common) / ToyLayout().block_size;
}

TEST(EnginePrefixTest, ASecondTurnComputesOnlyWhatIsNew) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  const RequestSpec first = RequestFor(1, TokensOf(1, 37), 9);
  worker->Start(first);
  ASSERT_TRUE(rig.RunUntilQuiet());
  const std::vector<TokenId> answer = IdsOf(worker->recorder().Of(first.key), 0);
  ASSERT_EQ(answer, ExpectedTokens(first, 0));
  EXPECT_EQ(worker->recorder().Of(first.key).cached_tokens, 0u);
  EXPECT_EQ(worker->core().Snapshot().computed_tokens, 37u);

  // The last token of the answer was never fed back.
  const size_t num_known = 37 + answer.size() - 1;
  const RequestSpec second = RequestFor(2, first.tokens + answer + TokensOf(2, 11), 9);
  worker->Start(second);
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_EQ(IdsOf(worker->recorder().Of(second.key), 0), ExpectedTokens(second, 0));
  const uint32_t num_hit = HitBlocks(num_known) * ToyLayout().block_size;
  EXPECT_EQ(worker->recorder().Of(second.key).cached_tokens, num_hit);
  EXPECT_EQ(worker->core().Snapshot().computed_tokens, 37u + second.tokens.size() - num_hit);
  EXPECT_EQ(worker->core().Snapshot().prefix.hit_tokens, num_hit);
  EXPECT_TRUE(worker->AllFree());
  EXPECT_GT(worker->core().pool().Counts().of(BlockState::kCached), 0u);
}

TEST(EnginePrefixTest, AWholePromptThatIsKnownComputesItsLastTokenAgain) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  const uint32_t block = ToyLayout().block_size;
  const RequestSpec first = RequestFor(1, TokensOf(1, 8 * block), 3);
  const RequestSpec again = RequestFor(2, first.tokens, 3);
  worker->Start(first);
  ASSERT_TRUE(rig.RunUntilQuiet());
  worker->Start(again);
  ASSERT_TRUE(rig.RunUntilQuiet());
  EXPECT_EQ(IdsOf(worker->recorder().Of(again.key), 0), ExpectedTokens(again, 0));
  EXPECT_EQ(worker->recorder().Of(again.key).cached_tokens, 7 * block);
}

TEST(EnginePrefixTest, BothWorkersUseWhatTheyHave) {
  HandRig rig;
  HandWorker* p = rig.Add(kPrefill);
  HandWorker* d = rig.Add(kDecode);
  const auto run = [&](const RequestSpec& spec) {
    d->Start(ForPeer(spec, RequestKind::kDest, *p));
    p->Start(ForPeer(spec, RequestKind::kSource, *d));
    EXPECT_TRUE(rig.RunUntilQuiet());
    EXPECT_EQ(IdsOf(d->recorder().Of(spec.key), 0), ExpectedTokens(spec, 0));
    EXPECT_EQ(p->recorder().Of(spec.key).last(), RequestState::kHandedOff);
    EXPECT_TRUE(p->AllFree());
    EXPECT_TRUE(d->AllFree());
  };
  const auto bytes = [&](const RequestSpec& spec) { return d->recorder().Of(spec.key).kv_bytes; };
  const RequestSpec first = RequestFor(1, TokensOf(1, 37), 9);
  run(first);
  EXPECT_EQ(bytes(first), BlocksFor(37) * ToyLayout().BlockBytes());

  const std::vector<TokenId> answer = IdsOf(d->recorder().Of(first.key), 0);
  const RequestSpec second = RequestFor(2, first.tokens + answer + TokensOf(2, 30), 9);
  run(second);
  const uint32_t held = HitBlocks(37 + answer.size() - 1);
  EXPECT_EQ(bytes(second), (BlocksFor(second.tokens.size()) - held) * ToyLayout().BlockBytes())
      << "D has the first prompt and its answer";
  EXPECT_EQ(p->recorder().Of(second.key).cached_tokens, HitBlocks(37) * ToyLayout().block_size)
      << "P has the first prompt";
  EXPECT_EQ(d->core().Snapshot().computed_tokens, 0u);
  EXPECT_EQ(d->core().Snapshot().chain_mismatches, 0u);
}

// A row sees 33 tokens. A decode worker receives no block before them, and counts none as a hit.
TEST(EnginePrefixTest, ADecodeWorkerCountsHitsThatItsRowsSee) {
  constexpr uint32_t kWindow = 33;
  HandRig rig;
  HandWorker* p = rig.Add({.role = WorkerRole::kPrefill, .window = kWindow});
  HandWorker* d = rig.Add({.role = WorkerRole::kDecode, .window = kWindow});
  const uint32_t block = ToyLayout().block_size;
  const RequestSpec first = RequestFor(1, TokensOf(1, 30), 3);
  kv::PrefixStats before;
  uint32_t num_known = 0;  // tokens of the first prompt and its answer, with their KV
  std::vector<TokenId> known = first.tokens;
  const auto run = [&](const RequestSpec& spec) {
    d->Start(ForPeer(spec, RequestKind::kDest, *p));
    p->Start(ForPeer(spec, RequestKind::kSource, *d));
    ASSERT_TRUE(rig.RunUntilQuiet());
    ASSERT_EQ(IdsOf(d->recorder().Of(spec.key), 0), ExpectedTokens(spec, 0, kWindow));
    const auto num_tokens = static_cast<uint32_t>(spec.tokens.size());
    const uint32_t num_unseen = d->core().scheduler().config().NumUnseenBlocks(num_tokens);
    const uint32_t num_found = std::max(HitBlocks(num_known), num_unseen);
    const kv::PrefixStats now = d->core().Snapshot().prefix;
    EXPECT_EQ(now.queried_tokens - before.queried_tokens, num_tokens - num_unseen * block);
    EXPECT_EQ(now.hit_tokens - before.hit_tokens, (num_found - num_unseen) * block);
    EXPECT_EQ(d->recorder().Of(spec.key).kv_bytes,
              (BlocksFor(num_tokens) - num_found) * ToyLayout().BlockBytes());
    before = now;
  };
  run(first);
  EXPECT_EQ(before.hit_tokens, 0u);
  const std::vector<TokenId> answer = IdsOf(d->recorder().Of(first.key), 0);
  known.insert(known.end(), answer.begin(), answer.end());
  num_known = static_cast<uint32_t>(known.size()) - 1;
  run(RequestFor(2, known + TokensOf(2, 90), 3));
  EXPECT_EQ(before.hit_tokens, 0u) << "all that D has lies before the window";
  run(RequestFor(3, known + TokensOf(3, 7), 3));
  EXPECT_GT(before.hit_tokens, 0u);
  EXPECT_LT(before.hit_tokens, num_known) << "its front lies before the window";
}

// A worker that computes the prompt itself computes none of the found tokens, also before the
// window.
TEST(EnginePrefixTest, AWorkerAloneCountsAllThatItDoesNotCompute) {
  constexpr uint32_t kWindow = 33;
  HandRig rig;
  HandWorker* worker = rig.Add({.window = kWindow});
  const RequestSpec first = RequestFor(1, TokensOf(1, 90), 3);
  const RequestSpec again = RequestFor(2, first.tokens + TokensOf(2, 5), 3);
  for (const RequestSpec& spec : {first, again}) {
    worker->Start(spec);
    ASSERT_TRUE(rig.RunUntilQuiet());
    EXPECT_EQ(IdsOf(worker->recorder().Of(spec.key), 0), ExpectedTokens(spec, 0, kWindow));
  }
  const uint32_t num_found = worker->recorder().Of(again.key).cached_tokens;
  EXPECT_EQ(num_found, HitBlocks(90) * ToyLayout().block_size);
  EXPECT_EQ(worker->core().Snapshot().prefix.hit_tokens, num_found);
  EXPECT_EQ(worker->core().Snapshot().computed_tokens, 90u + 95u - num_found);
}

// As of a prefill worker of other numerics: what follows must not rest on it.
TEST(EnginePrefixTest, WhatIsNotCacheableDForgets) {
  HandRig rig;
  HandWorker* p = rig.Add(kPrefill);
  HandWorker* d = rig.Add(kDecode);
  for (uint64_t number = 1; number <= 2; ++number) {
    const RequestSpec spec = RequestFor(number, TokensOf(1, 37), 9);
    RequestSpec at_d = ForPeer(spec, RequestKind::kDest, *p);
    at_d.is_cacheable = false;
    d->Start(at_d);
    p->Start(ForPeer(spec, RequestKind::kSource, *d));
    ASSERT_TRUE(rig.RunUntilQuiet());
    EXPECT_EQ(IdsOf(d->recorder().Of(spec.key), 0), ExpectedTokens(spec, 0));
    EXPECT_EQ(d->recorder().Of(spec.key).kv_bytes, BlocksFor(37) * ToyLayout().BlockBytes());
    EXPECT_EQ(p->recorder().Of(spec.key).cached_tokens > 0, number == 2) << "P keeps its own";
  }
  EXPECT_EQ(d->core().pool().num_free(), d->core().pool().num_blocks());
}

TEST(EnginePrefixTest, TenantsShareNothing) {
  HandRig rig;
  HandWorker* worker = rig.Add({});
  for (const char* tenant : {"a", "b", "a"}) {
    static uint64_t number = 0;
    RequestSpec spec = RequestFor(++number, TokensOf(1, 40), 3);
    spec.tenant = tenant;
    worker->Start(spec);
    ASSERT_TRUE(rig.RunUntilQuiet());
    EXPECT_EQ(worker->recorder().Of(spec.key).cached_tokens > 0, number == 3);
    EXPECT_EQ(IdsOf(worker->recorder().Of(spec.key), 0), ExpectedTokens(spec, 0));
  }
}

TEST(EnginePrefixTest, SwitchedOffNothingIsKept) {
  HandRig rig;
  HandWorker* worker = rig.Add({.prefix_cache = false});
  for (uint64_t number = 1; number <= 2; ++number) {
    worker->Start(RequestFor(number, TokensOf(1, 40), 3));
    ASSERT_TRUE(rig.RunUntilQuiet());
  }
  EXPECT_EQ(worker->core().Snapshot().computed_tokens, 80u);
  EXPECT_EQ(worker->core().pool().num_free(), worker->core().pool().num_blocks());
}

// Conversations on one pair of workers with pools so small that blocks are given up all the time.
// The seed decides which of the two has a device with a memory of its own.
class Conversations {
 public:
  explicit Conversations(uint64_t seed) : random_(seed) {
    HandWorkerOptions options = kPrefill;
    options.num_blocks = 40;
    options.has_device = (seed & 1) != 0;
    p_ = rig_.Add(options);
    options.role = WorkerRole::kDecode;
    options.has_device = (seed & 2) != 0;
    d_ = rig_.Add(options);
  }

  // Two turns side by side, started at some distance; sometimes the first one is cancelled.
  void Round() {
    std::vector<Turn> turns = {StartTurn(), StartTurn()};
    const bool cancelled = random_.Below(5) == 0;
    if (cancelled) {
      d_->Cancel(turns[0].spec.key);
      p_->Cancel(turns[0].spec.key);
    }
    ASSERT_TRUE(rig_.RunUntilQuiet());
    // The test acts as a router: it cancels at the prefill worker what the decode worker refused.
    // The other turn may wait for that room.
    for (const Turn& turn : turns) {
      if (d_->recorder().Of(turn.spec.key).last() == RequestState::kRejected) {
        p_->Cancel(turn.spec.key);
      }
    }
    ASSERT_TRUE(rig_.RunUntilQuiet());
    for (const Turn& turn : turns) EndTurn(turn, cancelled && &turn == &turns[0]);
    rig_.RunFor(30'000);  // what prefill holds of a refused request ends with its lease
    ASSERT_TRUE(p_->AllFree());
    ASSERT_TRUE(d_->AllFree());
  }

  uint64_t num_cached() const { return num_cached_; }
  uint64_t num_evicted() const { return d_->core().Snapshot().prefix.num_evicted; }

 private:
  // One turn of one conversation.
  struct Turn {
    RequestSpec spec;
    std::vector<TokenId>* talk;
  };

  Turn StartTurn() {
    std::vector<TokenId>* const talk = &talks_[random_.Below(4)];
    if (talk->size() > 90) talk->clear();
    ++number_;
    const std::vector<TokenId> words = TokensOf(number_, 1 + random_.Below(20));
    RequestSpec spec = RequestFor(number_, *talk + words, 1 + random_.Below(9));
    if (random_.Below(4) == 0) spec.num_choices = 2;
    if (random_.Below(3) == 0) {
      d_->Start(ForPeer(spec, RequestKind::kLocal, *p_));
    } else {
      d_->Start(ForPeer(spec, RequestKind::kDest, *p_));
      p_->Start(ForPeer(spec, RequestKind::kSource, *d_));
    }
    for (uint32_t turns = random_.Below(6); turns > 0; --turns) rig_.Round();
    return {std::move(spec), talk};
  }

  // Every answer is what the prompt alone gives.
  void EndTurn(const Turn& turn, bool cancelled) {
    const RequestSpec& spec = turn.spec;
    const Record record = d_->recorder().Of(spec.key);
    if (record.last() != RequestState::kFinished) {
      // Too little room is a proper refusal.
      ASSERT_TRUE(cancelled || record.last() == RequestState::kRejected)
          << RequestStateName(record.last()) << " " << record.status << ", and at P "
          << RequestStateName(p_->recorder().Of(spec.key).last()) << " "
          << p_->recorder().Of(spec.key).status;
      return;
    }
    for (uint32_t c = 0; c < spec.num_choices; ++c) {
      ASSERT_EQ(IdsOf(record, c), ExpectedTokens(spec, c)) << "request " << number_;
    }
    *turn.talk = spec.tokens + IdsOf(record, 0);
    num_cached_ += record.cached_tokens + p_->recorder().Of(spec.key).cached_tokens;
  }

  TestRandom random_;
  HandRig rig_;
  HandWorker* p_;
  HandWorker* d_;
  std::array<std::vector<TokenId>, 4> talks_;
  uint64_t number_ = 0;
  uint64_t num_cached_ = 0;
};

TEST(EnginePrefixTest, ManyConversationsThroughTinyPools) {
  for (const uint64_t seed : TestSeeds(2)) {
    SCOPED_TRACE(seed);
    Conversations conversations(seed);
    for (int round = 0; round < 60; ++round) ASSERT_NO_FATAL_FAILURE(conversations.Round());
    EXPECT_GT(conversations.num_cached(), 100u);
    EXPECT_GT(conversations.num_evicted(), 10u);
  }
}

}  // namespace
}  // namespace baton::engine
