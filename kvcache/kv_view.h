// KvView: the part of the KV pool that kernels see: the places of blocks. It owns nothing and knows
// no block's state. Plain data, which the engine builds for one step; any thread of the step reads
// it.
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
  // The distance of two blocks, in a view of one layer whose heads differ from the blocks' heads
  // (LayerView); 0 = the distance of `layout`.
  size_t block_stride_bytes = 0;

  std::byte* BaseOfRank(uint32_t rank) const { return ranks.empty() ? base : ranks[rank]; }
  // First byte of the K (which = 0) or V (which = 1) piece of one head in one block. A model with
  // latent rows stores them as the K of one head, without V.
  std::byte* Piece(uint32_t block, uint32_t layer, uint32_t which, uint32_t kv_head) const {
    const size_t stride = block_stride_bytes == 0 ? layout->BlockStride() : block_stride_bytes;
    return base + size_t{block} * stride + size_t{layer} * layout->SliceBytes() +
           (size_t{which} * layout->num_kv_heads + kv_head) * layout->PieceBytes();
  }
};

// Views the slices of each block from `first_slice` on as K and V of one layer with heads of its
// own (`heads`, a layout of one layer). The caller has checked that the heads fit into these
// slices. Not for ranks.
inline KvView LayerView(const KvView& whole, uint32_t first_slice, const KvLayout& heads) {
  KvView view = whole;
  view.base += size_t{first_slice} * whole.layout->SliceBytes();
  view.layout = &heads;
  view.block_stride_bytes = whole.layout->BlockStride();
  return view;
}

// Block lists of one sequence. In token order: token t lives in blocks[t / block_size]. The fixed
// state of the sequence lies in `state` [KvLayout::state_blocks].
struct KvBlockList {
  std::span<const uint32_t> blocks;
  std::span<const uint32_t> state = {};
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_KV_VIEW_H_
