// The parameters of the kernels of a mixture of experts: the choice of each row's experts, the
// order in which pairs of (row, expert) are multiplied, the product of every expert with its pairs,
// and the weighted sum. Pair i is expert i % top_k of row i / top_k. Counts stay on the device: a
// recorded graph takes any choice. Included through kernel_table.h.
#ifndef BATON_KERNELS_CUDA_EXPERTS_PARAMS_H_
#define BATON_KERNELS_CUDA_EXPERTS_PARAMS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/simt/types.h"

namespace baton::kernels::cuda {

inline constexpr uint32_t kMaxRouteTopK = 64;

// The rule by which scores choose experts (src/model/expert_choice.h, kSigmoid of one group). The
// score of an expert is s = 1 / (1 + exp(-logit)). The experts of the top_k largest s + bias are
// chosen, and the weight of each is s / sum * scale, where sum is least_sum plus the scores of all
// in that order, or 1.
struct RouteScores {
  const float* bias = nullptr;  // [num_experts], finite; null: logits choose
  bool sum_to_one = false;      // false: sum is 1
  float least_sum = 0;
  float scale = 1;
};

// The top_k largest logits of each row, descending, of equal ones the lower expert first, and their
// softmax: exp(l_j - l_0) over the sum of all in that order; the bits of Ops::route
// (kernels/ops.h). Where `scores` has a bias, its rule. A row with an infinity or NaN gets experts
// 0 .. top_k - 1 and weights that are NaN.
struct RouteParams {
  const float* logits;  // [num_rows][num_experts]
  uint32_t* experts;    // [num_rows][top_k]
  float* weights;       // [num_rows][top_k]
  uint32_t num_rows;
  uint32_t num_experts;
  uint32_t top_k;  // in [1, min(num_experts, kMaxRouteTopK)]
  RouteScores scores = {};
};

// Consecutive slots of one expert, at most tile_rows.
struct ExpertTile {
  uint32_t expert;
  uint32_t first_slot;
  uint32_t num_slots;
};

// Slots are the pairs sorted by expert, those of one expert in their own order. At most
//   min(num_experts, num_pairs) + num_pairs / tile_rows
// tiles: each expert has one that may be part-full.
constexpr size_t MaxExpertTiles(size_t num_pairs, size_t num_experts, size_t tile_rows) {
  return (num_experts < num_pairs ? num_experts : num_pairs) + num_pairs / tile_rows;
}

// Where each pair is multiplied, and which slots together.
struct SortPairsParams {
  const uint32_t* experts;  // [num_pairs], each below num_experts
  uint32_t* slots;          // [num_pairs]: of each pair
  uint32_t* slot_rows;      // [num_pairs]: the row of each slot's pair
  uint32_t* begins;         // [num_experts]: first slot of each expert
  ExpertTile* tiles;        // [MaxExpertTiles]: experts ascending, slots ascending
  uint32_t* num_tiles;      // of them are written
  uint32_t* arrivals;       // one word, zero before the first launch; each launch leaves zero
  uint32_t num_pairs;
  uint32_t num_experts;  // at least 1
  uint32_t top_k;        // at least 1
  uint32_t tile_rows;    // at least 1
};

// Rows of x a tile of grouped_gemm: few for decode, where a cta reads weights for each tile again;
// many where every expert has dozens of rows. Both give the same bits.
inline constexpr uint32_t kExpertFewRows = 8;
inline constexpr uint32_t kExpertManyRows = 64;

// y[slot] = x[row of slot] w[expert of slot]^T, for the slots of all tiles, with the bits of
// gemm_bf16 of that row and that expert's weights: they do not depend on the other rows of the
// expert. `k` is a multiple of 8, at least 8.
struct GroupedGemmParams {
  const simt::Bf16* x;        // [rows][k]
  const uint32_t* slot_rows;  // [slots]: row of x; null: the slot itself
  const simt::Bf16* w;        // [experts][n][k]
  simt::Bf16* y;              // [slots][n]
  const ExpertTile* tiles;    // of at most tile_rows slots
  const uint32_t* num_tiles;  // in device memory, at most max_tiles
  uint32_t max_tiles;         // of the grid
  uint32_t tile_rows;         // kExpertFewRows or kExpertManyRows
  uint32_t n;
  uint32_t k;
};

// out[row] = sum over j of weights[row][j] y[slots[row][j]], one fma chain from +0 with j ascending
// in fp32, rounded to bf16 once unless out_float is given. `dim` is a multiple of 8, at least 8.
struct CombineParams {
  const simt::Bf16* y;    // [num_rows top_k][dim]
  const uint32_t* slots;  // [num_rows][top_k]
  const float* weights;   // [num_rows][top_k]
  simt::Bf16* out;        // [num_rows][dim]; null when out_float is given
  uint32_t num_rows;
  uint32_t top_k;
  uint32_t dim;
  float* out_float = nullptr;  // [num_rows][dim]
};

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_EXPERTS_PARAMS_H_
