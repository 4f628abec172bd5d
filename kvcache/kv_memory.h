// KvMemory: where the KV blocks of a worker lie, on the host or on a device: block b starts at
// b * layout.BlockStride(). Pure value; who may touch which block is decided by BlockPool, and
// whether this processor can read the bytes at all by who made it.
#ifndef BATON_KVCACHE_KV_MEMORY_H_
#define BATON_KVCACHE_KV_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "kvcache/kv_layout.h"
#include "src/base/ids.h"

namespace baton {

// See the file comment.
struct KvMemory {
  std::byte* base = nullptr;
  KvLayout layout;
  uint32_t num_blocks = 0;

  // From `base` to one layer of a block. block < num_blocks, layer < layout.num_layers: the
  // caller's invariant.
  uint64_t SliceOffset(BlockIndex block, uint32_t layer) const {
    return uint64_t{block.value()} * layout.BlockStride() + uint64_t{layer} * layout.SliceBytes();
  }
  std::byte* Block(BlockIndex block) const { return base + SliceOffset(block, 0); }
  // [SliceBytes] of one layer.
  std::byte* Slice(BlockIndex block, uint32_t layer) const {
    return base + SliceOffset(block, layer);
  }
};

}  // namespace baton

#endif  // BATON_KVCACHE_KV_MEMORY_H_
