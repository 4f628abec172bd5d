#include "src/engine/source_transfers.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/log.h"

namespace baton::engine {

using kv::Applied;
using kv::BlockHandle;
using kv::BlockState;
using kv::Grant;
using kv::HandoffAction;
using kv::HandoffActionKind;
using kv::HandoffActions;
using kv::HandoffMessage;
using kv::HandoffTimers;
using kv::KeyOf;
using kv::KvLayout;
using kv::Revoke;
using kv::RevokeUnknown;
using kv::Seal;
using kv::SliceRange;
using kv::SourceSpec;
using kv::SourceState;
using kv::TransferKey;
using scheduler::Sequence;

namespace {

// Slices of one SendSlices call at most: well below the transport's queue, so that a long prompt is
// never too large to be taken.
constexpr uint32_t kMaxSlicesPerOffer = 4096;
// How soon slices that found the transport's queue full are offered again.
constexpr int64_t kOfferAgainUs = 1000;

SourceSpec MakeSpec(const RequestSpec& spec, uint32_t num_released, const KvLayout& layout,
                    const HandoffTimers& timers) {
  return {.uid = spec.key.uid,
          .attempt = spec.key.attempt,
          .decode_incarnation = spec.peer,
          .layout_id = layout.LayoutId(),
          .slice_bytes = layout.SliceBytes(),
          .num_blocks = layout.BlocksOfSequence(static_cast<uint32_t>(spec.tokens.size())),
          .num_released = num_released,
          .num_layers = layout.num_layers,
          .timers = timers};
}

// Frees nothing and ends nothing, so it may happen while a step reads the blocks.
bool MayHappenInStep(HandoffActionKind kind) {
  return kind == HandoffActionKind::kSendMessage || kind == HandoffActionKind::kPinBlocks ||
         kind == HandoffActionKind::kExportSlices;
}

}  // namespace

SourceTransferSet::SourceTransferSet(const TransferParts& parts, const EngineConfig& config,
                                     TransferOwner* owner)
    : parts_(parts),
      timers_(config.handoff),
      hash_bytes_per_turn_(config.hash_bytes_per_turn),
      owner_(owner) {
  refs_.reserve(kMaxSlicesPerOffer);
}

SourceTransfer* SourceTransferSet::Find(const RequestKey& key) {
  const auto it = transfers_.find(key);
  return it == transfers_.end() ? nullptr : it->second.get();
}

SourceTransfer* SourceTransferSet::Start(const RequestSpec& spec, SequenceId sequence,
                                         int64_t now_us) {
  const KvLayout& layout = parts_.kv->layout();
  const uint32_t num_released = parts_.scheduler->Find(sequence)->table.num_released();
  auto transfer = std::make_unique<SourceTransfer>(MakeSpec(spec, num_released, layout, timers_));
  SourceTransfer* const raw = transfer.get();
  raw->key = spec.key;
  raw->peer = spec.peer;
  raw->sequence = sequence;
  const SourceSpec& source = raw->machine.spec();
  raw->blocks.reserve(source.num_blocks);
  raw->checksums.resize(size_t{source.num_blocks} * source.num_layers);
  const bool is_new = transfers_.emplace(spec.key, std::move(transfer)).second;
  BATON_CHECK(is_new, "request {} attempt {} is handed off twice", spec.key.uid, spec.key.attempt);
  TakeParked(raw, now_us);
  // The owner learns of it at the next tick: it has not entered the request yet.
  raw->deferred = std::move(actions_);
  actions_.clear();
  if (!raw->deferred.empty()) next_deadline_us_ = now_us;
  NoteDeadline(*raw);
  return raw;
}

void SourceTransferSet::TakeParked(SourceTransfer* transfer, int64_t now_us) {
  const RequestKey& key = transfer->key;
  if (const auto grant = park_.Take(key.uid, key.attempt, transfer->peer)) {
    GiveGrant(transfer, *grant, now_us);
  }
}

void SourceTransferSet::GiveGrant(SourceTransfer* transfer, const Grant& grant, int64_t now_us) {
  const bool again = transfer->machine.key().transfer == grant.key.transfer;
  const bool in_use =
      !again && std::any_of(transfers_.begin(), transfers_.end(), [&](const auto& entry) {
        return entry.second->machine.IsSending(transfer->peer, grant.key.transfer);
      });
  if (!in_use) return transfer->machine.OnGrant(grant, now_us, &actions_);
  ++stats_.stale_messages;
  BATON_LOG_WARN("{:016x} grants transfer {} a second time", transfer->peer.value(),
                 grant.key.transfer);
  Send(transfer->peer, RevokeUnknown(grant.key, /*from_decode=*/false));
}

void SourceTransferSet::Retarget(SourceTransfer* transfer, const RequestSpec& spec,
                                 int64_t now_us) {
  FinishStep(now_us);  // what Start left for later is of the old decode worker
  auto node = transfers_.extract(transfer->key);
  BATON_CHECK(!node.empty(), "request {} is not handed off", spec.key.uid);
  node.key() = spec.key;
  const bool is_new = transfers_.insert(std::move(node)).inserted;
  BATON_CHECK(is_new, "request {} attempt {} is handed off twice", spec.key.uid, spec.key.attempt);
  transfer->key = spec.key;
  transfer->peer = spec.peer;
  transfer->granted_reported = false;
  transfer->first_offer_us = 0;
  actions_.clear();
  transfer->machine.OnRetarget(spec.key.attempt, spec.peer, now_us, &actions_);
  TakeParked(transfer, now_us);
  Perform(transfer, now_us);
  EraseFinished();  // a parked grant that does not fit ends it
}

// ---- In a step.

void SourceTransferSet::SetBlocks(SourceTransfer* transfer, const Sequence& sequence) {
  const std::span<const BlockHandle> tokens = sequence.table.handles();
  const std::span<const BlockHandle> state = sequence.state_table.handles();
  const uint32_t num_blocks = transfer->machine.spec().num_blocks;
  BATON_CHECK(tokens.size() + state.size() >= num_blocks, "{} blocks for a prompt of {}",
              tokens.size() + state.size(), num_blocks);
  const auto num_tokens = static_cast<std::ptrdiff_t>(num_blocks - state.size());
  transfer->blocks.assign(tokens.begin(), tokens.begin() + num_tokens);
  transfer->blocks.insert(transfer->blocks.end(), state.begin(), state.end());
}

void SourceTransferSet::HashLayer(SourceTransfer* transfer, uint32_t first_ordinal,
                                  uint32_t num_ordinals, uint32_t layer) {
  const uint32_t num_layers = transfer->machine.spec().num_layers;
  checksums_.resize(num_ordinals);
  parts_.kv->Seal(std::span(transfer->blocks).subspan(first_ordinal, num_ordinals), layer,
                  checksums_);
  for (uint32_t i = 0; i < num_ordinals; ++i) {
    transfer->checksums[size_t{first_ordinal + i} * num_layers + layer] = checksums_[i];
  }
}

void SourceTransferSet::HashAndSeal(SourceTransfer* transfer, uint32_t first_ordinal,
                                    uint32_t num_ordinals, int64_t now_us) {
  const uint32_t num_layers = transfer->machine.spec().num_layers;
  for (uint32_t layer = 0; layer < num_layers; ++layer) {
    HashLayer(transfer, first_ordinal, num_ordinals, layer);
  }
  SealLayers(transfer,
             {.first_ordinal = first_ordinal,
              .num_ordinals = num_ordinals,
              .first_layer = 0,
              .num_layers = num_layers},
             now_us);
}

void SourceTransferSet::SealLayers(SourceTransfer* transfer, const SliceRange& slices,
                                   int64_t now_us) {
  if (slices.num_ordinals == 0) return;
  actions_.clear();
  transfer->machine.OnLayersSealed(slices, now_us, &actions_);
  Perform(transfer, now_us);
}

bool SourceTransferSet::OnGrantInStep(Incarnation peer, const Grant& grant, int64_t now_us) {
  SourceTransfer* const transfer = Find({grant.key.uid, grant.key.attempt});
  if (transfer == nullptr || transfer->peer != peer) return false;
  actions_.clear();
  GiveGrant(transfer, grant, now_us);
  Perform(transfer, now_us);
  return true;
}

void SourceTransferSet::FinishStep(int64_t now_us) {
  in_step_ = false;
  for (auto& [key, transfer] : transfers_) {
    ReportGrant(transfer.get());
    if (transfer->deferred.empty()) continue;
    actions_ = std::move(transfer->deferred);
    transfer->deferred.clear();
    Perform(transfer.get(), now_us);
  }
  EraseFinished();
}

// ---- Between steps.

void SourceTransferSet::FinishPrompt(SourceTransfer* transfer, Seal seal, int64_t now_us) {
  actions_.clear();
  if (transfer->prompt_done_us == 0) transfer->prompt_done_us = now_us;
  transfer->machine.OnPromptDone(std::move(seal), now_us, &actions_);
  Perform(transfer, now_us);
}

void SourceTransferSet::SealInTurns(SourceTransfer* transfer, Seal seal, int64_t now_us) {
  transfer->late_seal = std::move(seal);
  transfer->num_hashed = transfer->machine.spec().num_released;
  transfer->prompt_done_us = now_us;
  next_deadline_us_ = now_us;
}

void SourceTransferSet::OnMessage(const PeerMessage& event, int64_t now_us) {
  const Incarnation peer = event.peer;
  const HandoffMessage& message = *event.message;
  const TransferKey& key = KeyOf(message);
  SourceTransfer* const transfer = Find({key.uid, key.attempt});
  if (transfer == nullptr) {
    if (const auto* grant = std::get_if<Grant>(&message)) return ParkGrant(peer, *grant, now_us);
    if (!std::holds_alternative<Revoke>(message)) {
      return Send(peer, RevokeUnknown(key, /*from_decode=*/false));
    }
    if (!park_.Drop(key.uid, key.attempt, peer)) ++stats_.stale_messages;
    return;
  }
  if (transfer->peer != peer) {
    ++stats_.stale_messages;
    return;
  }
  actions_.clear();
  if (const auto* grant = std::get_if<Grant>(&message)) {
    GiveGrant(transfer, *grant, now_us);
  } else {
    if (std::holds_alternative<Applied>(message)) transfer->applied_us = event.arrived_us;
    transfer->machine.OnMessage(message, now_us, &actions_);
  }
  Perform(transfer, now_us);
  EraseFinished();
}

void SourceTransferSet::ParkGrant(Incarnation peer, const Grant& grant, int64_t now_us) {
  const bool is_own = grant.decode_incarnation == peer;
  if (!is_own || !park_.Park(grant, now_us)) Send(peer, RevokeUnknown(grant.key, false));
}

void SourceTransferSet::OnPeerDown(Incarnation peer, std::string_view reason, int64_t now_us) {
  for (auto& [key, transfer] : transfers_) {
    if (transfer->peer != peer) continue;
    actions_.clear();
    transfer->machine.OnPeerDown(reason, now_us, &actions_);
    Perform(transfer.get(), now_us);
  }
  EraseFinished();
}

void SourceTransferSet::OnSendClosed(Incarnation peer, TransferId id, int64_t now_us) {
  for (auto& [key, transfer] : transfers_) {
    if (!transfer->machine.IsSending(peer, id)) continue;
    // Nothing more goes to a transfer that the transport gave up by itself.
    if (transfer->peer == peer && transfer->machine.key().transfer == id) transfer->unsent.clear();
    actions_.clear();
    transfer->machine.OnSendClosed(peer, id, now_us, &actions_);
    Perform(transfer.get(), now_us);
  }
  EraseFinished();
}

void SourceTransferSet::Cancel(const RequestKey& key, std::string_view reason, int64_t now_us) {
  SourceTransfer* const transfer = Find(key);
  if (transfer == nullptr) return;
  actions_.clear();
  transfer->machine.OnCancel(reason, now_us, &actions_);
  Perform(transfer, now_us);
  EraseFinished();
}

void SourceTransferSet::Tick(int64_t now_us) {
  if (now_us < NextDeadlineUs()) return;
  FinishStep(now_us);  // what Start left for later
  last_tick_us_ = now_us;
  next_deadline_us_ = INT64_MAX;
  for (auto& [key, transfer] : transfers_) {
    OfferAgain(transfer.get(), now_us);
    actions_.clear();
    if (now_us >= transfer->machine.NextDeadlineUs()) transfer->machine.OnTick(now_us, &actions_);
    Perform(transfer.get(), now_us);
  }
  HashInTurns(now_us);
  EraseFinished();
  ExpireParked(now_us);
}

void SourceTransferSet::HashInTurns(int64_t now_us) {
  const uint64_t num_a_turn = hash_bytes_per_turn_ / parts_.kv->layout().BlockBytes();
  auto num_left = static_cast<uint32_t>(std::clamp<uint64_t>(num_a_turn, 1, UINT32_MAX));
  for (auto& [key, transfer] : transfers_) {
    if (!transfer->late_seal.has_value()) continue;
    if (num_left > 0) num_left -= HashSome(transfer.get(), num_left, now_us);
    if (transfer->late_seal.has_value()) next_deadline_us_ = now_us;  // the next turn goes on
  }
}

uint32_t SourceTransferSet::HashSome(SourceTransfer* transfer, uint32_t max_ordinals,
                                     int64_t now_us) {
  const uint32_t first = transfer->num_hashed;
  const uint32_t num_blocks = transfer->machine.spec().num_blocks;
  const uint32_t num = std::min(max_ordinals, num_blocks - first);
  transfer->num_hashed += num;
  HashAndSeal(transfer, first, num, now_us);
  // Slices that cannot be posted may have ended the request, and let its blocks go.
  if (transfer->late_seal.has_value() && transfer->num_hashed == num_blocks) {
    FinishPrompt(transfer, *std::exchange(transfer->late_seal, std::nullopt), now_us);
  }
  return num;
}

void SourceTransferSet::OfferAgain(SourceTransfer* transfer, int64_t now_us) {
  if (transfer->unsent.empty()) return;
  const std::vector<SliceRange> again = std::exchange(transfer->unsent, {});
  actions_.clear();
  for (const SliceRange& slices : again) Offer(transfer, slices, now_us);
  Perform(transfer, now_us);
}

void SourceTransferSet::ExpireParked(int64_t now_us) {
  expired_.clear();
  park_.Expire(now_us, &expired_);
  for (const Grant& grant : expired_) {
    Send(grant.decode_incarnation, RevokeUnknown(grant.key, /*from_decode=*/false));
  }
}

void SourceTransferSet::NoteDeadline(const SourceTransfer& transfer) {
  any_finished_ = any_finished_ || transfer.machine.finished();
  next_deadline_us_ = std::min(next_deadline_us_, transfer.machine.NextDeadlineUs());
  if (!transfer.unsent.empty()) {
    next_deadline_us_ = std::min(next_deadline_us_, last_tick_us_ + kOfferAgainUs);
  }
}

// ---- Actions.

void SourceTransferSet::Perform(SourceTransfer* transfer, int64_t now_us) {
  // An action may append more; the vector is read by index.
  for (size_t i = 0; i < actions_.size(); ++i) {
    HandoffAction action = std::move(actions_[i]);
    if (in_step_ && (!transfer->deferred.empty() || !MayHappenInStep(action.kind))) {
      transfer->deferred.push_back(std::move(action));
      continue;
    }
    PerformOne(transfer, std::move(action), now_us);
  }
  actions_.clear();
  if (!in_step_) ReportGrant(transfer);
  NoteDeadline(*transfer);
}

void SourceTransferSet::PerformOne(SourceTransfer* transfer, HandoffAction action, int64_t now_us) {
  switch (action.kind) {
    case HandoffActionKind::kSendMessage:
      return Send(action.peer, action.message);
    case HandoffActionKind::kPinBlocks:
      for (uint32_t i = 0; i < action.slices.num_ordinals; ++i) {
        const BlockHandle block = transfer->blocks[action.slices.first_ordinal + i];
        parts_.pool->AddTransferRef(block);
        parts_.pool->SetState(block, BlockState::kExported);
      }
      return;
    case HandoffActionKind::kExportSlices:
      return Offer(transfer, action.slices, now_us);
    case HandoffActionKind::kCloseSend:
      transfer->unsent.clear();
      return parts_.transport->CloseSend(action.peer, action.transfer);
    case HandoffActionKind::kUnpinBlocks:
      for (uint32_t i = 0; i < action.slices.num_ordinals; ++i) {
        parts_.pool->DropTransferRef(transfer->blocks[action.slices.first_ordinal + i]);
      }
      return;
    case HandoffActionKind::kReleaseBlocks:
      transfer->late_seal.reset();
      if (std::exchange(transfer->holds_sequence, false)) {
        parts_.scheduler->Remove(transfer->sequence);
      }
      return;
    case HandoffActionKind::kCompleteRequest:
      TakeTime(*transfer);
      return owner_->OnSourceDone(transfer->key);
    case HandoffActionKind::kStranded:
      return owner_->OnSourceStranded(transfer->key, action.outcome, action.status);
    case HandoffActionKind::kFailRequest:
      return owner_->OnTransferFailed(transfer->key, action.outcome, action.status);
    case HandoffActionKind::kOpenReceive:
    case HandoffActionKind::kLabelReceiving:
    case HandoffActionKind::kCloseReceive:
    case HandoffActionKind::kBindBlocks:
      BATON_CHECK(false, "a source asked for action {}", static_cast<int>(action.kind));
  }
}

void SourceTransferSet::Offer(SourceTransfer* transfer, const SliceRange& slices, int64_t now_us) {
  const uint32_t step = std::max(1u, kMaxSlicesPerOffer / slices.num_layers);
  for (uint32_t done = 0; done < slices.num_ordinals; done += step) {
    SliceRange part = slices;
    part.first_ordinal += done;
    part.num_ordinals = std::min(step, slices.num_ordinals - done);
    // Once one part had to wait, the later ones wait too.
    if (!transfer->unsent.empty() || !OfferSome(transfer, part, now_us)) {
      transfer->unsent.push_back(part);
    }
  }
}

bool SourceTransferSet::OfferSome(SourceTransfer* transfer, SliceRange slices, int64_t now_us) {
  const TransferKey key = transfer->machine.key();
  const std::vector<uint32_t>& generations = transfer->machine.generations();
  const uint32_t num_layers = transfer->machine.spec().num_layers;
  const uint32_t num_held = transfer->machine.num_held();
  refs_.clear();
  for (uint32_t o = slices.first_ordinal; o < slices.first_ordinal + slices.num_ordinals; ++o) {
    for (uint32_t l = slices.first_layer; l < slices.first_layer + slices.num_layers; ++l) {
      refs_.push_back({.transfer = key.transfer,
                       .attempt = key.attempt,
                       .ordinal = o - num_held,
                       .layer = l,
                       .generation = generations[o - num_held],
                       .source = transfer->blocks[o].index,
                       .checksum = transfer->checksums[size_t{o} * num_layers + l]});
    }
  }
  const Status status = parts_.transport->SendSlices(transfer->peer, refs_);
  if (status.ok()) {
    stats_.bytes_offered += refs_.size() * parts_.kv->layout().SliceBytes();
    if (in_step_) stats_.slices_offered_in_step += refs_.size();
    if (transfer->first_offer_us == 0) transfer->first_offer_us = now_us;
    return true;
  }
  if (absl::IsResourceExhausted(status)) return false;
  // It cannot be posted: the router hears it at once, and the decode worker if it can be reached.
  HandoffActions ended;
  transfer->machine.OnPeerDown(status.ToString(), now_us, &ended);
  for (HandoffAction& action : ended) actions_.push_back(std::move(action));
  return true;
}

void SourceTransferSet::Send(Incarnation peer, const HandoffMessage& message) {
  const Status status = parts_.transport->SendControl(peer, parts_.wire->Encode(message));
  if (!status.ok()) {
    BATON_LOG_WARN("hand-off message to {:016x} is lost: {}", peer.value(), status.ToString());
  }
}

void SourceTransferSet::ReportGrant(SourceTransfer* transfer) {
  if (transfer->granted_reported || !transfer->machine.granted()) return;
  const SourceState state = transfer->machine.state();
  if (state != SourceState::kExporting && state != SourceState::kExported) return;
  transfer->granted_reported = true;
  owner_->OnSourceGranted(transfer->key);
}

void SourceTransferSet::TakeTime(const SourceTransfer& transfer) {
  const auto since = [&transfer](int64_t begin_us) {
    return std::max<int64_t>(0, transfer.applied_us - begin_us);
  };
  if (transfer.first_offer_us == 0) return;  // nothing was: the word is no honest peer's
  stats_.transfer_us += since(transfer.first_offer_us);
  stats_.exposed_us += since(std::max(transfer.first_offer_us, transfer.prompt_done_us));
}

void SourceTransferSet::EraseFinished() {
  if (!any_finished_) return;
  any_finished_ = false;
  absl::erase_if(transfers_, [this](const auto& entry) {
    const SourceTransfer& transfer = *entry.second;
    if (!transfer.machine.finished()) return false;
    if (!transfer.deferred.empty()) {
      any_finished_ = true;
      return false;
    }
    stats_.stale_messages += transfer.machine.num_stale();
    return true;
  });
}

}  // namespace baton::engine
