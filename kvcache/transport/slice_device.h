// SliceDevice: what a transport moves slices with on a device. Internal to the transports of device
// memory, who makes them, and the store that such a transport reads.
#ifndef BATON_KVCACHE_TRANSPORT_SLICE_DEVICE_H_
#define BATON_KVCACHE_TRANSPORT_SLICE_DEVICE_H_

#include <algorithm>

#include "kvcache/kv_memory.h"
#include "kvcache/kv_slices.h"
#include "src/base/check.h"
#include "src/base/limits.h"
#include "src/base/status.h"
#include "src/device/accelerator.h"
#include "src/device/launch_gate.h"

namespace baton::kv {

// The device, its kernels and its blocks.
struct SliceDevice {
  device::Accelerator* device = nullptr;
  SliceKernels kernels;
  KvMemory memory;  // on the device; of ranks each on its own, which this device reaches
  device::LaunchGate* gate =
      nullptr;  // of a model that is divided among devices; outlives the transport
};

// The blocks as the kernels of slices take them.
inline KvSide SideOf(const KvMemory& memory) {
  KvSide side(memory.base);
  side.num_ranks = memory.num_ranks();
  std::copy(memory.ranks.begin(), memory.ranks.end(), side.ranks);
  return side;
}

// The results of a device that failed cannot be trusted (accelerator.h), so the process ends.
inline void MustWork(const Status& status) {
  BATON_CHECK(status.ok(), "the device failed: {}", status.ToString());
}
template <typename T>
T MustWork(StatusOr<T> result) {
  MustWork(result.status());
  return *std::move(result);
}

static_assert(kMaxKvSliceBytes == limits::kMaxSliceBytes, "kernels copy every slice that crosses");

// InvalidArgument for slices of a size that no kernel takes, or not from so many ranks.
inline Status CheckSliceSize(const KvLayout& layout, uint32_t num_ranks = 1) {
  const size_t slice_bytes = layout.SliceBytes();
  if (!IsKvSliceSize(slice_bytes)) {
    return InvalidArgument("slices of {} bytes are no multiple of 64 in [{}, {}]", slice_bytes,
                           kMinKvSliceBytes, kMaxKvSliceBytes);
  }
  const bool is_divisible = num_ranks >= 1 && num_ranks <= kMaxKvRanks &&
                            layout.num_kv_heads % num_ranks == 0 &&
                            IsKvSliceOfRanks(slice_bytes, num_ranks);
  if (is_divisible) return OkStatus();
  return InvalidArgument("slices of {} bytes and {} KV heads cannot be divided among {} ranks",
                         slice_bytes, layout.num_kv_heads, num_ranks);
}

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_SLICE_DEVICE_H_
