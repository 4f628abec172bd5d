// KvMemory: where the KV blocks of a worker lie, on the host or on a device: block b starts at b *
// layout.BlockStride(). The blocks of a model that several ranks compute are divided. Each rank has
// a memory of its own in which block b starts at b * RankLayout(...).BlockStride(), with the KV
// heads that are its own. Pure value. BlockPool decides who may touch which block. The maker of the
// memory decides whether this processor can read the bytes at all.
#ifndef BATON_KVCACHE_KV_MEMORY_H_
#define BATON_KVCACHE_KV_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvcache/kv_layout.h"
#include "src/base/ids.h"

namespace baton::kv {

// See the file comment.
struct KvMemory {
  std::byte* base = nullptr;  // of ranks: of the first one
  KvLayout layout;            // of whole blocks
  uint32_t num_blocks = 0;
  std::vector<std::byte*> ranks = {};  // of each rank; empty where one memory has whole blocks

  uint32_t num_ranks() const { return ranks.empty() ? 1 : static_cast<uint32_t>(ranks.size()); }
  // The layout of the blocks in one rank's memory.
  KvLayout rank_layout() const { return RankLayout(layout, num_ranks()); }
  size_t RankBytes() const { return num_blocks * rank_layout().BlockStride(); }

  // The distance from the base of each rank's memory to one layer of a block. block < num_blocks,
  // layer < layout.num_layers: the caller's invariant.
  uint64_t SliceOffset(BlockIndex block, uint32_t layer) const {
    const KvLayout part = rank_layout();
    return uint64_t{block.value()} * part.BlockStride() + uint64_t{layer} * part.SliceBytes();
  }
  // In the memory of the first rank, as Slice.
  std::byte* Block(BlockIndex block) const { return base + SliceOffset(block, 0); }
  // [SliceBytes] of one layer, or what the first of several ranks has of them.
  std::byte* Slice(BlockIndex block, uint32_t layer) const {
    return base + SliceOffset(block, layer);
  }
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_KV_MEMORY_H_
