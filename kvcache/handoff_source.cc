#include "kvcache/handoff_source.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kvcache/handoff_table.h"
#include "src/base/check.h"

namespace baton {

// What happened, after the raw input was judged (a grant fits or not, a Nack is within its limit).
enum class HandoffSource::Event : uint8_t {
  kGrant,       // the first grant of this attempt, and it fits
  kGrantAgain,  // the same transfer: D renews the lease
  kGrantUnfit,  // its numbers are not those of this request
  kGrantLate,   // the transfer is over here
  kSealed,
  kPromptDone,
  kNack,
  kNackLimit,  // a slice was refused too often, or the Nack names what cannot exist
  kApplied,
  kRevoke,
  kCancel,
  kPeerDown,
  kSendClosed,
  kRenewDue,
  kExpired,
};

// What a transition does.
enum class HandoffSource::Op : uint8_t {
  kNone,
  kExport,  // every sealed slice that was not sent yet
  kSendSeal,
  kResend,  // what the Nack names
  kSendRenew,
  kSendRevoke,
  kCloseSend,
  kUnpin,
  kRelease,
  kComplete,
  kFail,
};

// The behaviour of P's side.
struct HandoffSource::Table {
  using S = SourceState;
  using E = Event;
  using O = Op;
  using Row = handoff_internal::Row<S, E, O>;

  static constexpr auto In = [](auto... states) { return handoff_internal::In(states...); };
  static constexpr auto Go = [](uint32_t in, E on, S next, auto... ops) {
    return handoff_internal::MakeRow<S, E, O>(in, on, true, next, ops...);
  };
  static constexpr auto Stay = [](uint32_t in, E on, auto... ops) {
    return handoff_internal::MakeRow<S, E, O>(in, on, false, S{}, ops...);
  };

  static constexpr uint32_t kNoGrant = handoff_internal::In(S::kComputing, S::kSealed);
  static constexpr uint32_t kGranted = handoff_internal::In(S::kExporting, S::kExported);
  static constexpr uint32_t kOver = handoff_internal::In(S::kDraining, S::kFree);

  static constexpr Row kRows[] = {
      // The good way.
      Go(In(S::kComputing), E::kGrant, S::kExporting, O::kExport),
      Go(In(S::kComputing), E::kPromptDone, S::kSealed),
      Go(In(S::kSealed), E::kGrant, S::kExported, O::kExport, O::kSendSeal),
      Stay(In(S::kExporting), E::kSealed, O::kExport),
      Go(In(S::kExporting), E::kPromptDone, S::kExported, O::kExport, O::kSendSeal),
      Go(In(S::kExported), E::kApplied, S::kDraining, O::kCloseSend, O::kRelease, O::kComplete),
      Go(In(S::kDraining), E::kSendClosed, S::kFree, O::kUnpin),
      // Repairs: everything may be repeated, and a repeated grant asks for the Seal again.
      Stay(In(S::kExported), E::kGrantAgain, O::kSendSeal),
      Stay(kGranted, E::kNack, O::kResend),
      Stay(kGranted, E::kRenewDue, O::kSendRenew),
      Stay(kOver, E::kGrantLate, O::kSendRevoke),
      // Ends without a grant: a Revoke then names no transfer, only the placement.
      Go(kNoGrant, E::kGrantUnfit, S::kFree, O::kSendRevoke, O::kRelease, O::kFail),
      Go(kNoGrant, E::kRevoke, S::kFree, O::kRelease, O::kFail),
      Go(kNoGrant, E::kCancel, S::kFree, O::kSendRevoke, O::kRelease),
      Go(kNoGrant, E::kPeerDown, S::kFree, O::kRelease, O::kFail),
      Go(In(S::kSealed), E::kExpired, S::kFree, O::kSendRevoke, O::kRelease, O::kFail),
      // Ends with a grant: the transport may read the blocks until it confirms.
      Go(kGranted, E::kRevoke, S::kDraining, O::kCloseSend, O::kRelease, O::kFail),
      Go(kGranted, E::kPeerDown, S::kDraining, O::kCloseSend, O::kRelease, O::kFail),
      Go(kGranted, E::kCancel, S::kDraining, O::kSendRevoke, O::kCloseSend, O::kRelease),
      Go(kGranted, E::kExpired, S::kDraining, O::kSendRevoke, O::kCloseSend, O::kRelease, O::kFail),
      Go(kGranted, E::kNackLimit, S::kDraining, O::kSendRevoke, O::kCloseSend, O::kRelease,
         O::kFail),
      // D cannot have verified what is not sealed.
      Go(In(S::kExporting), E::kApplied, S::kDraining, O::kSendRevoke, O::kCloseSend, O::kRelease,
         O::kFail),
      // The transport gave up by itself.
      Go(kGranted, E::kSendClosed, S::kFree, O::kSendRevoke, O::kUnpin, O::kRelease, O::kFail),
  };
  static_assert(handoff_internal::IsUnambiguous(std::span<const Row>(kRows)));
};

namespace {

constexpr std::array<std::string_view, kNumSourceStates> kStateNames = {
    "computing", "sealed", "exporting", "exported", "draining", "free"};
constexpr std::array<std::string_view, 15> kEventNames = {
    "grant",       "grant again", "grant unfit", "grant late", "layers sealed",
    "prompt done", "nack",        "nack limit",  "applied",    "revoke",
    "cancel",      "peer down",   "send closed", "renew due",  "lease expired"};
constexpr std::array<std::string_view, 11> kOpNames = {"",
                                                       "export sealed slices",
                                                       "send Seal",
                                                       "resend slices",
                                                       "send Renew",
                                                       "send Revoke",
                                                       "close send",
                                                       "unpin blocks",
                                                       "release blocks",
                                                       "complete request",
                                                       "fail request"};

HandoffEnding Ending(HandoffOutcome outcome, const Status& status) {
  return {outcome, status.code(), std::string(status.message())};
}

// What a peer wrote is shown, but not at any length.
constexpr size_t kMaxPeerTextBytes = 256;

}  // namespace

std::string_view SourceStateName(SourceState state) {
  return kStateNames[static_cast<size_t>(state)];
}

std::string SourceTableText() {
  return handoff_internal::TableText(
      std::span<const HandoffSource::Table::Row>(HandoffSource::Table::kRows),
      {kStateNames, kEventNames, kOpNames});
}

HandoffSource::HandoffSource(const SourceSpec& spec) : spec_(spec) {
  BATON_CHECK(spec.num_blocks >= 1 && spec.num_layers >= 1 && spec.attempt >= 1,
              "{} blocks, {} layers, attempt {}", spec.num_blocks, spec.num_layers, spec.attempt);
  sealed_.resize(size_t{spec.num_blocks} * spec.num_layers);
  exported_.resize(sealed_.size());
}

TransferKey HandoffSource::key() const {
  return {spec_.uid, spec_.attempt, grant_ ? grant_->key.transfer : TransferId()};
}

const std::vector<uint32_t>& HandoffSource::generations() const {
  static const std::vector<uint32_t> kNone;
  return grant_ ? grant_->generations : kNone;
}

int64_t HandoffSource::NextDeadlineUs() const { return std::min(lease_until_us_, renew_at_us_); }

// ---- Events: judge the input, then let the table decide.

void HandoffSource::OnGrant(const Grant& grant, int64_t now_us, HandoffActions* actions) {
  const bool is_ours = grant.key.uid == spec_.uid && grant.key.attempt == spec_.attempt &&
                       grant.decode_incarnation == spec_.decode_incarnation &&
                       grant.key.transfer != TransferId();
  if (!is_ours || (grant_ && grant_->key.transfer != grant.key.transfer)) {
    ++num_stale_;
    return;
  }
  const bool again = grant_.has_value();
  if (!again) grant_ = grant;
  if (state_ == SourceState::kDraining || state_ == SourceState::kFree) {
    return Dispatch(Event::kGrantLate, now_us, actions);
  }
  if (!again && !GrantFits(grant)) return Dispatch(Event::kGrantUnfit, now_us, actions);
  HeardFromPeer(now_us);
  if (!again) {
    renew_at_us_ = now_us + spec_.timers.renew_us();
    num_due_ = static_cast<uint32_t>(
        std::count(sealed_.begin() + static_cast<std::ptrdiff_t>(SliceIdx(num_held(), 0)),
                   sealed_.end(), true));
  }
  Dispatch(again ? Event::kGrantAgain : Event::kGrant, now_us, actions);
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
  if (state_ == SourceState::kDraining || state_ == SourceState::kFree) return;
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
  if (state_ == SourceState::kDraining || state_ == SourceState::kFree) return;
  BATON_CHECK(!seal_, "the prompt is done twice");
  BATON_CHECK(num_sealed_ == sealed_.size(), "{} of {} slices are sealed at prompt end",
              num_sealed_, sealed_.size());
  seal_ = std::move(seal);
  if (!grant_) lease_until_us_ = now_us + spec_.timers.ttl_us();  // how long it waits for a grant
  Dispatch(Event::kPromptDone, now_us, actions);
}

void HandoffSource::OnNack(const Nack& nack, int64_t now_us, HandoffActions* actions) {
  if (!Matches(nack.key)) return;
  HeardFromPeer(now_us);
  resend_.clear();
  Dispatch(CountNack(nack) ? Event::kNack : Event::kNackLimit, now_us, actions);
  resend_.clear();
  resend_all_ = false;
}

bool HandoffSource::CountNack(const Nack& nack) {
  if (state_ != SourceState::kExporting && state_ != SourceState::kExported) return true;
  resend_all_ = nack.slices.empty();
  if (resend_all_ && ++num_full_nacks_ > spec_.timers.max_nacks) {
    candidate_ = Ending(HandoffOutcome::kTransferFault,
                        DataLoss("the decode worker missed slices {} times", num_full_nacks_));
    return false;
  }
  if (nacks_.empty()) nacks_.resize(sealed_.size());
  const uint32_t num_crossing = spec_.num_blocks - num_held();
  for (const SliceId& wire : nack.slices) {
    if (wire.ordinal >= num_crossing || wire.layer >= spec_.num_layers) {
      candidate_ = Ending(HandoffOutcome::kBadMessage,
                          Internal("the decode worker refused slice ({}, {}) of {} x {}",
                                   wire.ordinal, wire.layer, num_crossing, spec_.num_layers));
      return false;
    }
    const SliceId slice{wire.ordinal + num_held(), wire.layer};
    const size_t idx = SliceIdx(slice.ordinal, slice.layer);
    if (!exported_[idx]) continue;  // it will be sent in its time
    if (++nacks_[idx] > spec_.timers.max_nacks) {
      candidate_ = Ending(
          HandoffOutcome::kTransferFault,
          DataLoss("slice ({}, {}) was refused {} times", slice.ordinal, slice.layer, nacks_[idx]));
      return false;
    }
    resend_.push_back(slice);
  }
  return true;
}

void HandoffSource::OnApplied(const Applied& applied, int64_t now_us, HandoffActions* actions) {
  if (!Matches(applied.key)) return;
  if (state_ == SourceState::kExported) candidate_ = Ending(HandoffOutcome::kApplied, OkStatus());
  if (state_ == SourceState::kExporting) {
    candidate_ =
        Ending(HandoffOutcome::kBadMessage,
               Internal("the decode worker applied a prompt of which {} of {} slices are sealed",
                        num_sealed_, sealed_.size()));
  }
  Dispatch(Event::kApplied, now_us, actions);
}

void HandoffSource::OnRevoke(const Revoke& revoke, int64_t now_us, HandoffActions* actions) {
  // D may refuse before it drew a transfer id, and a newer attempt ends all older ones.
  const bool same_transfer = revoke.key.attempt > spec_.attempt ||
                             revoke.key.transfer == TransferId() || !grant_ ||
                             revoke.key.transfer == grant_->key.transfer;
  if (!revoke.from_decode || revoke.key.uid != spec_.uid || revoke.key.attempt < spec_.attempt ||
      !same_transfer) {
    ++num_stale_;
    return;
  }
  candidate_ =
      Ending(HandoffOutcome::kRevoked, Unavailable("the decode worker ended the transfer: {}",
                                                   revoke.reason.substr(0, kMaxPeerTextBytes)));
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

void HandoffSource::OnSendClosed(int64_t now_us, HandoffActions* actions) {
  candidate_ =
      Ending(HandoffOutcome::kTransferFault, Unavailable("the transport cannot send the KV"));
  Dispatch(Event::kSendClosed, now_us, actions);
}

void HandoffSource::OnTick(int64_t now_us, HandoffActions* actions) {
  if (now_us >= lease_until_us_) {
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
  const auto* row =
      handoff_internal::FindRow(std::span<const Table::Row>(Table::kRows), state_, event);
  if (row == nullptr) {
    candidate_ = {};
    return;
  }
  if (row->moves) state_ = row->next;
  const bool over = state_ == SourceState::kDraining || state_ == SourceState::kFree;
  if (over && ending_.outcome == HandoffOutcome::kNone) {
    ending_ = std::move(candidate_);
    lease_until_us_ = renew_at_us_ = INT64_MAX;
  }
  candidate_ = {};
  for (const Op op : row->ops) Perform(op, now_us, actions);
  // The transport never saw a transfer of which nothing was exported.
  if (state_ == SourceState::kDraining && num_pinned_ == 0) state_ = SourceState::kFree;
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
      actions->push_back({.kind = Kind::kSendMessage, .message = *seal_});
      return;
    case Op::kResend:
      return Resend(actions);
    case Op::kSendRenew:
      renew_at_us_ = now_us + spec_.timers.renew_us();
      actions->push_back({.kind = Kind::kSendMessage, .message = Renew{key()}});
      return;
    case Op::kSendRevoke:
      actions->push_back(
          {.kind = Kind::kSendMessage, .message = Revoke{key(), ending_.reason, false}});
      return;
    case Op::kCloseSend:
      if (num_pinned_ > 0) actions->push_back({.kind = Kind::kCloseSend});
      return;
    case Op::kUnpin:
      if (num_pinned_ > 0) {
        actions->push_back({.kind = Kind::kUnpinBlocks, .slices = {num_held(), num_pinned_, 0, 0}});
      }
      num_pinned_ = 0;
      return;
    case Op::kRelease:
      actions->push_back({.kind = Kind::kReleaseBlocks});
      return;
    case Op::kComplete:
      actions->push_back({.kind = Kind::kCompleteRequest, .outcome = ending_.outcome});
      return;
    case Op::kFail:
      actions->push_back(
          {.kind = Kind::kFailRequest, .status = ending_.status(), .outcome = ending_.outcome});
      return;
  }
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
    actions->push_back({.kind = HandoffActionKind::kPinBlocks,
                        .slices = {first_unpinned, end - first_unpinned, 0, 0}});
    num_pinned_ = end - num_held();
  }
  actions->push_back({.kind = HandoffActionKind::kExportSlices, .slices = slices});
  for (uint32_t o = slices.first_ordinal; o < end; ++o) {
    for (uint32_t l = slices.first_layer; l < slices.first_layer + slices.num_layers; ++l) {
      if (!exported_[SliceIdx(o, l)]) ++num_exported_;
      exported_[SliceIdx(o, l)] = true;
    }
  }
}

void HandoffSource::HeardFromPeer(int64_t now_us) {
  if (!grant_ || state_ == SourceState::kDraining || state_ == SourceState::kFree) return;
  // The shorter of D's promise and our own patience; less a margin, because D counted from an
  // earlier moment than we did.
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

}  // namespace baton
