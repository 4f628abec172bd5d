#include "kvcache/transport/nccl/nccl_sender.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "src/base/log.h"

namespace baton::kv {

// A communicator to one peer, from the question for its place to its end.
struct NcclSender::Link : NcclLink {
  uint32_t max_slices = 0;  // what the decode worker takes at once
};

// A connected peer, and the slices that wait for it.
struct NcclSender::Peer {
  std::deque<SliceRef> queue;
  std::unique_ptr<Link> link;
  CommEnder::End end;         // of the link before; there is no other until it is over
  uint32_t num_failures = 0;  // since the last batch that arrived
  bool has_delivered = false;
  int64_t reported_us = 0;  // when a failure was last told at warn
  int64_t retry_us = 0;     // no communicator before
};

struct NcclSender::Batch : NcclBatch {
  std::vector<bool> closed;   // by slice: its transfer was closed since
  bool is_confirmed = false;  // the decode worker has the bytes
};

NcclSender::NcclSender(const NcclParts* parts, std::unique_ptr<StagingRing> ring)
    : parts_(parts), ring_(std::move(ring)) {
  for (StagingRing::Slot& slot : ring_->slots()) batches_.emplace_back().slot = &slot;
}

NcclSender::~NcclSender() = default;

NcclSender::Batch* NcclSender::FindBatch(Incarnation peer, uint64_t number) {
  for (Batch& batch : batches_) {
    const bool is_held = batch.state != SlotState::kFree && batch.state != SlotState::kDraining;
    if (is_held && batch.peer == peer && batch.number == number) return &batch;
  }
  return nullptr;
}

bool NcclSender::AddPeer(const PeerUp& peer) {
  peers_[peer.peer] = std::make_unique<Peer>();
  return true;
}

void NcclSender::RemovePeer(Incarnation id) {
  Peer* const peer = FindPeer(peers_, id);
  if (peer == nullptr) return;
  // A gather reads on until its event; what it has is not for a later connection.
  for (Batch& batch : batches_) {
    if (batch.peer == id) batch.closed.assign(batch.slices.size(), true);
  }
  if (peer->link != nullptr) DropLink(id, peer);
  parts_->inbox->ReleaseSlices(id, static_cast<uint32_t>(peer->queue.size()));
  peers_.erase(id);
  // The peer's last loss and its end may be heard in one turn; then only the end is told.
  std::erase_if(lost_, [id](const LostPeer& lost) { return lost.peer == id; });
}

void NcclSender::Enqueue(Incarnation id, std::span<const SliceRef> slices) {
  Peer* const peer = FindPeer(peers_, id);
  if (peer == nullptr) {
    parts_->inbox->ReleaseSlices(id, static_cast<uint32_t>(slices.size()));
    return;
  }
  peer->queue.insert(peer->queue.end(), slices.begin(), slices.end());
}

void NcclSender::CloseSend(Incarnation id, TransferId transfer) {
  if (Peer* const peer = FindPeer(peers_, id); peer != nullptr) {
    const auto dropped = std::erase_if(
        peer->queue, [&](const SliceRef& slice) { return slice.transfer == transfer; });
    parts_->inbox->ReleaseSlices(id, static_cast<uint32_t>(dropped));
  }
  for (Batch& batch : batches_) {
    if (batch.state == SlotState::kFree || batch.peer != id) continue;
    for (size_t i = 0; i < batch.slices.size(); ++i) {
      if (batch.slices[i].transfer == transfer) batch.closed[i] = true;
    }
  }
}

bool NcclSender::IsReading(Incarnation peer, TransferId transfer) const {
  for (const Batch& batch : batches_) {
    if (batch.state != SlotState::kGathering || batch.peer != peer) continue;
    for (const SliceRef& slice : batch.slices) {
      if (slice.transfer == transfer) return true;
    }
  }
  return false;
}

void NcclSender::Handle(Incarnation id, const NcclMessage& message, int64_t now_us) {
  Peer* const peer = FindPeer(peers_, id);
  if (peer == nullptr) return;
  const bool is_current = peer->link != nullptr && peer->link->number == message.link;
  if (message.kind == NcclMessageKind::kDrop) {
    if (!is_current) return;
    if (message.reason == NcclDropReason::kVersion && peer->num_failures == 0) {
      BATON_LOG_WARN("NCCL here is {}, at the peer {}; no KV goes over NCCL to it",
                     nccl::VersionText(parts_->table->version),
                     nccl::VersionText(static_cast<int>(message.number)));
    }
    parts_->nccl_counters->AddDrop(message.reason);
    // No place for one more: the others' links are in use, or one of them is being ended for it.
    // But one that is begun is never free.
    const bool is_busy = message.reason == NcclDropReason::kBusy && peer->link->comm == nullptr;
    const bool is_evicted = message.reason == NcclDropReason::kEvicted &&
                            (peer->link->comm == nullptr || peer->link->is_built);
    DropLink(id, peer);
    if (!is_busy && !is_evicted) {
      return CountFailure(
          id, peer, fmt::format("the peer says {}", NcclDropReasonName(message.reason)), now_us);
    }
    // A link that was evicted did nothing wrong. All the same it is not built again and again.
    peer->retry_us = now_us + parts_->timers.backoff_min_us;
    return;
  }
  // The message is about a link that has ended: the decode worker will hear of that, or has been
  // told.
  if (!is_current) return;
  if (message.kind == NcclMessageKind::kAccept) {
    if (message.number == 0 || peer->link->comm != nullptr) {
      return Fail(id, NcclDropReason::kProtocol,
                  InvalidArgument("a second answer, or batches of 0 slices"), now_us);
    }
    peer->link->max_slices = std::min(message.number, ring_->max_slices());
    return Build(id, peer->link.get(), now_us);
  }
  Batch* const batch = FindBatch(id, message.batch);
  const bool is_done = message.kind == NcclMessageKind::kDone;
  const bool is_expected =
      batch != nullptr && (is_done ? !batch->is_confirmed && (batch->state == SlotState::kPosting ||
                                                              batch->state == SlotState::kMoving ||
                                                              batch->state == SlotState::kSent)
                                   : batch->state == SlotState::kOffered);
  if (!is_expected) {
    return Fail(id, NcclDropReason::kProtocol,
                InvalidArgument("an answer to batch {}, which waits for none", message.batch),
                now_us);
  }
  if (message.kind == NcclMessageKind::kDeny) return Deny(batch);
  if (is_done) {
    batch->is_confirmed = true;
    if (batch->state == SlotState::kSent) Complete(batch);
    return;
  }
  batch->state = SlotState::kGranted;
  Post(batch, now_us);
}

// The decode worker has posted the receive. Bytes that were posted before may still be on their way
// out here.
void NcclSender::Post(Batch* batch, int64_t now_us) {
  if (NumPosted(batches_, batch->peer) > 0) return;
  if (!batch->is_first && NumPosted(batches_, std::nullopt) >= parts_->limits.max_posted) return;
  const uint64_t size = batch->slices.size() * ring_->slice_bytes();
  const Status status =
      FindPeer(peers_, batch->peer)
          ->link->comm->Send(batch->slot->memory.first(size), batch->slot->stream.get());
  if (!status.ok()) return Fail(batch->peer, NcclDropReason::kFailed, status, now_us);
  batch->state = SlotState::kPosting;
  batch->begun_us = now_us;
  batch->deadline_us = now_us + parts_->timers.operation_us + rate_.AllowanceUs(size) +
                       (batch->is_first ? parts_->timers.build_us : 0);
}

uint32_t NcclSender::NumSlots(Incarnation of) const {
  uint32_t count = 0;
  for (const Batch& batch : batches_) {
    count += batch.state != SlotState::kFree && batch.peer == of ? 1 : 0;
  }
  return count;
}

bool NcclSender::IsDone(const Batch& batch) const { return MustWork(batch.slot->event.Query()); }

void NcclSender::Release(Batch* batch) {
  parts_->inbox->ReleaseSlices(batch->peer, static_cast<uint32_t>(batch->slices.size()));
  batch->state = SlotState::kFree;
  batch->slices.clear();
  batch->closed.clear();
}

void NcclSender::Complete(Batch* batch) {
  Peer* const peer = FindPeer(peers_, batch->peer);
  const uint64_t size = batch->slices.size() * ring_->slice_bytes();
  if (LinkCounters* const link = parts_->link_counters(batch->peer)) link->bytes_sent.Add(size);
  parts_->counters->slices_sent.Add(batch->slices.size());
  parts_->nccl_counters->batches.Add();
  peer->num_failures = 0;
  peer->has_delivered = true;
  Release(batch);
}

// The decode worker wants none of the slices: they were handed to it all the same.
void NcclSender::Deny(Batch* batch) {
  parts_->counters->slices_sent.Add(batch->slices.size());
  Release(batch);
}

void NcclSender::Report(Incarnation id, Peer* peer, const Status& why, int64_t now_us) {
  constexpr int64_t kReportEveryUs = 10'000'000;
  if (peer->reported_us != 0 && now_us < peer->reported_us + kReportEveryUs) {
    BATON_LOG_DEBUG("NCCL to {}: {}", id, std::string(why.message()));
    return;
  }
  peer->reported_us = now_us;
  BATON_LOG_WARN("NCCL to {} failed, {} times in a row, and is tried again: {}", id,
                 peer->num_failures + 1, std::string(why.message()));
}

void NcclSender::CountFailure(Incarnation id, Peer* peer, std::string why, int64_t now_us) {
  constexpr uint32_t kMaxDoublings = 20;
  const uint32_t doublings = std::min(peer->num_failures, kMaxDoublings);
  peer->retry_us =
      now_us + std::min(parts_->timers.backoff_max_us, parts_->timers.backoff_min_us << doublings);
  if (++peer->num_failures != parts_->limits.max_failures) return;
  lost_.push_back({id, std::move(why), peer->has_delivered});
}

void NcclSender::Fail(Incarnation id, NcclDropReason reason, const Status& why, int64_t now_us) {
  Peer* const peer = FindPeer(peers_, id);
  Report(id, peer, why, now_us);
  parts_->nccl_counters->AddDrop(reason);
  // When it cannot be told, the decode worker finds out by its own deadline.
  (void)parts_->Post(id, {.kind = NcclMessageKind::kDrop,
                          .by_sender = true,
                          .reason = reason,
                          .link = peer->link->number});
  DropLink(id, peer);
  CountFailure(id, peer, std::string(why.message()), now_us);
}

void NcclSender::DropLink(Incarnation id, Peer* peer) {
  peer->end = parts_->ender->Abort(std::move(peer->link->comm));
  peer->link.reset();
  --*parts_->num_links;
  std::vector<Batch*> bound;
  for (Batch& batch : batches_) {
    const bool is_bound = batch.state == SlotState::kOffered ||
                          batch.state == SlotState::kGranted ||
                          batch.state == SlotState::kPosting || batch.state == SlotState::kMoving ||
                          batch.state == SlotState::kSent;
    if (batch.peer == id && is_bound) bound.push_back(&batch);
  }
  // The oldest comes to stand first.
  std::sort(bound.begin(), bound.end(),
            [](const Batch* a, const Batch* b) { return a->number > b->number; });
  for (Batch* const batch : bound) {
    Requeue(batch);
    batch->end = peer->end;
    batch->state = SlotState::kDraining;
  }
}

// Puts back what is still wanted; the slot has no slices any more.
void NcclSender::Requeue(Batch* batch) {
  Peer* const peer = FindPeer(peers_, batch->peer);
  uint32_t num_dropped = 0;
  for (size_t i = batch->slices.size(); i-- > 0;) {
    if (peer == nullptr || batch->closed[i]) {
      ++num_dropped;
    } else {
      peer->queue.push_front(batch->slices[i]);
    }
  }
  parts_->inbox->ReleaseSlices(batch->peer, num_dropped);
  batch->slices.clear();
  batch->closed.clear();
}

int64_t NcclSender::Step(int64_t now_us) {
  for (auto& [id, peer] : peers_) {
    if (peer->link != nullptr) StepLink(id, peer.get(), now_us);
  }
  for (Batch& batch : batches_) StepBatch(&batch, now_us);
  StartLinks(now_us);
  StartGathers();
  return NextDueUs(now_us);
}

int64_t NcclSender::NextDueUs(int64_t now_us) const {
  int64_t due_us = 0;
  const auto consider = [&due_us](int64_t at_us) {
    due_us = due_us == 0 ? at_us : std::min(due_us, at_us);
  };
  for (const Batch& batch : batches_) {
    // A batch that waits for the decode worker's word is woken by it, and else by its deadline.
    const bool waits = batch.state == SlotState::kOffered || batch.state == SlotState::kSent;
    if (batch.end.has_value()) {
      consider(now_us + kEndPollUs);
    } else if (waits) {
      consider(batch.deadline_us);
    } else if (batch.state != SlotState::kFree) {
      return now_us;
    }
  }
  for (const auto& [id, peer] : peers_) {
    if (peer->link != nullptr && !peer->link->is_built) {
      if (peer->link->comm != nullptr) return now_us;
      consider(peer->link->deadline_us);
    }
    if (peer->link == nullptr && !peer->queue.empty()) {
      consider(peer->end.IsOver() ? std::max(peer->retry_us, now_us) : now_us + kEndPollUs);
    }
  }
  return due_us;
}

void NcclSender::StepLink(Incarnation id, Peer* peer, int64_t now_us) {
  const auto fault = PollLink(*parts_, ring_.get(), peer->link.get(), &batches_, now_us);
  if (fault.has_value()) Fail(id, fault->reason, fault->why, now_us);
}

void NcclSender::StepBatch(Batch* batch, int64_t now_us) {
  switch (batch->state) {
    case SlotState::kGathering:
      if (IsDone(*batch)) Offer(batch, now_us);
      return;
    case SlotState::kGranted:
      return Post(batch, now_us);
    case SlotState::kMoving:
      if (IsDone(*batch)) {
        TakeTime(*batch, now_us);
        batch->state = SlotState::kSent;
        if (batch->is_confirmed) return Complete(batch);
      }
      break;
    case SlotState::kDraining:
      if (RecordOnceOver(&batch->end, batch->slot) && IsDone(*batch)) Release(batch);
      return;
    default:
      break;
  }
  const bool has_deadline = batch->state == SlotState::kOffered ||
                            batch->state == SlotState::kPosting ||
                            batch->state == SlotState::kMoving || batch->state == SlotState::kSent;
  if (!has_deadline || now_us < batch->deadline_us) return;
  const char* const what = batch->state == SlotState::kOffered ? "no credit" : "not sent";
  Fail(batch->peer, NcclDropReason::kDeadline,
       DeadlineExceeded("batch {} of {} slices: {} in time", batch->number, batch->slices.size(),
                        what),
       now_us);
}

// A first operation tells how long NCCL takes to connect, not how fast it moves bytes.
void NcclSender::TakeTime(const Batch& batch, int64_t now_us) {
  Link* const link = FindPeer(peers_, batch.peer)->link.get();
  link->used_us = now_us;
  if (std::exchange(link->has_moved, true)) {
    rate_.Add(batch.slices.size() * ring_->slice_bytes(), now_us - batch.begun_us);
  }
}

// The gather is done. While it ran the communicator, or the peer, or all of its transfers may have
// gone. Over another communicator it may be one too many.
void NcclSender::Offer(Batch* batch, int64_t now_us) {
  Peer* const peer = FindPeer(peers_, batch->peer);
  const bool is_wanted =
      std::find(batch->closed.begin(), batch->closed.end(), false) != batch->closed.end();
  const bool fits = is_wanted && peer != nullptr && peer->link != nullptr && peer->link->is_built &&
                    batch->slices.size() <= peer->link->max_slices &&
                    (peer->link->has_moved || batch->is_first);
  if (!fits) {
    Requeue(batch);
    return Release(batch);
  }
  const NcclMessage offer = {.kind = NcclMessageKind::kOffer,
                             .link = peer->link->number,
                             .batch = batch->number,
                             .slices = batch->slices};
  batch->state = SlotState::kOffered;
  batch->deadline_us =
      now_us + parts_->timers.credit_us + (batch->is_first ? 2 * parts_->timers.build_us : 0);
  if (parts_->Post(batch->peer, offer)) return;
  Fail(batch->peer, NcclDropReason::kFailed, ResourceExhausted("the offer cannot be queued"),
       now_us);
}

void NcclSender::StartLinks(int64_t now_us) {
  for (auto& [id, peer] : peers_) {
    if (peer->link != nullptr || peer->queue.empty() || now_us < peer->retry_us) continue;
    if (!peer->end.IsOver()) continue;
    StartLink(id, peer.get(), now_us);
  }
}

// NCCL is asked for nothing before the decode worker has a place: what is begun and never joined
// stays in NCCL.
void NcclSender::StartLink(Incarnation id, Peer* peer, int64_t now_us) {
  if (!parts_->make_room()) {
    peer->retry_us = now_us + parts_->timers.backoff_min_us;
    return;
  }
  const NcclMessage connect = {.kind = NcclMessageKind::kConnect,
                               .number = static_cast<uint32_t>(parts_->table->version),
                               .link = next_link_++};
  peer->link = std::make_unique<Link>();
  peer->link->peer = id;
  peer->link->number = connect.link;
  peer->link->deadline_us = now_us + parts_->timers.build_us;
  peer->link->used_us = now_us;
  ++*parts_->num_links;
  if (parts_->Post(id, connect)) return;
  Fail(id, NcclDropReason::kFailed, ResourceExhausted("no room to connect"), now_us);
}

void NcclSender::Build(Incarnation id, Link* link, int64_t now_us) {
  NcclMessage start = {.kind = NcclMessageKind::kStart, .link = link->number};
  Status status = NcclComm::MakeId(parts_->table, parts_->gate, &start.id);
  if (status.ok()) {
    StatusOr<std::unique_ptr<NcclComm>> comm =
        NcclComm::Start(parts_->table, parts_->gate, start.id, 0);
    status = comm.status();
    if (comm.ok()) link->comm = *std::move(comm);
  }
  if (status.ok() && !parts_->Post(id, start)) status = ResourceExhausted("no room to start");
  if (!status.ok()) Fail(id, NcclDropReason::kFailed, status, now_us);
}

// Gives one buffer to each peer in turn, as long as there are free buffers.
void NcclSender::StartGathers() {
  bool has_started = true;
  while (has_started) {
    has_started = false;
    auto entry = peers_.upper_bound(last_served_);
    for (size_t i = 0; i < peers_.size() && !has_started; ++i) {
      if (entry == peers_.end()) entry = peers_.begin();
      has_started = StartGather(entry->first, entry->second.get());
      ++entry;
    }
  }
}

bool NcclSender::StartGather(Incarnation id, Peer* peer) {
  if (peer->queue.empty() || peer->link == nullptr || !peer->link->is_built) return false;
  const bool is_first = !peer->link->has_moved;
  if (NumSlots(id) >= (is_first ? 1 : parts_->limits.max_peer_slots)) return false;
  if (is_first && NumFirstSlots(batches_) >= parts_->limits.MaxFirstSlots()) return false;
  const auto free = std::find_if(batches_.begin(), batches_.end(), [](const Batch& batch) {
    return batch.state == SlotState::kFree;
  });
  if (free == batches_.end()) return false;
  const size_t count = std::min<size_t>(peer->queue.size(), peer->link->max_slices);
  free->slices.assign(peer->queue.begin(), peer->queue.begin() + static_cast<ptrdiff_t>(count));
  peer->queue.erase(peer->queue.begin(), peer->queue.begin() + static_cast<ptrdiff_t>(count));
  free->closed.assign(count, false);
  free->is_first = is_first;
  free->is_confirmed = false;
  free->peer = id;
  free->number = next_batch_++;
  free->state = SlotState::kGathering;
  last_served_ = id;
  MustWork(ring_->Gather(free->slot, free->slices));
  return true;
}

std::optional<IdleLink> NcclSender::FindIdle() const {
  return FindIdleLink(peers_, [this](Incarnation id, const Peer& peer) {
    return peer.queue.empty() && NumSlots(id) == 0;
  });
}

CommEnder::End NcclSender::Evict(Incarnation id) {
  Peer* const peer = FindPeer(peers_, id);
  (void)parts_->Post(id, {.kind = NcclMessageKind::kDrop,
                          .by_sender = true,
                          .reason = NcclDropReason::kEvicted,
                          .link = peer->link->number});
  parts_->nccl_counters->AddDrop(NcclDropReason::kEvicted);
  peer->end = parts_->ender->Finish(std::move(peer->link->comm));
  peer->link.reset();
  --*parts_->num_links;
  return peer->end;
}

}  // namespace baton::kv
