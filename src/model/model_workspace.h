// ModelWorkspace: every buffer that a forward pass writes besides KV and logits, taken once at
// load. Owned by the thread that calls Forward. Private to src/model.
#ifndef BATON_MODEL_MODEL_WORKSPACE_H_
#define BATON_MODEL_MODEL_WORKSPACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "src/base/status.h"
#include "src/device/aligned_buffer.h"
#include "src/model/model_config.h"

namespace baton::model {

// The numbers that set the size of a workspace.
struct WorkspaceSize {
  uint32_t max_rows = 0;
  uint32_t max_context = 0;
  size_t attention_scratch_bytes = 0;
};

// Rows whose per-layer vectors are looked up at a time.
inline constexpr uint32_t kPerLayerTile = 64;

// The buffers; all 64-byte aligned, row-major.
class ModelWorkspace {
 public:
  // ResourceExhausted with the size when memory is short; InvalidArgument when the rope constants
  // of the file are out of range. `rope_factors` [rope_dims / 2] or empty.
  static absl::StatusOr<std::unique_ptr<ModelWorkspace>> Create(
      const ModelConfig& config, const WorkspaceSize& size, std::span<const float> rope_factors);

  float* x = nullptr;         // [max_rows, hidden]: the residual stream
  float* normed = nullptr;    // [max_rows, hidden]
  float* qkv = nullptr;       // [max_rows, widest projected_size]
  float* attended = nullptr;  // [max_rows, widest mixed_size]
  float* gate_up = nullptr;   // [max_rows, 2 * ffn]; null of feed-forward layers without a gate
  float* gated = nullptr;     // [max_rows, ffn]
  float* cos_sin = nullptr;   // [max_context, rope_table_dim / 2, 2]; null where no layer rotates
  // As cos_sin, of local layers that turn by a base of their own, by their own head_dim; else null.
  float* second_cos_sin = nullptr;
  // Buffers of per-layer vectors; null without ModelConfig::per_layer_size.
  float* per_layer = nullptr;        // [max_rows, layers, per_layer]
  float* per_layer_embd = nullptr;   // [kPerLayerTile, layers * per_layer]
  float* per_layer_pair = nullptr;   // [max_rows, 2 * per_layer]: gates, vectors
  float* per_layer_gated = nullptr;  // [max_rows, per_layer]
  // Buffers of latent attention; null otherwise.
  float* latents = nullptr;        // [max_rows, head_dim]: rows before they are stored
  float* latent_q = nullptr;       // [max_rows, latent_q_size]; null without q_rank
  float* absorbed = nullptr;       // [max_rows, heads, head_dim]: queries as they meet stored rows
  float* head_rows = nullptr;      // [max_rows, max(nope_dim, latent_dim)]: rows of one head
  float* mixed_latents = nullptr;  // [max_rows, heads, latent_dim]: what attention gives
  // Buffers of a mixture of experts; null otherwise. A pair is a row and one of its experts.
  float* router_logits = nullptr;     // [max_rows, experts]
  uint32_t* pair_experts = nullptr;   // [max_rows, experts used]
  float* pair_weights = nullptr;      // [max_rows, experts used]
  uint32_t* pair_slots = nullptr;     // [max_rows, experts used]: row of expert_out
  uint32_t* slot_rows = nullptr;      // [max_rows * experts used]: row of the batch, by expert
  uint32_t* expert_begins = nullptr;  // [experts + 1]: slots of each expert
  float* gathered = nullptr;          // [max_rows, hidden]: the rows of one expert
  float* expert_out = nullptr;        // [max_rows * experts used, hidden]
  float* shared_gates = nullptr;      // [max_rows]; null unless traits->gated_shared_expert
  std::span<std::byte> attention_scratch;
  std::vector<kernels::AttentionSpan> kept_spans;  // capacity max_rows
  // Spans of rows between two copies of states; capacity max_rows in models with fixed states.
  std::vector<kernels::AttentionSpan> cut_spans;

  // The quantised activations for a matmul of width `k`: one buffer, reused by every matmul.
  kernels::A16View A16(uint32_t k) {
    return {a16_q_, a16_scale_, a16_sum_, a16_half_sum_, a16_half_total_, k};
  }
  size_t bytes() const { return buffer_.size(); }

 private:
  ModelWorkspace() = default;

  device::AlignedBuffer buffer_;
  int16_t* a16_q_ = nullptr;    // [max_rows, widest input]
  float* a16_scale_ = nullptr;  // [max_rows, widest input / 32]
  float* a16_sum_ = nullptr;
  float* a16_half_sum_ = nullptr;  // [max_rows, widest input / 16]
  int32_t* a16_half_total_ = nullptr;
};

}  // namespace baton::model

#endif  // BATON_MODEL_MODEL_WORKSPACE_H_
