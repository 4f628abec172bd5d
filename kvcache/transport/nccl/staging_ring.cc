#include "kvcache/transport/nccl/staging_ring.h"

namespace baton {
namespace {

// Of the lists of a slot on the device, for each slice: a place, the expected checksum and the one
// found.
constexpr size_t kListBytes = sizeof(cuda::KvSlicePlace) + 2 * sizeof(uint64_t);

}  // namespace

StatusOr<std::unique_ptr<StagingRing>> StagingRing::Create(const SliceDevice& parts,
                                                           const StagingShape& shape) {
  std::unique_ptr<StagingRing> ring(new StagingRing(parts, shape));
  parts.device->MakeCurrent();
  BATON_RETURN_IF_ERROR(ring->Allocate());
  return ring;
}

Status StagingRing::Allocate() {
  Accelerator* const device = parts_.device;
  const size_t slot_bytes = shape_.max_slices * slice_bytes();
  BATON_ASSIGN_OR_RETURN(buffer_,
                         DeviceBuffer::Create(device, shape_.num_slots * slot_bytes, "KV staging"));
  const size_t list_bytes = shape_.max_slices * kListBytes;
  const size_t num_checksums = size_t{shape_.num_slots} * shape_.max_slices;
  BATON_ASSIGN_OR_RETURN(
      lists_, DeviceBuffer::Create(device, shape_.num_slots * list_bytes, "lists of KV slices"));
  BATON_ASSIGN_OR_RETURN(checksums_, HostBuffer::Create(device, num_checksums * sizeof(uint64_t),
                                                        "checksums of KV slices"));
  const auto keys = cuda::Xxh3Keys();
  BATON_ASSIGN_OR_RETURN(keys_, DeviceBuffer::Create(device, sizeof(keys), "keys of XXH3"));
  BATON_RETURN_IF_ERROR(device->CopyIn(keys_.data(), keys.data(), sizeof(keys)));
  BATON_RETURN_IF_ERROR(device->Wait());
  slots_.resize(shape_.num_slots);
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.memory = {buffer_.data() + i * slot_bytes, slot_bytes};
    BATON_ASSIGN_OR_RETURN(slot.stream, DeviceStream::Create(device));
    BATON_ASSIGN_OR_RETURN(slot.event, DeviceEvent::Create(device));
    slot.places.reserve(shape_.max_slices);
    slot.expected.reserve(shape_.max_slices);
    slot.checksums = checksums_.as<uint64_t>() + i * shape_.max_slices;
    std::byte* const lists = lists_.data() + i * list_bytes;
    slot.device_places = reinterpret_cast<cuda::KvSlicePlace*>(lists);
    slot.device_expected = reinterpret_cast<uint64_t*>(slot.device_places + shape_.max_slices);
    slot.device_checksums = slot.device_expected + shape_.max_slices;
  }
  return OkStatus();
}

cuda::KvSlicesParams StagingRing::Params(const Slot& slot, size_t num_slices) const {
  return {.blocks = SideOf(parts_.memory),
          .staging = slot.memory.data(),
          .places = slot.device_places,
          .keys = keys_.as<uint64_t>(),
          .expected = slot.device_expected,
          .checksums = slot.device_checksums,
          .num_slices = static_cast<uint32_t>(num_slices),
          .slice_bytes = static_cast<uint32_t>(slice_bytes())};
}

Status StagingRing::CopyLists(Slot* slot) {
  const size_t count = slot->places.size();
  BATON_RETURN_IF_ERROR(parts_.device->CopyIn(reinterpret_cast<std::byte*>(slot->device_places),
                                              slot->places.data(),
                                              count * sizeof(cuda::KvSlicePlace)));
  return parts_.device->CopyIn(reinterpret_cast<std::byte*>(slot->device_expected),
                               slot->expected.data(), count * sizeof(uint64_t));
}

Status StagingRing::Conclude(Slot* slot) {
  BATON_RETURN_IF_ERROR(parts_.device->CopyOut(
      slot->checksums, reinterpret_cast<const std::byte*>(slot->device_checksums),
      slot->places.size() * sizeof(uint64_t)));
  return slot->event.Record(parts_.device->stream());
}

Status StagingRing::Gather(Slot* slot, std::span<const SliceRef> slices) {
  slot->places.clear();
  slot->expected.clear();
  for (const SliceRef& slice : slices) {
    slot->places.push_back({parts_.memory.SliceOffset(slice.source, slice.layer),
                            slot->places.size() * slice_bytes()});
    slot->expected.push_back(slice.checksum);
  }
  BATON_RETURN_IF_ERROR(CopyLists(slot));
  BATON_RETURN_IF_ERROR(
      parts_.kernels->kv_gather(Params(*slot, slices.size()), parts_.device->stream()));
  return Conclude(slot);
}

Status StagingRing::Scatter(Slot* slot, std::span<const Arrival> arrivals) {
  slot->places.clear();
  slot->expected.clear();
  for (const Arrival& arrival : arrivals) {
    slot->places.push_back({arrival.block_offset, arrival.position * slice_bytes()});
    slot->expected.push_back(arrival.checksum);
  }
  BATON_RETURN_IF_ERROR(CopyLists(slot));
  BATON_RETURN_IF_ERROR(
      parts_.kernels->kv_scatter(Params(*slot, arrivals.size()), parts_.device->stream()));
  return Conclude(slot);
}

}  // namespace baton
