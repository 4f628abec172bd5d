#include "src/engine/dest_transfers.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/log.h"

namespace baton::engine {

using kv::BadSlice;
using kv::BadSliceReasonName;
using kv::BlockHandle;
using kv::BlockState;
using kv::DestSpec;
using kv::DestState;
using kv::HandoffAction;
using kv::HandoffActionKind;
using kv::HandoffDest;
using kv::HandoffMessage;
using kv::HandoffOutcome;
using kv::KeyOf;
using kv::KvLayout;
using kv::ReceiveSpec;
using kv::Revoke;
using kv::RevokeUnknown;
using kv::TransferKey;

namespace {

// How long what a peer had queued before is waited for at most, from a Seal or from asking for
// everything again. A connection that needs longer is asked again, which max_nacks bounds.
constexpr int64_t kMaxQueueWaitUs = 60'000'000;

// States in which blocks are held.
bool IsOpenState(DestState state) {
  return state != DestState::kBound && state != DestState::kReleased;
}

}  // namespace

DestTransferSet::DestTransferSet(const TransferParts& parts, const EngineConfig& config,
                                 uint32_t vocab_size, TransferOwner* owner)
    : parts_(parts),
      timers_(config.handoff),
      incarnation_(config.incarnation),
      vocab_size_(vocab_size),
      layers_per_group_(config.layers_per_group),
      max_bound_(config.max_bound_transfers),
      owner_(owner) {}

DestTransfer* DestTransferSet::Find(TransferId id) {
  const auto it = transfers_.find(id);
  return it == transfers_.end() ? nullptr : it->second.get();
}

DestTransfer* DestTransferSet::Find(const TransferKey& key) {
  if (key.transfer != TransferId()) return Find(key.transfer);
  const auto it = by_request_.find({key.uid, key.attempt});
  return it == by_request_.end() ? nullptr : Find(it->second);
}

void DestTransferSet::Start(const RequestSpec& spec, DestStart start, int64_t now_us) {
  const KvLayout& layout = parts_.kv->layout();
  DestSpec dest;
  dest.key = {spec.key.uid, spec.key.attempt, TransferId(next_transfer_++)};
  dest.decode_incarnation = incarnation_;
  dest.num_held = start.num_held;
  dest.num_state = start.num_state;
  for (uint32_t i = start.num_held; i < start.num_data; ++i) {
    dest.generations.push_back(start.blocks[i - start.num_unseen].generation);
  }
  dest.layout_id = layout.LayoutId();
  dest.slice_bytes = layout.SliceBytes();
  dest.num_layers = layout.num_layers;
  dest.num_tokens = static_cast<uint32_t>(spec.tokens.size());
  dest.num_choices = spec.num_choices;
  dest.vocab_size = vocab_size_;
  dest.next_output_index = dest.num_tokens - spec.num_prompt_tokens + 1;
  dest.chain = std::move(start.chain);
  dest.timers = timers_;

  const TransferId id = dest.key.transfer;
  auto transfer = std::make_unique<DestTransfer>(std::move(dest), start.num_unseen);
  transfer->key = spec.key;
  transfer->peer = spec.peer;
  transfer->blocks = std::move(start.blocks);
  DestTransfer* const raw = transfer.get();
  transfers_.emplace(id, std::move(transfer));
  by_request_[spec.key] = id;
  actions_.clear();
  raw->machine.OnStart(now_us, &actions_);
  Perform(raw, DestState::kReserved, now_us);
  EraseFinished();
}

// ---- Events.

void DestTransferSet::OnMessage(Incarnation peer, const HandoffMessage& message, int64_t now_us) {
  DestTransfer* const transfer = Find(KeyOf(message));
  if (transfer == nullptr) {
    if (std::holds_alternative<Revoke>(message)) {
      ++stats_.stale_messages;
    } else {
      Send(peer, RevokeUnknown(KeyOf(message), /*from_decode=*/true));
    }
    return;
  }
  if (transfer->peer != peer) {
    ++stats_.stale_messages;
    return;
  }
  const DestState before = transfer->machine.state();
  const bool was_sealed = transfer->machine.seal().has_value();
  actions_.clear();
  transfer->machine.OnMessage(message, now_us, &actions_);
  // A repeated Seal says nothing of where the slices stand.
  if (!was_sealed && transfer->machine.seal()) BeginWait(transfer, now_us);
  Perform(transfer, before, now_us);
  EraseFinished();
}

void DestTransferSet::OnReceiveProgress(const ReceiveProgress& progress, int64_t now_us) {
  DestTransfer* const transfer = Find(progress.transfer);
  if (transfer == nullptr) return;
  const DestState before = transfer->machine.state();
  const uint32_t num_before = transfer->machine.num_slices();
  actions_.clear();
  transfer->machine.OnReceiveProgress(progress.num_slices, progress.complete, now_us, &actions_);
  if (const uint32_t num_new = transfer->machine.num_slices() - num_before; num_new > 0) {
    Delivery& delivery = delivered_[transfer->peer];
    delivery.num_slices += num_new;
    delivery.last_us = now_us;
    TellProgress(transfer, now_us);
  }
  Perform(transfer, before, now_us);
}

void DestTransferSet::TellProgress(DestTransfer* transfer, int64_t now_us) {
  const HandoffDest& machine = transfer->machine;
  if (transfer->told_us == 0) transfer->told_us = machine.first_slice_us();
  const bool is_open = machine.state() == DestState::kReceiving && machine.num_outstanding() > 0;
  if (!is_open || now_us - transfer->told_us < kTellProgressUs) return;
  transfer->told_us = now_us;
  owner_->OnDestProgress(transfer->key, machine.num_slices() * machine.spec().slice_bytes);
}

void DestTransferSet::BeginWait(DestTransfer* transfer, int64_t now_us) {
  if (transfer->machine.gap_at_us() == INT64_MAX) return;  // it waits for no slice
  transfer->wait_until_us = now_us + kMaxQueueWaitUs;
  transfer->queue_end = delivered_[transfer->peer].num_slices;
  for (const auto& [id, other] : transfers_) {
    const HandoffDest& machine = other->machine;
    const DestState state = machine.state();
    const bool is_open = state == DestState::kReserved || state == DestState::kReceiving;
    // Nothing can stand in the queue of a prompt that was not begun; an earlier one may well be.
    const bool is_begun = id < transfer->machine.key().transfer || machine.seal().has_value() ||
                          machine.num_slices() > 0;
    if (is_open && is_begun && other->peer == transfer->peer) {
      transfer->queue_end += machine.num_outstanding();
    }
  }
}

void DestTransferSet::WaitForQueue(DestTransfer* transfer, int64_t now_us) {
  if (now_us >= transfer->wait_until_us) return;
  const auto delivery = delivered_.find(transfer->peer);
  if (delivery == delivered_.end() || delivery->second.num_slices >= transfer->queue_end) return;
  transfer->machine.OnQueueProgress(delivery->second.last_us);
}

void DestTransferSet::OnBadSlice(const BadSlice& slice, int64_t now_us) {
  ++stats_.bad_slices;
  DestTransfer* const transfer = Find(slice.transfer);
  if (transfer == nullptr) return;
  const DestState before = transfer->machine.state();
  actions_.clear();
  transfer->machine.OnBadSlice({slice.ordinal, slice.layer}, BadSliceReasonName(slice.reason),
                               now_us, &actions_);
  Perform(transfer, before, now_us);
  EraseFinished();
}

void DestTransferSet::OnReceiveClosed(TransferId id, int64_t now_us) {
  DestTransfer* const transfer = Find(id);
  if (transfer == nullptr) return;
  const DestState before = transfer->machine.state();
  actions_.clear();
  transfer->machine.OnReceiveClosed(now_us, &actions_);
  Perform(transfer, before, now_us);
  EraseFinished();
}

void DestTransferSet::OnPeerDown(Incarnation peer, std::string_view reason, int64_t now_us) {
  delivered_.erase(peer);
  for (auto& [id, transfer] : transfers_) {
    if (transfer->peer != peer) continue;
    const DestState before = transfer->machine.state();
    actions_.clear();
    transfer->machine.OnPeerDown(reason, now_us, &actions_);
    Perform(transfer.get(), before, now_us);
  }
  EraseFinished();
}

void DestTransferSet::Cancel(const RequestKey& key, std::string_view reason, int64_t now_us) {
  const auto it = by_request_.find(key);
  if (it == by_request_.end()) return;
  DestTransfer* const transfer = Find(it->second);
  // A bound transfer holds nothing, and the prefill worker may still ask whether it was applied.
  if (!IsOpenState(transfer->machine.state())) return;
  const DestState before = transfer->machine.state();
  actions_.clear();
  transfer->machine.OnCancel(reason, now_us, &actions_);
  Perform(transfer, before, now_us);
  EraseFinished();
}

void DestTransferSet::Tick(int64_t now_us) {
  if (now_us < next_deadline_us_) return;
  next_deadline_us_ = INT64_MAX;
  for (auto& [id, transfer] : transfers_) {
    const DestState before = transfer->machine.state();
    actions_.clear();
    if (now_us >= transfer->machine.gap_at_us()) WaitForQueue(transfer.get(), now_us);
    const bool is_silent = now_us >= transfer->machine.gap_at_us();
    if (now_us >= transfer->machine.NextDeadlineUs()) {
      transfer->machine.OnTick(now_us, &actions_);
    }
    if (is_silent) BeginWait(transfer.get(), now_us);  // it was asked for again
    Perform(transfer.get(), before, now_us);
  }
  EraseFinished();
}

// ---- Actions.

void DestTransferSet::Perform(DestTransfer* transfer, DestState before, int64_t now_us) {
  if (before != DestState::kVerified && transfer->machine.state() == DestState::kVerified) {
    const HandoffDest& machine = transfer->machine;
    owner_->OnDestVerified(transfer->key,
                           {.kv_bytes = machine.expected_bytes(),
                            .transfer_us = machine.last_slice_us() - machine.first_slice_us(),
                            .num_cached = machine.seal()->num_cached});
  }
  // An action may append more; the vector is read by index.
  for (size_t i = 0; i < actions_.size(); ++i) {
    PerformOne(transfer, std::move(actions_[i]), now_us);
  }
  actions_.clear();
  any_finished_ = any_finished_ || transfer->machine.finished();
  next_deadline_us_ = std::min(next_deadline_us_, transfer->machine.NextDeadlineUs());
}

void DestTransferSet::PerformOne(DestTransfer* transfer, HandoffAction action, int64_t now_us) {
  switch (action.kind) {
    case HandoffActionKind::kSendMessage:
      return Send(transfer->peer, action.message);
    case HandoffActionKind::kOpenReceive:
      return OpenReceive(transfer, now_us);
    case HandoffActionKind::kLabelReceiving:
      for (const BlockHandle block : transfer->crossing()) {
        parts_.pool->SetState(block, BlockState::kReceiving);
      }
      return;
    case HandoffActionKind::kCloseReceive:
      return parts_.transport->CloseReceive(transfer->machine.key().transfer);
    case HandoffActionKind::kUnpinBlocks:
      return Unpin(transfer);
    case HandoffActionKind::kBindBlocks:
      parts_.kv->Adopt(transfer->crossing());
      transfer->holds_requests = false;
      transfer->is_bound = true;
      ++num_bound_;
      stats_.bytes_bound += transfer->machine.expected_bytes();
      return owner_->OnDestBound(transfer->key, *transfer->machine.seal(), transfer->blocks);
    case HandoffActionKind::kReleaseBlocks:
      return Release(transfer);
    case HandoffActionKind::kFailRequest:
      if (action.outcome == HandoffOutcome::kChainMismatch) ++stats_.chain_mismatches;
      return owner_->OnTransferFailed(transfer->key, action.outcome, action.status);
    case HandoffActionKind::kPinBlocks:
    case HandoffActionKind::kExportSlices:
    case HandoffActionKind::kCloseSend:
    case HandoffActionKind::kCompleteRequest:
    case HandoffActionKind::kStranded:
      BATON_CHECK(false, "a destination asked for action {}", static_cast<int>(action.kind));
  }
}

void DestTransferSet::OpenReceive(DestTransfer* transfer, int64_t now_us) {
  ReceiveSpec receive;
  receive.transfer = transfer->machine.key().transfer;
  receive.attempt = transfer->key.attempt;
  receive.peer = transfer->peer;
  receive.layers_per_group = layers_per_group_;
  for (const BlockHandle block : transfer->crossing()) {
    parts_.pool->AddTransferRef(block);
    receive.blocks.push_back({block.index, block.generation});
  }
  transfer->is_pinned = true;
  const Status status = parts_.transport->OpenReceive(std::move(receive));
  if (status.ok()) return;
  BATON_LOG_WARN("request {}: the receive cannot be opened: {}", transfer->key.uid,
                 status.ToString());
  transfer->machine.OnReceiveClosed(now_us, &actions_);
}

void DestTransferSet::Unpin(DestTransfer* transfer) {
  if (!std::exchange(transfer->is_pinned, false)) return;
  for (const BlockHandle block : transfer->crossing()) parts_.pool->DropTransferRef(block);
}

void DestTransferSet::Release(DestTransfer* transfer) {
  if (!std::exchange(transfer->holds_requests, false)) return;
  for (const BlockHandle block : transfer->blocks) parts_.pool->DropRequestRef(block);
}

void DestTransferSet::Send(Incarnation peer, const HandoffMessage& message) {
  const Status status = parts_.transport->SendControl(peer, parts_.wire->Encode(message));
  if (!status.ok()) {
    BATON_LOG_WARN("hand-off message to {:016x} is lost: {}", peer.value(), status.ToString());
  }
}

void DestTransferSet::EraseFinished() {
  if (!any_finished_ && num_bound_ <= max_bound_) return;
  any_finished_ = false;
  const TransferId given_up = num_bound_ > max_bound_ ? OldestBound() : TransferId();
  absl::erase_if(transfers_, [&](const auto& entry) {
    const DestTransfer& transfer = *entry.second;
    if (!transfer.machine.finished() && entry.first != given_up) return false;
    BATON_CHECK(!transfer.holds_requests && !transfer.is_pinned,
                "transfer {} is over and holds blocks", entry.first);
    if (transfer.is_bound) --num_bound_;
    stats_.stale_messages += transfer.machine.num_stale();
    const auto it = by_request_.find(transfer.key);
    if (it != by_request_.end() && it->second == entry.first) by_request_.erase(it);
    return true;
  });
}

TransferId DestTransferSet::OldestBound() const {
  TransferId oldest;  // transfer ids ascend from 1
  for (const auto& [id, transfer] : transfers_) {
    if (transfer->is_bound && (oldest == TransferId() || id < oldest)) oldest = id;
  }
  return oldest;
}

}  // namespace baton::engine
