#include "kvcache/transport/transport_inbox.h"

#include <utility>

#include "src/base/check.h"
#include "src/base/limits.h"

namespace baton::kv {

using limits::kMaxControlBytes;

namespace {

Status StoppedStatus() { return Unavailable("the transport is stopped"); }

}  // namespace

TransportInbox::TransportInbox(const TransportInboxLimits& limits, std::function<void()> wake)
    : limits_(limits), wake_(std::move(wake)) {}

bool TransportInbox::PushLocked(TransportCommand command) {
  const bool was_empty = waiting_.commands.empty();
  waiting_.commands.push_back(std::move(command));
  return was_empty;
}

TransportInbox::PeerQueue* TransportInbox::FindOrAddLocked(Incarnation peer) {
  const auto entry = peers_.find(peer);
  if (entry != peers_.end()) return &entry->second;
  if (num_absent_ >= limits_.max_absent_peers) return nullptr;
  ++num_absent_;
  return &peers_[peer];
}

void TransportInbox::ForgetIfIdleLocked(Incarnation peer) {
  const auto entry = peers_.find(peer);
  if (entry == peers_.end()) return;
  const PeerQueue& queue = entry->second;
  if (queue.up || queue.slices > 0 || queue.controls > 0) return;
  peers_.erase(entry);
  --num_absent_;
}

Status TransportInbox::PostSlices(Incarnation peer, std::span<const SliceRef> slices) {
  bool must_wake = false;
  {
    MutexLock lock(mutex_);
    if (closed_) return StoppedStatus();
    const auto entry = peers_.find(peer);
    if (entry == peers_.end() || !entry->second.up) {
      return Unavailable("no connection to peer {:x}", peer.value());
    }
    PeerQueue& queue = entry->second;
    if (slices.size() > limits_.max_slices - queue.slices) {
      return ResourceExhausted("{} slices wait for peer {:x}; {} more would exceed {}",
                               queue.slices, peer.value(), slices.size(), limits_.max_slices);
    }
    queue.slices += static_cast<uint32_t>(slices.size());
    TransportCommand command;
    command.kind = TransportCommand::Kind::kSlices;
    command.peer = peer;
    command.epoch = queue.epoch;
    command.first_slice = waiting_.slices.size();
    command.num_slices = slices.size();
    waiting_.slices.insert(waiting_.slices.end(), slices.begin(), slices.end());
    must_wake = PushLocked(std::move(command));
  }
  if (must_wake) wake_();
  return OkStatus();
}

Status TransportInbox::PostControl(Incarnation peer, std::string bytes) {
  if (bytes.size() > kMaxControlBytes) {
    return InvalidArgument("a control message of {} bytes exceeds {}", bytes.size(),
                           kMaxControlBytes);
  }
  bool must_wake = false;
  {
    MutexLock lock(mutex_);
    if (closed_) return StoppedStatus();
    PeerQueue* const queue = FindOrAddLocked(peer);
    if (queue == nullptr) {
      return ResourceExhausted("control messages wait for {} absent peers already", num_absent_);
    }
    if (queue->controls >= limits_.max_controls ||
        bytes.size() > limits_.max_control_bytes - queue->control_bytes) {
      return ResourceExhausted("{} control messages of {} bytes wait for peer {:x}",
                               queue->controls, queue->control_bytes, peer.value());
    }
    ++queue->controls;
    queue->control_bytes += bytes.size();
    TransportCommand command;
    command.kind = TransportCommand::Kind::kControl;
    command.peer = peer;
    command.bytes = std::move(bytes);
    must_wake = PushLocked(std::move(command));
  }
  if (must_wake) wake_();
  return OkStatus();
}

Status TransportInbox::PostOpenReceive(ReceiveSpec spec) {
  TransportCommand command;
  command.kind = TransportCommand::Kind::kOpenReceive;
  command.peer = spec.peer;
  command.transfer = spec.transfer;
  command.spec = std::make_unique<ReceiveSpec>(std::move(spec));
  bool must_wake = false;
  {
    MutexLock lock(mutex_);
    if (closed_) return StoppedStatus();
    if (num_open_transfers_ >= limits_.max_open_transfers) {
      return ResourceExhausted("{} transfers are open already", num_open_transfers_);
    }
    ++num_open_transfers_;
    must_wake = PushLocked(std::move(command));
  }
  if (must_wake) wake_();
  return OkStatus();
}

void TransportInbox::PostCloseReceive(TransferId transfer) {
  TransportCommand command;
  command.kind = TransportCommand::Kind::kCloseReceive;
  command.transfer = transfer;
  bool must_wake = false;
  {
    MutexLock lock(mutex_);
    if (!closed_) must_wake = PushLocked(std::move(command));
  }
  if (must_wake) wake_();
}

void TransportInbox::PostCloseSend(Incarnation peer, TransferId transfer) {
  TransportCommand command;
  command.kind = TransportCommand::Kind::kCloseSend;
  command.peer = peer;
  command.transfer = transfer;
  bool must_wake = false;
  {
    MutexLock lock(mutex_);
    if (!closed_) must_wake = PushLocked(std::move(command));
  }
  if (must_wake) wake_();
}

void TransportInbox::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
}

bool TransportInbox::TakeAll(TransportBatch* batch) {
  batch->clear();
  MutexLock lock(mutex_);
  if (waiting_.commands.empty()) return false;
  std::swap(waiting_, *batch);
  return true;
}

void TransportInbox::SetPeerUp(Incarnation peer, uint64_t epoch) {
  MutexLock lock(mutex_);
  const auto [entry, is_new] = peers_.try_emplace(peer);
  if (!is_new && !entry->second.up) --num_absent_;
  entry->second.up = true;
  entry->second.epoch = epoch;
}

void TransportInbox::SetPeerDown(Incarnation peer) {
  MutexLock lock(mutex_);
  const auto entry = peers_.find(peer);
  if (entry == peers_.end() || !entry->second.up) return;
  entry->second.up = false;
  ++num_absent_;
  ForgetIfIdleLocked(peer);
}

void TransportInbox::ReleaseSlices(Incarnation peer, uint32_t count) {
  if (count == 0) return;
  MutexLock lock(mutex_);
  const auto entry = peers_.find(peer);
  BATON_CHECK(entry != peers_.end() && entry->second.slices >= count,
              "released {} slices of peer {:x}, which were not posted", count, peer.value());
  entry->second.slices -= count;
  ForgetIfIdleLocked(peer);
}

void TransportInbox::ReleaseControls(Incarnation peer, uint32_t count, uint64_t size_bytes) {
  if (count == 0) return;
  MutexLock lock(mutex_);
  const auto entry = peers_.find(peer);
  BATON_CHECK(entry != peers_.end() && entry->second.controls >= count &&
                  entry->second.control_bytes >= size_bytes,
              "released {} control messages of peer {:x}, which were not posted", count,
              peer.value());
  entry->second.controls -= count;
  entry->second.control_bytes -= size_bytes;
  ForgetIfIdleLocked(peer);
}

void TransportInbox::ReleaseOpenTransfer() {
  MutexLock lock(mutex_);
  BATON_CHECK(num_open_transfers_ > 0, "more transfers released than opened");
  --num_open_transfers_;
}

}  // namespace baton::kv
