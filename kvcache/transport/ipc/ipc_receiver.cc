#include "kvcache/transport/ipc/ipc_receiver.h"

#include <algorithm>
#include <deque>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"

namespace baton::kv {
namespace {

// The prefill worker has two without an answer at most; this leaves room for others' limits.
constexpr size_t kMaxWaitingOffers = 8;

// A slice's place in a transfer.
using Place = std::tuple<uint64_t, uint32_t, uint32_t>;
Place PlaceOf(const SliceRef& slice) {
  return {slice.transfer.value(), slice.ordinal, slice.layer};
}

}  // namespace

// A connected peer, and the batches that it offers.
struct IpcReceiver::Peer {
  uint64_t epoch = 0;
  std::shared_ptr<const PeerPool> pool;
  std::deque<IpcMessage> offers;
};

// The batch that a slot is used for.
struct IpcReceiver::Batch {
  SlicePuller::Slot* slot = nullptr;
  bool is_used = false;
  bool is_pulling = false;  // the event is not done
  Incarnation peer;
  uint64_t epoch = 0;
  uint64_t number = 0;
  bool counts = false;                   // the peer is still there
  std::shared_ptr<const PeerPool> pool;  // invariant 2
  std::vector<SliceRef> left;            // not judged yet
  std::vector<SliceRef> running;         // of the slot's last launch, in its order
};

IpcReceiver::IpcReceiver(const IpcParts* parts, std::unique_ptr<SlicePuller> puller,
                         const KvMemory& memory, DevicePools* pools)
    : parts_(parts), puller_(std::move(puller)), memory_(memory), pools_(pools) {
  for (SlicePuller::Slot& slot : puller_->slots()) batches_.emplace_back().slot = &slot;
}

IpcReceiver::~IpcReceiver() = default;

void IpcReceiver::AddPeer(const PeerUp& peer, uint64_t epoch) {
  auto added = std::make_unique<Peer>();
  added->epoch = epoch;
  if (!peer.dialled) added->pool = pools_->Claim(peer.peer);
  peers_[peer.peer] = std::move(added);
}

void IpcReceiver::RemovePeer(Incarnation id) {
  if (FindPeer(peers_, id) == nullptr) return;
  for (Batch& batch : batches_) {
    if (batch.peer != id) continue;
    batch.counts = false;
    batch.left.clear();
  }
  peers_.erase(id);
}

bool IpcReceiver::IsWriting(TransferId transfer) const {
  return std::any_of(batches_.begin(), batches_.end(), [transfer](const Batch& batch) {
    return batch.is_pulling &&
           std::any_of(batch.running.begin(), batch.running.end(),
                       [transfer](const SliceRef& slice) { return slice.transfer == transfer; });
  });
}

void IpcReceiver::HandleOffer(Incarnation id, IpcMessage offer) {
  Peer* const peer = FindPeer(peers_, id);
  if (peer == nullptr) return;
  // An offer that is made again while it is worked on gets its answer all the same.
  const auto is_it = [&](const IpcMessage& other) { return other.batch == offer.batch; };
  const bool is_known =
      std::any_of(peer->offers.begin(), peer->offers.end(), is_it) ||
      std::any_of(batches_.begin(), batches_.end(), [&](const Batch& batch) {
        return batch.is_used && batch.counts && batch.peer == id && batch.number == offer.batch;
      });
  if (is_known) return parts_->ipc_counters->late.Add();
  if (peer->pool == nullptr || peer->offers.size() >= kMaxWaitingOffers) {
    return parts_->ipc_counters->protocol.Add();
  }
  peer->offers.push_back(std::move(offer));
}

int64_t IpcReceiver::Step(int64_t now_us) {
  for (Batch& batch : batches_) {
    if (batch.is_used) StepBatch(&batch, now_us);
  }
  StartBatches();
  const bool is_busy = std::any_of(batches_.begin(), batches_.end(),
                                   [](const Batch& batch) { return batch.is_used; });
  return is_busy ? now_us : 0;
}

void IpcReceiver::StepBatch(Batch* batch, int64_t now_us) {
  if (batch->is_pulling) {
    if (!MustWork(batch->slot->event.Query())) return;
    FinishPull(batch, now_us);
  }
  Pull(batch);
}

void IpcReceiver::FinishPull(Batch* batch, int64_t now_us) {
  batch->is_pulling = false;
  LinkCounters* const link = batch->counts ? parts_->link_counters(batch->peer) : nullptr;
  for (size_t i = 0; batch->counts && i < batch->running.size(); ++i) {
    const FrameHeader header = SliceFrameHeader(batch->running[i], batch->epoch, 0);
    const bool is_good = parts_->receives->Finish(header, batch->slot->host.checksums[i], now_us);
    if (is_good && link != nullptr) link->bytes_received.Add(parts_->slice_bytes);
  }
  batch->running.clear();
}

bool IpcReceiver::Admit(const Batch& batch, const SliceRef& slice, SlicePuller::Pull* pull) {
  if (slice.source.value() >= batch.pool->memory.num_blocks) {
    parts_->counters->AddBadSlice(BadSliceReason::kOutOfRange);
    return false;
  }
  const FrameHeader header = SliceFrameHeader(slice, batch.epoch, 0);
  const std::byte* const dest = parts_->receives->Admit(batch.peer, batch.epoch, header);
  if (dest == nullptr) return false;
  // Admit has compared the layer; both pools have one layout, divided among ranks or not.
  pull->from = batch.pool->memory.SliceOffset(slice.source, slice.layer);
  pull->to = static_cast<uint64_t>(dest - memory_.base);
  return true;
}

std::vector<SlicePuller::Pull> IpcReceiver::AdmitLeft(Batch* batch) {
  absl::flat_hash_set<Place> taken;
  for (const Batch& other : batches_) {
    if (!other.is_pulling) continue;
    for (const SliceRef& slice : other.running) taken.insert(PlaceOf(slice));
  }
  std::vector<SlicePuller::Pull> pulls;
  std::vector<SliceRef> later;
  for (const SliceRef& slice : batch->left) {
    // Judged when the one that came first is in its block, or has turned out to be bad.
    if (taken.contains(PlaceOf(slice))) {
      later.push_back(slice);
      continue;
    }
    SlicePuller::Pull pull;
    if (!Admit(*batch, slice, &pull)) continue;
    taken.insert(PlaceOf(slice));
    batch->running.push_back(slice);
    pulls.push_back(pull);
  }
  batch->left = std::move(later);
  return pulls;
}

void IpcReceiver::Pull(Batch* batch) {
  const std::vector<SlicePuller::Pull> pulls = AdmitLeft(batch);
  if (!pulls.empty()) {
    MustWork(puller_->Begin(batch->slot, batch->pool->memory, pulls));
    batch->is_pulling = true;
    return;
  }
  if (!batch->left.empty()) return;
  if (batch->counts) {
    parts_->ipc_counters->offers.Add();
    IpcMessage done;
    done.kind = IpcMessageKind::kDone;
    done.batch = batch->number;
    // When it cannot be told, the prefill worker offers the batch again.
    (void)parts_->post(batch->peer, EncodeIpcMessage(done));
  }
  batch->is_used = false;
  batch->pool = nullptr;
}

void IpcReceiver::StartBatches() {
  const size_t num_peers = peers_.size();
  auto entry = peers_.upper_bound(last_served_);
  for (size_t i = 0; i < num_peers; ++i) {
    if (entry == peers_.end()) entry = peers_.begin();
    while (StartBatch(entry->first, entry->second.get())) continue;
    ++entry;
  }
}

bool IpcReceiver::StartBatch(Incarnation id, Peer* peer) {
  if (peer->offers.empty()) return false;
  const auto num_used = std::count_if(batches_.begin(), batches_.end(), [id](const Batch& batch) {
    return batch.is_used && batch.peer == id;
  });
  const auto free = std::find_if(batches_.begin(), batches_.end(),
                                 [](const Batch& batch) { return !batch.is_used; });
  if (free == batches_.end() || num_used >= parts_->limits.max_peer_slots) return false;
  last_served_ = id;
  free->is_used = true;
  free->peer = id;
  free->epoch = peer->epoch;
  free->number = peer->offers.front().batch;
  free->counts = true;
  free->pool = peer->pool;
  free->left = std::move(peer->offers.front().slices);
  peer->offers.pop_front();
  Pull(&*free);
  return true;
}

}  // namespace baton::kv
