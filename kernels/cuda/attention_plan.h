// Cuts a batch into the items that the attention kernels walk. Pure host code: no device, no clock,
// nothing but the batch's numbers. No bit of the result depends on the cuts.
//
// A span of more than 64 (token, head) pairs is prefill, where the device has a kernel for it:
// items of 64 pairs, each with all its keys in one cta. Any other span is decode: items of 16 pairs
// and a run of splits of 256 keys, one warp a split. A cta needs the next item only after four
// splits, so runs are multiples of four. Where few rows have long contexts, the pairs' splits are
// cut over several items, which leave partials. The last of these items to finish folds the
// partials. Where there are so few splits that each can have a cta of its own, each is an item, for
// another kernel.
//
// Bounds, of R rows in S spans, H kv heads, G = heads / H, T = limits.num_decode_ctas:
//   prefill items <= H (floor(R G / 64) + S)       decode items <= T + H (floor(R G / 16) + S)
//   arrivals <= T                                  partials <= limits.max_partials
#ifndef BATON_KERNELS_CUDA_ATTENTION_PLAN_H_
#define BATON_KERNELS_CUDA_ATTENTION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "kernels/cuda/attention_params.h"

namespace baton::kernels::cuda {

// Positions end here, so that no sum of them overflows 32 bits.
inline constexpr uint32_t kMaxAttentionPosition = 1u << 30;

// Consecutive rows of one sequence.
struct AttentionRows {
  uint32_t sequence;  // row of block_lists
  uint32_t first_row;
  uint32_t num_rows;        // at least 1
  uint32_t first_position;  // row first_row + r has position first_position + r
};

// The part of a model that decides the cuts.
struct AttentionShape {
  uint32_t num_heads;
  uint32_t num_kv_heads;
  uint32_t window;  // 0 = none
};

// The resources that a plan may use.
struct AttentionPlanLimits {
  uint32_t num_decode_ctas;  // the grid that decode items should fill; at least 1
  uint32_t max_partials;     // places in the workspace; pairs that find none stay in one item
  bool has_prefill = true;   // false: every span is decode
  // Splits of a batch that have a cta each, at most num_decode_ctas; 0 = none.
  uint32_t num_spread_ctas = 0;
};

// Items for attention_prefill and attention_decode; either may be empty.
struct AttentionPlan {
  std::vector<AttentionItem> prefill;
  std::vector<AttentionItem> decode;
  uint32_t num_partials = 0;  // of AttentionPartialBytes(head_dim) each
  uint32_t num_arrivals = 0;  // words
  bool is_spread = false;     // decode: AttentionParams::is_spread
};

// The bounds above.
struct AttentionPlanBounds {
  size_t num_prefill_items;
  size_t num_decode_items;
};
AttentionPlanBounds BoundAttentionPlan(const AttentionShape& shape,
                                       const AttentionPlanLimits& limits, size_t max_rows,
                                       size_t max_spans);

// Replaces `plan`, whose vectors allocate nothing once they have the capacity of the bounds.
// InvalidArgument with the numbers, and an empty plan, for a shape that no kernel takes, an empty
// span, or a position beyond kMaxAttentionPosition. Linear in the items.
absl::Status PlanAttention(const AttentionShape& shape, const AttentionPlanLimits& limits,
                           std::span<const AttentionRows> spans, AttentionPlan& plan);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_PLAN_H_
