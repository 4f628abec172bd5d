// DeviceWorkspace: every device buffer that a forward pass writes besides KV, and the batch that it
// reads; taken once at load. Owned by the thread that calls Forward. Private to src/model.
#ifndef BATON_MODEL_DEVICE_WORKSPACE_H_
#define BATON_MODEL_DEVICE_WORKSPACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/base/status.h"
#include "src/device/accelerator.h"
#include "src/device/device_stream.h"
#include "src/device/host_buffer.h"
#include "src/device/host_staging.h"
#include "src/model/device_batch.h"
#include "src/model/model_config.h"
#include "src/model/model_rank.h"
#include "src/model/model_rope.h"

namespace baton::model {

// The numbers that set the size of a workspace.
struct DeviceWorkspaceSize {
  DeviceBatchSize batch;
  size_t unpacked_bytes = 0;  // of the largest packed matrix of a layer in bf16
  ModelRank rank;
  uint64_t logit_columns = 0;  // of the rank
};

// The buffers; row-major.
class DeviceWorkspace {
 public:
  // ResourceExhausted when the device's memory is short; InvalidArgument when the rope constants of
  // the file are out of range. `rope_factors` as FillRopeTable's.
  static absl::StatusOr<std::unique_ptr<DeviceWorkspace>> Create(
      const ModelConfig& config, const DeviceWorkspaceSize& size,
      std::span<const float> rope_factors, device::Accelerator* device);

  // Zeros: with this buffer the next norm adds nothing.
  const device::DeviceBuffer& nothing() const { return zeros_; }

  std::unique_ptr<DeviceBatch> batch;

  // Activations in bf16.
  device::DeviceBuffer residual;  // [max_rows][hidden]
  device::DeviceBuffer added;     // [max_rows][hidden]: what the next norm adds to the residual
  device::DeviceBuffer normed;    // [max_rows][hidden]
  device::DeviceBuffer squares;   // [kMaxNormedRows][hidden / 8] fp32: of the residual
  device::DeviceBuffer qkv;       // [max_rows][FirstProductSize], of the widest layer
  device::DeviceBuffer q;         // [max_rows][q_size]: rotated
  device::DeviceBuffer attended;  // [max_rows][mixed_size], of the widest layer
  device::DeviceBuffer gate_up;   // [max_rows][2 ffn]; of experts [max_rows top_k][2 ffn]
  device::DeviceBuffer gated;     // [max_rows][ffn]; of experts [max_rows top_k][ffn]
  device::DeviceBuffer logits;    // [max_logit_rows][vocab] fp32; of rank 0
  device::DeviceBuffer tokens;    // [max_logit_rows] uint32_t: chosen
  device::DeviceBuffer cos_sin;   // [max_context][head_dim / 2][2] fp32
  device::DeviceBuffer second_cos_sin;  // of layers with HasSecondRope; empty without
  // Buffers of one of several ranks; empty when the rank is alone.
  device::DeviceBuffer
      partial_sums[2];  // [max_rows][hidden] fp32, in turn: of attention, feed-forward
  device::DeviceBuffer logit_columns;  // [max_logit_rows][columns of the rank] fp32
  device::DeviceBuffer flags;          // ExchangeFlags
  // Gates of what attention or a net gives, and what a net needs; empty for other models.
  device::DeviceBuffer output_gate;   // [max_rows][OutputGateSize], of the widest layer
  device::DeviceBuffer delta_gates;   // [max_rows][2][v heads] fp32
  device::DeviceBuffer delta_inputs;  // [max_rows][channels] fp32
  // Partial sums and counters of products whose segments are spread, and partial results of
  // attention whose splits are spread.
  device::DeviceBuffer gemm_partials;
  device::DeviceBuffer gemm_counters;
  device::DeviceBuffer rope_arrivals;  // of products that end with the append of K and V
  // A packed matrix in bf16 for products of many rows; empty where none needs it.
  device::DeviceBuffer unpacked;
  device::DeviceBuffer attention_partials;
  device::DeviceBuffer attention_arrivals;

  // Buffers of a mixture of experts (kernels/cuda/experts_params.h); empty for other models.
  struct Experts {
    device::DeviceBuffer logits;     // [max_rows][experts] fp32
    device::DeviceBuffer pairs;      // [max_rows][top_k]: the expert
    device::DeviceBuffer weights;    // [max_rows][top_k] fp32
    device::DeviceBuffer slots;      // [max_rows][top_k]
    device::DeviceBuffer slot_rows;  // [max_rows top_k]
    device::DeviceBuffer begins;     // [experts]
    device::DeviceBuffer tiles;      // [MaxExpertTiles]
    device::DeviceBuffer num_tiles;  // uint32_t
    device::DeviceBuffer arrivals;   // uint32_t, zero between launches
    device::DeviceBuffer outputs;    // [max_rows top_k][hidden]
  };
  Experts experts;

  std::unique_ptr<device::HostStaging>
      answers;  // chosen tokens and logits on their way to the host

  // The tokens of a step that was begun, on their way to the host, and when they are there.
  struct SentTokens {
    device::HostBuffer tokens;  // [max_logit_rows] uint32_t
    device::DeviceEvent arrived;
  };
  SentTokens sent[2];  // of steps in turn; of rank 0

 private:
  DeviceWorkspace(const DeviceWorkspaceSize& size, device::Accelerator* device)
      : size_(size), device_(device) {}
  Status Allocate(const ModelConfig& config);
  Status AllocateExperts(const ModelConfig& config);
  Status FillTables(const ModelConfig& config, std::span<const float> rope_factors);
  Status FillRope(const ModelConfig& config, const RopeTableKind& kind,
                  const device::DeviceBuffer& to);

  const DeviceWorkspaceSize size_;
  device::Accelerator* const device_;
  device::DeviceBuffer zeros_;  // [max_rows][hidden] bf16
};

}  // namespace baton::model

#endif  // BATON_MODEL_DEVICE_WORKSPACE_H_
