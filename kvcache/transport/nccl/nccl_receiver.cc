#include "kvcache/transport/nccl/nccl_receiver.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"

#include "src/base/limits.h"
#include "src/base/log.h"

namespace baton::kv {

using limits::kMaxSlicesPerTransfer;

namespace {

// Offers of one peer that wait: the prefill worker has two buffers for it at most, and this leaves
// room for others' limits.
constexpr size_t kMaxWaitingOffers = 8;

}  // namespace

// The communicator over which a peer sends.
struct NcclReceiver::Link : NcclLink {
  std::deque<NcclMessage> offers;  // not granted yet
};

// A connected peer.
struct NcclReceiver::Peer {
  uint64_t epoch = 0;
  std::unique_ptr<Link> link;
  CommEnder::End end;      // of the link before; there is no other until it is over
  int64_t connect_us = 0;  // no further communicator before
};

struct NcclReceiver::Batch : NcclBatch {
  uint64_t epoch = 0;
  std::vector<uint32_t> left;     // positions that no scatter has taken yet
  std::vector<uint32_t> running;  // positions of the scatter that runs
  bool counts = true;             // false: its connection is gone
};

NcclReceiver::NcclReceiver(const NcclParts* parts, std::unique_ptr<StagingRing> ring,
                           const KvMemory& memory)
    : parts_(parts), ring_(std::move(ring)), memory_(memory) {
  for (StagingRing::Slot& slot : ring_->slots()) batches_.emplace_back().slot = &slot;
}

NcclReceiver::~NcclReceiver() = default;

void NcclReceiver::AddPeer(const PeerUp& peer, uint64_t epoch) {
  auto added = std::make_unique<Peer>();
  added->epoch = epoch;
  peers_[peer.peer] = std::move(added);
}

void NcclReceiver::RemovePeer(Incarnation id) {
  Peer* const peer = FindPeer(peers_, id);
  if (peer == nullptr) return;
  if (peer->link != nullptr) DropLink(id, peer);
  for (Batch& batch : batches_) {
    if (batch.peer == id) batch.counts = false;
  }
  peers_.erase(id);
}

bool NcclReceiver::IsWriting(TransferId transfer) const {
  for (const Batch& batch : batches_) {
    if (batch.state != SlotState::kScattering) continue;
    for (const uint32_t position : batch.running) {
      if (batch.slices[position].transfer == transfer) return true;
    }
  }
  return false;
}

FrameHeader NcclReceiver::HeaderOf(const SliceRef& slice, uint64_t epoch) const {
  return SliceFrameHeader(slice, epoch, static_cast<uint32_t>(ring_->slice_bytes()));
}

void NcclReceiver::Handle(Incarnation id, const NcclMessage& message, int64_t now_us) {
  Peer* const peer = FindPeer(peers_, id);
  if (peer == nullptr) return;
  if (message.kind == NcclMessageKind::kConnect) return Connect(id, message, now_us);
  if (peer->link == nullptr || peer->link->number != message.link) {
    if (message.kind != NcclMessageKind::kDrop) {
      Refuse(id, message.link, NcclDropReason::kUnknown);
    }
    return;
  }
  if (message.kind == NcclMessageKind::kStart) return Join(id, peer->link.get(), message.id);
  if (message.kind == NcclMessageKind::kOffer) return TakeOffer(id, message, now_us);
  parts_->nccl_counters->AddDrop(message.reason);
  DropLink(id, peer);
}

void NcclReceiver::Refuse(Incarnation id, uint64_t link, NcclDropReason reason) {
  NcclMessage drop = {.kind = NcclMessageKind::kDrop, .reason = reason, .link = link};
  if (reason == NcclDropReason::kVersion) {
    drop.number = static_cast<uint32_t>(parts_->table->version);
  }
  parts_->nccl_counters->AddDrop(reason);
  // When it cannot be told, the prefill worker finds out by its own deadline.
  (void)parts_->Post(id, drop);
}

void NcclReceiver::Connect(Incarnation id, const NcclMessage& message, int64_t now_us) {
  Peer* const peer = FindPeer(peers_, id);
  // A new one means that the prefill worker has given up the former.
  if (peer->link != nullptr) DropLink(id, peer);
  if (message.number != static_cast<uint32_t>(parts_->table->version)) {
    return Refuse(id, message.link, NcclDropReason::kVersion);
  }
  // An honest prefill worker waits between two for twice as long.
  if (now_us < peer->connect_us) return Refuse(id, message.link, NcclDropReason::kBusy);
  peer->connect_us = now_us + parts_->timers.backoff_min_us / 2;
  if (!peer->end.IsOver() || !parts_->make_room()) {
    return Refuse(id, message.link, NcclDropReason::kBusy);
  }
  const NcclMessage accept = {
      .kind = NcclMessageKind::kAccept, .number = ring_->max_slices(), .link = message.link};
  if (!parts_->Post(id, accept)) return Refuse(id, message.link, NcclDropReason::kFailed);
  ++*parts_->num_links;
  peer->link = std::make_unique<Link>();
  peer->link->peer = id;
  peer->link->number = message.link;
  peer->link->deadline_us = now_us + parts_->timers.build_us;
  peer->link->used_us = now_us;
}

void NcclReceiver::Join(Incarnation id, Link* link, const nccl::UniqueId& name) {
  if (link->comm != nullptr) {
    return Fail(id, NcclDropReason::kProtocol, InvalidArgument("a link is started twice"));
  }
  StatusOr<std::unique_ptr<NcclComm>> comm = NcclComm::Start(parts_->table, parts_->gate, name, 1);
  if (!comm.ok()) return Fail(id, NcclDropReason::kFailed, comm.status());
  link->comm = *std::move(comm);
}

// Judged now, so that what nobody wants does not cross, and again before it is written.
void NcclReceiver::TakeOffer(Incarnation id, const NcclMessage& message, int64_t now_us) {
  Peer* const peer = FindPeer(peers_, id);
  if (message.slices.size() > ring_->max_slices() ||
      peer->link->offers.size() >= kMaxWaitingOffers) {
    return Fail(id, NcclDropReason::kProtocol,
                InvalidArgument("an offer of {} slices behind {} others", message.slices.size(),
                                peer->link->offers.size()));
  }
  peer->link->used_us = now_us;
  NcclMessage offer = message;
  std::vector<uint32_t> wanted;
  for (uint32_t i = 0; i < offer.slices.size(); ++i) {
    const FrameHeader header = HeaderOf(offer.slices[i], peer->epoch);
    if (parts_->receives->Admit(id, peer->epoch, header) == nullptr) {
      // Marked by an ordinal that no transfer has.
      offer.slices[i].ordinal = kMaxSlicesPerTransfer;
    } else {
      wanted.push_back(i);
    }
  }
  if (wanted.empty()) {
    const NcclMessage deny = {
        .kind = NcclMessageKind::kDeny, .link = message.link, .batch = message.batch};
    if (!parts_->Post(id, deny)) {
      Fail(id, NcclDropReason::kFailed, ResourceExhausted("the answer cannot be queued"));
    }
    return;
  }
  peer->link->offers.push_back(std::move(offer));
}

int64_t NcclReceiver::Step(int64_t now_us) {
  for (auto& [id, peer] : peers_) {
    if (peer->link != nullptr) StepLink(id, peer.get(), now_us);
  }
  for (Batch& batch : batches_) StepBatch(&batch, now_us);
  StartReceives(now_us);
  return NextDueUs(now_us);
}

int64_t NcclReceiver::NextDueUs(int64_t now_us) const {
  int64_t due_us = 0;
  for (const Batch& batch : batches_) {
    if (batch.end.has_value()) {
      due_us = now_us + kEndPollUs;
    } else if (batch.state != SlotState::kFree) {
      return now_us;
    }
  }
  for (const auto& [id, peer] : peers_) {
    if (peer->link == nullptr || peer->link->is_built) continue;
    if (peer->link->comm != nullptr) return now_us;
    const int64_t at_us = peer->link->deadline_us;
    due_us = due_us == 0 ? at_us : std::min(due_us, at_us);
  }
  return due_us;
}

void NcclReceiver::StepLink(Incarnation id, Peer* peer, int64_t now_us) {
  const auto fault = PollLink(*parts_, ring_.get(), peer->link.get(), &batches_, now_us);
  if (fault.has_value()) Fail(id, fault->reason, fault->why);
}

void NcclReceiver::StepBatch(Batch* batch, int64_t now_us) {
  if (batch->state == SlotState::kFree) return;
  if (!RecordOnceOver(&batch->end, batch->slot)) return;
  const bool is_done = batch->state != SlotState::kPosting && MustWork(batch->slot->event.Query());
  if (batch->state == SlotState::kDraining) {
    if (is_done) Release(batch);
    return;
  }
  if (batch->state == SlotState::kScattering) {
    if (is_done) FinishScatter(batch, now_us);
    return;
  }
  if (batch->state == SlotState::kArrived) return Scatter(batch);
  if (is_done) return Receive(batch, now_us);
  if (now_us < batch->deadline_us) return;
  Fail(batch->peer, NcclDropReason::kDeadline,
       DeadlineExceeded("batch {} of {} slices did not arrive in time", batch->number,
                        batch->slices.size()));
}

// The bytes are in staging: the prefill worker is told, and they are judged.
void NcclReceiver::Receive(Batch* batch, int64_t now_us) {
  parts_->nccl_counters->batches.Add();
  Link* const link = FindPeer(peers_, batch->peer)->link.get();
  link->used_us = now_us;
  // A first operation tells how long NCCL takes to connect, not how fast it moves bytes.
  if (std::exchange(link->has_moved, true)) {
    rate_.Add(batch->slices.size() * ring_->slice_bytes(), now_us - batch->begun_us);
  }
  const NcclMessage done = {
      .kind = NcclMessageKind::kDone, .link = link->number, .batch = batch->number};
  batch->state = SlotState::kArrived;
  if (!parts_->Post(batch->peer, done)) {
    Fail(batch->peer, NcclDropReason::kFailed, ResourceExhausted("the answer cannot be queued"));
  }
  Scatter(batch);
}

void NcclReceiver::StartReceives(int64_t now_us) {
  const size_t num_peers = peers_.size();
  auto entry = peers_.upper_bound(last_served_);
  for (size_t i = 0; i < num_peers; ++i) {
    if (entry == peers_.end()) entry = peers_.begin();
    StartReceive(entry->first, entry->second.get(), now_us);
    ++entry;
  }
}

void NcclReceiver::StartReceive(Incarnation id, Peer* peer, int64_t now_us) {
  if (peer->link == nullptr || !peer->link->is_built || peer->link->offers.empty()) return;
  if (NumPosted(batches_, id) > 0) return;
  const bool is_first = !peer->link->has_moved;
  if (is_first ? NumFirstSlots(batches_) >= parts_->limits.MaxFirstSlots()
               : NumPosted(batches_, std::nullopt) >= parts_->limits.max_posted) {
    return;
  }
  const auto free = std::find_if(batches_.begin(), batches_.end(), [](const Batch& batch) {
    return batch.state == SlotState::kFree;
  });
  if (free == batches_.end()) return;
  last_served_ = id;
  NcclMessage offer = std::move(peer->link->offers.front());
  peer->link->offers.pop_front();
  const uint64_t size = offer.slices.size() * ring_->slice_bytes();
  const Status status =
      peer->link->comm->Receive(free->slot->memory.first(size), free->slot->stream.get());
  if (!status.ok()) return Fail(id, NcclDropReason::kFailed, status);
  free->state = SlotState::kPosting;
  free->peer = id;
  free->epoch = peer->epoch;
  free->number = offer.batch;
  free->slices = std::move(offer.slices);
  free->left.clear();
  for (uint32_t i = 0; i < free->slices.size(); ++i) {
    if (free->slices[i].ordinal < kMaxSlicesPerTransfer) free->left.push_back(i);
  }
  free->is_first = is_first;
  free->counts = true;
  free->begun_us = now_us;
  // The prefill worker's deadline begins later and is shorter: it is the one to give up.
  free->deadline_us = now_us + 2 * parts_->timers.operation_us + rate_.AllowanceUs(size) +
                      (is_first ? parts_->timers.build_us : 0);
  const NcclMessage grant = {
      .kind = NcclMessageKind::kGrant, .link = offer.link, .batch = offer.batch};
  if (parts_->Post(id, grant)) return;
  Fail(id, NcclDropReason::kFailed, ResourceExhausted("the grant cannot be queued"));
}

std::vector<StagingRing::Arrival> NcclReceiver::AdmitLeft(Batch* batch) {
  using Place = std::tuple<uint64_t, uint32_t, uint32_t>;
  const auto place_of = [](const SliceRef& slice) {
    return Place(slice.transfer.value(), slice.ordinal, slice.layer);
  };
  absl::flat_hash_set<Place> taken;
  for (const Batch& other : batches_) {
    if (other.state != SlotState::kScattering) continue;
    for (const uint32_t position : other.running) taken.insert(place_of(other.slices[position]));
  }
  std::vector<StagingRing::Arrival> arrivals;
  std::vector<uint32_t> later;
  for (const uint32_t position : batch->left) {
    const SliceRef& slice = batch->slices[position];
    // Judged when the one that came first is in its block, or has turned out to be bad.
    if (taken.contains(place_of(slice))) {
      later.push_back(position);
      continue;
    }
    const std::byte* const dest =
        parts_->receives->Admit(batch->peer, batch->epoch, HeaderOf(slice, batch->epoch));
    if (dest == nullptr) continue;
    taken.insert(place_of(slice));
    batch->running.push_back(position);
    arrivals.push_back({position, static_cast<uint64_t>(dest - memory_.base), slice.checksum});
  }
  batch->left = std::move(later);
  return arrivals;
}

void NcclReceiver::Scatter(Batch* batch) {
  if (!batch->counts) return Release(batch);
  const std::vector<StagingRing::Arrival> arrivals = AdmitLeft(batch);
  if (!arrivals.empty()) {
    batch->state = SlotState::kScattering;
    return MustWork(ring_->Scatter(batch->slot, arrivals));
  }
  batch->state = SlotState::kArrived;
  if (batch->left.empty()) Release(batch);
}

void NcclReceiver::FinishScatter(Batch* batch, int64_t now_us) {
  LinkCounters* const link = batch->counts ? parts_->link_counters(batch->peer) : nullptr;
  for (size_t i = 0; batch->counts && i < batch->running.size(); ++i) {
    const FrameHeader header = HeaderOf(batch->slices[batch->running[i]], batch->epoch);
    const bool is_good = parts_->receives->Finish(header, batch->slot->host.checksums[i], now_us);
    if (is_good && link != nullptr) link->bytes_received.Add(ring_->slice_bytes());
  }
  batch->running.clear();
  Scatter(batch);
}

void NcclReceiver::Release(Batch* batch) {
  batch->state = SlotState::kFree;
  batch->slices.clear();
  batch->left.clear();
  batch->running.clear();
}

void NcclReceiver::Fail(Incarnation id, NcclDropReason reason, const Status& why) {
  Peer* const peer = FindPeer(peers_, id);
  BATON_LOG_DEBUG("NCCL from {}: {}", id, std::string(why.message()));
  Refuse(id, peer->link->number, reason);
  DropLink(id, peer);
}

void NcclReceiver::DropLink(Incarnation id, Peer* peer) {
  peer->end = parts_->ender->Abort(std::move(peer->link->comm));
  peer->link.reset();
  --*parts_->num_links;
  for (Batch& batch : batches_) {
    const bool is_bound = batch.state == SlotState::kPosting || batch.state == SlotState::kMoving;
    if (batch.peer != id || !is_bound) continue;
    batch.end = peer->end;
    batch.state = SlotState::kDraining;
  }
}

std::optional<IdleLink> NcclReceiver::FindIdle() const {
  return FindIdleLink(peers_, [this](Incarnation id, const Peer& peer) {
    return peer.link->offers.empty() && NumPosted(batches_, id) == 0;
  });
}

CommEnder::End NcclReceiver::Evict(Incarnation id) {
  Peer* const peer = FindPeer(peers_, id);
  Refuse(id, peer->link->number, NcclDropReason::kEvicted);
  peer->end = parts_->ender->Finish(std::move(peer->link->comm));
  peer->link.reset();
  --*parts_->num_links;
  return peer->end;
}

}  // namespace baton::kv
