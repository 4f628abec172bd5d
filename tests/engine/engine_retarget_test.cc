// A prompt whose decode worker is lost goes to another one from the blocks that the prefill worker
// still holds: nothing is computed twice, every token is right, and nothing is left behind.
#include <algorithm>
#include <span>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/engine/hand_rig.h"

namespace baton::engine {

namespace {

// A prefill worker without a prefix cache (what is not computed again was kept) and two decode
// workers, of a model with that window.
struct Trio {
  explicit Trio(bool has_device = false, uint32_t window = 0)
      : p(rig.Add({.role = WorkerRole::kPrefill,
                   .prefix_cache = false,
                   .window = window,
                   .strand_us = 2'000'000,
                   .has_device = has_device})),
        first(rig.Add({.role = WorkerRole::kDecode, .window = window, .has_device = has_device})),
        second(rig.Add({.role = WorkerRole::kDecode, .window = window, .has_device = has_device})) {
  }

  // As a router does: the next attempt, to `to`.
  RequestSpec Retarget(RequestSpec spec, HandWorker* to) {
    ++spec.key.attempt;
    p->Start(ForPeer(spec, RequestKind::kSource, *to));
    to->Start(ForPeer(spec, RequestKind::kDest, *p));
    return spec;
  }
  void Start(const RequestSpec& spec) {
    first->Start(ForPeer(spec, RequestKind::kDest, *p));
    p->Start(ForPeer(spec, RequestKind::kSource, *first));
  }
  void ExpectAnsweredBy(HandWorker* worker, const RequestSpec& spec) {
    const Record dest = worker->recorder().Of(spec.key);
    EXPECT_EQ(dest.last(), RequestState::kFinished) << dest.status;
    EXPECT_EQ(p->recorder().Of(spec.key).last(), RequestState::kHandedOff)
        << p->recorder().Of(spec.key).status;
    for (uint32_t c = 0; c < spec.num_choices; ++c) {
      EXPECT_EQ(IdsOf(dest, c), ExpectedTokens(spec, c));
    }
    EXPECT_EQ(p->core().Snapshot().computed_tokens, spec.tokens.size()) << "once";
  }
  // Expects that the workers that live hold nothing.
  void ExpectFree() {
    for (HandWorker* worker : {p, first, second}) {
      if (worker == lost) continue;
      EXPECT_TRUE(worker->AllFree());
      EXPECT_EQ(worker->core().Snapshot().num_open_transfers, 0u);
      EXPECT_EQ(worker->core().Snapshot().num_requests, 0u);
    }
  }

  void Lose(HandWorker* worker, const RequestSpec& spec) {
    lost = worker;
    worker->Disconnect();
    worker->Cancel(spec.key);
  }

  HandWorker* lost = nullptr;
  HandRig rig;
  HandWorker* p;
  HandWorker* first;
  HandWorker* second;
};

RequestSpec SeededRequest(uint64_t number, uint32_t num_tokens, uint32_t num_choices) {
  RequestSpec spec = ToyRequest(number, num_tokens, 8);
  spec.num_choices = num_choices;
  spec.sampling.temperature = 0.9f;
  spec.sampling.seed = number;
  return spec;
}

TEST(EngineRetargetTest, DecodeWorkerLostAtEachMomentOfTheHandoff) {
  for (const uint32_t num_tokens : {3u, 8u, 90u}) {
    for (uint32_t round = 0; round < 24; ++round) {
      SCOPED_TRACE(testing::Message() << num_tokens << " tokens, lost after round " << round);
      Trio trio(/*has_device=*/round % 2 == 1);
      const RequestSpec spec = SeededRequest(round + 1, num_tokens, 1 + round % 3);
      trio.Start(spec);
      for (uint32_t i = 0; i < round; ++i) trio.rig.Round();
      if (trio.first->recorder().Of(spec.key).Reached(RequestState::kVerified)) break;
      trio.Lose(trio.first, spec);
      const RequestSpec next = trio.Retarget(spec, trio.second);
      ASSERT_TRUE(trio.rig.RunUntilQuiet());
      trio.ExpectAnsweredBy(trio.second, next);
      trio.ExpectFree();
    }
  }
}

TEST(EngineRetargetTest, StrandedPromptIsToldAndKeptForAWhile) {
  Trio trio;
  const RequestSpec spec = SeededRequest(1, 90, 1);
  trio.Start(spec);
  for (int i = 0; i < 4; ++i) trio.rig.Round();
  trio.Lose(trio.first, spec);
  trio.rig.RunFor(1000);
  const Record stranded = trio.p->recorder().Of(spec.key);
  EXPECT_TRUE(stranded.Reached(RequestState::kStranded));
  EXPECT_TRUE(stranded.Reached(RequestState::kPrefillDone)) << "computing went on";
  EXPECT_FALSE(stranded.ended());
  const RequestSpec next = trio.Retarget(spec, trio.second);
  ASSERT_TRUE(trio.rig.RunUntilQuiet());
  const Record source = trio.p->recorder().Of(next.key);
  EXPECT_TRUE(source.Reached(RequestState::kPrefillStarted)) << "the new attempt is told too";
  EXPECT_TRUE(source.retargeted);
  EXPECT_EQ(source.cached_tokens, 0u) << "nothing came from a prefix cache";
  trio.ExpectAnsweredBy(trio.second, next);
  trio.ExpectFree();
}

TEST(EngineRetargetTest, StrandedPromptThatNobodyWantsIsFreed) {
  Trio trio;
  const RequestSpec spec = SeededRequest(1, 90, 1);
  trio.Start(spec);
  for (int i = 0; i < 4; ++i) trio.rig.Round();
  trio.Lose(trio.first, spec);
  trio.rig.RunFor(3000);
  EXPECT_EQ(trio.p->recorder().Of(spec.key).last(), RequestState::kFailed);
  trio.ExpectFree();
}

TEST(EngineRetargetTest, AnotherPromptUnderAHigherAttemptIsComputedAnew) {
  Trio trio;
  const RequestSpec spec = SeededRequest(1, 40, 1);
  trio.Start(spec);
  for (int i = 0; i < 3; ++i) trio.rig.Round();
  RequestSpec longer = spec;
  longer.tokens.push_back(5);
  longer.num_prompt_tokens = spec.num_prompt_tokens;
  const RequestSpec next = trio.Retarget(longer, trio.second);
  trio.first->Cancel(spec.key);
  ASSERT_TRUE(trio.rig.RunUntilQuiet());
  EXPECT_EQ(trio.p->recorder().Of(spec.key).last(), RequestState::kCancelled);
  EXPECT_EQ(IdsOf(trio.second->recorder().Of(next.key), 0), ExpectedTokens(next, 0));
  trio.ExpectFree();
}

TEST(EngineRetargetTest, SameDecodeWorkerMayBeTriedAgain) {
  Trio trio;
  const RequestSpec spec = SeededRequest(1, 90, 2);
  trio.Start(spec);
  for (int i = 0; i < 3; ++i) trio.rig.Round();
  ASSERT_FALSE(trio.first->recorder().Of(spec.key).Reached(RequestState::kVerified));
  trio.first->Cancel(spec.key);
  const RequestSpec next = trio.Retarget(spec, trio.first);
  ASSERT_TRUE(trio.rig.RunUntilQuiet());
  trio.ExpectAnsweredBy(trio.first, next);
  trio.ExpectFree();
}

// Orders a sequence that decodes at the first decode worker to the second. Its router knows the
// tokens `known`, of which the second worker computes the last one.
RequestSpec MoveToSecond(Trio* trio, const RequestSpec& spec, std::span<const TokenId> known) {
  RequestSpec next = spec;
  next.key.attempt = 2;
  next.tokens.insert(next.tokens.end(), known.begin(), known.end() - 1);
  trio->first->Start(ForPeer(next, RequestKind::kSource, *trio->second));
  trio->second->Start(ForPeer(next, RequestKind::kDest, *trio->first));
  return next;
}

// A sequence that decodes moves with its KV: the router knows `num_known` tokens, the worker may
// have sampled more by then.
TEST(EngineHandOverTest, SequenceMovesAtEachToken) {
  for (const uint32_t num_tokens : {1u, 7u, 8u, 33u}) {
    for (uint32_t num_known = 1; num_known <= 7; ++num_known) {
      for (const uint32_t num_late : {0u, 2u}) {
        SCOPED_TRACE(testing::Message() << num_tokens << " tokens, " << num_known << " known, "
                                        << num_late << " rounds late");
        Trio trio(/*has_device=*/num_known % 2 == 1);
        RequestSpec spec = SeededRequest(num_known, num_tokens, 1);
        spec.sampling.max_tokens = 16;
        spec.sampling.repetition_penalty = 1.2f;
        trio.Start(spec);
        for (int i = 0; i < 200; ++i) {
          const Record record = trio.first->recorder().Of(spec.key);
          if (record.Reached(RequestState::kVerified) && record.Tokens(0).size() >= num_known)
            break;
          trio.rig.Round();
        }
        const std::vector<TokenId> known = IdsOf(trio.first->recorder().Of(spec.key), 0);
        ASSERT_GE(known.size(), num_known);
        for (uint32_t i = 0; i < num_late; ++i) trio.rig.Round();
        const RequestSpec next = MoveToSecond(&trio, spec, std::span(known).first(num_known));
        ASSERT_TRUE(trio.rig.RunUntilQuiet());
        EXPECT_EQ(trio.first->recorder().Of(next.key).last(), RequestState::kHandedOff);
        const Record moved = trio.second->recorder().Of(next.key);
        EXPECT_EQ(moved.last(), RequestState::kFinished) << moved.status;
        EXPECT_EQ(IdsOf(moved, 0), ExpectedTokens(next, 0));
        EXPECT_EQ(trio.second->core().Snapshot().computed_tokens, 0u) << "KV was copied";
        trio.ExpectFree();
      }
    }
  }
}

// Starts a request and lets it decode at the first decode worker until `num_tokens` have come.
void StartAndDecode(Trio* trio, const RequestSpec& spec, size_t num_tokens) {
  trio->Start(spec);
  for (int i = 0; i < 200; ++i) {
    if (trio->first->recorder().Of(spec.key).Tokens(0).size() >= num_tokens) break;
    trio->rig.Round();
  }
}

// A sequence of `num_tokens` that decodes at the first decode worker, ordered to the second, which
// has granted already.
RequestSpec HandOverOf(Trio* trio, uint32_t num_tokens) {
  RequestSpec spec = SeededRequest(1, num_tokens, 1);
  spec.sampling.max_tokens = 60;
  StartAndDecode(trio, spec, 3);
  RequestSpec next = spec;
  next.key.attempt = 2;
  next.tokens.push_back(IdsOf(trio->first->recorder().Of(spec.key), 0)[0]);
  trio->second->Start(ForPeer(next, RequestKind::kDest, *trio->first));
  for (int i = 0; i < 4; ++i) trio->rig.Round();
  trio->first->Start(ForPeer(next, RequestKind::kSource, *trio->second));
  return next;
}

// Hashing what moves is cut over turns, so that the streams beside it go on.
TEST(EngineHandOverTest, OtherStreamsGoOnWhileALongSequenceIsHashed) {
  Trio trio;
  RequestSpec beside = SeededRequest(2, 5, 1);
  beside.sampling.max_tokens = 150;
  trio.first->Start(beside);
  const RequestSpec moved = HandOverOf(&trio, 100);
  const uint32_t num_blocks = ToyLayout().BlocksFor(101);
  uint32_t num_rounds = 0;
  while (trio.first->recorder().Of(moved.key).last() != RequestState::kHandedOff) {
    const size_t before = trio.first->recorder().Of(beside.key).Tokens(0).size();
    trio.rig.Round();
    ASSERT_EQ(trio.first->recorder().Of(beside.key).Tokens(0).size(), before + 1);
    ASSERT_LT(++num_rounds, 200u);
  }
  EXPECT_GE(num_rounds, num_blocks) << "one block a turn";
  ASSERT_TRUE(trio.rig.RunUntilQuiet());
  EXPECT_EQ(IdsOf(trio.second->recorder().Of(moved.key), 0), ExpectedTokens(moved, 0));
  EXPECT_EQ(IdsOf(trio.first->recorder().Of(beside.key), 0), ExpectedTokens(beside, 0));
  trio.ExpectFree();
}

TEST(EngineHandOverTest, EndsCleanlyInAnyTurnOfTheHashing) {
  const uint32_t num_blocks = ToyLayout().BlocksFor(41);
  for (uint32_t round = 0; round < num_blocks + 4; ++round) {
    for (const bool cancel : {true, false}) {
      SCOPED_TRACE(testing::Message() << (cancel ? "cancelled" : "lost") << " after " << round);
      Trio trio;
      const RequestSpec moved = HandOverOf(&trio, 40);
      for (uint32_t i = 0; i < round; ++i) trio.rig.Round();
      if (cancel) {
        trio.first->Cancel(moved.key);
        trio.second->Cancel(moved.key);
      } else {
        trio.Lose(trio.second, moved);
      }
      trio.rig.RunFor(3000);  // longer than a stranded sequence is kept
      ASSERT_TRUE(trio.rig.RunUntilQuiet());
      trio.ExpectFree();
    }
  }
}

TEST(EngineHandOverTest, WorkerWithoutTheKvSaysSo) {
  Trio trio;
  RequestSpec spec = SeededRequest(1, 20, 1);
  spec.sampling.max_tokens = 40;
  StartAndDecode(&trio, spec, 4);
  RequestSpec next = spec;
  next.key.attempt = 2;
  next.tokens.push_back(1 + (IdsOf(trio.first->recorder().Of(spec.key), 0)[0] % 5));
  next.tokens.push_back(3);  // not what was sampled
  next.tokens.push_back(3);
  trio.first->Start(ForPeer(next, RequestKind::kSource, *trio.second));
  ASSERT_TRUE(trio.rig.RunUntilQuiet());
  EXPECT_EQ(trio.first->recorder().Of(spec.key).last(), RequestState::kCancelled);
  const Record refused = trio.first->recorder().Of(next.key);
  EXPECT_EQ(refused.last(), RequestState::kRejected);
  EXPECT_TRUE(absl::IsAborted(refused.status)) << refused.status;
  trio.ExpectFree();
}

constexpr uint32_t kWindow = 8;  // two blocks

// Bytes of the blocks that rows after `num_tokens` tokens see.
uint64_t BytesSeen(uint32_t num_tokens) {
  const uint32_t first = (num_tokens + 1 - kWindow) / kToyBlock;
  return (ToyLayout().BlocksFor(num_tokens) - first) * ToyLayout().BlockBytes();
}

// A decode worker takes no block that none of its rows sees.
TEST(EngineWindowTest, OnlyTheWindowOfAPromptCrosses) {
  for (const uint32_t num_tokens : {8u, 39u, 40u, 41u, 90u}) {
    for (const uint32_t num_choices : {1u, 3u}) {
      SCOPED_TRACE(testing::Message() << num_tokens << " tokens, " << num_choices << " choices");
      Trio trio(/*has_device=*/num_tokens % 2 == 1, kWindow);
      RequestSpec spec = SeededRequest(num_tokens, num_tokens, num_choices);
      spec.sampling.max_tokens = 30;
      trio.Start(spec);
      ASSERT_TRUE(trio.rig.RunUntilQuiet());
      const Record dest = trio.first->recorder().Of(spec.key);
      EXPECT_EQ(dest.last(), RequestState::kFinished) << dest.status;
      EXPECT_EQ(dest.kv_bytes, BytesSeen(num_tokens));
      for (uint32_t c = 0; c < num_choices; ++c) {
        EXPECT_EQ(IdsOf(dest, c), ExpectedTokens(spec, c, kWindow));
      }
      trio.ExpectFree();
    }
  }
}

// Blocks of the decode worker's cache before the window are not held, those in it do not cross.
TEST(EngineWindowTest, ACachedPrefixThatEndsInTheWindowIsUsed) {
  Trio trio(/*has_device=*/false, kWindow);
  RequestSpec local = SeededRequest(1, 38, 1);
  local.kind = RequestKind::kLocal;
  trio.first->Start(local);
  ASSERT_TRUE(trio.rig.RunUntilQuiet());
  RequestSpec spec = SeededRequest(2, 39, 1);
  std::copy(local.tokens.begin(), local.tokens.end(), spec.tokens.begin());
  trio.Start(spec);
  ASSERT_TRUE(trio.rig.RunUntilQuiet());
  const Record dest = trio.first->recorder().Of(spec.key);
  EXPECT_EQ(dest.kv_bytes, ToyLayout().BlockBytes()) << "36 tokens are here";
  EXPECT_EQ(IdsOf(dest, 0), ExpectedTokens(spec, 0, kWindow));
  trio.ExpectFree();
}

// The first tokens of the stream are seen by no row any more: its window moves without them.
TEST(EngineHandOverTest, SequenceThatReleasedBlocksMovesWithItsWindow) {
  for (uint32_t num_known = 4; num_known <= 30; ++num_known) {
    for (const uint32_t num_late : {0u, 4u}) {
      SCOPED_TRACE(testing::Message() << num_known << " known, " << num_late << " rounds late");
      Trio trio(/*has_device=*/num_known % 2 == 1, kWindow);
      RequestSpec spec = SeededRequest(num_known, 40, 1);
      spec.sampling.max_tokens = 60;
      StartAndDecode(&trio, spec, num_known);
      const std::vector<TokenId> known = IdsOf(trio.first->recorder().Of(spec.key), 0);
      for (uint32_t i = 0; i < num_late; ++i) trio.rig.Round();
      const RequestSpec next = MoveToSecond(&trio, spec, std::span(known).first(num_known));
      ASSERT_TRUE(trio.rig.RunUntilQuiet());
      EXPECT_EQ(trio.first->recorder().Of(next.key).last(), RequestState::kHandedOff);
      const Record moved = trio.second->recorder().Of(next.key);
      EXPECT_EQ(moved.last(), RequestState::kFinished) << moved.status;
      EXPECT_EQ(moved.kv_bytes, BytesSeen(40 + num_known - 1));
      EXPECT_EQ(IdsOf(moved, 0), ExpectedTokens(next, 0, kWindow));
      EXPECT_EQ(trio.second->core().Snapshot().computed_tokens, 0u) << "KV was copied";
      trio.ExpectFree();
    }
  }
}

// The router knows so little of the stream that rows after it see blocks that are gone.
TEST(EngineHandOverTest, SequenceWhoseWindowIsGoneIsNotMoved) {
  Trio trio(/*has_device=*/false, kWindow);
  RequestSpec spec = SeededRequest(1, 40, 1);
  spec.sampling.max_tokens = 60;
  StartAndDecode(&trio, spec, 20);
  RequestSpec next = spec;
  next.key.attempt = 2;
  next.tokens.push_back(IdsOf(trio.first->recorder().Of(spec.key), 0)[0]);
  trio.first->Start(ForPeer(next, RequestKind::kSource, *trio.second));
  ASSERT_TRUE(trio.rig.RunUntilQuiet());
  EXPECT_EQ(trio.first->recorder().Of(spec.key).last(), RequestState::kCancelled);
  const Record refused = trio.first->recorder().Of(next.key);
  EXPECT_EQ(refused.last(), RequestState::kRejected);
  EXPECT_TRUE(absl::IsAborted(refused.status)) << refused.status;
  trio.ExpectFree();
}

// A worker that keeps all blocks, as one on a device does, asks for all of them.
TEST(EngineHandOverTest, WorkerThatWantsReleasedBlocksIsRefused) {
  Trio trio(/*has_device=*/false, kWindow);
  HandWorker* const keeps_all = trio.rig.Add({.role = WorkerRole::kDecode});
  RequestSpec spec = SeededRequest(1, 40, 1);
  spec.sampling.max_tokens = 60;
  StartAndDecode(&trio, spec, 20);
  const std::vector<TokenId> known = IdsOf(trio.first->recorder().Of(spec.key), 0);
  RequestSpec next = spec;
  next.key.attempt = 2;
  next.tokens.insert(next.tokens.end(), known.begin(), known.begin() + 19);
  trio.first->Start(ForPeer(next, RequestKind::kSource, *keeps_all));
  keeps_all->Start(ForPeer(next, RequestKind::kDest, *trio.first));
  ASSERT_TRUE(trio.rig.RunUntilQuiet());
  for (HandWorker* worker : {trio.first, keeps_all}) {
    const Record record = worker->recorder().Of(next.key);
    EXPECT_EQ(record.last(), RequestState::kFailed);
    EXPECT_THAT(std::string(record.status.message()), testing::HasSubstr("behind the window"));
    EXPECT_TRUE(worker->AllFree());
  }
  trio.ExpectFree();
}

// The next worker's grant came before the order and does not fit. Nothing more happens at this
// worker, and yet it is idle: a drain would wait for it in vain.
TEST(EngineHandOverTest, AnUnfitGrantThatWaitedLeavesNothingBehind) {
  Trio trio(/*has_device=*/false, kWindow);
  HandWorker* const keeps_all = trio.rig.Add({.role = WorkerRole::kDecode});
  RequestSpec spec = SeededRequest(1, 40, 1);
  spec.sampling.max_tokens = 60;
  StartAndDecode(&trio, spec, 20);
  const std::vector<TokenId> known = IdsOf(trio.first->recorder().Of(spec.key), 0);
  RequestSpec next = spec;
  next.key.attempt = 2;
  next.tokens.insert(next.tokens.end(), known.begin(), known.begin() + 19);
  trio.first->Start(ForPeer(next, RequestKind::kSource, *trio.second));  // which never grants
  for (int i = 0; i < 30; ++i) trio.rig.Round();  // hashed, a block in a turn
  ++next.key.attempt;
  keeps_all->Start(ForPeer(next, RequestKind::kDest, *trio.first));
  for (int i = 0; i < 4; ++i) trio.rig.Round();
  trio.first->Start(ForPeer(next, RequestKind::kSource, *keeps_all));
  for (int i = 0; i < 8; ++i) trio.rig.Round();
  const Record record = trio.first->recorder().Of(next.key);
  EXPECT_EQ(record.last(), RequestState::kFailed);
  EXPECT_THAT(std::string(record.status.message()), testing::HasSubstr("behind the window"));
  trio.ExpectFree();
}

}  // namespace
}  // namespace baton::engine
