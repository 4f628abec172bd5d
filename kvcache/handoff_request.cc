#include "kvcache/handoff_request.h"

#include <algorithm>
#include <array>

#include "kvcache/handoff_table.h"

namespace baton::kv {

// The events of the table, after the raw input was judged (is it of this attempt, is a limit
// reached).
enum class HandoffRequest::Event : uint8_t {
  kValidated,
  kPlaced,
  kReserved,
  kPrefilling,
  kTransferring,
  kAllKv,
  kRefused,
  kFault,
  kFaultLimit,
  kPoison,
  kDone,
  kFailed,
  kCancelled,
};

// The operations of a transition.
enum class HandoffRequest::Op : uint8_t {
  kNone,
  kRaiseAttempt,
  kReleaseWorkers,
  kEnqueue,
  kEnqueueInFront,
  kTellClient,
};

// The behaviour of the router's side.
struct HandoffRequest::Table : handoff_internal::TableWords<HandoffRequestState, Event, Op> {
  // Before the decode worker has all KV of the prompt.
  static constexpr uint32_t kStarting =
      In(S::kPlacing, S::kReserved, S::kPrefilling, S::kTransferring);
  static constexpr uint32_t kRunning = kStarting | In(S::kDecoding);
  static constexpr uint32_t kWaiting = In(S::kQueued, S::kRecover);

  static constexpr Row kRows[] = {
      // The good way. The three middle states overlap: only what is further changes anything.
      Go(In(S::kReceived), E::kValidated, S::kQueued, O::kEnqueue),
      Go(kWaiting, E::kPlaced, S::kPlacing, O::kRaiseAttempt),
      Go(In(S::kPlacing), E::kReserved, S::kReserved),
      Go(In(S::kPlacing, S::kReserved), E::kPrefilling, S::kPrefilling),
      Go(In(S::kPlacing, S::kReserved, S::kPrefilling), E::kTransferring, S::kTransferring),
      Go(kStarting, E::kAllKv, S::kDecoding),
      // The first token may be the last one, so any running placement can be done; and what is
      // known when a placement is lost may turn out to be all.
      Go(kRunning, E::kDone, S::kDone, O::kReleaseWorkers, O::kTellClient),
      Go(In(S::kRecover), E::kDone, S::kDone, O::kTellClient),
      // The request is placed once more.
      Go(kStarting, E::kRefused, S::kQueued, O::kReleaseWorkers, O::kEnqueueInFront),
      Go(kRunning, E::kFault, S::kRecover, O::kReleaseWorkers, O::kEnqueueInFront),
      // The request is not placed once more.
      Go(kRunning, E::kFaultLimit, S::kFailed, O::kReleaseWorkers, O::kTellClient),
      Go(kRunning, E::kPoison, S::kFailed, O::kReleaseWorkers, O::kTellClient),
      Go(kRunning, E::kFailed, S::kFailed, O::kReleaseWorkers, O::kTellClient),
      Go(In(S::kReceived) | kWaiting, E::kFailed, S::kFailed, O::kTellClient),
      Go(kRunning, E::kCancelled, S::kCancelled, O::kReleaseWorkers, O::kTellClient),
      Go(In(S::kReceived) | kWaiting, E::kCancelled, S::kCancelled, O::kTellClient),
  };
  static_assert(handoff_internal::IsUnambiguous(kRows));
};

namespace {

constexpr std::array<std::string_view, kNumHandoffRequestStates> kStateNames = {
    "received", "queued",  "placing", "reserved", "prefilling", "transferring",
    "decoding", "recover", "done",    "failed",   "cancelled"};
constexpr std::array<std::string_view, 13> kEventNames = {
    "validated",   "placed",  "reserved by D", "prompt started", "first KV",
    "all KV at D", "refused", "fault",         "fault limit",    "poison",
    "last token",  "error",   "cancel"};
constexpr std::array<std::string_view, 6> kOpNames = {
    "", "raise attempt", "release workers", "enqueue", "enqueue in front", "tell client"};
constexpr handoff_internal::TableNames kNames = {kStateNames, kEventNames, kOpNames};

}  // namespace

std::string_view HandoffRequestStateName(HandoffRequestState state) {
  return kStateNames[static_cast<size_t>(state)];
}

std::string RequestTableText() {
  return handoff_internal::TableText(HandoffRequest::Table::kRows, kNames);
}

std::string RequestDiagramText() {
  return handoff_internal::DiagramText(HandoffRequest::Table::kRows, kNames);
}

bool HandoffRequest::placed() const {
  return (Table::kRunning >> static_cast<uint32_t>(state_) & 1) != 0;
}

bool HandoffRequest::Admits(uint32_t attempt) {
  if (placed() && attempt == attempt_) return true;
  ++num_stale_;
  return false;
}

// ---- Events: judge the input, then let the table decide.

RequestOrders HandoffRequest::OnValidated() { return Dispatch(Event::kValidated); }

uint32_t HandoffRequest::OnPlaced(bool local) {
  const uint32_t before = attempt_;
  Dispatch(Event::kPlaced);
  if (attempt_ == before) return 0;
  is_local_ = local;
  return attempt_;
}

RequestOrders HandoffRequest::OnProgress(uint32_t attempt, PlacementProgress progress) {
  if (!Admits(attempt)) return {};
  switch (progress) {
    case PlacementProgress::kReserved:
      return Dispatch(Event::kReserved);
    case PlacementProgress::kPrefilling:
      return Dispatch(Event::kPrefilling);
    case PlacementProgress::kTransferring:
      return Dispatch(Event::kTransferring);
    case PlacementProgress::kAllKvAtDecode:
      return Dispatch(Event::kAllKv);
  }
  return {};
}

RecoverDecision HandoffRequest::OnRefused(uint32_t attempt, bool by_decode) {
  if (!Admits(attempt)) return {};
  RecoverDecision decision;
  decision.retarget = by_decode && NeedsPrefill();
  decision.orders = Dispatch(Event::kRefused);
  if (!decision.orders.enqueue) return {};
  decision.kind = RecoverDecision::Kind::kRecover;
  decision.num_replayed = num_known_;
  return decision;
}

RecoverDecision HandoffRequest::OnFault(uint32_t attempt, PlacementFault fault,
                                        uint32_t num_known_tokens) {
  if (!Admits(attempt)) return {};
  if (LosesPrefill(fault) && !NeedsPrefill()) return {};
  using Kind = RecoverDecision::Kind;
  const bool retarget = !LosesPrefill(fault) && NeedsPrefill();
  const Event event = JudgeFault(fault, num_known_tokens);  // before the state changes
  RecoverDecision decision;
  decision.orders = Dispatch(event);
  decision.num_replayed = num_known_tokens;
  if (event == Event::kPoison) decision.kind = Kind::kPoisoned;
  if (event == Event::kFaultLimit) decision.kind = Kind::kFailed;
  if (event == Event::kFault) {
    decision.kind = Kind::kRecover;
    decision.retarget = retarget;
  }
  return decision;
}

HandoffRequest::Event HandoffRequest::JudgeFault(PlacementFault fault, uint32_t num_known_tokens) {
  if (num_known_tokens > num_known_) num_faults_ = num_deaths_ = num_link_faults_ = 0;
  num_known_ = num_known_tokens;
  if (IsPlanned(fault)) return Event::kFault;
  if (IsOfLink(fault) && NeedsPrefill()) {
    num_link_faults_ = std::min(num_link_faults_ + 1, limits_.max_link_faults);
    return Event::kFault;
  }
  ++num_faults_;
  if (IsDeath(fault)) ++num_deaths_;
  if (num_deaths_ >= limits_.max_deaths) return Event::kPoison;
  return num_faults_ >= limits_.max_faults ? Event::kFaultLimit : Event::kFault;
}

RequestOrders HandoffRequest::OnDone() { return Dispatch(Event::kDone); }
RequestOrders HandoffRequest::OnFailed() { return Dispatch(Event::kFailed); }
RequestOrders HandoffRequest::OnCancelled() { return Dispatch(Event::kCancelled); }

// ---- The machine.

RequestOrders HandoffRequest::Dispatch(Event event) {
  RequestOrders orders;
  const auto* row = handoff_internal::FindRow(Table::kRows, state_, event);
  if (row == nullptr) return orders;
  state_ = row->next;
  for (const Op op : row->ops) {
    switch (op) {
      case Op::kNone:
        break;
      case Op::kRaiseAttempt:
        attempt_ = next_attempt();
        num_skipped_ = 0;
        break;
      case Op::kReleaseWorkers:
        orders.release_workers = true;
        break;
      case Op::kEnqueueInFront:
        orders.in_front = true;
        orders.enqueue = true;
        break;
      case Op::kEnqueue:
        orders.enqueue = true;
        break;
      case Op::kTellClient:
        orders.tell_client = true;
        break;
    }
  }
  return orders;
}

}  // namespace baton::kv
