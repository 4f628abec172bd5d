// DeviceWeights: the weights of a model, or of one rank of it, in the memory of an accelerator:
// bf16, or matrices as packed as in the file. Sizes are of the rank. Constant once they are
// uploaded. Private to src/model, and to checks that make random ones (DeviceModel::FromWeights).
#ifndef BATON_MODEL_DEVICE_WEIGHTS_H_
#define BATON_MODEL_DEVICE_WEIGHTS_H_

#include <cstddef>
#include <vector>

#include "kernels/cuda/kernel_table.h"
#include "src/base/status.h"
#include "src/device/accelerator.h"
#include "src/model/model_config.h"
#include "src/model/model_rank.h"
#include "src/model/tensor_plan.h"
#include "src/model/weight_parts.h"

namespace baton::model {

// A matrix [n][k]: row-major bf16, or packed (kernels/cuda/packed_weights.h). Products have the
// same bits either way.
struct DeviceMatrix {
  device::DeviceBuffer data;
  kernels::cuda::PackedFormat format = kernels::cuda::PackedFormat::kBf16;

  bool is_packed() const { return format != kernels::cuda::PackedFormat::kBf16; }
  kernels::cuda::PackedMatrixView packed() const { return {data.data(), format}; }
  size_t size_bytes() const { return data.size_bytes(); }
};

// The weights of one transformer layer; vectors are bf16 too, but for biases.
struct DeviceLayer {
  device::DeviceBuffer attn_norm;  // [hidden]
  // [FirstProductSize][hidden]: q, k, v; of a convolution b, c, x
  DeviceMatrix qkv;
  DeviceMatrix attn_output;       // [hidden][mixed_size]
  device::DeviceBuffer ffn_norm;  // [hidden]
  DeviceMatrix gate_up;  // [2 ffn][hidden]: gate, then up; of experts [experts][2 ffn][hidden]
  DeviceMatrix down;     // [hidden][ffn]; of experts [experts][hidden][ffn]
  // Empty unless the architecture has them.
  device::DeviceBuffer qkv_bias;     // [qkv_size] fp32
  device::DeviceBuffer q_norm;       // [head_dim]
  device::DeviceBuffer k_norm;       // [head_dim]
  DeviceMatrix router;               // [experts][hidden]
  device::DeviceBuffer choice_bias;  // [experts] fp32: of a router whose scores choose
  // [hidden][taps] fp32, the token's own last; of a net [channels][taps]
  device::DeviceBuffer conv_taps;
  // The gates of what attention gives, [q_size][hidden]; of what a net gives, [value_size][hidden].
  DeviceMatrix output_gate;
  // A gated delta net's own (kernels/cuda/delta_params.h).
  DeviceMatrix delta_gates;          // [2][v heads][hidden]: beta, decay
  device::DeviceBuffer delta_rates;  // [v heads] fp32
  device::DeviceBuffer dt_bias;      // [v heads] fp32
  device::DeviceBuffer delta_norm;   // [v_dim] fp32
  // Norms of what attention and the feed-forward layer add to the residual.
  device::DeviceBuffer post_attn_norm;  // [hidden]
  device::DeviceBuffer post_ffn_norm;   // [hidden]
};

// Which weights, how, and where.
struct DeviceWeightsPart {
  const ModelConfig* config = nullptr;  // of the whole model
  ModelRank rank;
  bool keeps_packed = true;  // matrices whose types have a format for it
  device::Accelerator* device = nullptr;
  size_t device_idx = 0;  // its number among those of all ranks
};

// See the file comment.
struct DeviceWeights {
  DeviceMatrix token_embd;  // [vocab][hidden]
  // [vocab][hidden], empty when tied; of one of several ranks its rows, tied or not (LogitsOfRank)
  DeviceMatrix output;
  device::DeviceBuffer output_norm;  // [hidden]
  std::vector<DeviceLayer> layers;

  // Allocates device memory for all weights, contents undefined. `parts` is told what is to be
  // copied there (UploadWeights). ResourceExhausted when the device's memory is short, with the
  // bytes that all weights of this rank need; `parts` is then of no use.
  static absl::StatusOr<DeviceWeights> Allocate(const TensorPlan& plan,
                                                const DeviceWeightsPart& part, WeightParts& parts);

  // The matrix of the output layer, for one rank alone.
  const DeviceMatrix& OutputMatrix() const { return output.size_bytes() > 0 ? output : token_embd; }
  size_t bytes() const;
  // Bytes of the matrices that are packed.
  size_t packed_bytes() const;
};

}  // namespace baton::model

#endif  // BATON_MODEL_DEVICE_WEIGHTS_H_
