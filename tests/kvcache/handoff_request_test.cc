// HandoffRequest: its promises by example, and every sequence of events compared with a naive
// model.
#include "kvcache/handoff_request.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace baton::kv {
namespace {

using Decided = RecoverDecision::Kind;
using State = HandoffRequestState;

HandoffRequest Placed() {
  HandoffRequest request;
  request.OnValidated();
  request.OnPlaced(/*local=*/false);
  return request;
}

TEST(HandoffRequestTest, AGoodRequestTellsTheClientOnceAndReleasesItsWorkers) {
  HandoffRequest request;
  EXPECT_EQ(request.OnValidated(), (RequestOrders{.enqueue = true}));
  EXPECT_EQ(request.OnPlaced(false), 1u);
  request.OnProgress(1, PlacementProgress::kTransferring);
  EXPECT_EQ(request.state(), State::kTransferring);
  request.OnProgress(1, PlacementProgress::kReserved);
  EXPECT_EQ(request.state(), State::kTransferring) << "the furthest shows";
  request.OnProgress(1, PlacementProgress::kAllKvAtDecode);
  EXPECT_EQ(request.state(), State::kDecoding);
  EXPECT_EQ(request.OnDone(), (RequestOrders{.release_workers = true, .tell_client = true}));
  EXPECT_EQ(request.OnDone(), RequestOrders{});
  EXPECT_EQ(request.OnCancelled(), RequestOrders{});
  EXPECT_EQ(request.OnFault(1, PlacementFault::kDecodeDied, 1).kind, Decided::kIgnored);
}

TEST(HandoffRequestTest, ASkippedAttemptIsNeverThatOfAPlacement) {
  HandoffRequest request = Placed();
  request.SkipAttempt();
  request.SkipAttempt();
  EXPECT_EQ(request.attempt(), 1u) << "what runs goes on";
  EXPECT_TRUE(request.Admits(1));
  EXPECT_FALSE(request.Admits(2));
  EXPECT_EQ(request.next_attempt(), 4u);
  request.OnFault(1, PlacementFault::kMoved, 3);
  EXPECT_EQ(request.OnPlaced(false), 4u);
  EXPECT_EQ(request.next_attempt(), 5u);
}

TEST(HandoffRequestTest, TheThirdFaultInARowEndsTheRequestAndANewTokenStartsTheRowAnew) {
  HandoffRequest request = Placed();
  for (uint32_t known = 0; known < 5; ++known) {
    for (int i = 0; i < 2; ++i) {
      const RecoverDecision decision =
          request.OnFault(request.attempt(), PlacementFault::kTokensMissing, known);
      EXPECT_EQ(decision.kind, Decided::kRecover);
      EXPECT_EQ(decision.num_replayed, known);
      EXPECT_TRUE(decision.retarget);
      EXPECT_EQ(decision.orders, (RequestOrders{true, true, true, false}));
      request.OnPlaced(false);
    }
  }
  EXPECT_EQ(request.attempt(), 11u);
  const RecoverDecision last = request.OnFault(11, PlacementFault::kDecodeStalled, 4);
  EXPECT_EQ(last.kind, Decided::kFailed);
  EXPECT_EQ(last.orders, (RequestOrders{.release_workers = true, .tell_client = true}));
  EXPECT_FALSE(last.retarget);
}

TEST(HandoffRequestTest, FaultsOfLinksHaveNoLimitAndAfterTwoTheNextPlacementNeedsNone) {
  const std::vector<PlacementFault> faults = {
      PlacementFault::kTransferStopped, PlacementFault::kDecodeFailed,
      PlacementFault::kPrefillFailed, PlacementFault::kLinkSlow};
  HandoffRequest request = Placed();
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(request.needs_no_link(), i >= 2) << i;
    const RecoverDecision decision = request.OnFault(request.attempt(), faults[i % 4], 1);
    EXPECT_EQ(decision.kind, Decided::kRecover) << i;
    EXPECT_EQ(decision.retarget, faults[i % 4] != PlacementFault::kPrefillFailed) << i;
    request.OnPlaced(false);
  }
  EXPECT_EQ(request.num_faults(), 0u);
  request.OnProgress(request.attempt(), PlacementProgress::kAllKvAtDecode);
  EXPECT_EQ(request.OnFault(request.attempt(), PlacementFault::kDecodeFailed, 5).kind,
            Decided::kRecover);
  EXPECT_EQ(request.num_faults(), 1u) << "the KV had come: the worker failed";
  EXPECT_FALSE(request.needs_no_link()) << "new tokens came";
}

TEST(HandoffRequestTest, AFailedComputationIsNoFaultOfALink) {
  for (const PlacementFault fault :
       {PlacementFault::kPrefillBroken, PlacementFault::kDecodeBroken}) {
    HandoffRequest request = Placed();
    for (uint32_t i = 1; i <= 3; ++i) {
      const RecoverDecision decision = request.OnFault(request.attempt(), fault, 1);
      EXPECT_EQ(decision.kind, i < 3 ? Decided::kRecover : Decided::kFailed) << i;
      EXPECT_EQ(decision.retarget, i < 3 && fault == PlacementFault::kDecodeBroken) << i;
      request.OnPlaced(false);
    }
    EXPECT_EQ(request.num_link_faults(), 0u);
  }
}

TEST(HandoffRequestTest, FaultsOfAWorkerThatComputesThePromptItselfCount) {
  HandoffRequest request;
  request.OnValidated();
  for (int i = 0; i < 3; ++i) {
    request.OnPlaced(/*local=*/true);
    const RecoverDecision decision =
        request.OnFault(request.attempt(), PlacementFault::kDecodeFailed, 0);
    EXPECT_EQ(decision.kind, i < 2 ? Decided::kRecover : Decided::kFailed);
  }
}

TEST(HandoffRequestTest, DeathsBetweenFaultsOfLinksStayPoison) {
  HandoffRequest request = Placed();
  request.OnFault(1, PlacementFault::kTransferStopped, 0);
  request.OnPlaced(false);
  EXPECT_EQ(request.OnFault(2, PlacementFault::kPrefillDied, 0).kind, Decided::kRecover);
  request.OnPlaced(false);
  EXPECT_EQ(request.OnFault(3, PlacementFault::kLinkSlow, 0).kind, Decided::kRecover);
  request.OnPlaced(true);
  EXPECT_EQ(request.OnFault(4, PlacementFault::kDecodeDied, 0).kind, Decided::kPoisoned);
}

TEST(HandoffRequestTest, TwoDeathsWithoutANewTokenArePoison) {
  HandoffRequest request = Placed();
  EXPECT_EQ(request.OnFault(1, PlacementFault::kPrefillDied, 0).kind, Decided::kRecover);
  request.OnPlaced(false);
  EXPECT_EQ(request.OnFault(2, PlacementFault::kDecodeDied, 1).kind, Decided::kRecover)
      << "a token came between";
  request.OnPlaced(false);
  EXPECT_EQ(request.OnFault(3, PlacementFault::kDecodeDied, 1).kind, Decided::kPoisoned);
  EXPECT_EQ(request.state(), State::kFailed);
}

TEST(HandoffRequestTest, PlannedMovesAndRefusalsDoNotCount) {
  HandoffRequest request = Placed();
  for (int i = 0; i < 10; ++i) {
    const PlacementFault fault = i % 2 == 0 ? PlacementFault::kMoved : PlacementFault::kPrefillLeft;
    EXPECT_EQ(request.OnFault(request.attempt(), fault, 0).kind, Decided::kRecover);
    request.OnPlaced(false);
    EXPECT_EQ(request.OnRefused(request.attempt(), true).kind, Decided::kRecover);
    request.OnPlaced(false);
  }
  EXPECT_EQ(request.num_faults(), 0u);
}

TEST(HandoffRequestTest, OnlyTheBlocksOfALivingPrefillWorkerAreRetargeted) {
  for (int i = 0; i <= static_cast<int>(PlacementFault::kDecodeGone); ++i) {
    const auto fault = static_cast<PlacementFault>(i);
    const bool loses =
        fault == PlacementFault::kPrefillDied || fault == PlacementFault::kPrefillStalled ||
        fault == PlacementFault::kPrefillFailed || fault == PlacementFault::kPrefillBroken ||
        fault == PlacementFault::kPrefillLeft || fault == PlacementFault::kPrefillGone;
    EXPECT_EQ(Placed().OnFault(1, fault, 0).retarget, !loses) << i;
    HandoffRequest decoding = Placed();
    decoding.OnProgress(1, PlacementProgress::kAllKvAtDecode);
    const RecoverDecision decision = decoding.OnFault(1, fault, 0);
    EXPECT_EQ(decision.kind, loses ? Decided::kIgnored : Decided::kRecover) << i;
    EXPECT_FALSE(decision.retarget) << "the prefill worker has released them";
  }
  EXPECT_TRUE(Placed().OnRefused(1, /*by_decode=*/true).retarget);
  EXPECT_FALSE(Placed().OnRefused(1, /*by_decode=*/false).retarget);
}

TEST(HandoffRequestTest, StatesHaveNames) {
  EXPECT_EQ(HandoffRequestStateName(State::kReceived), "received");
  EXPECT_EQ(HandoffRequestStateName(State::kCancelled), "cancelled");
}

// ---- Every sequence of events against a model written without the table.

// A request as it should be, in plain words.
struct Naive {
  enum class Phase : uint8_t { kNew, kWaiting, kRunning, kOver };
  Phase phase = Phase::kNew;
  State state = State::kReceived;
  bool local = false;
  uint32_t attempt = 0;
  uint32_t faults = 0;
  uint32_t deaths = 0;
  uint32_t link_faults = 0;
  uint32_t known = 0;

  bool all_kv() const { return state == State::kDecoding; }

  RequestOrders End(State how) {
    if (phase == Phase::kOver) return {};
    const RequestOrders orders{.release_workers = phase == Phase::kRunning, .tell_client = true};
    phase = Phase::kOver;
    state = how;
    return orders;
  }
  RequestOrders Wait(State how) {
    phase = Phase::kWaiting;
    state = how;
    return {.release_workers = true, .enqueue = true, .in_front = true};
  }
};

// A request beside its model; each call does the same to both and compares.
struct Pair {
  HandoffRequest request;
  Naive naive;

  friend bool operator==(const Pair& a, const Pair& b) { return a.request == b.request; }
  template <typename H>
  friend H AbslHashValue(H state, const Pair& pair) {
    return H::combine(std::move(state), pair.request);
  }

  void Compare(const char* what) const {
    ASSERT_EQ(request.state(), naive.state) << what;
    ASSERT_EQ(request.attempt(), naive.attempt) << what;
    ASSERT_EQ(request.num_faults(), naive.faults) << what;
    ASSERT_EQ(request.num_link_faults(), naive.link_faults) << what;
    ASSERT_EQ(request.placed(), naive.phase == Naive::Phase::kRunning) << what;
    ASSERT_EQ(request.finished(), naive.phase == Naive::Phase::kOver) << what;
  }
  void Validate() {
    RequestOrders wanted;
    if (naive.phase == Naive::Phase::kNew) {
      naive.phase = Naive::Phase::kWaiting;
      naive.state = State::kQueued;
      wanted.enqueue = true;
    }
    EXPECT_EQ(request.OnValidated(), wanted);
  }
  void Place(bool local) {
    uint32_t wanted = 0;
    if (naive.phase == Naive::Phase::kWaiting) {
      wanted = ++naive.attempt;
      naive.phase = Naive::Phase::kRunning;
      naive.state = State::kPlacing;
      naive.local = local;
    }
    EXPECT_EQ(request.OnPlaced(local), wanted);
  }
  void Progress(PlacementProgress progress) {
    const std::vector<State> order = {State::kPlacing, State::kReserved, State::kPrefilling,
                                      State::kTransferring, State::kDecoding};
    const State reached = order[static_cast<size_t>(progress) + 1];
    if (naive.phase == Naive::Phase::kRunning) naive.state = std::max(naive.state, reached);
    EXPECT_EQ(request.OnProgress(naive.attempt, progress), RequestOrders{});
  }
  void Refuse(bool by_decode) {
    RecoverDecision wanted;
    if (naive.phase == Naive::Phase::kRunning && !naive.all_kv()) {
      wanted.kind = Decided::kRecover;
      wanted.retarget = by_decode && !naive.local;
      wanted.num_replayed = naive.known;
      wanted.orders = naive.Wait(State::kQueued);
    }
    EXPECT_EQ(request.OnRefused(naive.attempt, by_decode), wanted);
  }
  void Fault(PlacementFault fault, uint32_t known) {
    RecoverDecision wanted;
    const bool of_prefill =
        fault == PlacementFault::kPrefillDied || fault == PlacementFault::kPrefillStalled ||
        fault == PlacementFault::kPrefillFailed || fault == PlacementFault::kPrefillBroken ||
        fault == PlacementFault::kPrefillLeft || fault == PlacementFault::kPrefillGone;
    const bool has_prefill = !naive.local && !naive.all_kv();
    if (naive.phase == Naive::Phase::kRunning && (has_prefill || !of_prefill)) {
      const bool planned =
          fault == PlacementFault::kMoved || fault == PlacementFault::kPrefillLeft ||
          fault == PlacementFault::kPrefillGone || fault == PlacementFault::kDecodeGone;
      const bool death =
          fault == PlacementFault::kPrefillDied || fault == PlacementFault::kDecodeDied;
      const bool of_link =
          has_prefill &&
          (fault == PlacementFault::kPrefillFailed || fault == PlacementFault::kDecodeFailed ||
           fault == PlacementFault::kTransferStopped || fault == PlacementFault::kLinkSlow);
      const bool counts = !planned && !of_link;
      if (known > naive.known) naive.faults = naive.deaths = naive.link_faults = 0;
      naive.known = known;
      naive.faults += counts ? 1 : 0;
      if (of_link && naive.link_faults < 2) ++naive.link_faults;
      naive.deaths += death ? 1 : 0;
      wanted.num_replayed = known;
      if (counts && naive.deaths == 2) {
        wanted.kind = Decided::kPoisoned;
        wanted.orders = naive.End(State::kFailed);
      } else if (counts && naive.faults == 3) {
        wanted.kind = Decided::kFailed;
        wanted.orders = naive.End(State::kFailed);
      } else {
        wanted.kind = Decided::kRecover;
        wanted.retarget = has_prefill && !of_prefill;
        wanted.orders = naive.Wait(State::kRecover);
      }
    }
    EXPECT_EQ(request.OnFault(naive.attempt, fault, known), wanted) << static_cast<int>(fault);
  }
  void End(State how) {
    // Nothing was placed yet, or all that was placed was refused: there is nothing to be done with.
    const bool cannot =
        how == State::kDone && (naive.state == State::kQueued || naive.state == State::kReceived);
    const RequestOrders wanted = cannot ? RequestOrders{} : naive.End(how);
    const RequestOrders got = how == State::kDone     ? request.OnDone()
                              : how == State::kFailed ? request.OnFailed()
                                                      : request.OnCancelled();
    EXPECT_EQ(got, wanted);
  }
};

constexpr uint32_t kMaxAttempts = 5;
constexpr uint32_t kMaxKnown = 2;

std::vector<std::function<void(Pair*)>> Events() {
  std::vector<std::function<void(Pair*)>> events = {
      [](Pair* p) { p->Validate(); },          [](Pair* p) { p->Place(false); },
      [](Pair* p) { p->Place(true); },         [](Pair* p) { p->Refuse(false); },
      [](Pair* p) { p->Refuse(true); },        [](Pair* p) { p->End(State::kDone); },
      [](Pair* p) { p->End(State::kFailed); }, [](Pair* p) { p->End(State::kCancelled); },
  };
  for (int i = 0; i <= static_cast<int>(PlacementProgress::kAllKvAtDecode); ++i) {
    events.push_back([i](Pair* p) { p->Progress(static_cast<PlacementProgress>(i)); });
  }
  for (int i = 0; i <= static_cast<int>(PlacementFault::kDecodeGone); ++i) {
    const auto fault = static_cast<PlacementFault>(i);
    events.push_back([fault](Pair* p) { p->Fault(fault, p->naive.known); });
    events.push_back(
        [fault](Pair* p) { p->Fault(fault, std::min(p->naive.known + 1, kMaxKnown)); });
  }
  return events;
}

// An event of another attempt, or while nothing is placed, is counted, and nothing else changes.
void ExpectFenced(const HandoffRequest& request) {
  const bool placed = request.placed();
  for (const uint32_t attempt : {request.attempt() - 1, request.attempt(), request.attempt() + 1}) {
    if (placed && attempt == request.attempt()) continue;
    HandoffRequest copy = request;
    EXPECT_FALSE(copy.Admits(attempt));
    EXPECT_EQ(copy.OnProgress(attempt, PlacementProgress::kAllKvAtDecode), RequestOrders{});
    EXPECT_EQ(copy.OnRefused(attempt, true), RecoverDecision{});
    EXPECT_EQ(copy.OnFault(attempt, PlacementFault::kDecodeDied, 9), RecoverDecision{});
    EXPECT_EQ(copy.num_stale(), request.num_stale() + 4);
    EXPECT_EQ(copy.state(), request.state());
    EXPECT_EQ(copy.num_faults(), request.num_faults());
  }
  HandoffRequest copy = request;
  EXPECT_EQ(copy.Admits(request.attempt()), placed);
}

TEST(HandoffRequestTest, EverySequenceOfEventsIsThatOfTheNaiveModel) {
  absl::flat_hash_set<Pair> seen = {Pair{}};
  std::deque<Pair> open = {Pair{}};
  const auto events = Events();
  size_t transitions = 0;
  while (!open.empty() && !testing::Test::HasFailure()) {
    const Pair pair = open.front();
    open.pop_front();
    ExpectFenced(pair.request);
    for (const auto& event : events) {
      Pair next = pair;
      event(&next);
      next.Compare(std::string(HandoffRequestStateName(pair.request.state())).c_str());
      ++transitions;
      // A void event is counted, and only that; it leads nowhere new.
      const bool is_void = next.request.num_stale() != pair.request.num_stale();
      if (is_void || next.request.attempt() > kMaxAttempts) continue;
      if (seen.insert(next).second) open.push_back(next);
    }
  }
  std::printf("%zu states, %zu transitions\n", seen.size(), transitions);
  EXPECT_GT(seen.size(), 500u);
}

}  // namespace
}  // namespace baton::kv
