// The results of rope_append and attention, computed in the plainest form, on host memory, in
// double. Slow; for tests and for checks on a GPU. Pure.
#ifndef BATON_KERNELS_CUDA_ATTENTION_REFERENCE_H_
#define BATON_KERNELS_CUDA_ATTENTION_REFERENCE_H_

#include <span>
#include <vector>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/simt/tensor_core.h"

namespace baton::kernels::cuda {

// Rotated q, then k, of each row before their rounding: [num_rows][num_heads + num_kv_heads]
// [head_dim]. Zeros in padding rows.
struct RotatedRows {
  std::vector<double> values;
  std::vector<double> magnitudes;  // of the pair, to which the errors of its products are relative
};
// Reads qkv, the norms, the table, positions and sequences of `params`; writes nothing.
RotatedRows ReferenceRotate(const RopeAppendParams& params);

// The part of AttentionParams that describes the data, on host memory.
struct AttentionData {
  const Bf16* q;  // [rows][num_heads][head_dim]
  KvBlocks kv;
  const uint32_t* block_lists;  // [num_sequences][max_blocks]
  uint32_t max_blocks;
  AttentionShape shape;
  float scale;
  simt::TensorCore core = simt::TensorCore::kHopper;
};
// softmax(scale q K^T) V of each row of the spans over the keys that it sees, as one sum in double:
// [rows][num_heads][head_dim]; zeros in rows of no span.
std::vector<double> ReferenceAttention(const AttentionData& data, uint32_t num_rows,
                                       std::span<const AttentionRows> spans);

// The kernels' bits, by the rules of attention_tile.h in scalar code over the model of the tensor
// cores of `data`; zeros in rows of no span.
std::vector<Bf16> ReferenceAttentionBits(const AttentionData& data, uint32_t num_rows,
                                         std::span<const AttentionRows> spans);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_REFERENCE_H_
