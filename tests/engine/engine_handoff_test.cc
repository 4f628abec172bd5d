// A prefill and a decode engine joined by the local transport, turned by hand: the hand-off gives
// the same tokens as no hand-off, and every way to end it leaves both pools free.
#include <functional>

#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "tests/engine/hand_rig.h"

namespace baton::engine {

using kv::TransportKind;
using scheduler::FinishReason;

namespace {

const HandWorkerOptions kPrefill{.role = WorkerRole::kPrefill};
const HandWorkerOptions kDecode{.role = WorkerRole::kDecode};

// A pair of workers.
struct Pair {
  explicit Pair(HandWorkerOptions p_options = kPrefill, HandWorkerOptions d_options = kDecode)
      : p(rig.Add(p_options)), d(rig.Add(d_options)) {}

  void Start(const RequestSpec& spec) {
    d->Start(ForPeer(spec, RequestKind::kDest, *p));
    p->Start(ForPeer(spec, RequestKind::kSource, *d));
  }
  // The grant waits at the prefill worker when the request comes there.
  void StartGranted(const RequestSpec& spec) {
    d->Start(ForPeer(spec, RequestKind::kDest, *p));
    rig.Round();
    rig.Round();
    p->Start(ForPeer(spec, RequestKind::kSource, *d));
  }
  void ExpectFree() {
    EXPECT_TRUE(p->AllFree()) << "prefill";
    EXPECT_TRUE(d->AllFree()) << "decode";
    EXPECT_EQ(p->core().Snapshot().num_open_transfers, 0u);
    EXPECT_EQ(d->core().Snapshot().num_open_transfers, 0u);
    EXPECT_EQ(p->core().Snapshot().num_requests, 0u);
    EXPECT_EQ(d->core().Snapshot().num_requests, 0u);
  }
  // Both answered, equally, and rightly.
  void ExpectAnswered(const RequestSpec& spec) {
    const Record source = p->recorder().Of(spec.key);
    const Record dest = d->recorder().Of(spec.key);
    EXPECT_EQ(source.last(), RequestState::kHandedOff) << source.status;
    EXPECT_EQ(dest.last(), RequestState::kFinished) << dest.status;
    EXPECT_EQ(source.num_terminal, 1u);
    EXPECT_EQ(dest.num_terminal, 1u);
    for (uint32_t c = 0; c < spec.num_choices; ++c) {
      EXPECT_EQ(IdsOf(dest, c), ExpectedTokens(spec, c)) << spec.tokens.size() << " tokens";
      ASSERT_EQ(source.Tokens(c).size(), 1u) << "P samples token 0 only";
      EXPECT_EQ(source.Tokens(c)[0], dest.Tokens(c)[0]) << "both copies are the same";
    }
    EXPECT_EQ(dest.num_duplicates, 0u);
    EXPECT_EQ(dest.transport, TransportKind::kLocal);
    EXPECT_EQ(dest.kv_bytes, ToyLayout().BlocksFor(static_cast<uint32_t>(spec.tokens.size())) *
                                 ToyLayout().BlockBytes());
  }

  HandRig rig;
  HandWorker* p;
  HandWorker* d;
};

TEST(EngineHandoffTest, EveryPromptLengthGivesTheTokensOfNoHandoff) {
  Pair pair;
  std::vector<RequestSpec> specs;
  uint64_t bytes = 0;
  for (const uint32_t length : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 31u, 32u, 33u, 64u, 65u, 150u}) {
    specs.push_back(ToyRequest(specs.size() + 1, length, 10));
    bytes += ToyLayout().BlocksFor(length) * ToyLayout().BlockBytes();
    pair.Start(specs.back());
  }
  ASSERT_TRUE(pair.rig.RunUntilQuiet());
  for (const RequestSpec& spec : specs) pair.ExpectAnswered(spec);
  pair.ExpectFree();
  EXPECT_EQ(pair.d->core().Snapshot().kv_bytes_received, bytes);
  EXPECT_EQ(pair.p->core().Snapshot().kv_bytes_sent, bytes) << "each slice crossed once";
  EXPECT_EQ(pair.d->core().Snapshot().computed_tokens, 0u) << "D computed no prompt";
}

TEST(EngineHandoffTest, StatesComeInOrderOnBothSides) {
  Pair pair;
  const RequestSpec spec = ToyRequest(1, 20, 5);
  pair.Start(spec);
  ASSERT_TRUE(pair.rig.RunUntilQuiet());
  EXPECT_EQ(
      pair.d->recorder().Of(spec.key).states,
      (std::vector{RequestState::kReserved, RequestState::kVerified, RequestState::kDecodeStarted,
                   RequestState::kFirstStepDone, RequestState::kFinished}));
  const Record source = pair.p->recorder().Of(spec.key);
  for (const RequestState state : {RequestState::kPrefillStarted, RequestState::kGranted,
                                   RequestState::kPrefillDone, RequestState::kHandedOff}) {
    EXPECT_TRUE(source.Reached(state)) << RequestStateName(state);
  }
}

TEST(EngineHandoffTest, ChoicesMoveTogetherAndAreSeeded) {
  Pair pair;
  std::vector<RequestSpec> specs;
  for (const uint32_t length : {1u, 4u, 6u, 8u, 33u}) {
    RequestSpec spec = ToyRequest(length, length, 9);
    spec.num_choices = 3;
    spec.sampling.temperature = 1.2f;
    spec.sampling.seed = length;
    spec.sampling.repetition_penalty = 1.3f;
    spec.sampling.top_logprobs = 2;
    specs.push_back(spec);
    pair.Start(spec);
  }
  ASSERT_TRUE(pair.rig.RunUntilQuiet());
  for (const RequestSpec& spec : specs) pair.ExpectAnswered(spec);
  pair.ExpectFree();
}

TEST(EngineHandoffTest, SlicesCrossWhileLaterLayersAreComputed) {
  Pair pair;
  const RequestSpec spec = ToyRequest(1, 100, 3);
  pair.StartGranted(spec);
  ASSERT_TRUE(pair.rig.RunUntilQuiet());
  pair.ExpectAnswered(spec);
  const EngineSnapshot snapshot = pair.p->core().Snapshot();
  EXPECT_EQ(snapshot.exported_in_step * ToyLayout().SliceBytes(), snapshot.kv_bytes_sent)
      << "granted before it was computed, every slice left inside a step";
  pair.ExpectFree();
}

TEST(EngineHandoffTest, OnlyTimeBehindThePromptIsExposed) {
  constexpr int64_t kRoundUs = 1000;
  Pair pair;
  const RequestSpec early = ToyRequest(1, 100, 3);  // four chunks, a round each
  pair.StartGranted(early);
  ASSERT_TRUE(pair.rig.RunUntilQuiet());
  pair.ExpectAnswered(early);
  const EngineSnapshot hidden = pair.p->core().Snapshot();
  EXPECT_EQ(hidden.transfer_us - hidden.exposed_us, 3 * kRoundUs)
      << "from the end of the first chunk to that of the last";
  EXPECT_GT(hidden.exposed_us, 0) << "of the last chunk";

  const RequestSpec late = ToyRequest(2, 90, 3);
  pair.p->Start(ForPeer(late, RequestKind::kSource, *pair.d));
  ASSERT_TRUE(pair.rig.RunUntilQuiet());  // computed, and granted by nobody
  pair.d->Start(ForPeer(late, RequestKind::kDest, *pair.p));
  ASSERT_TRUE(pair.rig.RunUntilQuiet());
  pair.ExpectAnswered(late);
  const EngineSnapshot both = pair.p->core().Snapshot();
  EXPECT_GT(both.transfer_us, hidden.transfer_us);
  EXPECT_EQ(both.transfer_us - hidden.transfer_us, both.exposed_us - hidden.exposed_us);
  pair.ExpectFree();
}

TEST(EngineHandoffTest, AStepOfThePrefillWorkerIsNoExposedTime) {
  constexpr int64_t kStepMs = 300;
  Pair pair;
  const RequestSpec spec = ToyRequest(1, 20, 5);
  pair.StartGranted(spec);
  for (int i = 0; i < 100 && !pair.d->recorder().Of(spec.key).Reached(RequestState::kVerified); ++i)
    pair.rig.Round();
  ASSERT_TRUE(pair.d->recorder().Of(spec.key).Reached(RequestState::kVerified));
  while (pair.rig.Pump()) {  // D's word is in P's inbox
  }
  pair.rig.clock().AdvanceMs(kStepMs);
  ASSERT_TRUE(pair.rig.RunUntilQuiet());
  pair.ExpectAnswered(spec);
  EXPECT_GT(pair.p->core().Snapshot().exposed_us, 0);
  EXPECT_LT(pair.p->core().Snapshot().exposed_us, kStepMs * 1000);
  pair.ExpectFree();
}

TEST(EngineHandoffTest, AChoiceThatEndsAtItsFirstTokenIsNotDecoded) {
  for (const bool by_limit : {true, false}) {
    for (const uint32_t n : {1u, 2u}) {
      Pair pair;
      RequestSpec spec = ToyRequest(3, 10, by_limit ? 1 : 12);
      spec.num_choices = n;
      if (!by_limit) spec.sampling.stop_token_ids = {ExpectedTokens(spec, 0)[0]};
      pair.Start(spec);
      ASSERT_TRUE(pair.rig.RunUntilQuiet());
      pair.ExpectAnswered(spec);
      EXPECT_EQ(pair.d->recorder().Of(spec.key).Tokens(0).back().finish,
                by_limit ? FinishReason::kLength : FinishReason::kStop);
      EXPECT_EQ(pair.d->model().num_steps(), 0u) << "D decoded nothing";
      pair.ExpectFree();
    }
  }
}

TEST(EngineHandoffTest, OneChoiceMayEndAtItsFirstTokenWhileAnotherGoesOn) {
  Pair pair;
  RequestSpec spec = ToyRequest(3, 10, 8);
  spec.num_choices = 2;
  spec.sampling.temperature = 1.5f;
  spec.sampling.seed = 4;
  const TokenId first = ExpectedTokens(spec, 0)[0];
  ASSERT_NE(first, ExpectedTokens(spec, 1)[0]);
  spec.sampling.stop_token_ids = {first};
  pair.Start(spec);
  ASSERT_TRUE(pair.rig.RunUntilQuiet());
  pair.ExpectAnswered(spec);
  EXPECT_EQ(pair.d->recorder().Of(spec.key).Tokens(0).size(), 1u);
  EXPECT_GT(pair.d->recorder().Of(spec.key).Tokens(1).size(), 1u);
  pair.ExpectFree();
}

TEST(EngineHandoffTest, ADecodeWorkerWithoutRoomRejectsAtOnce) {
  Pair pair(kPrefill, {.role = WorkerRole::kDecode, .num_blocks = 20});
  const RequestSpec large = ToyRequest(1, 60, 4);
  const RequestSpec second = ToyRequest(2, 60, 4);
  pair.d->Start(ForPeer(large, RequestKind::kDest, *pair.p));
  pair.d->Start(ForPeer(second, RequestKind::kDest, *pair.p));
  pair.rig.Round();
  EXPECT_TRUE(pair.d->recorder().Of(large.key).Reached(RequestState::kReserved));
  const Record record = pair.d->recorder().Of(second.key);
  EXPECT_EQ(record.last(), RequestState::kRejected);
  EXPECT_TRUE(absl::IsResourceExhausted(record.status)) << record.status;
  EXPECT_EQ(record.retry_after_ms, limits::kRetryHintMs);
}

// An event that may cut a hand-off short.
struct Cut {
  const char* name;
  std::function<void(Pair*, const RequestSpec&)> act;
  // A worker that is cut off takes its pool with it; the pool of who remains must be free.
  bool p_remains = true;
  bool d_remains = true;
};

const Cut kCuts[] = {
    {"cancel at both",
     [](Pair* pair, const RequestSpec& s) {
       pair->p->Cancel(s.key);
       pair->d->Cancel(s.key);
     }},
    {"cancel twice",
     [](Pair* pair, const RequestSpec& s) {
       for (int i = 0; i < 2; ++i) pair->p->Cancel(s.key);
       for (int i = 0; i < 2; ++i) pair->d->Cancel(s.key);
     }},
    {"cancel at P", [](Pair* pair, const RequestSpec& s) { pair->p->Cancel(s.key); }},
    {"cancel at D", [](Pair* pair, const RequestSpec& s) { pair->d->Cancel(s.key); }},
    {"router gone",
     [](Pair* pair, const RequestSpec& s) {
       pair->p->Post(CloseSession{s.session});
       pair->d->Post(CloseSession{s.session});
     }},
    {"P cut off", [](Pair* pair, const RequestSpec&) { pair->p->Disconnect(); }, false, true},
    {"D cut off", [](Pair* pair, const RequestSpec&) { pair->d->Disconnect(); }, true, false},
    {"all failed",
     [](Pair* pair, const RequestSpec&) {
       pair->p->Post(FailAll{Unavailable("the drain's time is over")});
       pair->d->Post(FailAll{Unavailable("the drain's time is over")});
     }},
};

// Cuts one hand-off after `rounds` rounds and lets every lease run out.
void RunCut(const Cut& cut, uint32_t rounds) {
  Pair pair({.role = WorkerRole::kPrefill, .max_chunk = 8});
  RequestSpec spec = ToyRequest(1, 30, 6);
  spec.num_choices = 1 + rounds % 2;
  pair.Start(spec);
  for (uint32_t i = 0; i < rounds; ++i) pair.rig.Round();
  cut.act(&pair, spec);
  ASSERT_TRUE(pair.rig.RunUntilQuiet());
  pair.rig.RunFor(23'000);
  ASSERT_TRUE(pair.rig.RunUntilQuiet());
  EXPECT_TRUE(pair.p->AllFree() || !cut.p_remains);
  EXPECT_TRUE(pair.d->AllFree() || !cut.d_remains);
  const Record dest = pair.d->recorder().Of(spec.key);
  EXPECT_EQ(pair.p->recorder().Of(spec.key).num_terminal, 1u);
  EXPECT_EQ(dest.num_terminal, 1u);
  for (uint32_t c = 0; c < spec.num_choices; ++c) {
    // The answer is right, also when it was cut short.
    const std::vector<TokenId> ids = IdsOf(dest, c);
    std::vector<TokenId> expected = ExpectedTokens(spec, c);
    if (dest.last() != RequestState::kFinished) expected.resize(ids.size());
    EXPECT_EQ(ids, expected);
  }
}

TEST(EngineHandoffTest, EveryEndAtEveryStageFreesBothPools) {
  for (const Cut& cut : kCuts) {
    for (uint32_t rounds = 0; rounds < 16; ++rounds) {
      SCOPED_TRACE(std::string(cut.name) + " after " + std::to_string(rounds));
      RunCut(cut, rounds);
    }
  }
}

// A worker that leaves at once fails what is left and has a second to be idle: no lease of a
// hand-off ends within that, and what routers still send begins nothing.
TEST(EngineHandoffTest, AWorkerWhoseRequestsFailIsIdleInTheNextTurns) {
  for (uint32_t i = 0; i < 4 * 16; ++i) {
    const bool by_prefill = i % 2 == 0;
    const bool is_alone = i / 2 % 2 == 1;  // the other one has left before
    const uint32_t rounds = i / 4;
    SCOPED_TRACE(testing::Message() << by_prefill << " " << is_alone << " after " << rounds);
    HandWorkerOptions p_options{.role = WorkerRole::kPrefill, .max_chunk = 8};
    p_options.strand_us = 3'000'000;
    Pair pair(p_options);
    pair.Start(ToyRequest(1, 30, 6));
    for (uint32_t n = 0; n < rounds; ++n) pair.rig.Round();
    HandWorker* const leaves = by_prefill ? pair.p : pair.d;
    HandWorker* const other = by_prefill ? pair.d : pair.p;
    if (is_alone) {
      other->Disconnect();
      pair.rig.Round();
    }
    const RequestKind kind = by_prefill ? RequestKind::kSource : RequestKind::kDest;
    const RequestSpec late = ForPeer(ToyRequest(2, 30, 6), kind, *other);
    leaves->Post(BeginDrain{});
    leaves->Start(late);
    leaves->Post(FailAll{Unavailable("the worker stops")});
    for (int n = 0; n < 8; ++n) pair.rig.Round();
    EXPECT_EQ(leaves->recorder().Of(late.key).last(), RequestState::kRejected);
    EXPECT_EQ(leaves->core().Snapshot().num_requests, 0u);
    EXPECT_EQ(leaves->core().Snapshot().num_open_transfers, 0u);
    EXPECT_TRUE(leaves->AllFree());
  }
}

// Each says of itself what failed, and of its peer that the peer did.
TEST(EngineHandoffTest, AWorkerThatGivesUpIsNoFaultOfTheHandOff) {
  for (const bool by_prefill : {true, false}) {
    SCOPED_TRACE(by_prefill);
    Pair pair({.role = WorkerRole::kPrefill, .max_chunk = 8});
    const RequestSpec spec = ToyRequest(1, 30, 6);
    pair.Start(spec);
    pair.rig.Round();
    pair.rig.Round();
    HandWorker* const failed = by_prefill ? pair.p : pair.d;
    HandWorker* const other = by_prefill ? pair.d : pair.p;
    failed->Post(FailAll{Internal("the device is lost")});
    ASSERT_TRUE(pair.rig.RunUntilQuiet());
    pair.rig.RunFor(1'000);
    ASSERT_TRUE(pair.rig.RunUntilQuiet());
    const Record first = failed->recorder().Of(spec.key);
    const Record second = other->recorder().Of(spec.key);
    EXPECT_EQ(first.last(), RequestState::kFailed);
    EXPECT_EQ(first.failed_part, FailedPart::kComputation);
    EXPECT_EQ(second.last(), RequestState::kFailed);
    EXPECT_EQ(second.failed_part, FailedPart::kPeer);
    pair.ExpectFree();
  }
}

TEST(EngineHandoffTest, TheSameAttemptAgainBehindItsCancelEndsInAStateOfItsOwn) {
  for (uint32_t rounds = 0; rounds < 16; ++rounds) {
    SCOPED_TRACE(rounds);
    Pair pair({.role = WorkerRole::kPrefill, .max_chunk = 8});
    const RequestSpec spec = ToyRequest(1, 30, 6);
    pair.Start(spec);
    for (uint32_t i = 0; i < rounds; ++i) pair.rig.Round();
    pair.p->Cancel(spec.key);
    pair.p->Start(ForPeer(spec, RequestKind::kSource, *pair.d));
    pair.rig.RunFor(23'000);
    ASSERT_TRUE(pair.rig.RunUntilQuiet());
    EXPECT_GE(pair.p->recorder().Of(spec.key).num_terminal, 1u);
    EXPECT_TRUE(pair.p->AllFree());
    EXPECT_TRUE(pair.d->AllFree());
  }
}

TEST(EngineHandoffTest, DamagedLostAndRepeatedSlicesAreRepaired) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    HandWorkerOptions p = kPrefill;
    p.faults = {.drop_slice = 0.02, .duplicate_slice = 0.1, .corrupt_slice = 0.1};
    p.fault_seed = seed;
    Pair pair(p);
    std::vector<RequestSpec> specs;
    for (uint32_t i = 0; i < 6; ++i) {
      specs.push_back(ToyRequest(i + 1, 3 + 11 * i, 6));
      pair.Start(specs.back());
    }
    ASSERT_TRUE(pair.rig.RunUntilQuiet());
    pair.rig.RunFor(15'000);
    ASSERT_TRUE(pair.rig.RunUntilQuiet());
    for (const RequestSpec& spec : specs) pair.ExpectAnswered(spec);
    EXPECT_GT(pair.p->transport().Counts().corrupted, 0u);
    EXPECT_GT(pair.d->core().Snapshot().bad_slices, 0u);
    pair.ExpectFree();
  }
}

TEST(EngineHandoffTest, SlicesThatStayDamagedEndTheRequestAndFreeBothPools) {
  HandWorkerOptions p = kPrefill;
  p.faults = {.corrupt_slice = 1.0};
  Pair pair(p);
  const RequestSpec spec = ToyRequest(1, 10, 6);
  pair.Start(spec);
  ASSERT_TRUE(pair.rig.RunUntilQuiet());
  pair.rig.RunFor(25'000);
  EXPECT_EQ(pair.d->recorder().Of(spec.key).last(), RequestState::kFailed);
  EXPECT_TRUE(absl::IsDataLoss(pair.d->recorder().Of(spec.key).status));
  EXPECT_EQ(pair.p->recorder().Of(spec.key).last(), RequestState::kFailed);
  EXPECT_EQ(pair.p->recorder().Of(spec.key).failed_part, FailedPart::kHandOff);
  EXPECT_EQ(pair.d->recorder().Of(spec.key).failed_part, FailedPart::kHandOff);
  EXPECT_TRUE(pair.d->recorder().Of(spec.key).Tokens(0).empty()) << "no token of bad KV";
  pair.ExpectFree();
}

TEST(EngineHandoffTest, SilenceEndsBothSidesByTheLease) {
  HandWorkerOptions d = kDecode;
  d.faults = {.drop_control = 1.0};  // the prefill worker never hears of the grant
  Pair pair(kPrefill, d);
  const RequestSpec spec = ToyRequest(1, 30, 6);
  pair.Start(spec);
  ASSERT_TRUE(pair.rig.RunUntilQuiet());
  EXPECT_FALSE(pair.d->recorder().Of(spec.key).ended());
  for (int second = 0; second < 23; ++second) {
    for (HandWorker* worker : {pair.p, pair.d}) {
      worker->Post(RenewSession{spec.session, 10'000'000});  // the router is well
    }
    pair.rig.RunFor(1'000);
  }
  EXPECT_EQ(pair.p->recorder().Of(spec.key).last(), RequestState::kFailed);
  EXPECT_TRUE(absl::IsDeadlineExceeded(pair.p->recorder().Of(spec.key).status));
  EXPECT_EQ(pair.d->recorder().Of(spec.key).last(), RequestState::kFailed);
  pair.ExpectFree();
}

TEST(EngineHandoffTest, AnotherTenantsPromptIsFoundByTheChain) {
  Pair pair;
  RequestSpec spec = ToyRequest(1, 30, 6);
  RequestSpec other = spec;
  other.tokens[7] ^= 1;
  pair.d->Start(ForPeer(spec, RequestKind::kDest, *pair.p));
  pair.p->Start(ForPeer(other, RequestKind::kSource, *pair.d));
  ASSERT_TRUE(pair.rig.RunUntilQuiet());
  EXPECT_EQ(pair.d->recorder().Of(spec.key).last(), RequestState::kFailed);
  EXPECT_EQ(pair.d->core().Snapshot().chain_mismatches, 1u);
  EXPECT_TRUE(pair.d->recorder().Of(spec.key).Tokens(0).empty());
  pair.ExpectFree();
}

TEST(EngineHandoffTest, TwoHundredRequestsThroughTinyPoolsUnderFaults) {
  const uint64_t seed =
      ::testing::UnitTest::GetInstance()->random_seed() != 0
          ? static_cast<uint64_t>(::testing::UnitTest::GetInstance()->random_seed())
          : 20260;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  HandWorkerOptions p{.role = WorkerRole::kPrefill, .num_blocks = 48, .max_chunk = 16};
  p.faults = {.duplicate_slice = 0.05, .corrupt_slice = 0.03, .duplicate_control = 0.1};
  p.fault_seed = seed;
  HandWorkerOptions d{.role = WorkerRole::kDecode, .num_blocks = 40};
  d.faults = {.duplicate_control = 0.1};
  Pair pair(p, d);
  uint32_t num_finished = 0;
  uint32_t num_started = 0;
  std::vector<RequestSpec> live;
  while (num_started < 200 || !live.empty()) {
    if (num_started < 200 && random() % 2 == 0) {
      RequestSpec spec = ToyRequest(++num_started, 1 + random() % 40, 1 + random() % 16);
      spec.num_choices = random() % 5 == 0 ? 2 : 1;
      spec.sampling.temperature = random() % 2 == 0 ? 0.0f : 1.0f;
      spec.sampling.seed = random();
      if (random() % 4 == 0) {
        pair.d->Start(spec);  // local
      } else {
        pair.Start(spec);
      }
      live.push_back(spec);
    }
    if (!live.empty() && random() % 12 == 0) {
      const RequestSpec& victim = live[random() % live.size()];
      pair.p->Cancel(victim.key);
      pair.d->Cancel(victim.key);
    }
    pair.rig.Round();
    std::erase_if(live, [&](const RequestSpec& spec) {
      const Record dest = pair.d->recorder().Of(spec.key);
      if (!dest.ended()) return false;
      const bool finished = dest.last() == RequestState::kFinished;
      if (!finished) pair.p->Cancel(spec.key);  // as a router does
      for (uint32_t c = 0; finished && c < spec.num_choices; ++c) {
        EXPECT_EQ(IdsOf(dest, c), ExpectedTokens(spec, c));
      }
      num_finished += finished ? 1 : 0;
      return true;
    });
  }
  ASSERT_TRUE(pair.rig.RunUntilQuiet());
  pair.rig.RunFor(23'000);
  pair.ExpectFree();
  EXPECT_GT(num_finished, 60u);
}

// Plays `ms` milliseconds while nothing that the prefill worker sends arrives, a step each 200 ms.
void RunLossy(Pair* pair, int64_t ms, const std::function<void()>& step) {
  for (int64_t done = 0; done < ms; done += 200) {
    step();
    for (HandWorker* worker : {pair->p, pair->d}) {
      worker->Post(RenewSession{SessionId(1), 10'000'000});
    }
    pair->rig.clock().AdvanceMs(199);
    pair->rig.Round();
  }
}

const HandWorkerOptions kLossyPrefill{.role = WorkerRole::kPrefill, .faults = {.drop_slice = 1}};

// A slow connection delivers what was queued before, for longer than a silent one is waited for.
TEST(EngineHandoffTest, SlicesBehindOthersInTheQueueAreNotMissing) {
  Pair pair(kLossyPrefill);
  const RequestSpec ahead = ToyRequest(1, 180, 4);
  const RequestSpec queued = ToyRequest(2, 8, 4);
  pair.Start(ahead);
  pair.Start(queued);
  uint32_t num_arrived = 0;
  // Transfer ids ascend from 1.
  RunLossy(&pair, 40'000, [&] {
    pair.d->Post(ReceiveProgress{TransferId(1), ++num_arrived, false});
  });
  EXPECT_FALSE(pair.d->recorder().Of(queued.key).ended())
      << pair.d->recorder().Of(queued.key).status;
  RunLossy(&pair, 30'000, [] {});
  for (const RequestSpec& spec : {ahead, queued}) {
    EXPECT_EQ(pair.d->recorder().Of(spec.key).last(), RequestState::kFailed);
  }
  for (int i = 0; i < 100; ++i) pair.rig.RunFor(200);
  pair.ExpectFree();
}

// The prefill worker repeats its Seal whenever the decode worker repeats its Grant, and under load
// other transfers are always on their way. Neither may put off the request for lost slices.
TEST(EngineHandoffTest, WhatIsLostIsMissedWhileOthersArrive) {
  constexpr uint32_t kTokens = 8;
  Pair pair(kLossyPrefill);
  const RequestSpec lost = ToyRequest(1, kTokens, 4);
  pair.Start(lost);
  uint64_t num_started = 1;
  const uint32_t num_slices = ToyLayout().BlocksFor(kTokens) * ToyLayout().num_layers;
  int64_t step = 0;
  RunLossy(&pair, 100'000, [&] {
    if (++step % 5 != 0) return;
    // One begins every second and is here five seconds later.
    pair.Start(ToyRequest(++num_started, kTokens, 1));
    if (num_started <= 6) return;
    pair.d->Post(ReceiveProgress{TransferId(num_started - 5), num_slices, true});
  });
  EXPECT_EQ(pair.d->recorder().Of(lost.key).last(), RequestState::kFailed);
  EXPECT_EQ(pair.d->recorder().Of(ToyRequest(num_started - 10, kTokens, 1).key).last(),
            RequestState::kFinished);
  RunLossy(&pair, 200'000, [] {});
  pair.ExpectFree();
}

// Nor does a queue that hardly moves put it off for ever.
TEST(EngineHandoffTest, AQueueIsWaitedForAMinuteAtMost) {
  Pair pair(kLossyPrefill);
  pair.Start(ToyRequest(1, 180, 4));
  pair.Start(ToyRequest(2, 8, 4));
  uint32_t num_arrived = 0;
  int64_t step = 0;
  const auto crawl = [&] {
    if (++step % 8 == 0) pair.d->Post(ReceiveProgress{TransferId(1), ++num_arrived, false});
  };
  RunLossy(&pair, 10'000, crawl);
  const uint64_t sent = pair.p->core().Snapshot().kv_bytes_sent;
  RunLossy(&pair, 49'000, crawl);
  EXPECT_EQ(pair.p->core().Snapshot().kv_bytes_sent, sent);
  RunLossy(&pair, 6'000, crawl);
  EXPECT_GT(pair.p->core().Snapshot().kv_bytes_sent, sent) << "it was not asked for again";
  RunLossy(&pair, 120'000, [] {});
  pair.ExpectFree();
}

}  // namespace
}  // namespace baton::engine
