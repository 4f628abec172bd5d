// SlicePuller: copies KV slices from the pool of a peer straight into own blocks on a device, and
// hashes what it stored. The peer may be one of this process. One launch of KvGather copies a
// batch, with the peer's blocks as its blocks and the own ones as its staging. So there is no
// staging buffer, and each byte is read once.
//
// Owned by the transport's thread. Invariants
//  1. All memory is taken by Create: the device's, and the host's for lists.
//  2. A slot's lists and event are used by one batch at a time. Everything runs in the device's own
//     stream, in order.
#ifndef BATON_KVCACHE_TRANSPORT_IPC_SLICE_PULLER_H_
#define BATON_KVCACHE_TRANSPORT_IPC_SLICE_PULLER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/transport/slice_device.h"
#include "src/device/device_stream.h"
#include "src/device/host_buffer.h"

namespace baton::kv {

// A slice takes the runner a millisecond, and a close waits for the launch that is under way.
inline constexpr uint64_t kRunnerPullBytes = uint64_t{512} << 10;
// How many slices of this layout one launch of a device should pull.
uint32_t SlicesOfPull(const device::Accelerator& device, const KvLayout& layout);

// See the file comment.
class SlicePuller {
 public:
  // The lists of a launch, for its slices, [max_slices] each.
  struct Lists {
    KvSlicePlace* places = nullptr;
    uint64_t* checksums = nullptr;  // of what was stored
  };
  // The event and the lists that one launch needs.
  struct Slot {
    device::DeviceEvent event;  // after the last launch and the copy of its checksums
    Lists host;                 // its checksums are those of a launch whose event is done
    Lists device;
  };

  // ResourceExhausted when there is no room for the lists: 24 bytes a slice and slot, on either
  // side.
  static StatusOr<std::unique_ptr<SlicePuller>> Create(const SliceDevice& parts, uint32_t num_slots,
                                                       uint32_t max_slices);

  // Offsets in bytes: in the memory of each rank of the peer's pool, and of the own blocks. No
  // place of the own blocks is written by anything else until the event is done.
  struct Pull {
    uint64_t from = 0;
    uint64_t to = 0;
  };
  // `pool` is only read.
  Status Begin(Slot* slot, const KvMemory& pool, std::span<const Pull> pulls);
  // Until all that was begun is done; for a thread that has nothing else to do meanwhile.
  Status Wait() { return parts_.device->Wait(); }

  std::vector<Slot>& slots() { return slots_; }
  uint32_t max_slices() const { return max_slices_; }
  size_t slice_bytes() const { return parts_.memory.layout.SliceBytes(); }

 private:
  SlicePuller(const SliceDevice& parts, uint32_t max_slices)
      : parts_(parts), max_slices_(max_slices) {}
  Status Allocate(uint32_t num_slots);
  // The lists that begin there.
  Lists ListsAt(std::byte* begin) const;

  const SliceDevice parts_;
  const uint32_t max_slices_;
  device::DeviceBuffer lists_;
  device::DeviceBuffer keys_;
  device::HostBuffer host_lists_;
  std::vector<Slot> slots_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_IPC_SLICE_PULLER_H_
