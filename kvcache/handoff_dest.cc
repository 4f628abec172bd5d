#include "kvcache/handoff_dest.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kvcache/handoff_table.h"
#include "src/base/check.h"
#include "src/base/limits.h"

namespace baton::kv {

// The events of the table, after the raw input was judged (a seal is right or not, the last slice
// is in).
enum class HandoffDest::Event : uint8_t {
  kStart,
  kProgress,   // slices arrived, or the last one did and the Seal is missing
  kSealEarly,  // a right Seal; slices are missing
  kAllIn,      // the later of the last slice and the Seal arrived
  kSealUnfit,  // the Seal contradicts our request
  kSealAgain,
  kRenew,
  kBadSlice,
  kBadLimit,  // a slice was bad, or slices were missing, too often
  kGapDue,    // sealed, not complete, and nothing came for a while
  kRegrantDue,
  kRevoke,
  kCancel,
  kPeerDown,
  kReceiveClosed,
  kExpired,
};

// The operations of a transition.
enum class HandoffDest::Op : uint8_t {
  kNone,
  kOpenReceive,
  kSendGrant,
  kLabelReceiving,
  kSendNack,
  kSendApplied,
  kSendRevoke,
  kCloseReceive,
  kUnpin,
  kBind,
  kRelease,
  kFail,
};

// The behaviour of the decode worker's side.
struct HandoffDest::Table : handoff_internal::TableWords<DestState, Event, Op> {
  static constexpr uint32_t kOpen = In(S::kReserved, S::kReceiving);
  static constexpr uint32_t kDone = In(S::kVerified, S::kBound);

  static constexpr Row kRows[] = {
      // The good way. Applied is sent when all is verified; the sequences get the blocks when the
      // transport has confirmed that it writes no more.
      Stay(In(S::kReserved), E::kStart, O::kOpenReceive, O::kSendGrant),
      Go(In(S::kReserved), E::kProgress, S::kReceiving, O::kLabelReceiving),
      Go(In(S::kReserved), E::kAllIn, S::kVerified, O::kLabelReceiving, O::kSendApplied,
         O::kCloseReceive),
      Go(In(S::kReceiving), E::kAllIn, S::kVerified, O::kSendApplied, O::kCloseReceive),
      Go(In(S::kVerified), E::kReceiveClosed, S::kBound, O::kUnpin, O::kBind),
      Go(In(S::kBound), E::kExpired, S::kReleased),
      Go(In(S::kDraining), E::kReceiveClosed, S::kReleased, O::kUnpin),
      // Repairs: everything may be repeated.
      Stay(kOpen, E::kRegrantDue, O::kSendGrant),
      Stay(kOpen, E::kBadSlice, O::kSendNack),
      Stay(kOpen, E::kGapDue, O::kSendNack),
      Stay(kDone, E::kSealAgain, O::kSendApplied),
      Stay(kDone, E::kRenew, O::kSendApplied),
      Stay(In(S::kDraining), E::kSealAgain, O::kSendRevoke),
      Stay(In(S::kDraining), E::kRenew, O::kSendRevoke),
      // Ends: the transport may write the blocks until it confirms. After VERIFIED neither the
      // prefill worker's death nor its word matters.
      Go(kOpen, E::kRevoke, S::kDraining, O::kCloseReceive, O::kRelease, O::kFail),
      Go(kOpen, E::kPeerDown, S::kDraining, O::kCloseReceive, O::kRelease, O::kFail),
      Go(kOpen, E::kCancel, S::kDraining, O::kSendRevoke, O::kCloseReceive, O::kRelease),
      Go(kOpen, E::kSealUnfit, S::kDraining, O::kSendRevoke, O::kCloseReceive, O::kRelease,
         O::kFail),
      Go(kOpen, E::kBadLimit, S::kDraining, O::kSendRevoke, O::kCloseReceive, O::kRelease,
         O::kFail),
      Go(kOpen, E::kExpired, S::kDraining, O::kSendRevoke, O::kCloseReceive, O::kRelease, O::kFail),
      Go(In(S::kVerified), E::kCancel, S::kDraining, O::kRelease),
      Go(In(S::kBound), E::kCancel, S::kReleased),
      // The transport gave up by itself.
      Go(kOpen, E::kReceiveClosed, S::kReleased, O::kSendRevoke, O::kUnpin, O::kRelease, O::kFail),
  };
  static_assert(handoff_internal::IsUnambiguous(kRows));
};

namespace {

constexpr std::array<std::string_view, kNumDestStates> kStateNames = {
    "reserved", "receiving", "verified", "bound", "draining", "released"};
constexpr std::array<std::string_view, 16> kEventNames = {
    "start",  "progress",  "seal early",     "all in",       "seal unfit",  "seal again",
    "renew",  "bad slice", "bad limit",      "gap due",      "regrant due", "revoke",
    "cancel", "peer down", "receive closed", "lease expired"};
constexpr std::array<std::string_view, 12> kOpNames = {"",
                                                       "open receive",
                                                       "send Grant",
                                                       "label receiving",
                                                       "send Nack",
                                                       "send Applied",
                                                       "send Revoke",
                                                       "close receive",
                                                       "unpin blocks",
                                                       "bind blocks",
                                                       "release blocks",
                                                       "fail request"};

constexpr handoff_internal::TableNames kNames = {kStateNames, kEventNames, kOpNames};

}  // namespace

std::string_view DestStateName(DestState state) { return kStateNames[static_cast<size_t>(state)]; }

std::string DestTableText() {
  return handoff_internal::TableText(HandoffDest::Table::kRows, kNames);
}

std::string DestDiagramText() {
  return handoff_internal::DiagramText(HandoffDest::Table::kRows, kNames);
}

HandoffDest::HandoffDest(DestSpec spec) : spec_(std::move(spec)) {
  BATON_CHECK(!spec_.generations.empty() && spec_.num_layers >= 1 && spec_.key.attempt >= 1 &&
                  spec_.key.transfer != TransferId(),
              "{} blocks, {} layers, attempt {}, transfer {}", num_blocks(), spec_.num_layers,
              spec_.key.attempt, spec_.key.transfer);
  BATON_CHECK(spec_.chain.size() + spec_.num_state == spec_.num_held + num_blocks(),
              "{} links for {} blocks held and {} to cross, {} of them of the state",
              spec_.chain.size(), spec_.num_held, num_blocks(), spec_.num_state);
}

uint64_t HandoffDest::expected_bytes() const {
  return uint64_t{num_blocks()} * spec_.num_layers * spec_.slice_bytes;
}

int64_t HandoffDest::NextDeadlineUs() const {
  return std::min({lease_until_us_, regrant_at_us_, gap_at_us_});
}

// ---- Events: judge the input, then let the table decide.

void HandoffDest::OnStart(int64_t now_us, HandoffActions* actions) {
  BATON_CHECK(!opened_, "the hand-off is started twice");
  HeardFromPeer(now_us);  // the prefill worker has a whole lease to show itself
  Dispatch(Event::kStart, now_us, actions);
}

void HandoffDest::OnSeal(const Seal& seal, int64_t now_us, HandoffActions* actions) {
  if (!Matches(seal.key)) return;
  HeardFromPeer(now_us);
  if (!IsOpen() || seal_) return Dispatch(Event::kSealAgain, now_us, actions);
  candidate_ = JudgeSeal(seal);
  if (candidate_.outcome != HandoffOutcome::kNone) {
    return Dispatch(Event::kSealUnfit, now_us, actions);
  }
  seal_ = seal;
  if (!complete_) gap_at_us_ = now_us + spec_.timers.frame_gap_us;
  Dispatch(complete_ ? Event::kAllIn : Event::kSealEarly, now_us, actions);
}

HandoffEnding HandoffDest::JudgeSeal(const Seal& seal) const {
  const auto unfit = [](std::string_view what, auto theirs, auto ours) {
    return Ending(
        HandoffOutcome::kBadMessage,
        Internal("the prefill worker sealed {} {}, the request has {}", what, theirs, ours));
  };
  const uint32_t num_slices = num_blocks() * spec_.num_layers;
  if (seal.num_tokens != spec_.num_tokens) {
    return unfit("num_tokens", seal.num_tokens, spec_.num_tokens);
  }
  if (seal.num_slices != num_slices) return unfit("num_slices", seal.num_slices, num_slices);
  if (seal.next_output_index != spec_.next_output_index) {
    return unfit("next_output_index", seal.next_output_index, spec_.next_output_index);
  }
  if (const auto block = FirstChainMismatch(seal.chain, spec_.chain)) {
    return Ending(HandoffOutcome::kChainMismatch,
                  DataLoss("the prefill worker computed another prompt: hash chains of {} and {} "
                           "blocks differ at block {}",
                           seal.chain.size(), spec_.chain.size(), *block));
  }
  if (seal.first_tokens.size() != spec_.num_choices) {
    return unfit("choices", seal.first_tokens.size(), spec_.num_choices);
  }
  for (uint32_t i = 0; i < spec_.num_choices; ++i) {
    const FirstToken& first = seal.first_tokens[i];
    if (first.choice != i) return unfit("choice", first.choice, i);
    if (first.token < 0 || static_cast<uint32_t>(first.token) >= spec_.vocab_size) {
      return unfit("token", first.token, fmt::format("a vocabulary of {}", spec_.vocab_size));
    }
  }
  return {};
}

void HandoffDest::OnRenew(const Renew& renew, int64_t now_us, HandoffActions* actions) {
  if (!Matches(renew.key)) return;
  HeardFromPeer(now_us);
  Dispatch(Event::kRenew, now_us, actions);
}

void HandoffDest::OnRevoke(const Revoke& revoke, int64_t now_us, HandoffActions* actions) {
  // The prefill worker may end a transfer before it saw the grant.
  const bool is_ours =
      !revoke.from_decode && revoke.key.uid == spec_.key.uid &&
      revoke.key.attempt == spec_.key.attempt &&
      (revoke.key.transfer == TransferId() || revoke.key.transfer == spec_.key.transfer);
  if (!is_ours) {
    ++num_stale_;
    return;
  }
  candidate_ =
      Ending(OutcomeOf(revoke), Unavailable("the prefill worker ended the transfer: {}",
                                            revoke.reason.substr(0, limits::kMaxPeerTextBytes)));
  Dispatch(Event::kRevoke, now_us, actions);
}

void HandoffDest::OnReceiveProgress(uint32_t num_slices, bool complete, int64_t now_us,
                                    HandoffActions* actions) {
  if (!IsOpen() || (num_slices <= num_slices_ && complete == complete_)) return;
  if (first_slice_us_ == 0) first_slice_us_ = now_us;
  last_slice_us_ = now_us;
  num_slices_ = std::max(num_slices_, num_slices);
  complete_ = complete_ || complete;
  HeardFromPeer(now_us);
  if (seal_) gap_at_us_ = now_us + spec_.timers.frame_gap_us;
  Dispatch(complete_ && seal_ ? Event::kAllIn : Event::kProgress, now_us, actions);
}

void HandoffDest::OnQueueProgress(int64_t last_us) {
  // INT64_MAX, nothing is waited for, stays.
  gap_at_us_ = std::max(gap_at_us_, last_us + spec_.timers.frame_gap_us);
}

void HandoffDest::OnBadSlice(SliceId slice, std::string_view reason, int64_t now_us,
                             HandoffActions* actions) {
  if (!IsOpen() || complete_) return;
  if (slice.ordinal >= num_blocks() || slice.layer >= spec_.num_layers) {
    ++num_stale_;
    return;
  }
  if (bad_.empty()) bad_.resize(size_t{num_blocks()} * spec_.num_layers);
  uint8_t& count = bad_[size_t{slice.ordinal} * spec_.num_layers + slice.layer];
  if (++count > spec_.timers.max_nacks) {
    candidate_ =
        Ending(HandoffOutcome::kTransferFault, DataLoss("slice ({}, {}) arrived bad {} times: {}",
                                                        slice.ordinal, slice.layer, count, reason));
    return Dispatch(Event::kBadLimit, now_us, actions);
  }
  nack_.assign(1, slice);
  Dispatch(Event::kBadSlice, now_us, actions);
  nack_.clear();
}

void HandoffDest::OnReceiveClosed(int64_t now_us, HandoffActions* actions) {
  candidate_ = Ending(HandoffOutcome::kTransferFault,
                      Unavailable("the transport closed the transfer after {} of {} slices",
                                  num_slices_, num_blocks() * spec_.num_layers));
  Dispatch(Event::kReceiveClosed, now_us, actions);
}

void HandoffDest::OnCancel(std::string_view reason, int64_t now_us, HandoffActions* actions) {
  candidate_ = Ending(HandoffOutcome::kCancelled, Cancelled("{}", reason));
  Dispatch(Event::kCancel, now_us, actions);
}

void HandoffDest::OnPeerDown(std::string_view reason, int64_t now_us, HandoffActions* actions) {
  candidate_ = Ending(HandoffOutcome::kPeerDown,
                      Unavailable("the connection to the prefill worker ended: {}", reason));
  Dispatch(Event::kPeerDown, now_us, actions);
}

void HandoffDest::OnTick(int64_t now_us, HandoffActions* actions) {
  if (now_us >= lease_until_us_) {
    candidate_ =
        Ending(HandoffOutcome::kLeaseExpired,
               DeadlineExceeded("the prefill worker was silent for {} ms", spec_.timers.ttl_ms));
    return Dispatch(Event::kExpired, now_us, actions);
  }
  if (now_us >= gap_at_us_) {
    gap_at_us_ = now_us + spec_.timers.frame_gap_us;
    if (++num_full_nacks_ > spec_.timers.max_nacks) {
      candidate_ = Ending(HandoffOutcome::kTransferFault,
                          DataLoss("{} of {} slices arrived, the rest was missing {} times",
                                   num_slices_, num_blocks() * spec_.num_layers, num_full_nacks_));
      return Dispatch(Event::kBadLimit, now_us, actions);
    }
    Dispatch(Event::kGapDue, now_us, actions);
  }
  if (now_us >= regrant_at_us_) Dispatch(Event::kRegrantDue, now_us, actions);
}

void HandoffDest::OnMessage(const HandoffMessage& message, int64_t now_us,
                            HandoffActions* actions) {
  if (const auto* seal = std::get_if<Seal>(&message)) return OnSeal(*seal, now_us, actions);
  if (const auto* renew = std::get_if<Renew>(&message)) return OnRenew(*renew, now_us, actions);
  if (const auto* revoke = std::get_if<Revoke>(&message)) return OnRevoke(*revoke, now_us, actions);
  ++num_stale_;
}

// ---- The machine.

void HandoffDest::Dispatch(Event event, int64_t now_us, HandoffActions* actions) {
  const auto* row = handoff_internal::FindRow(Table::kRows, state_, event);
  HandoffEnding candidate = std::exchange(candidate_, {});
  if (row == nullptr) return;
  if (row->moves && row->next != state_) {
    state_ = row->next;
    if (!IsOpen()) lease_until_us_ = regrant_at_us_ = gap_at_us_ = INT64_MAX;
    if (state_ == DestState::kVerified) ending_.outcome = HandoffOutcome::kApplied;
    // One lease longer than the prefill worker could wait for an Applied that was lost.
    if (state_ == DestState::kBound) lease_until_us_ = now_us + spec_.timers.ttl_us();
    const bool gives_up = state_ == DestState::kDraining || state_ == DestState::kReleased;
    if (gives_up && ending_.outcome == HandoffOutcome::kNone) ending_ = std::move(candidate);
  }
  for (const Op op : row->ops) Perform(op, now_us, actions);
  // The transport never saw a transfer that was not opened.
  if (state_ == DestState::kDraining && !opened_) state_ = DestState::kReleased;
}

void HandoffDest::Perform(Op op, int64_t now_us, HandoffActions* actions) {
  using Kind = HandoffActionKind;
  switch (op) {
    case Op::kNone:
      return;
    case Op::kOpenReceive:
      opened_ = true;
      actions->push_back({.kind = Kind::kOpenReceive});
      return;
    case Op::kSendGrant:
      regrant_at_us_ = now_us + spec_.timers.renew_us();
      actions->push_back({.kind = Kind::kSendMessage, .message = MakeGrant()});
      return;
    case Op::kLabelReceiving:
      actions->push_back({.kind = Kind::kLabelReceiving});
      return;
    case Op::kSendNack:
      actions->push_back({.kind = Kind::kSendMessage, .message = Nack{spec_.key, nack_}});
      return;
    case Op::kSendApplied:
      actions->push_back({.kind = Kind::kSendMessage, .message = Applied{spec_.key}});
      return;
    case Op::kSendRevoke:
      actions->push_back(
          {.kind = Kind::kSendMessage,
           .message = Revoke{spec_.key, ending_.reason, true, FailedPartOf(ending_.outcome)}});
      return;
    case Op::kCloseReceive:
      if (opened_) actions->push_back({.kind = Kind::kCloseReceive});
      return;
    case Op::kUnpin:
      if (opened_) actions->push_back({.kind = Kind::kUnpinBlocks});
      opened_ = false;
      return;
    case Op::kBind:
      actions->push_back({.kind = Kind::kBindBlocks, .outcome = ending_.outcome});
      return;
    case Op::kRelease:
      actions->push_back({.kind = Kind::kReleaseBlocks});
      return;
    case Op::kFail:
      actions->push_back(
          {.kind = Kind::kFailRequest, .status = ending_.status(), .outcome = ending_.outcome});
      return;
  }
}

Grant HandoffDest::MakeGrant() const {
  return {spec_.key,        spec_.decode_incarnation, spec_.generations, spec_.layout_id,
          expected_bytes(), spec_.timers.ttl_ms,      spec_.num_held};
}

void HandoffDest::HeardFromPeer(int64_t now_us) {
  if (!IsOpen()) return;
  lease_until_us_ = now_us + spec_.timers.ttl_us() + spec_.timers.margin_us;
}

bool HandoffDest::Matches(const TransferKey& key) {
  if (key == spec_.key) return true;
  ++num_stale_;
  return false;
}

}  // namespace baton::kv
