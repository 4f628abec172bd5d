#include "kvcache/handoff_source.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kvcache/handoff_table.h"
#include "src/base/check.h"
#include "src/base/limits.h"

namespace baton::kv {

// The events of the table, after the raw input was judged (a grant fits or not, a Nack is within
// its limit).
enum class HandoffSource::Event : uint8_t {
  kGrant,       // the first grant of this attempt, and it fits
  kGrantAgain,  // the same transfer: the decode worker renews the lease
  kGrantLate,   // the decode worker is lost, or the transfer is over here
  kUnfit,       // a message contradicts the request: a grant's numbers, a Nack of what cannot
                // exist, Applied before the Seal
  kSealed,
  kPromptDone,
  kRetarget,        // while the prompt is computed
  kRetargetSealed,  // the prompt is complete
  kNack,
  kNackLimit,  // a slice, or everything, was refused too often
  kApplied,
  kRevoke,
  kCancel,
  kPeerDown,
  kSendClosed,  // a close that we asked for, and not the last thing to wait for
  kLastClosed,  // the last one, and the request is over
  kSendLost,    // the transport gave up the current send by itself
  kRenewDue,
  kExpired,
  kStrandOver,  // no Retarget came
};

// The operations of a transition.
enum class HandoffSource::Op : uint8_t {
  kNone,
  kExport,  // every sealed slice that was not sent yet
  kSendSeal,
  kResend,  // what the Nack names
  kSendRenew,
  kSendRevoke,  // to the current decode worker
  kCloseSend,
  kUnpin,  // what the closed send pinned
  kTurn,   // to the decode worker of the Retarget: no grant, nothing exported
  kStrand,
  kRelease,
  kComplete,
  kFail,
};

// The behaviour of the prefill worker's side.
struct HandoffSource::Table : handoff_internal::TableWords<SourceState, Event, Op> {
  static constexpr uint32_t kUngranted = In(S::kComputing, S::kSealed);
  static constexpr uint32_t kGranted = In(S::kExporting, S::kExported);
  static constexpr uint32_t kOpen = kUngranted | kGranted;
  static constexpr uint32_t kLost = In(S::kStranded, S::kDraining, S::kFree);
  static constexpr uint32_t kMayClose = kOpen | In(S::kStranded, S::kDraining);

  static constexpr Row kRows[] = {
      // The good way.
      Go(In(S::kComputing), E::kGrant, S::kExporting, O::kExport),
      Go(In(S::kComputing), E::kPromptDone, S::kSealed),
      Go(In(S::kSealed), E::kGrant, S::kExported, O::kExport, O::kSendSeal),
      Stay(In(S::kExporting), E::kSealed, O::kExport),
      Go(In(S::kExporting), E::kPromptDone, S::kExported, O::kExport, O::kSendSeal),
      Go(In(S::kExported), E::kApplied, S::kDraining, O::kCloseSend, O::kRelease, O::kComplete),
      Go(In(S::kDraining), E::kLastClosed, S::kFree, O::kUnpin),
      // Repairs: everything may be repeated, and a repeated grant asks for the Seal again.
      Stay(In(S::kExported), E::kGrantAgain, O::kSendSeal),
      Stay(kGranted, E::kNack, O::kResend),
      Stay(kGranted, E::kRenewDue, O::kSendRenew),
      Stay(kLost, E::kGrantLate, O::kSendRevoke),
      // The prompt goes to another decode worker. The transport may read for the old one until it
      // confirms. For a decode worker that is lost everything was closed already.
      Go(In(S::kComputing, S::kExporting), E::kRetarget, S::kComputing, O::kSendRevoke,
         O::kCloseSend, O::kTurn),
      Go(In(S::kSealed, S::kExported), E::kRetargetSealed, S::kSealed, O::kSendRevoke,
         O::kCloseSend, O::kTurn),
      Go(In(S::kStranded), E::kRetarget, S::kComputing, O::kTurn),
      Go(In(S::kStranded), E::kRetargetSealed, S::kSealed, O::kTurn),
      Stay(kMayClose, E::kSendClosed, O::kUnpin),
      // The decode worker is lost. A Revoke tells one that may be alive. Without a grant the Revoke
      // names no transfer, only the placement.
      Go(kOpen, E::kRevoke, S::kStranded, O::kCloseSend, O::kStrand),
      Go(kOpen, E::kPeerDown, S::kStranded, O::kCloseSend, O::kStrand),
      Go(In(S::kSealed) | kGranted, E::kExpired, S::kStranded, O::kSendRevoke, O::kCloseSend,
         O::kStrand),
      Go(kGranted, E::kNackLimit, S::kStranded, O::kSendRevoke, O::kCloseSend, O::kStrand),
      Go(kGranted, E::kSendLost, S::kStranded, O::kSendRevoke, O::kUnpin, O::kStrand),
      // Ends.
      Go(In(S::kStranded), E::kStrandOver, S::kDraining, O::kRelease, O::kFail),
      Go(In(S::kStranded), E::kCancel, S::kDraining, O::kRelease),
      Go(kOpen, E::kCancel, S::kDraining, O::kSendRevoke, O::kCloseSend, O::kRelease),
      Go(kOpen, E::kUnfit, S::kDraining, O::kSendRevoke, O::kCloseSend, O::kRelease, O::kFail),
  };
  static_assert(handoff_internal::IsUnambiguous(kRows));
};

namespace {

constexpr std::array<std::string_view, kNumSourceStates> kStateNames = {
    "computing", "sealed", "exporting", "exported", "stranded", "draining", "free"};
constexpr std::array<std::string_view, 20> kEventNames = {
    "grant",       "grant again", "grant late",      "unfit message", "layers sealed",
    "prompt done", "retarget",    "retarget sealed", "nack",          "nack limit",
    "applied",     "revoke",      "cancel",          "peer down",     "send closed",
    "last closed", "send lost",   "renew due",       "lease expired", "strand over"};
constexpr std::array<std::string_view, 13> kOpNames = {"",
                                                       "export sealed slices",
                                                       "send Seal",
                                                       "resend slices",
                                                       "send Renew",
                                                       "send Revoke",
                                                       "close send",
                                                       "unpin blocks",
                                                       "turn to the next D",
                                                       "tell stranded",
                                                       "release blocks",
                                                       "complete request",
                                                       "fail request"};

constexpr handoff_internal::TableNames kNames = {kStateNames, kEventNames, kOpNames};

}  // namespace

std::string_view SourceStateName(SourceState state) {
  return kStateNames[static_cast<size_t>(state)];
}

std::string SourceTableText() {
  return handoff_internal::TableText(HandoffSource::Table::kRows, kNames);
}

std::string SourceDiagramText() {
  return handoff_internal::DiagramText(HandoffSource::Table::kRows, kNames);
}

HandoffSource::HandoffSource(const SourceSpec& spec) : spec_(spec) {
  BATON_CHECK(spec.num_blocks > spec.num_released && spec.num_layers >= 1 && spec.attempt >= 1,
              "{} blocks, {} of them released, {} layers, attempt {}", spec.num_blocks,
              spec.num_released, spec.num_layers, spec.attempt);
  sealed_.resize(size_t{spec.num_blocks} * spec.num_layers);
  num_sealed_ = spec.num_released * spec.num_layers;
  std::fill_n(sealed_.begin(), num_sealed_, true);
  exported_.resize(sealed_.size());
  closing_.reserve(kMaxClosingSends);
}

TransferKey HandoffSource::key() const {
  return {spec_.uid, spec_.attempt, grant_ ? grant_->key.transfer : TransferId()};
}

const std::vector<uint32_t>& HandoffSource::generations() const {
  static const std::vector<uint32_t> kNone;
  return grant_ ? grant_->generations : kNone;
}

bool HandoffSource::IsSending(Incarnation decode, TransferId transfer) const {
  const bool is_current = grant_ && grant_->key.transfer == transfer &&
                          spec_.decode_incarnation == decode && IsGranted();
  return is_current || std::any_of(closing_.begin(), closing_.end(), [&](const Send& send) {
           return send.decode == decode && send.transfer == transfer;
         });
}

int64_t HandoffSource::NextDeadlineUs() const { return std::min(lease_until_us_, renew_at_us_); }

// ---- Events: judge the input, then let the table decide.

void HandoffSource::OnGrant(const Grant& grant, int64_t now_us, HandoffActions* actions) {
  const bool is_ours = grant.key.uid == spec_.uid && grant.key.attempt == spec_.attempt &&
                       grant.decode_incarnation == spec_.decode_incarnation &&
                       grant.key.transfer != TransferId();
  // A send is known by its decode worker and transfer: the name of one that is still closing is not
  // to be had.
  const bool is_taken = !grant_ && IsSending(grant.decode_incarnation, grant.key.transfer);
  if (!is_ours || is_taken || (grant_ && grant_->key.transfer != grant.key.transfer)) {
    ++num_stale_;
    return;
  }
  const bool again = grant_.has_value();
  if (!again) grant_ = grant;
  if (!IsOpen()) return Dispatch(Event::kGrantLate, now_us, actions);
  if (!again && !GrantFits(grant)) return Dispatch(Event::kUnfit, now_us, actions);
  if (!again) {
    renew_at_us_ = now_us + spec_.timers.renew_us();
    num_due_ = static_cast<uint32_t>(
        std::count(sealed_.begin() + static_cast<std::ptrdiff_t>(SliceIdx(num_held(), 0)),
                   sealed_.end(), true));
  }
  Dispatch(again ? Event::kGrantAgain : Event::kGrant, now_us, actions);
  HeardFromPeer(now_us);
}

bool HandoffSource::GrantFits(const Grant& grant) {
  const uint32_t num_crossing = spec_.num_blocks - std::min(grant.num_held, spec_.num_blocks);
  const uint64_t bytes = uint64_t{num_crossing} * spec_.num_layers * spec_.slice_bytes;
  if (grant.layout_id != spec_.layout_id) {
    candidate_ =
        Ending(HandoffOutcome::kBadMessage,
               FailedPrecondition("the decode worker's KV layout {:016x} is not ours, {:016x}",
                                  grant.layout_id, spec_.layout_id));
    return false;
  }
  if (grant.num_held < spec_.num_released) {
    candidate_ = Ending(HandoffOutcome::kBadMessage,
                        FailedPrecondition("the decode worker wants blocks from ordinal {} on, the "
                                           "first {} are behind the window and gone",
                                           grant.num_held, spec_.num_released));
    return false;
  }
  if (num_crossing == 0 || grant.generations.size() != num_crossing ||
      grant.expected_bytes != bytes) {
    candidate_ = Ending(
        HandoffOutcome::kBadMessage,
        Internal("the decode worker granted {} blocks and {} bytes after {} of its own, the prompt "
                 "has {} blocks, {} bytes to cross",
                 grant.generations.size(), grant.expected_bytes, grant.num_held, spec_.num_blocks,
                 bytes));
    return false;
  }
  return true;
}

void HandoffSource::OnLayersSealed(const SliceRange& slices, int64_t now_us,
                                   HandoffActions* actions) {
  if (!HoldsBlocks()) return;
  BATON_CHECK(!seal_, "slices are sealed after the prompt was done");
  BATON_CHECK(slices.first_ordinal + slices.num_ordinals <= spec_.num_blocks &&
                  slices.first_layer + slices.num_layers <= spec_.num_layers,
              "slices [{}, +{}) x [{}, +{}) of {} blocks x {} layers", slices.first_ordinal,
              slices.num_ordinals, slices.first_layer, slices.num_layers, spec_.num_blocks,
              spec_.num_layers);
  for (uint32_t o = slices.first_ordinal; o < slices.first_ordinal + slices.num_ordinals; ++o) {
    for (uint32_t l = slices.first_layer; l < slices.first_layer + slices.num_layers; ++l) {
      BATON_CHECK(!sealed_[SliceIdx(o, l)], "slice ({}, {}) is sealed twice", o, l);
      sealed_[SliceIdx(o, l)] = true;
      ++num_sealed_;
    }
  }
  fresh_ = slices;
  const uint32_t num_kept_back =
      std::min(num_held() - std::min(num_held(), slices.first_ordinal), slices.num_ordinals);
  fresh_.first_ordinal += num_kept_back;
  fresh_.num_ordinals -= num_kept_back;
  num_due_ += fresh_.num_ordinals * fresh_.num_layers;
  Dispatch(Event::kSealed, now_us, actions);
  fresh_ = {};
}

void HandoffSource::OnPromptDone(Seal seal, int64_t now_us, HandoffActions* actions) {
  if (!HoldsBlocks()) return;
  BATON_CHECK(!seal_, "the prompt is done twice");
  BATON_CHECK(num_sealed_ == sealed_.size(), "{} of {} slices are sealed at prompt end",
              num_sealed_, sealed_.size());
  seal_ = std::move(seal);
  // How long it waits for a grant.
  if (state_ == SourceState::kComputing) lease_until_us_ = now_us + spec_.timers.ttl_us();
  Dispatch(Event::kPromptDone, now_us, actions);
}

void HandoffSource::OnRetarget(uint32_t attempt, Incarnation decode, int64_t now_us,
                               HandoffActions* actions) {
  if (attempt <= spec_.attempt || closing_.size() >= kMaxClosingSends) {
    ++num_stale_;
    return;
  }
  turn_attempt_ = attempt;
  turn_decode_ = decode;
  Dispatch(seal_ ? Event::kRetargetSealed : Event::kRetarget, now_us, actions);
  turn_attempt_ = 0;
  turn_decode_ = {};
}

void HandoffSource::OnNack(const Nack& nack, int64_t now_us, HandoffActions* actions) {
  if (!Matches(nack.key)) return;
  HeardFromPeer(now_us);
  Dispatch(JudgeNack(nack), now_us, actions);
  resend_.clear();
  resend_all_ = false;
}

HandoffSource::Event HandoffSource::JudgeNack(const Nack& nack) {
  if (!IsGranted()) return Event::kNack;
  resend_all_ = nack.slices.empty();
  if (resend_all_ && ++num_full_nacks_ > spec_.timers.max_nacks) {
    candidate_ = Ending(HandoffOutcome::kTransferFault,
                        DataLoss("the decode worker missed slices {} times", num_full_nacks_));
    return Event::kNackLimit;
  }
  if (nacks_.empty()) nacks_.resize(sealed_.size());
  const uint32_t num_crossing = spec_.num_blocks - num_held();
  for (const SliceId& wire : nack.slices) {
    if (wire.ordinal >= num_crossing || wire.layer >= spec_.num_layers) {
      candidate_ = Ending(HandoffOutcome::kBadMessage,
                          Internal("the decode worker refused slice ({}, {}) of {} x {}",
                                   wire.ordinal, wire.layer, num_crossing, spec_.num_layers));
      return Event::kUnfit;
    }
    const SliceId slice{wire.ordinal + num_held(), wire.layer};
    const size_t idx = SliceIdx(slice.ordinal, slice.layer);
    if (!exported_[idx]) continue;  // it will be sent in its time
    if (++nacks_[idx] > spec_.timers.max_nacks) {
      candidate_ = Ending(
          HandoffOutcome::kTransferFault,
          DataLoss("slice ({}, {}) was refused {} times", slice.ordinal, slice.layer, nacks_[idx]));
      return Event::kNackLimit;
    }
    resend_.push_back(slice);
  }
  return Event::kNack;
}

void HandoffSource::OnApplied(const Applied& applied, int64_t now_us, HandoffActions* actions) {
  if (!Matches(applied.key)) return;
  if (state_ == SourceState::kExporting) {
    candidate_ =
        Ending(HandoffOutcome::kBadMessage,
               Internal("the decode worker applied a prompt of which {} of {} slices are sealed",
                        num_sealed_, sealed_.size()));
    return Dispatch(Event::kUnfit, now_us, actions);
  }
  candidate_ = Ending(HandoffOutcome::kApplied, OkStatus());
  Dispatch(Event::kApplied, now_us, actions);
}

void HandoffSource::OnRevoke(const Revoke& revoke, int64_t now_us, HandoffActions* actions) {
  // The decode worker may refuse before it drew a transfer id, and a newer attempt ends all older
  // ones.
  const bool same_transfer = revoke.key.attempt > spec_.attempt ||
                             revoke.key.transfer == TransferId() || !grant_ ||
                             revoke.key.transfer == grant_->key.transfer;
  if (!revoke.from_decode || revoke.key.uid != spec_.uid || revoke.key.attempt < spec_.attempt ||
      !same_transfer) {
    ++num_stale_;
    return;
  }
  candidate_ =
      Ending(OutcomeOf(revoke), Unavailable("the decode worker ended the transfer: {}",
                                            revoke.reason.substr(0, limits::kMaxPeerTextBytes)));
  Dispatch(Event::kRevoke, now_us, actions);
}

void HandoffSource::OnCancel(std::string_view reason, int64_t now_us, HandoffActions* actions) {
  candidate_ = Ending(HandoffOutcome::kCancelled, Cancelled("{}", reason));
  Dispatch(Event::kCancel, now_us, actions);
}

void HandoffSource::OnPeerDown(std::string_view reason, int64_t now_us, HandoffActions* actions) {
  candidate_ = Ending(HandoffOutcome::kPeerDown,
                      Unavailable("the connection to the decode worker ended: {}", reason));
  Dispatch(Event::kPeerDown, now_us, actions);
}

void HandoffSource::OnSendClosed(Incarnation decode, TransferId transfer, int64_t now_us,
                                 HandoffActions* actions) {
  if (!IsSending(decode, transfer)) {
    ++num_stale_;
    return;
  }
  const auto send = std::find_if(closing_.begin(), closing_.end(), [&](const Send& s) {
    return s.decode == decode && s.transfer == transfer;
  });
  if (send == closing_.end()) {
    closed_ = {decode, transfer, num_held(), std::exchange(num_pinned_, 0)};
    candidate_ =
        Ending(HandoffOutcome::kTransferFault, Unavailable("the transport cannot send the KV"));
    Dispatch(Event::kSendLost, now_us, actions);
  } else {
    closed_ = *send;
    closing_.erase(send);
    const bool is_last = closing_.empty() && state_ == SourceState::kDraining;
    Dispatch(is_last ? Event::kLastClosed : Event::kSendClosed, now_us, actions);
  }
  closed_ = {};
}

void HandoffSource::OnTick(int64_t now_us, HandoffActions* actions) {
  if (now_us >= lease_until_us_) {
    if (state_ == SourceState::kStranded) return Dispatch(Event::kStrandOver, now_us, actions);
    candidate_ =
        Ending(HandoffOutcome::kLeaseExpired,
               DeadlineExceeded("the decode worker {} for {} ms",
                                grant_ ? "was silent" : "sent no grant", spec_.timers.ttl_ms));
    return Dispatch(Event::kExpired, now_us, actions);
  }
  if (now_us >= renew_at_us_) Dispatch(Event::kRenewDue, now_us, actions);
}

void HandoffSource::OnMessage(const HandoffMessage& message, int64_t now_us,
                              HandoffActions* actions) {
  if (const auto* grant = std::get_if<Grant>(&message)) return OnGrant(*grant, now_us, actions);
  if (const auto* nack = std::get_if<Nack>(&message)) return OnNack(*nack, now_us, actions);
  if (const auto* done = std::get_if<Applied>(&message)) return OnApplied(*done, now_us, actions);
  if (const auto* revoke = std::get_if<Revoke>(&message)) return OnRevoke(*revoke, now_us, actions);
  ++num_stale_;
}

// ---- The machine.

void HandoffSource::Dispatch(Event event, int64_t now_us, HandoffActions* actions) {
  const auto* row = handoff_internal::FindRow(Table::kRows, state_, event);
  HandoffEnding why = std::exchange(candidate_, {});
  if (row == nullptr) return;
  if (row->moves) Enter(row->next, std::move(why), now_us);
  for (const Op op : row->ops) Perform(op, now_us, actions);
  // Without time to wait for a Retarget the request fails in the same call.
  if (state_ == SourceState::kStranded && spec_.timers.strand_us == 0) {
    return Dispatch(Event::kStrandOver, now_us, actions);
  }
  // The transport never saw a transfer of which nothing was exported.
  if (state_ == SourceState::kDraining && closing_.empty()) state_ = SourceState::kFree;
}

void HandoffSource::Enter(SourceState next, HandoffEnding why, int64_t now_us) {
  state_ = next;
  if (IsOpen() || next == SourceState::kFree) return;
  renew_at_us_ = INT64_MAX;
  if (next == SourceState::kStranded) {
    stranding_ = std::move(why);
    lease_until_us_ = now_us + spec_.timers.strand_us;
  } else {
    ending_ = why.outcome == HandoffOutcome::kNone ? stranding_ : std::move(why);
    lease_until_us_ = INT64_MAX;
  }
}

HandoffAction& HandoffSource::Act(HandoffActionKind kind, HandoffActions* actions) const {
  actions->push_back({.kind = kind});
  actions->back().peer = spec_.decode_incarnation;
  actions->back().transfer = key().transfer;
  return actions->back();
}

void HandoffSource::Perform(Op op, int64_t now_us, HandoffActions* actions) {
  using Kind = HandoffActionKind;
  switch (op) {
    case Op::kNone:
      return;
    case Op::kExport:
      return ExportSealed(actions);
    case Op::kSendSeal:
      seal_->key = key();
      seal_->num_slices = (spec_.num_blocks - num_held()) * spec_.num_layers;
      Act(Kind::kSendMessage, actions).message = *seal_;
      return;
    case Op::kResend:
      return Resend(actions);
    case Op::kSendRenew:
      renew_at_us_ = now_us + spec_.timers.renew_us();
      Act(Kind::kSendMessage, actions).message = Renew{key()};
      return;
    case Op::kSendRevoke: {
      const HandoffEnding& why = ending_.outcome == HandoffOutcome::kNone ? stranding_ : ending_;
      const std::string_view reason = why.outcome == HandoffOutcome::kNone
                                          ? "the prompt goes to another decode worker"
                                          : std::string_view(why.reason);
      Act(Kind::kSendMessage, actions).message =
          Revoke{key(), std::string(reason), false, FailedPartOf(why.outcome)};
      return;
    }
    case Op::kCloseSend:
      return CloseSend(actions);
    case Op::kUnpin:
      if (closed_.num_blocks > 0) {
        HandoffAction& unpin = Act(Kind::kUnpinBlocks, actions);
        unpin.slices = {closed_.first_ordinal, closed_.num_blocks, 0, 0};
        unpin.peer = closed_.decode;
        unpin.transfer = closed_.transfer;
      }
      return;
    case Op::kTurn:
      return Turn(now_us);
    case Op::kStrand:
      if (spec_.timers.strand_us > 0) Tell(Kind::kStranded, stranding_, actions);
      return;
    case Op::kRelease:
      Act(Kind::kReleaseBlocks, actions);
      return;
    case Op::kComplete:
      return Tell(Kind::kCompleteRequest, ending_, actions);
    case Op::kFail:
      return Tell(Kind::kFailRequest, ending_, actions);
  }
}

void HandoffSource::Tell(HandoffActionKind kind, const HandoffEnding& why,
                         HandoffActions* actions) const {
  HandoffAction& action = Act(kind, actions);
  action.status = why.status();
  action.outcome = why.outcome;
}

void HandoffSource::CloseSend(HandoffActions* actions) {
  if (num_pinned_ == 0) return;
  closing_.push_back(
      {spec_.decode_incarnation, grant_->key.transfer, num_held(), std::exchange(num_pinned_, 0)});
  Act(HandoffActionKind::kCloseSend, actions);
}

void HandoffSource::Turn(int64_t now_us) {
  spec_.attempt = turn_attempt_;
  spec_.decode_incarnation = turn_decode_;
  grant_.reset();
  exported_.assign(exported_.size(), false);
  nacks_.clear();
  num_due_ = num_exported_ = num_full_nacks_ = 0;
  stranding_ = {};
  // As at the prompt's end: how long it waits for a grant.
  lease_until_us_ = seal_ ? now_us + spec_.timers.ttl_us() : INT64_MAX;
  renew_at_us_ = INT64_MAX;
}

void HandoffSource::ExportSealed(HandoffActions* actions) {
  if (num_exported_ == num_due_) return;
  // While granted, what was just sealed is all that is missing; at the grant, look at everything.
  if (num_exported_ + fresh_.num_ordinals * fresh_.num_layers == num_due_) {
    return ExportRange(fresh_, actions);
  }
  ExportWhere([this](size_t idx) { return sealed_[idx] && !exported_[idx]; }, actions);
}

void HandoffSource::Resend(HandoffActions* actions) {
  if (resend_all_) {
    return ExportWhere([this](size_t idx) -> bool { return exported_[idx]; }, actions);
  }
  for (const SliceId& slice : resend_) ExportRange({slice.ordinal, 1, slice.layer, 1}, actions);
}

template <typename Wanted>
void HandoffSource::ExportWhere(Wanted wanted, HandoffActions* actions) {
  SliceRange open;  // grows downwards as long as the same layers of the next block are wanted
  for (uint32_t o = num_held(); o < spec_.num_blocks; ++o) {
    uint32_t layer = 0;
    while (layer < spec_.num_layers) {
      const uint32_t first = layer;
      while (layer < spec_.num_layers && wanted(SliceIdx(o, layer))) ++layer;
      const SliceRange run{o, 1, first, layer - first};
      ++layer;  // the layer that ended the run is not wanted
      if (run.num_layers == 0) continue;
      const bool joins = open.first_layer == run.first_layer && open.num_layers == run.num_layers &&
                         open.first_ordinal + open.num_ordinals == o;
      if (joins) {
        ++open.num_ordinals;
        continue;
      }
      ExportRange(open, actions);
      open = run;
    }
  }
  ExportRange(open, actions);
}

void HandoffSource::ExportRange(const SliceRange& slices, HandoffActions* actions) {
  if (slices.num_ordinals == 0 || slices.num_layers == 0) return;
  const uint32_t end = slices.first_ordinal + slices.num_ordinals;
  const uint32_t first_unpinned = num_held() + num_pinned_;
  if (end > first_unpinned) {
    Act(HandoffActionKind::kPinBlocks, actions).slices = {first_unpinned, end - first_unpinned, 0,
                                                          0};
    num_pinned_ = end - num_held();
  }
  Act(HandoffActionKind::kExportSlices, actions).slices = slices;
  for (uint32_t o = slices.first_ordinal; o < end; ++o) {
    for (uint32_t l = slices.first_layer; l < slices.first_layer + slices.num_layers; ++l) {
      if (!exported_[SliceIdx(o, l)]) ++num_exported_;
      exported_[SliceIdx(o, l)] = true;
    }
  }
}

void HandoffSource::HeardFromPeer(int64_t now_us) {
  if (!IsGranted()) return;
  // The shorter of the decode worker's promise and our own patience. It is less a margin, because
  // the decode worker counted from an earlier moment than we did.
  const int64_t ttl_us = std::min<int64_t>(int64_t{grant_->ttl_ms} * 1000, spec_.timers.ttl_us());
  lease_until_us_ = now_us + ttl_us - std::min(spec_.timers.margin_us, ttl_us / 2);
}

bool HandoffSource::Matches(const TransferKey& key) {
  if (grant_ && key == grant_->key) return true;
  ++num_stale_;
  return false;
}

size_t HandoffSource::SliceIdx(uint32_t ordinal, uint32_t layer) const {
  return size_t{ordinal} * spec_.num_layers + layer;
}

}  // namespace baton::kv
