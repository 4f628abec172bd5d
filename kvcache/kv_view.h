// KvView: what a kernel may know about KV: where the blocks of each sequence lie. It owns nothing
// and knows no block's state. Plain data, built by the engine for one step; read by any thread of
// that step's fork-join region.
#ifndef BATON_KVCACHE_KV_VIEW_H_
#define BATON_KVCACHE_KV_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvcache/kv_layout.h"

namespace baton::kv {

// The arena as kernels see it; block b starts at base + b * layout.BlockStride().
struct KvView {
  std::byte* base = nullptr;
  const KvLayout* layout = nullptr;
  uint32_t num_blocks = 0;
  // For a model of several ranks, instead of `base`: where the blocks of each rank lie, with the
  // layout RankLayout(*layout, ranks.size()).
  std::span<std::byte* const> ranks = {};

  std::byte* BaseOfRank(uint32_t rank) const { return ranks.empty() ? base : ranks[rank]; }
  // First byte of the K (which = 0) or V (which = 1) piece of one head in one block.
  std::byte* Piece(uint32_t block, uint32_t layer, uint32_t which, uint32_t kv_head) const {
    return base + size_t{block} * layout->BlockStride() + size_t{layer} * layout->SliceBytes() +
           (size_t{which} * layout->num_kv_heads + kv_head) * layout->PieceBytes();
  }
};

// Block lists of one sequence. In token order: token t lives in blocks[t / block_size]. The fixed
// state of the sequence lies in `state` [KvLayout::state_blocks].
struct KvBlockList {
  std::span<const uint32_t> blocks;
  std::span<const uint32_t> state = {};
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_KV_VIEW_H_
