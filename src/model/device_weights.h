// DeviceWeights: the weights of a model in bf16 in the memory of an accelerator, matrices row-major
// [n][k] as in the file. Built by Load, constant afterwards. Private to src/model, and to checks
// that make random ones (DeviceModel::FromWeights).
#ifndef BATON_MODEL_DEVICE_WEIGHTS_H_
#define BATON_MODEL_DEVICE_WEIGHTS_H_

#include <cstddef>
#include <vector>

#include "src/base/status.h"
#include "src/device/accelerator.h"
#include "src/device/thread_pool.h"
#include "src/model/model_config.h"
#include "src/model/tensor_plan.h"

namespace baton {

// The weights of one transformer layer; vectors are bf16 too, but for biases.
struct DeviceLayer {
  DeviceBuffer attn_norm;    // [hidden]
  DeviceBuffer qkv;          // [qkv_size][hidden]
  DeviceBuffer attn_output;  // [hidden][q_size]
  DeviceBuffer ffn_norm;     // [hidden]
  DeviceBuffer gate_up;      // [2 ffn][hidden]: gate, then up; of experts [experts][2 ffn][hidden]
  DeviceBuffer down;         // [hidden][ffn]; of experts [experts][hidden][ffn]
  // Empty unless the architecture has them.
  DeviceBuffer qkv_bias;  // [qkv_size] fp32
  DeviceBuffer q_norm;    // [head_dim]
  DeviceBuffer k_norm;    // [head_dim]
  DeviceBuffer router;    // [experts][hidden]
  // Norms of what attention and the feed-forward layer add to the residual.
  DeviceBuffer post_attn_norm;  // [hidden]
  DeviceBuffer post_ffn_norm;   // [hidden]
};

// See the file comment.
struct DeviceWeights {
  DeviceBuffer token_embd;   // [vocab][hidden]
  DeviceBuffer output;       // [vocab][hidden]; empty when tied
  DeviceBuffer output_norm;  // [hidden]
  std::vector<DeviceLayer> layers;

  // Dequantises with `pool` and copies tensor by tensor: the host never holds more than one matrix
  // packed and in bf16. ResourceExhausted when the device's memory is short.
  static absl::StatusOr<DeviceWeights> Load(const TensorPlan& plan, Accelerator* device,
                                            ThreadPool& pool);

  // Of the output layer.
  const DeviceBuffer& OutputMatrix() const { return output.size_bytes() > 0 ? output : token_embd; }
  size_t bytes() const;
};

}  // namespace baton

#endif  // BATON_MODEL_DEVICE_WEIGHTS_H_
