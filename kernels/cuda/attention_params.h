// The parameters of the kernels around attention: rotary embedding with the append of K and V,
// alone and as the end of the product before it, and attention over a list of items that the host
// planned (attention_plan.h). Included through kernel_table.h.
#ifndef BATON_KERNELS_CUDA_ATTENTION_PARAMS_H_
#define BATON_KERNELS_CUDA_ATTENTION_PARAMS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gemm_params.h"
#include "kernels/cuda/kv_blocks.h"
#include "kernels/simt/types.h"

namespace baton::kernels::cuda {

// Lists of blocks, the same in all of them: block_lists [num_sequences][max_blocks], of which a
// sequence's number names a row. Where lists lie one after the other, max_blocks is 1 and a
// sequence's number is the place at which its list begins.

// The sequence of a row that is no row: the rest of a batch padded to a size for which a graph was
// recorded. Nothing is read or written for it.
inline constexpr uint32_t kPaddingRow = 0xFFFFFFFFu;

// Norms q and k of each head (where a weight is given), rotates them, writes q, and K and V into
// the slots of the blocks.
//   norm: x / sqrt(mean(x^2) + eps) * weight, in fp32
//   pair (x0, x1) with (cos, sin): fma(x0, cos, -(x1 sin)), fma(x1, cos, x0 sin), rounded to bf16
// once. Rows of one sequence stand together, positions ascending. The last of them zeroes the token
// slots of its block behind itself (K and V, this layer; of fp8 their scales too): a block has the
// same bytes however its prompt was cut. V keeps its bits. In fp8 the bf16 of K and V become a row
// each of kv_fp8.h.
struct RopeAppendParams {
  const simt::Bf16* qkv;        // [num_rows][num_heads + 2 num_kv_heads][head_dim]
  const simt::Bf16* q_norm;     // [head_dim], null for none
  const simt::Bf16* k_norm;     // [head_dim], null for none
  const float* cos_sin;         // [max_positions][head_dim / 2][2]
  const uint32_t* positions;    // [num_rows], each below max_positions
  const uint32_t* sequences;    // [num_rows], rows of block_lists or kPaddingRow
  const uint32_t* block_lists;  // [num_sequences][max_blocks]
  simt::Bf16* q;                // [num_rows][num_heads][head_dim]
  KvBlocks kv;
  uint32_t num_rows;
  uint32_t num_heads;
  uint32_t max_blocks;
  float eps;
  bool interleaved;  // pairs (2i, 2i + 1); otherwise (i, i + head_dim / 2)
};

// gemm_bf16 of q, k and v, then rope_append of them, in one launch and with the bits of the two. At
// most kMaxJoinedRows rows, and a path of few rows.
struct RopeGemmParams {
  GemmParams product;     // of rope.num_rows rows; y_bf16 is rope.qkv
  RopeAppendParams rope;  // its qkv is written, and read again
  uint32_t* arrivals;     // [RopeArrivals], zero before and after each launch
  NormedRows norm = {};
};

// Words of RopeGemmParams::arrivals: for each head of q, k and v and each eight rows.
constexpr uint32_t RopeArrivals(uint32_t num_heads, uint32_t num_kv_heads) {
  return (num_heads + 2 * num_kv_heads) * (kMaxJoinedRows / 8);
}

// Some (token, query head) pairs of one span of rows, on one kv head, and the keys they are
// multiplied with. Pair i of a span is head i % group of its row i / group; group = query heads a
// kv head.
struct AttentionItem {
  uint32_t sequence;  // row of block_lists
  uint32_t kv_head;
  uint32_t first_row;       // of the span, in q and out
  uint32_t first_position;  // of that row
  uint32_t first_pair;      // of the span
  uint32_t num_pairs;       // [1, 64]; decode: [1, 16]
  // Decode only: splits [first_split, first_split + num_splits) of 256 keys are this item's.
  uint32_t first_split;
  uint32_t num_splits;
  uint32_t num_parts;      // items that share these pairs; beyond 1 they meet in the partials
  uint32_t first_partial;  // of the first split that the pairs see, of num_parts > 1
  uint32_t arrival;        // of num_parts > 1
};

// Attention of the rows of a batch over the keys in their blocks, causal: the row at position p
// sees keys [max(0, p - window + 1), p]. The sum has one shape at every length (attention_tile.h).
// So a row's bits do not depend on how a prompt is cut, on the batch, the block size or the plan.
// `attention_prefill` and `attention_decode` give the same bits. That holds while the values of a
// sequence are zero or in [2^-60, 2^40]. A NaN or infinity in K or V may reach any row of its
// sequence, and no other. Slots that no row of an item sees are not read. In fp8 their scales may
// be read, eight at a time, and change nothing.
struct AttentionParams {
  const simt::Bf16* q;  // [num_rows][num_heads][head_dim]
  simt::Bf16* out;      // [num_rows][num_heads][head_dim]
  KvBlocks kv;
  const uint32_t* block_lists;  // [num_sequences][max_blocks]
  const AttentionItem* items;   // [*num_items], in device memory: PlanAttention makes them
  const uint32_t* num_items;    // in device memory, so that a recorded graph takes any batch
  std::byte* partials;          // decode: AttentionPartialBytes(head_dim) each, not initialised
  uint32_t* arrivals;           // decode: zero before the first launch; each launch leaves zeros
  uint32_t max_blocks;
  uint32_t num_heads;
  uint32_t window;    // 0 = none
  float scale;        // of q k
  uint32_t num_ctas;  // of the grid that walks the items
  // Prefill: by wgmma, with the same bits on a device that passed CheckWgmmaAttention.
  bool by_wgmma = false;
  // Decode: few items, by a cta for each split (AttentionPlan::is_spread); the same bits. Items,
  // their number and the lists are then read while the kernel before runs: no kernel writes them.
  bool is_spread = false;
};

// One split's state of up to sixteen pairs: sums [head_dim][16], maxima and weights [16].
constexpr size_t AttentionPartialBytes(uint32_t head_dim) { return size_t{64} * head_dim + 128; }

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_PARAMS_H_
