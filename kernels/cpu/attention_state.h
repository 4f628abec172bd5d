// The parts that the functions of attention share: sizes, working memory, the running state of a
// query row and the keys that a row sees. Included by one translation unit per instruction set.
#ifndef BATON_KERNELS_CPU_ATTENTION_STATE_H_
#define BATON_KERNELS_CPU_ATTENTION_STATE_H_

#include <limits>

#include "kernels/cpu/attention_values.h"

namespace baton::kernels::BATON_ISA {

inline constexpr uint32_t kSplitKeys = 256;
static_assert(kSplitKeys % kTileKeys == 0);
// Query rows times heads of one item: K and V tiles (16 KiB at dim 64) are shared by this many.
// Rows of 1, 2, 3, 4, 6, 8 or 9 heads fill it, and it is whole passes of kAttentionRows.
inline constexpr uint32_t kItemQueries = 72;
static_assert(kItemQueries % kAttentionRows == 0);
// Items below which a step is cut into splits, per thread.
inline constexpr uint32_t kMinItemsPerThread = 4;
// Partial results held at a time, per thread, in (item, split) pairs.
inline constexpr uint32_t kPartialsPerThread = 64;

// Consecutive rows of one span and one KV head.
struct AttentionItem {
  const AttentionSpan* span;
  uint32_t first;     // row of the span
  uint32_t num_rows;  // >= 1
  uint32_t kv_head;
};

// Sizes that the whole call shares.
struct AttentionShape {
  uint32_t dim;
  uint32_t padded_dim;
  uint32_t value_dim;  // of latent rows less than dim
  uint32_t padded_values;
  uint32_t num_segments;  // of a row of q8
  uint32_t group;         // query heads per KV head
  uint32_t max_queries;   // of one item
  size_t state_stride;    // floats of one state: sums [padded_values], lanes [16], max, 15 unused
  size_t thread_floats;   // working memory of one thread
};

// `value_dim` 0: that of K.
inline AttentionShape ShapeOf(uint32_t num_heads, uint32_t num_kv_heads, uint32_t head_dim,
                              uint32_t value_dim) {
  AttentionShape shape;
  shape.dim = head_dim;
  shape.padded_dim = (head_dim + 15) / 16 * 16;
  shape.value_dim = value_dim == 0 ? head_dim : value_dim;
  shape.padded_values = (shape.value_dim + 15) / 16 * 16;
  shape.group = num_heads / num_kv_heads;
  shape.num_segments = (head_dim + kv::kQ8SegmentDims - 1) / kv::kQ8SegmentDims;
  shape.max_queries = shape.group > kItemQueries ? shape.group : kItemQueries;
  shape.state_stride = shape.padded_values + 32;
  shape.thread_floats =
      size_t{shape.max_queries} * (shape.padded_dim + 2 * shape.state_stride) +
      2 * size_t{kTileKeys} * (kAttentionRows + shape.padded_dim + shape.num_segments);
  return shape;
}

// The running result of one query row: sums, lanes of the denominator, and the maximum.
struct QueryState {
  float* sums;   // [padded_values]
  float* lanes;  // [16]
  float* max;
};

BATON_INLINE QueryState StateAt(const AttentionShape& shape, float* states, size_t index) {
  float* sums = states + index * shape.state_stride;
  return {sums, sums + shape.padded_values, sums + shape.padded_values + 16};
}

BATON_INLINE void ResetState(const AttentionShape& shape, QueryState state) {
  for (uint32_t i = 0; i < shape.padded_values + 16; i += 16) Store(state.sums + i, Zero());
  *state.max = -std::numeric_limits<float>::infinity();
}

// Working memory of one thread.
struct ThreadArea {
  float* q;                     // [queries][padded_dim], scaled
  float* current;               // states of the current split
  float* total;                 // states of the splits so far
  float (*scores)[kTileKeys];   // [kAttentionRows]
  float (*weights)[kTileKeys];  // [kAttentionRows], of one segment of q8
  float* k_tile;
  float* v_tile;
  float* k_scales;  // [segments][kTileKeys]
  float* v_scales;  // [segments][kTileKeys]
};

inline ThreadArea AreaOf(const AttentionShape& shape, std::span<std::byte> scratch,
                         uint32_t thread) {
  float* base = reinterpret_cast<float*>(scratch.data()) + thread * shape.thread_floats;
  ThreadArea area;
  area.q = base;
  area.current = area.q + size_t{shape.max_queries} * shape.padded_dim;
  area.total = area.current + shape.max_queries * shape.state_stride;
  area.scores =
      reinterpret_cast<float(*)[kTileKeys]>(area.total + shape.max_queries * shape.state_stride);
  area.weights = area.scores + kAttentionRows;
  area.k_tile = area.weights[kAttentionRows];
  area.v_tile = area.k_tile + size_t{kTileKeys} * shape.padded_dim;
  area.k_scales = area.v_tile + size_t{kTileKeys} * shape.padded_dim;
  area.v_scales = area.k_scales + size_t{kTileKeys} * shape.num_segments;
  return area;
}

// The keys that a row at `position` sees, cut to [begin, begin + size), relative to begin.
BATON_INLINE device::TaskRange VisibleKeys(uint32_t position, uint32_t window, uint32_t begin,
                                           uint32_t size) {
  const uint32_t first = window != 0 && position >= window ? position - window + 1 : 0;
  const uint32_t low = first > begin ? first - begin : 0;
  const uint32_t high = position + 1 > begin ? position + 1 - begin : 0;
  const uint32_t end = high < size ? high : size;
  return {low < end ? low : end, end};
}

// The values that an item's inner functions share.
struct ItemRun {
  const AttentionArgs& args;
  const AttentionShape& shape;
  const AttentionItem& item;
  const ThreadArea& area;
  uint32_t Position(uint32_t query) const {
    return item.span->first_pos + item.first + query / shape.group;
  }
};

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_ATTENTION_STATE_H_
