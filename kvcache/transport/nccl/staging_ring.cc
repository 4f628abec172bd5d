#include "kvcache/transport/nccl/staging_ring.h"

namespace baton::kv {

using device::Accelerator;
using device::DeviceBuffer;
using device::DeviceEvent;
using device::DeviceStream;
using device::HostBuffer;

namespace {

// Bytes of a slot's lists for each slice: a place, the expected checksum and the one found.
constexpr size_t kListBytes = sizeof(KvSlicePlace) + 2 * sizeof(uint64_t);

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
  BATON_ASSIGN_OR_RETURN(
      lists_, DeviceBuffer::Create(device, shape_.num_slots * list_bytes, "lists of KV slices"));
  BATON_ASSIGN_OR_RETURN(
      host_lists_, HostBuffer::Create(device, shape_.num_slots * list_bytes, "lists of KV slices"));
  const auto keys = Xxh3Keys();
  BATON_ASSIGN_OR_RETURN(keys_, DeviceBuffer::Create(device, sizeof(keys), "keys of XXH3"));
  BATON_RETURN_IF_ERROR(device->CopyIn(keys_.data(), keys.data(), sizeof(keys)));
  BATON_RETURN_IF_ERROR(device->Wait());
  slots_.resize(shape_.num_slots);
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.memory = {buffer_.data() + i * slot_bytes, slot_bytes};
    BATON_ASSIGN_OR_RETURN(slot.stream, DeviceStream::Create(device));
    BATON_ASSIGN_OR_RETURN(slot.event, DeviceEvent::Create(device));
    slot.host = ListsAt(host_lists_.data() + i * list_bytes);
    slot.device = ListsAt(lists_.data() + i * list_bytes);
  }
  return OkStatus();
}

StagingRing::Lists StagingRing::ListsAt(std::byte* begin) const {
  Lists lists;
  lists.places = reinterpret_cast<KvSlicePlace*>(begin);
  lists.expected = reinterpret_cast<uint64_t*>(lists.places + shape_.max_slices);
  lists.checksums = lists.expected + shape_.max_slices;
  return lists;
}

KvSlicesParams StagingRing::Params(const Slot& slot, size_t num_slices) const {
  return {.blocks = SideOf(parts_.memory),
          .staging = slot.memory.data(),
          .places = slot.device.places,
          .keys = keys_.as<uint64_t>(),
          .expected = slot.device.expected,
          .checksums = slot.device.checksums,
          .num_slices = static_cast<uint32_t>(num_slices),
          .slice_bytes = static_cast<uint32_t>(slice_bytes())};
}

Status StagingRing::CopyPlaces(const Slot& slot, size_t num_slices) {
  return parts_.device->CopyIn(reinterpret_cast<std::byte*>(slot.device.places), slot.host.places,
                               num_slices * sizeof(KvSlicePlace));
}

Status StagingRing::Conclude(Slot* slot, size_t num_slices) {
  BATON_RETURN_IF_ERROR(parts_.device->CopyOut(
      slot->host.checksums, reinterpret_cast<const std::byte*>(slot->device.checksums),
      num_slices * sizeof(uint64_t)));
  return slot->event.Record(parts_.device->stream());
}

Status StagingRing::Gather(Slot* slot, std::span<const SliceRef> slices) {
  for (size_t i = 0; i < slices.size(); ++i) {
    slot->host.places[i] = {parts_.memory.SliceOffset(slices[i].source, slices[i].layer),
                            i * slice_bytes()};
  }
  BATON_RETURN_IF_ERROR(CopyPlaces(*slot, slices.size()));
  BATON_RETURN_IF_ERROR(
      parts_.kernels.gather(Params(*slot, slices.size()), parts_.device->stream()));
  return Conclude(slot, slices.size());
}

Status StagingRing::Scatter(Slot* slot, std::span<const Arrival> arrivals) {
  for (size_t i = 0; i < arrivals.size(); ++i) {
    slot->host.places[i] = {arrivals[i].block_offset, arrivals[i].position * slice_bytes()};
    slot->host.expected[i] = arrivals[i].checksum;
  }
  BATON_RETURN_IF_ERROR(CopyPlaces(*slot, arrivals.size()));
  BATON_RETURN_IF_ERROR(parts_.device->CopyIn(reinterpret_cast<std::byte*>(slot->device.expected),
                                              slot->host.expected,
                                              arrivals.size() * sizeof(uint64_t)));
  BATON_RETURN_IF_ERROR(
      parts_.kernels.scatter(Params(*slot, arrivals.size()), parts_.device->stream()));
  return Conclude(slot, arrivals.size());
}

}  // namespace baton::kv
