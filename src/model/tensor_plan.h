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
#include "src/model/nvfp4_rows.h"

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
  const GgufTensor* gate_bias = nullptr;       // [ffn] F32; of experts [experts, ffn]
  const GgufTensor* up_bias = nullptr;         // as gate_bias
  const GgufTensor* down_bias = nullptr;       // [hidden] F32; of experts [experts, hidden]
  const GgufTensor* layer_scale = nullptr;     // [1] F32: of the stream after the layer
  const GgufTensor* per_layer_gate = nullptr;  // [per_layer, hidden]
  const GgufTensor* per_layer_out = nullptr;   // [hidden, per_layer]
  const GgufTensor* post_per_layer = nullptr;  // [hidden] F32
  // A convolution has these instead of q, k, v and attn_output.
  const GgufTensor* conv_in = nullptr;    // [3 * hidden, hidden]: b, c, x
  const GgufTensor* conv_taps = nullptr;  // [hidden, taps] F32
  const GgufTensor* conv_out = nullptr;   // [hidden, hidden]
  // A gated delta net has these instead of attention (kernels::DeltaShape).
  const GgufTensor* delta_qkv = nullptr;    // [channels, hidden]
  const GgufTensor* delta_z = nullptr;      // [value_size, hidden]
  const GgufTensor* delta_beta = nullptr;   // [v heads, hidden]
  const GgufTensor* delta_decay = nullptr;  // [v heads, hidden]
  const GgufTensor* delta_taps = nullptr;   // [channels, taps] F32
  const GgufTensor* delta_rates = nullptr;  // [v heads] F32
  const GgufTensor* dt_bias = nullptr;      // [v heads] F32
  const GgufTensor* delta_norm = nullptr;   // [v_dim] F32
  const GgufTensor* delta_out = nullptr;    // [hidden, value_size]
  // A layer of Mamba-2 (traits->mamba) has delta_taps, delta_rates (as skips), dt_bias, delta_norm
  // (one of groups, [groups, value_size / groups]) and delta_out, and these.
  const GgufTensor* mamba_in = nullptr;   // [input_size - v heads, hidden]: z, x, B, C, dt
  const GgufTensor* conv_bias = nullptr;  // [channels] F32: x, B, C; null without
  const GgufTensor* skips = nullptr;      // [v heads, 1] F32
  // Matrices that the file holds as one; q, k, v, or gate and up are null. qkv: in some files of
  // any architecture; gate_up: with traits->fused_projections.
  const GgufTensor* qkv = nullptr;  // [qkv_size, hidden]
  // [2 * ffn, hidden]; of experts [experts, 2 * ffn, hidden]; without a gate [ffn, hidden].
  const GgufTensor* gate_up = nullptr;
  // Multi-head latent attention (traits->latent_kv): q holds all queries, or with q_rank q_a is
  // their first product and q_b the second. Of kv_b, the rows of each head are those of k_b
  // transposed and then those of v_b; a file has kv_b or both others.
  const GgufTensor* q_a = nullptr;        // [q_rank, hidden]
  const GgufTensor* q_a_norm = nullptr;   // [q_rank] F32
  const GgufTensor* q_b = nullptr;        // [latent_q_size, q_rank]
  const GgufTensor* kv_a = nullptr;       // [head_dim, hidden]
  const GgufTensor* kv_a_norm = nullptr;  // [latent_dim] F32
  const GgufTensor* k_b = nullptr;        // [heads, latent_dim, nope_dim]
  const GgufTensor* v_b = nullptr;        // [heads, value_dim, latent_dim]
  const GgufTensor* kv_b = nullptr;       // [heads * (nope_dim + value_dim), latent_dim]
  // Experts that serve every row (traits->shared_experts), and what chooses the others.
  const GgufTensor* shared_gate = nullptr;  // [shared_ffn, hidden]
  const GgufTensor* shared_up = nullptr;    // as shared_gate
  const GgufTensor* shared_down = nullptr;  // [hidden, shared_ffn]
  // The product whose sigmoid the shared expert is times (traits->gated_shared_expert).
  const GgufTensor* shared_router = nullptr;  // [hidden] F32, or [1, hidden]
  const GgufTensor* choice_bias = nullptr;    // [experts] F32, of ExpertScore::kSigmoid
  const GgufTensor* qkv_bias = nullptr;       // [qkv_size] F32: q_bias, k_bias, v_bias as one
};

// How rows of a layer's Q and K are reordered when they are packed (ModelConfig::reorders_heads);
// num_heads 0: not at all.
struct HeadOrder {
  uint32_t num_heads = 0;  // those of Q and of K
  uint32_t head_dim = 0;
  uint32_t rope_dims = 0;
  bool has_gates = false;  // a head of Q is followed by its gate (traits->output_gate)
};

// Sizes of the matrices of latent attention; num_heads 0: the model has none.
struct LatentShape {
  uint32_t num_heads = 0;
  uint32_t nope_dim = 0;
  uint32_t value_dim = 0;
};

// All tensors of the model.
struct TensorPlan {
  const GgufTensor* token_embd = nullptr;    // [vocab, hidden]
  const GgufTensor* output_norm = nullptr;   // [hidden] F32
  const GgufTensor* output = nullptr;        // [vocab, hidden]; token_embd when tied
  const GgufTensor* rope_factors = nullptr;  // [rope_dims / 2] F32, null when absent
  const GgufTensor* long_factors = nullptr;  // the long set of LongRoPE, null without
  // Null without ModelConfig::per_layer_size.
  const GgufTensor* per_layer_embd = nullptr;  // [vocab, layers * per_layer]
  const GgufTensor* per_layer_proj = nullptr;  // [layers * per_layer, hidden]
  const GgufTensor* per_layer_norm = nullptr;  // [per_layer] F32
  bool norms_values = false;                   // V is normed, without weights
  HeadOrder head_order;
  LatentShape latent;
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

// The kernels' name of a supported tensor type; of fp8 and NVFP4 that of what they are turned into,
// kBf16.
kernels::WeightType WeightTypeOf(const GgufTensor& tensor);

Nvfp4Rows Nvfp4RowsOf(const GgufTensor& tensor);

// A tensor in fp8: a matrix, or several one below the other.
kernels::Fp8Rows Fp8RowsOf(const GgufTensor& tensor);

}  // namespace baton::model

#endif  // BATON_MODEL_TENSOR_PLAN_H_
