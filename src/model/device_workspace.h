// DeviceWorkspace: every device buffer that a forward pass writes besides KV, and the batch as
// kernels read it; taken once at load. Owned by the thread that calls Forward. Private to
// src/model.
#ifndef BATON_MODEL_DEVICE_WORKSPACE_H_
#define BATON_MODEL_DEVICE_WORKSPACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/attention_plan.h"
#include "src/base/status.h"
#include "src/device/accelerator.h"
#include "src/device/host_staging.h"
#include "src/model/model_batch.h"
#include "src/model/model_config.h"
#include "src/model/model_rope.h"

namespace baton {

// Ctas that decode attention is spread over: four of 128 threads on each of Hopper's 132 SMs.
inline constexpr uint32_t kDecodeCtas = 4 * 132;

// What sizes a workspace.
struct DeviceWorkspaceSize {
  uint32_t max_rows = 0;        // of a batch
  uint32_t max_logit_rows = 0;  // of a batch
  uint32_t max_context = 0;     // positions of a sequence
  uint32_t block_size = 0;      // tokens
  size_t unpacked_bytes = 0;    // of the largest packed matrix of a layer in bf16
};

// The buffers; row-major.
class DeviceWorkspace {
 public:
  // ResourceExhausted when the device's memory is short; InvalidArgument when the rope constants of
  // the file are out of range. `rope_factors` as FillRopeTable's.
  static absl::StatusOr<std::unique_ptr<DeviceWorkspace>> Create(
      const ModelConfig& config, const DeviceWorkspaceSize& size,
      std::span<const float> rope_factors, Accelerator* device);

  // Copies the batch, which was checked, to the device, and plans its attention.
  Status SetBatch(const ModelBatch& batch);
  // The next norm adds nothing.
  const DeviceBuffer& nothing() const { return zeros_; }

  // Activations in bf16.
  DeviceBuffer residual;       // [max_rows][hidden]
  DeviceBuffer added;          // [max_rows][hidden]: what the next norm adds to the residual
  DeviceBuffer normed;         // [max_rows][hidden]
  DeviceBuffer qkv;            // [max_rows][qkv_size]
  DeviceBuffer q;              // [max_rows][q_size]: rotated
  DeviceBuffer attended;       // [max_rows][q_size]
  DeviceBuffer gate_up;        // [max_rows][2 ffn]; of experts [max_rows top_k][2 ffn]
  DeviceBuffer gated;          // [max_rows][ffn]; of experts [max_rows top_k][ffn]
  DeviceBuffer logits;         // [max_logit_rows][vocab] fp32
  DeviceBuffer sampling;       // [max_logit_rows] RowSampling
  DeviceBuffer tokens;         // [max_logit_rows] uint32_t: chosen
  DeviceBuffer cos_sin;        // [max_context][head_dim / 2][2] fp32
  DeviceBuffer local_cos_sin;  // the same of local layers; empty without
  // Of products whose segments are spread, and of attention whose splits are.
  DeviceBuffer gemm_partials;
  DeviceBuffer gemm_counters;
  // A packed matrix in bf16 for products of many rows; empty where none needs it.
  DeviceBuffer unpacked;
  DeviceBuffer attention_partials;
  DeviceBuffer attention_arrivals;

  // Of a mixture of experts (kernels/cuda/experts_params.h); empty without.
  struct Experts {
    DeviceBuffer logits;     // [max_rows][experts] fp32
    DeviceBuffer pairs;      // [max_rows][top_k]: the expert
    DeviceBuffer weights;    // [max_rows][top_k] fp32
    DeviceBuffer slots;      // [max_rows][top_k]
    DeviceBuffer slot_rows;  // [max_rows top_k]
    DeviceBuffer begins;     // [experts]
    DeviceBuffer tiles;      // [MaxExpertTiles]
    DeviceBuffer num_tiles;  // uint32_t
    DeviceBuffer arrivals;   // uint32_t, zero between launches
    DeviceBuffer outputs;    // [max_rows top_k][hidden]
  };
  Experts experts;

  std::unique_ptr<HostStaging> answers;  // chosen tokens and logits on their way to the host

  // The batch; uint32_t.
  DeviceBuffer token_ids;    // [max_rows]
  DeviceBuffer positions;    // [max_rows]
  DeviceBuffer sequences;    // [max_rows]
  DeviceBuffer logit_rows;   // [max_logit_rows]
  DeviceBuffer block_lists;  // [spans of the batch][max_blocks]
  uint32_t num_rows = 0;
  uint32_t num_logit_rows = 0;
  uint32_t max_blocks = 0;  // of a sequence of this batch

  // Attention's items on the device, and how many.
  struct Items {
    DeviceBuffer items;      // [bound of attention_plan.h]
    DeviceBuffer num_items;  // uint32_t
    uint32_t count = 0;
  };
  Items prefill;       // of every layer
  Items decode;        // of layers that see everything
  Items local_decode;  // of local layers: no split that lies wholly before the window

 private:
  DeviceWorkspace(const ModelConfig& config, const DeviceWorkspaceSize& size, Accelerator* device);
  Status Allocate(const ModelConfig& config);
  Status AllocateExperts(const ModelConfig& config);
  Status FillTables(const ModelConfig& config, std::span<const float> rope_factors);
  Status FillRope(const ModelConfig& config, const RopeTableKind& kind, const DeviceBuffer& to);
  Status CopyHost(const DeviceBuffer& to);
  Status CopyItems(const std::vector<cuda::AttentionItem>& from, Items* to);
  Status PlanAttention(const ModelBatch& batch);

  const DeviceWorkspaceSize size_;
  const cuda::AttentionShape shape_;
  const cuda::AttentionShape local_shape_;
  const bool has_local_layers_;
  Accelerator* const device_;
  DeviceBuffer zeros_;                     // [max_rows][hidden] bf16
  std::vector<uint32_t> host_;             // what is being copied; reserved
  std::vector<cuda::AttentionRows> rows_;  // reserved
  cuda::AttentionPlan plan_;               // reserved
};

}  // namespace baton

#endif  // BATON_MODEL_DEVICE_WORKSPACE_H_
