#include "src/engine/kv_mirror.h"

#include "src/base/check.h"

namespace baton {
namespace {

void MustWork(const Status& status) {
  BATON_CHECK(status.ok(), "the device failed: {}", status.ToString());
}

}  // namespace

StatusOr<std::unique_ptr<KvMirror>> KvMirror::Create(Accelerator* device, const KvArena* arena) {
  device->MakeCurrent();
  BATON_ASSIGN_OR_RETURN(DeviceBuffer blocks,
                         DeviceBuffer::Create(device, arena->size_bytes(), "KV blocks"));
  return std::unique_ptr<KvMirror>(new KvMirror(device, arena, std::move(blocks)));
}

void KvMirror::Fetch(std::span<const BlockHandle> blocks, uint32_t layer) {
  const size_t slice_bytes = arena_->layout().SliceBytes();
  device_->MakeCurrent();
  for (const BlockHandle block : blocks) {
    const std::byte* const from = BlockAt(block.index.value()) + layer * slice_bytes;
    MustWork(device_->CopyOut(arena_->Slice(block.index, layer), from, slice_bytes));
  }
  MustWork(device_->Wait());
}

void KvMirror::Push(std::span<const BlockHandle> blocks) {
  device_->MakeCurrent();
  for (const BlockHandle block : blocks) {
    MustWork(device_->CopyIn(BlockAt(block.index.value()), arena_->Block(block.index),
                             arena_->layout().BlockBytes()));
  }
}

void KvMirror::Copy(uint32_t from, uint32_t to) {
  device_->MakeCurrent();
  MustWork(device_->CopyWithin(BlockAt(to), BlockAt(from), arena_->layout().BlockBytes()));
}

}  // namespace baton
