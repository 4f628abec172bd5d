// The parameters of gated delta nets on a device: the operation of kernels/ops.h (GatedDeltaArgs)
// in three kernels. Its sums have the order of the processor, so a state has the same bits for the
// same inputs. Included through kernel_table.h.
#ifndef BATON_KERNELS_CUDA_DELTA_PARAMS_H_
#define BATON_KERNELS_CUDA_DELTA_PARAMS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/simt/types.h"

namespace baton::kernels::cuda {

// Tokens that the convolution sees at most, as kernels::kMaxConvTaps.
inline constexpr uint32_t kMaxDeltaTaps = 16;
// Elements of a head of q and k that there are kernels for: a thread has so much of a state in
// registers.
inline constexpr uint32_t kDeltaKeyDims[2] = {64, 128};

// The shape of a net (kernels::DeltaShape of DeltaRule::kCorrect).
struct DeltaDims {
  uint32_t num_k_heads;  // of q, and of k
  uint32_t num_v_heads;  // a multiple; head h goes with head h % num_k_heads of q and k
  uint32_t k_dim;        // one of kDeltaKeyDims
  uint32_t v_dim;        // a multiple of 16
  uint32_t num_taps;     // in [2, kMaxDeltaTaps]

  constexpr uint32_t key_size() const { return num_k_heads * k_dim; }
  constexpr uint32_t value_size() const { return num_v_heads * v_dim; }
  constexpr uint32_t num_channels() const { return 2 * key_size() + value_size(); }
  constexpr uint32_t matrix_bytes() const { return num_v_heads * k_dim * v_dim * 4; }
  constexpr uint32_t state_bytes() const {
    return matrix_bytes() + (num_taps - 1) * num_channels() * 4;
  }
};

// The rows of one sequence in a batch; num_rows 0: of none, nothing is read or written.
struct DeltaSpan {
  uint32_t first_row;
  uint32_t num_rows;
  uint32_t position;   // of the first row; at 0 the state before is zeros, whatever lies there
  uint32_t copy_rows;  // the state after so many of the rows goes to a copy too; 0: there is none
  uint32_t copy;       // its list in DeltaParams::copies
};

// Where the states of one layer lie: in the slices that these blocks of a sequence have of some
// layer, taken one after the other, from byte `offset` on.
struct DeltaStateBlocks {
  std::byte* base;            // that slice of block 0; aligned to 16 bytes
  size_t block_stride_bytes;  // from a block to the next; a multiple of 16
  uint32_t slice_bytes;       // a multiple of 64, at least a row of a head's matrix
  uint32_t offset;            // a multiple of 64
};

// A net in three launches.
//   delta_inputs  inputs = silu(convolution of x), heads of q and k to length 1 (q by
//                 1 / sqrt(k_dim) too), logits in `gates` to beta and decay
//   delta_scan    moves the states on, token by token; the v of `inputs` become what q reads
//   delta_gate    out = norm(what was read) * norm * silu(z)
// A row of no span (kPaddingRow) is neither read nor written.
struct DeltaParams {
  const simt::Bf16* x;        // [num_rows][num_channels]: q | k | v
  const simt::Bf16* z;        // [num_rows][value_size]
  float* gates;               // [num_rows][2][num_v_heads]: of beta, of decay
  const float* taps;          // [num_channels][num_taps], the token's own last
  const float* rates;         // [num_v_heads], -e^A_log
  const float* dt_bias;       // [num_v_heads]
  const float* norm;          // [v_dim]
  const DeltaSpan* spans;     // [num_spans], of different sequences, rows ascending
  const uint32_t* row_spans;  // [num_rows]: index of the row's span, or kPaddingRow
  const uint32_t* states;     // [num_spans][num_state_blocks]
  const uint32_t* copies;     // lists of num_state_blocks, of blocks that no span has
  uint32_t* broken;           // [num_spans]: 1 where a copy has an infinity or NaN
  float* inputs;              // [num_rows][num_channels]
  simt::Bf16* out;            // [num_rows][value_size]
  DeltaStateBlocks state;
  DeltaDims dims;
  uint32_t num_rows;
  uint32_t num_spans;
  uint32_t num_state_blocks;
  float eps;
};

// Zeros the first block_bytes of each of these blocks.
struct ClearBlocksParams {
  std::byte* base;            // of block 0; aligned to 16 bytes
  const uint32_t* blocks;     // [num_blocks]
  size_t block_stride_bytes;  // a multiple of 16
  size_t block_bytes;         // a multiple of 16
  uint32_t num_blocks;
};

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_DELTA_PARAMS_H_
