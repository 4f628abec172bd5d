// KvMirror: the KV blocks in the memory of a device, where kernels use them, beside the worker's
// arena, which transports read and write. Both have the same blocks under the same indices.
//
//   computed here: device --Fetch, when a slice is sealed--> arena -> the peer
//   received here: the peer -> arena --Push, when the request is bound--> device
//
// Neither side is ever a copy that must be kept up to date: a block's bytes are on the device, and
// in the arena only from Fetch to the end of its transfer, or from its arrival to Push.
//
// Engine thread. Device and arena outlive it. Invariants
//  1. All device memory is taken by Create.
//  2. A device that fails ends the process: nothing that it computed is to be trusted (invariant 2
//     of Accelerator), and routers resume this worker's requests elsewhere.
#ifndef BATON_ENGINE_KV_MIRROR_H_
#define BATON_ENGINE_KV_MIRROR_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "kvcache/block_pool.h"
#include "kvcache/kv_arena.h"
#include "src/device/accelerator.h"

namespace baton {

// See the file comment.
class KvMirror {
 public:
  // ResourceExhausted when the device has no room for the arena's blocks.
  static StatusOr<std::unique_ptr<KvMirror>> Create(Accelerator* device, const KvArena* arena);

  // Block 0 on the device; the distance between blocks is the layout's BlockStride.
  std::byte* base() const { return blocks_.data(); }

  // One layer of the blocks, from the device, with all that was computed before.
  void Fetch(std::span<const BlockHandle> blocks, uint32_t layer);
  // All layers of the blocks, to the device.
  void Push(std::span<const BlockHandle> blocks);
  // A whole block to another one on the device. In stream order; waits for nothing.
  void Copy(uint32_t from, uint32_t to);

 private:
  KvMirror(Accelerator* device, const KvArena* arena, DeviceBuffer blocks)
      : device_(device), arena_(arena), blocks_(std::move(blocks)) {}
  std::byte* BlockAt(uint32_t block) const {
    return blocks_.data() + size_t{block} * arena_->layout().BlockStride();
  }

  Accelerator* const device_;
  const KvArena* const arena_;
  const DeviceBuffer blocks_;
};

}  // namespace baton

#endif  // BATON_ENGINE_KV_MIRROR_H_
