#include "kvcache/transport/ipc/slice_puller.h"

#include <algorithm>

namespace baton::kv {

using device::Accelerator;
using device::DeviceBuffer;
using device::DeviceEvent;
using device::DeviceKind;
using device::HostBuffer;

namespace {

// Read and written by an H200 in some 16 us, several times what a launch costs.
constexpr uint64_t kPullBytes = uint64_t{32} << 20;
constexpr uint64_t kMaxPullSlices = 1024;  // kListBytes each

// Bytes of a slot's lists for each slice.
constexpr size_t kListBytes = sizeof(KvSlicePlace) + sizeof(uint64_t);

}  // namespace

uint32_t SlicesOfPull(const Accelerator& device, const KvLayout& layout) {
  const uint64_t bytes = device.kind() == DeviceKind::kSimt ? kRunnerPullBytes : kPullBytes;
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(bytes / layout.SliceBytes(), 1, kMaxPullSlices));
}

StatusOr<std::unique_ptr<SlicePuller>> SlicePuller::Create(const SliceDevice& parts,
                                                           uint32_t num_slots,
                                                           uint32_t max_slices) {
  std::unique_ptr<SlicePuller> puller(new SlicePuller(parts, max_slices));
  parts.device->MakeCurrent();
  BATON_RETURN_IF_ERROR(puller->Allocate(num_slots));
  return puller;
}

Status SlicePuller::Allocate(uint32_t num_slots) {
  Accelerator* const device = parts_.device;
  const size_t list_bytes = max_slices_ * kListBytes;
  BATON_ASSIGN_OR_RETURN(
      lists_, DeviceBuffer::Create(device, num_slots * list_bytes, "lists of KV slices"));
  BATON_ASSIGN_OR_RETURN(host_lists_,
                         HostBuffer::Create(device, num_slots * list_bytes, "lists of KV slices"));
  const auto keys = Xxh3Keys();
  BATON_ASSIGN_OR_RETURN(keys_, DeviceBuffer::Create(device, sizeof(keys), "keys of XXH3"));
  BATON_RETURN_IF_ERROR(device->CopyIn(keys_.data(), keys.data(), sizeof(keys)));
  BATON_RETURN_IF_ERROR(device->Wait());
  slots_.resize(num_slots);
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    BATON_ASSIGN_OR_RETURN(slot.event, DeviceEvent::Create(device));
    slot.host = ListsAt(host_lists_.data() + i * list_bytes);
    slot.device = ListsAt(lists_.data() + i * list_bytes);
  }
  return OkStatus();
}

SlicePuller::Lists SlicePuller::ListsAt(std::byte* begin) const {
  Lists lists;
  lists.places = reinterpret_cast<KvSlicePlace*>(begin);
  lists.checksums = reinterpret_cast<uint64_t*>(lists.places + max_slices_);
  return lists;
}

Status SlicePuller::Begin(Slot* slot, const KvMemory& pool, std::span<const Pull> pulls) {
  Accelerator* const device = parts_.device;
  device->MakeCurrent();  // letting go of a pool is another one's work in this thread
  for (size_t i = 0; i < pulls.size(); ++i) slot->host.places[i] = {pulls[i].from, pulls[i].to};
  BATON_RETURN_IF_ERROR(device->CopyIn(reinterpret_cast<std::byte*>(slot->device.places),
                                       slot->host.places, pulls.size() * sizeof(KvSlicePlace)));
  const KvSlicesParams params = {.blocks = SideOf(pool),  // KvGather only reads them
                                 .staging = SideOf(parts_.memory),
                                 .places = slot->device.places,
                                 .keys = keys_.as<uint64_t>(),
                                 .expected = nullptr,
                                 .checksums = slot->device.checksums,
                                 .num_slices = static_cast<uint32_t>(pulls.size()),
                                 .slice_bytes = static_cast<uint32_t>(slice_bytes())};
  BATON_RETURN_IF_ERROR(parts_.kernels.gather(params, device->stream()));
  BATON_RETURN_IF_ERROR(device->CopyOut(slot->host.checksums,
                                        reinterpret_cast<const std::byte*>(slot->device.checksums),
                                        pulls.size() * sizeof(uint64_t)));
  return slot->event.Record(device->stream());
}

}  // namespace baton::kv
