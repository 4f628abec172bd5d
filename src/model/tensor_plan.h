// TensorPlan: which tensors of a file become which weights of the model. Views into the GgufFile.
// Private to src/model. Any thread.
#ifndef BATON_MODEL_TENSOR_PLAN_H_
#define BATON_MODEL_TENSOR_PLAN_H_

#include <cstdint>
#include <vector>

#include "kernels/fp8_rows.h"
#include "kernels/weight_type.h"
#include "src/base/status.h"
#include "src/model/gguf.h"
#include "src/model/model_config.h"

namespace baton::model {

// The tensors of one transformer layer. Matrices are [n, k] with k contiguous (GGUF dims {k, n}).
struct LayerTensors {
  const GgufTensor* attn_norm = nullptr;    // [hidden] F32, null without pre_norms
  const GgufTensor* q = nullptr;            // [q_size, hidden]; with output_gate twice the rows
  const GgufTensor* k = nullptr;            // [kv_size, hidden]
  const GgufTensor* v = nullptr;            // [kv_size, hidden]
  const GgufTensor* attn_output = nullptr;  // [hidden, q_size]
  const GgufTensor* ffn_norm = nullptr;     // [hidden] F32, null without pre_norms
  const GgufTensor* gate = nullptr;         // [ffn, hidden]; of experts [experts, ffn, hidden]
  const GgufTensor* up = nullptr;           // as gate
  const GgufTensor* down = nullptr;         // [hidden, ffn]; of experts [experts, hidden, ffn]
  // Null unless the architecture has them (ArchitectureTraits).
  const GgufTensor* q_bias = nullptr;          // [q_size] F32
  const GgufTensor* k_bias = nullptr;          // [kv_size] F32
  const GgufTensor* v_bias = nullptr;          // [kv_size] F32
  const GgufTensor* q_norm = nullptr;          // [head_dim] F32; with whole_norms [q_size]
  const GgufTensor* k_norm = nullptr;          // [head_dim] F32; with whole_norms [kv_size]
  const GgufTensor* post_attn_norm = nullptr;  // [hidden] F32
  const GgufTensor* post_ffn_norm = nullptr;   // [hidden] F32
  const GgufTensor* router = nullptr;          // [experts, hidden]
  const GgufTensor* sinks = nullptr;           // [heads] F32
  const GgufTensor* output_bias = nullptr;     // [hidden] F32
  const GgufTensor* router_bias = nullptr;     // [experts] F32
  const GgufTensor* gate_bias = nullptr;       // [experts, ffn] F32
  const GgufTensor* up_bias = nullptr;         // [experts, ffn] F32
  const GgufTensor* down_bias = nullptr;       // [experts, hidden] F32
  // Of a convolution, which has no q, k, v and attn_output.
  const GgufTensor* conv_in = nullptr;    // [3 * hidden, hidden]: b, c, x
  const GgufTensor* conv_taps = nullptr;  // [hidden, taps] F32
  const GgufTensor* conv_out = nullptr;   // [hidden, hidden]
  // Of a gated delta net, which has none of those of attention (kernels::DeltaShape).
  const GgufTensor* delta_qkv = nullptr;    // [channels, hidden]
  const GgufTensor* delta_z = nullptr;      // [value_size, hidden]
  const GgufTensor* delta_beta = nullptr;   // [v heads, hidden]
  const GgufTensor* delta_decay = nullptr;  // [v heads, hidden]
  const GgufTensor* delta_taps = nullptr;   // [channels, taps] F32
  const GgufTensor* delta_rates = nullptr;  // [v heads] F32
  const GgufTensor* dt_bias = nullptr;      // [v heads] F32
  const GgufTensor* delta_norm = nullptr;   // [v_dim] F32
  const GgufTensor* delta_out = nullptr;    // [hidden, value_size]
  // Matrices that the file holds as one (traits->fused_projections); q, k, v, gate and up are null.
  const GgufTensor* qkv = nullptr;      // [qkv_size, hidden]
  const GgufTensor* gate_up = nullptr;  // [2 * ffn, hidden]
};

// How rows of a layer's Q and K are reordered when they are packed (ModelConfig::reorders_heads);
// num_heads 0: not at all.
struct HeadOrder {
  uint32_t num_heads = 0;  // those of Q and of K
  uint32_t head_dim = 0;
  uint32_t rope_dims = 0;
  bool has_gates = false;  // a head of Q is followed by its gate (traits->output_gate)
};

// All tensors of the model.
struct TensorPlan {
  const GgufTensor* token_embd = nullptr;    // [vocab, hidden]
  const GgufTensor* output_norm = nullptr;   // [hidden] F32
  const GgufTensor* output = nullptr;        // [vocab, hidden]; token_embd when tied
  const GgufTensor* rope_factors = nullptr;  // [rope_dims / 2] F32, null when absent
  const GgufTensor* long_factors = nullptr;  // the long set of LongRoPE, null without
  HeadOrder head_order;
  std::vector<LayerTensors> layers;
};

// Finds every tensor by name and checks type and shape. Fails as ReadModelConfig does; a tensor of
// the file that the plan does not use is an error too, since ignoring a bias would change the
// result.
absl::StatusOr<TensorPlan> PlanTensors(const GgufFile& file, const ModelConfig& config);

// The elements of a vector of the plan, which is F32.
std::vector<float> FloatsOf(const GgufTensor& tensor);
// [qkv_size] as the matrices lie side by side; empty where the layer has no biases.
std::vector<float> QkvBiasOf(const LayerTensors& tensors);

// The kernels' name of a supported tensor type; of fp8 that of what it is turned into, kBf16.
kernels::WeightType WeightTypeOf(const GgufTensor& tensor);

// A tensor in fp8: a matrix, or several one below the other.
kernels::Fp8Rows Fp8RowsOf(const GgufTensor& tensor);

}  // namespace baton::model

#endif  // BATON_MODEL_TENSOR_PLAN_H_
