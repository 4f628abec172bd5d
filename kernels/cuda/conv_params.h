// The parameters of the short convolution on a device: that of kernels/ops.h (ShortConvArgs), whose
// rows of inputs lie in the blocks as K and V do. Included through kernel_table.h.
#ifndef BATON_KERNELS_CUDA_CONV_PARAMS_H_
#define BATON_KERNELS_CUDA_CONV_PARAMS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/simt/types.h"

namespace baton::kernels::cuda {

// Taps of a short convolution at most, as kernels::kMaxConvTaps.
inline constexpr uint32_t kMaxShortConvTaps = 16;

// Where the inputs of one layer lie. The layer's slices of a block are one matrix [block_size]
// [row_elements] of bf16; a row holds the channels of one token, then zeros.
struct ConvBlocks {
  std::byte* base;            // the layer's first slice of block 0; aligned to 16 bytes
  size_t block_stride_bytes;  // from a block to the next; a multiple of 16
  uint32_t row_elements;      // a multiple of 8
  uint32_t block_size;        // tokens: 16, 32 or 64
};

// Stores each row's inputs b x, rounded to bf16, in the slot of its position, and
//   out = c (sum over j of taps[j] times the input of num_taps - 1 - j tokens before),
// an fp32 chain of fma, j ascending, the product with c rounded to bf16 once. Inputs before the
// sequence are left out. Rows of one sequence stand together, positions ascending; what came before
// them is read from the blocks. The last of them zeroes the slots behind it in a block that they
// began: a block has the same bytes however its prompt was cut. For a padding row (kPaddingRow)
// nothing is read or written.
struct ShortConvParams {
  const simt::Bf16* bcx;        // [num_rows][3][channels]: b, c, x
  const float* taps;            // [channels][num_taps], the token's own last
  const uint32_t* positions;    // [num_rows]
  const uint32_t* sequences;    // [num_rows], rows of block_lists or kPaddingRow
  const uint32_t* block_lists;  // [num_sequences][max_blocks]
  simt::Bf16* out;              // [num_rows][channels]
  ConvBlocks kv;
  uint32_t num_rows;
  uint32_t channels;  // a multiple of 8, at most kv.row_elements
  uint32_t num_taps;  // in [1, kMaxShortConvTaps]
  uint32_t max_blocks;
};

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_CONV_PARAMS_H_
