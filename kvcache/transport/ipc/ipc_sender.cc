#include "kvcache/transport/ipc/ipc_sender.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "kvcache/transport/ipc/ipc_message.h"

namespace baton::kv {

// An offer without an answer.
struct IpcSender::Batch {
  uint64_t number = 0;
  std::vector<SliceRef> slices;  // less what was closed since
  uint64_t num_offered = 0;
  uint32_t num_posted = 0;  // how often
  int64_t deadline_us = 0;
};

// A connected peer, and the slices that wait for it.
struct IpcSender::Peer {
  std::deque<SliceRef> queue;
  std::vector<Batch> offered;
};

IpcSender::IpcSender(const IpcParts* parts)
    : parts_(parts),
      max_slices_(std::clamp<uint64_t>(parts->limits.offer_bytes / parts->slice_bytes, 1,
                                       kMaxIpcOfferSlices)) {}

IpcSender::~IpcSender() = default;

bool IpcSender::AddPeer(const PeerUp& peer) {
  if (peer.dialled) peers_[peer.peer] = std::make_unique<Peer>();
  return peer.dialled;
}

void IpcSender::RemovePeer(Incarnation id) {
  const Peer* const peer = FindPeer(peers_, id);
  if (peer == nullptr) return;
  size_t count = peer->queue.size();
  for (const Batch& batch : peer->offered) count += batch.slices.size();
  parts_->inbox->ReleaseSlices(id, static_cast<uint32_t>(count));
  peers_.erase(id);
}

void IpcSender::Enqueue(Incarnation id, std::span<const SliceRef> slices) {
  Peer* const peer = FindPeer(peers_, id);
  if (peer == nullptr) {
    parts_->inbox->ReleaseSlices(id, static_cast<uint32_t>(slices.size()));
    return;
  }
  peer->queue.insert(peer->queue.end(), slices.begin(), slices.end());
}

void IpcSender::CloseSend(Incarnation id, TransferId transfer) {
  Peer* const peer = FindPeer(peers_, id);
  if (peer == nullptr) return;
  const auto is_its = [transfer](const SliceRef& slice) { return slice.transfer == transfer; };
  size_t dropped = std::erase_if(peer->queue, is_its);
  for (Batch& batch : peer->offered) dropped += std::erase_if(batch.slices, is_its);
  parts_->inbox->ReleaseSlices(id, static_cast<uint32_t>(dropped));
}

void IpcSender::HandleDone(Incarnation id, uint64_t number) {
  Peer* const peer = FindPeer(peers_, id);
  // A peer that this side never dialled has nothing to answer.
  if (peer == nullptr || number >= next_batch_) return parts_->ipc_counters->protocol.Add();
  const auto batch =
      std::find_if(peer->offered.begin(), peer->offered.end(),
                   [number](const Batch& offered) { return offered.number == number; });
  if (batch == peer->offered.end()) return;  // the answer to an offer that was made twice
  parts_->counters->slices_sent.Add(batch->num_offered);
  parts_->ipc_counters->offers.Add();
  if (LinkCounters* const link = parts_->link_counters(id)) {
    link->bytes_sent.Add(batch->num_offered * parts_->slice_bytes);
  }
  parts_->inbox->ReleaseSlices(id, static_cast<uint32_t>(batch->slices.size()));
  peer->offered.erase(batch);
}

int64_t IpcSender::Step(int64_t now_us) {
  int64_t due_us = 0;
  for (auto& [id, peer] : peers_) {
    OfferMore(id, peer.get(), now_us);
    for (const Batch& batch : peer->offered) {
      due_us = due_us == 0 ? batch.deadline_us : std::min(due_us, batch.deadline_us);
    }
  }
  return due_us;
}

void IpcSender::OfferMore(Incarnation id, Peer* peer, int64_t now_us) {
  std::erase_if(peer->offered, [&](Batch& batch) {
    if (now_us < batch.deadline_us) return false;
    if (batch.slices.empty()) return true;  // all closed: nobody waits for the answer
    if (batch.num_posted > 0) parts_->ipc_counters->late.Add();
    Offer(id, &batch, now_us);
    return false;
  });
  while (!peer->queue.empty() && peer->offered.size() < parts_->limits.max_offers) {
    const size_t count = std::min(peer->queue.size(), max_slices_);
    const auto end = peer->queue.begin() + static_cast<ptrdiff_t>(count);
    Batch& batch = peer->offered.emplace_back();
    batch.number = next_batch_++;
    batch.slices.assign(peer->queue.begin(), end);
    batch.num_offered = count;
    peer->queue.erase(peer->queue.begin(), end);
    Offer(id, &batch, now_us);
  }
}

void IpcSender::Offer(Incarnation id, Batch* batch, int64_t now_us) {
  IpcMessage offer;
  offer.kind = IpcMessageKind::kOffer;
  offer.batch = batch->number;
  offer.slices = batch->slices;
  if (!parts_->post(id, EncodeIpcMessage(offer))) {
    batch->deadline_us = now_us + parts_->timers.repost_us;
    return;
  }
  constexpr uint32_t kMaxDoublings = 20;
  const uint32_t doublings = std::min(batch->num_posted++, kMaxDoublings);
  batch->deadline_us =
      now_us + std::min(parts_->timers.max_answer_us, parts_->timers.answer_us << doublings);
}

}  // namespace baton::kv
