// NcclParts: the parts that the sending and the receiving half of an NcclTransport share: limits,
// times, counters, and the number of communicators of the device. P is the prefill worker, D the
// decode worker. Internal to kvcache/transport/nccl; all but the counters belong to the transport's
// thread.
#ifndef BATON_KVCACHE_TRANSPORT_NCCL_NCCL_PARTS_H_
#define BATON_KVCACHE_TRANSPORT_NCCL_NCCL_PARTS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kvcache/transport/nccl/comm_ender.h"
#include "kvcache/transport/nccl/nccl_comm.h"
#include "kvcache/transport/nccl/nccl_message.h"
#include "kvcache/transport/nccl/staging_ring.h"
#include "kvcache/transport/slice_transport.h"

namespace baton::kv {

// Deadlines, microseconds. An operation has operation_us (at the decode worker twice that), and
// twice the time that its bytes took at the measured rate. The first operation over a communicator,
// in which NCCL connects the two sides, has build_us more. The credit for it has twice build_us
// more, because the decode worker may be connecting others.
struct NcclTimers {
  int64_t build_us = 5'000'000;   // from Connect until both sides are built
  int64_t credit_us = 1'000'000;  // from Offer to Grant
  int64_t operation_us = 250'000;
  int64_t backoff_min_us = 10'000;  // after a failure, before the next communicator; doubles
  int64_t backoff_max_us = 1'000'000;
  int64_t rest_min_us = 2'000'000;  // of a peer that was given up, before it is up again; doubles
  int64_t rest_max_us = 60'000'000;
};

// Sizes of tables.
struct NcclLimits {
  uint32_t max_links = 16;      // communicators of this device, both directions
  uint32_t max_posted = 2;      // operations under way in each direction, to different peers
  uint32_t max_peer_slots = 2;  // buffers of one peer: one is filled while the other is sent
  uint32_t num_slots = 4;       // buffers in each direction; first operations: all but one
  uint64_t slot_bytes = uint64_t{32} << 20;
  // Communicators to one peer, one after the other, that failed and delivered nothing; then the
  // peer is down. Failures that are told at once take 0.3 s, builds and first operations that hang
  // half a minute, first offers that nobody answers a minute.
  uint32_t max_failures = 6;

  // Buffers of all communicators that have moved nothing yet: they may be held for long.
  uint32_t MaxFirstSlots() const { return std::max(2u, num_slots) - 1; }
};

// Counts of what happened to communicators; any thread reads them.
struct NcclCounters {
  EventCounter built;
  EventCounter batches;   // that were sent, or received and verified
  EventCounter overruns;  // control messages that found the queue full
  EventCounter lost;      // peers that were given up
  std::array<EventCounter, kNumNcclDropReasons> dropped;

  void AddDrop(NcclDropReason reason) { dropped[static_cast<size_t>(reason)].Add(); }
};

// The rate at which operations moved bytes, for the deadlines of the next ones.
class MeasuredRate {
 public:
  // A guess until something was measured, and the least that is assumed: 10 MB/s.
  static constexpr double kFirstBytesPerUs = 1000;
  static constexpr double kMinBytesPerUs = 10;

  void Add(uint64_t bytes, int64_t elapsed_us) {
    const double sample =
        static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(elapsed_us, 1));
    bytes_per_us_ = std::max(kMinBytesPerUs, 0.75 * bytes_per_us_ + 0.25 * sample);
  }
  // Twice what `bytes` take.
  int64_t AllowanceUs(uint64_t bytes) const {
    return static_cast<int64_t>(2 * static_cast<double>(bytes) / bytes_per_us_);
  }

 private:
  double bytes_per_us_ = kFirstBytesPerUs;
};

// Between two looks at whether a communicator has ended that buffers wait for.
inline constexpr int64_t kEndPollUs = 1000;

// Whether the communicator that used a slot has ended, if it was given up. Then the event is
// recorded: after the abort the stream runs to its end, and the event says when nobody reads or
// writes the slot.
inline bool RecordOnceOver(std::optional<CommEnder::End>* end, StagingRing::Slot* slot) {
  if (!end->has_value()) return true;
  if (!(*end)->IsOver()) return false;
  end->reset();
  MustWork(slot->event.Record(slot->stream.get()));
  return true;
}

// Everything that both halves use.
struct NcclParts : SliceParts {
  const nccl::NcclTable* table = nullptr;
  device::LaunchGate* gate = nullptr;
  NcclTimers timers;
  NcclLimits limits;
  NcclCounters* nccl_counters = nullptr;
  CommEnder* ender = nullptr;
  uint32_t* num_links = nullptr;  // of both halves
  // Whether there is room for one more link on the device now. Where there is none the idle one
  // that was used least recently is ended; it counts until it is gone.
  std::function<bool()> make_room;

  // False when it cannot be queued, which is a failure of the link.
  bool Post(Incarnation peer, const NcclMessage& message) const {
    return post(peer, EncodeNcclMessage(message));
  }
};

// The last thing that has been begun for the bytes of one slot.
enum class SlotState : uint8_t {
  kFree,
  kGathering,   // P: the kernel
  kOffered,     // P: waits for credit
  kGranted,     // P: may be posted
  kPosting,     // NCCL has not taken the operation yet
  kMoving,      // under way; its event tells when it is done
  kSent,        // P: gone; waits for the decode worker's word that it is there
  kArrived,     // D: waits for another batch's scatter of the same slices
  kScattering,  // D: the kernel
  kDraining,    // given up; its stream has not come to the event yet
};

// A communicator with one peer, as either half keeps it.
struct NcclLink {
  Incarnation peer;
  uint64_t number = 0;
  std::unique_ptr<NcclComm> comm;  // null: the other side has not answered or begun
  bool is_built = false;
  bool has_moved = false;   // an operation is over
  int64_t deadline_us = 0;  // of the building
  int64_t used_us = 0;
};

// The batch that a slot holds, as either half keeps it.
struct NcclBatch {
  StagingRing::Slot* slot = nullptr;
  SlotState state = SlotState::kFree;
  Incarnation peer;
  uint64_t number = 0;
  std::vector<SliceRef> slices;
  bool is_first = false;  // over its communicator
  int64_t begun_us = 0;
  int64_t deadline_us = 0;
  // kDraining: of its communicator; until then no event is recorded.
  std::optional<CommEnder::End> end;
};

// Why a half gives a link up.
struct NcclFault {
  NcclDropReason reason;
  Status why;
};

// Operations under way in a half's slots: of one peer; or of all, but for first ones.
template <typename Batches>
uint32_t NumPosted(const Batches& batches, std::optional<Incarnation> of) {
  return static_cast<uint32_t>(std::count_if(batches.begin(), batches.end(), [of](const auto& b) {
    const bool is_posted = b.state == SlotState::kPosting || b.state == SlotState::kMoving;
    return is_posted && (of.has_value() ? b.peer == *of : !b.is_first);
  }));
}

// Slots that a first operation over a communicator holds.
template <typename Batches>
uint32_t NumFirstSlots(const Batches& batches) {
  return static_cast<uint32_t>(std::count_if(batches.begin(), batches.end(), [](const auto& b) {
    return b.state != SlotState::kFree && b.is_first;
  }));
}

// Asks NCCL how far a link is, and records the events of the operations that NCCL has taken.
template <typename Batches>
std::optional<NcclFault> PollLink(const NcclParts& parts, StagingRing* ring, NcclLink* link,
                                  Batches* batches, int64_t now_us) {
  if (link->is_built && NumPosted(*batches, link->peer) == 0) return std::nullopt;
  const StatusOr<bool> polled = link->comm == nullptr ? false : link->comm->Poll();
  if (!polled.ok()) return NcclFault{NcclDropReason::kFailed, polled.status()};
  if (*polled && !link->is_built) {
    link->is_built = true;
    link->comm->Register(ring->memory());
    parts.nccl_counters->built.Add();
  }
  if (!link->is_built && now_us >= link->deadline_us) {
    return NcclFault{NcclDropReason::kDeadline,
                     DeadlineExceeded("no communicator in {} ms", parts.timers.build_us / 1000)};
  }
  if (!*polled) return std::nullopt;
  for (auto& batch : *batches) {
    if (batch.state != SlotState::kPosting || batch.peer != link->peer) continue;
    MustWork(batch.slot->event.Record(batch.slot->stream.get()));
    batch.state = SlotState::kMoving;
  }
  return std::nullopt;
}

// An idle communicator.
struct IdleLink {
  Incarnation peer;
  int64_t used_us = 0;
};

// The built communicator that was used least recently, of those that `is_unused` now.
template <typename Peers, typename IsUnused>
std::optional<IdleLink> FindIdleLink(const Peers& peers, const IsUnused& is_unused) {
  std::optional<IdleLink> oldest;
  for (const auto& [id, peer] : peers) {
    const auto& link = peer->link;
    if (link == nullptr || !link->is_built || !is_unused(id, *peer)) continue;
    if (!oldest.has_value() || link->used_us < oldest->used_us) oldest = {id, link->used_us};
  }
  return oldest;
}

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_NCCL_NCCL_PARTS_H_
