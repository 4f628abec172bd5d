// StagingRing: the buffers on a device between scattered blocks and NCCL, for one direction of one
// transport. A batch of slices uses one slot: from its gather until it is sent, or from its posted
// receive until its scatter has ended.
//
// Owned by the transport's thread. Invariants
//  1. All memory is taken by Create: the device's, and the host's for lists.
//  2. A slot's memory, lists and event are used by one batch at a time; kernels and copies run in
//     the device's own stream, NCCL in the slot's.
#ifndef BATON_KVCACHE_TRANSPORT_NCCL_STAGING_RING_H_
#define BATON_KVCACHE_TRANSPORT_NCCL_STAGING_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kvcache/transport/slice_device.h"
#include "kvcache/transport/transport_types.h"
#include "src/device/device_stream.h"
#include "src/device/host_buffer.h"

namespace baton::kv {

// How many buffers of how many slices.
struct StagingShape {
  uint32_t num_slots = 3;
  uint32_t max_slices = 0;  // a slot has max_slices * SliceBytes
};

// See the file comment.
class StagingRing {
 public:
  // The lists of a batch, for its slices, [max_slices] each; `expected` is a scatter's.
  struct Lists {
    KvSlicePlace* places = nullptr;
    uint64_t* expected = nullptr;
    uint64_t* checksums = nullptr;  // found
  };
  // One buffer.
  struct Slot {
    std::span<std::byte> memory;  // on the device
    device::DeviceStream stream;  // NCCL's
    device::DeviceEvent event;    // of the last gather or scatter
    Lists host;                   // its checksums are valid once the event is done
    Lists device;
  };

  // ResourceExhausted when the device has no room, or the host none that may be pinned.
  static StatusOr<std::unique_ptr<StagingRing>> Create(const SliceDevice& parts,
                                                       const StagingShape& shape);

  // Copies the slices to the slot's memory, one after the other.
  Status Gather(Slot* slot, std::span<const SliceRef> slices);
  // Copies each slice whose bytes have the expected checksum to its place in the blocks. No block
  // is named twice. `slot->host.checksums` gets the checksums of the bytes.
  struct Arrival {
    uint32_t position = 0;      // in the batch
    uint64_t block_offset = 0;  // in each rank's memory
    uint64_t checksum = 0;
  };
  Status Scatter(Slot* slot, std::span<const Arrival> arrivals);

  std::vector<Slot>& slots() { return slots_; }
  // The memory of all slots, which NCCL registers.
  std::span<std::byte> memory() const { return {buffer_.data(), buffer_.size_bytes()}; }
  uint32_t max_slices() const { return shape_.max_slices; }
  size_t slice_bytes() const { return parts_.memory.layout.SliceBytes(); }
  device::Accelerator* device() const { return parts_.device; }

 private:
  StagingRing(const SliceDevice& parts, const StagingShape& shape) : parts_(parts), shape_(shape) {}
  Status Allocate();
  // The lists that begin at `begin`.
  Lists ListsAt(std::byte* begin) const;
  KvSlicesParams Params(const Slot& slot, size_t num_slices) const;
  // CopyPlaces copies the places to the device. Conclude copies back the checksums that the kernel
  // found, and records the event.
  Status CopyPlaces(const Slot& slot, size_t num_slices);
  Status Conclude(Slot* slot, size_t num_slices);

  const SliceDevice parts_;
  const StagingShape shape_;
  device::DeviceBuffer buffer_;
  device::DeviceBuffer lists_;
  device::DeviceBuffer keys_;
  device::HostBuffer host_lists_;
  std::vector<Slot> slots_;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_NCCL_STAGING_RING_H_
