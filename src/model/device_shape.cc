#include "src/model/device_shape.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/kv_blocks.h"

namespace baton::model {

namespace cuda = kernels::cuda;

namespace {

// Whether the kernel of scores (kernels/cuda/experts_params.h) chooses the experts.
bool IsChosenByScores(const ModelConfig& config) {
  const ExpertRule& rule = config.expert_rule;
  return rule.score == ExpertScore::kSigmoid && rule.num_groups == 1 && config.shared_ffn_size == 0;
}

// Unimplemented where layers are of a kind that only the processor computes.
Status CheckLayerKinds(const ModelConfig& config, std::string_view device) {
  struct Row {
    bool has;
    std::string_view missing;
  };
  const ArchitectureTraits& traits = *config.traits;
  const std::array rows = {
      Row{traits.latent_kv, "kernel for its latent rows"},
      Row{traits.scored_experts && !IsChosenByScores(config), "kernel for its choice of experts"},
      Row{traits.mixed_layers || config.local_head_dim != 0,
          "kernels for layers of different heads, shared KV and per-layer vectors"},
      Row{traits.gated_shared_expert, "kernel for its gated shared expert"},
      Row{traits.mamba, "kernel for its layers of Mamba-2"},
  };
  for (const Row& row : rows) {
    if (!row.has) continue;
    return Unimplemented("architecture {}: device {} has no {}; use --device cpu",
                         config.architecture, device, row.missing);
  }
  return OkStatus();
}

// Unimplemented where layers that devices have are computed in another way.
Status CheckArithmetic(const ModelConfig& config, std::string_view device) {
  if (config.traits->sinks) {
    return Unimplemented(
        "architecture {}: the kernels of device {} have no attention sinks and no biases of "
        "experts; use --device cpu",
        config.traits->name, device);
  }
  if (!config.experts_sum_to_one) {
    return Unimplemented(
        "expert_weights_norm (norm_topk_prob) false: the kernels of device {} take true; use "
        "--device cpu",
        device);
  }
  if (config.traits->uniform_window && config.window > 0) {
    return Unimplemented(
        "attention.sliding_window (sliding_window) {} of every layer: the kernels of device {} "
        "take windows of some layers; use --device cpu",
        config.window, device);
  }
  if (config.traits->fused_projections) {
    return Unimplemented(
        "attn_qkv and ffn_up of a {} model hold several matrices, which device {} does not take "
        "apart; use --device cpu",
        config.architecture, device);
  }
  if (config.traits->whole_norms || !config.traits->pre_norms) {
    return Unimplemented(
        "norms of a {} model: the kernels of device {} norm what a branch reads, and each head of "
        "q and k by itself; use --device cpu",
        config.architecture, device);
  }
  if (config.temperature_beta != 0.0f) {
    return Unimplemented(
        "attention.temperature_scale (llama_4_scaling_beta) {}: the kernels of device {} take 0; "
        "use --device cpu",
        config.temperature_beta, device);
  }
  if (config.has_output_bias || config.has_ffn_bias) {
    return Unimplemented(
        "biases of {}: the kernels of device {} add those of q, k and v alone; use --device cpu",
        config.has_output_bias ? "attn_output (o_proj)" : "feed-forward layers (mlp_bias)", device);
  }
  if (config.logit_scale != 1.0f) {
    return Unimplemented(
        "logit_scale (logits_scaling) {}: the kernels of device {} take 1; use --device cpu",
        1.0f / config.logit_scale, device);
  }
  return OkStatus();
}

// Unimplemented where no kernel takes the heads of gated delta nets.
Status CheckNets(const ModelConfig& config, std::string_view device) {
  if (!config.traits->delta_nets) return OkStatus();
  const kernels::DeltaShape& shape = config.delta;
  constexpr auto& kDims = cuda::kDeltaKeyDims;
  const bool has_kernel =
      std::find(std::begin(kDims), std::end(kDims), shape.k_dim) != std::end(kDims);
  // A row of a head's matrix fits in the smallest slice: 16 tokens of one head of 64.
  constexpr uint32_t kMaxValueDim = 16 * 2 * 64 * 2 / sizeof(float);
  if (has_kernel && shape.v_dim <= kMaxValueDim) return OkStatus();
  return Unimplemented(
      "heads of {} x {} of gated delta nets: the kernels of device {} take 64 and 128, of up to {} "
      "values; use --device cpu",
      shape.k_dim, shape.v_dim, device, kMaxValueDim);
}

}  // namespace

uint32_t FirstProductSize(const ModelConfig& config, uint32_t layer) {
  if (config.IsDelta(layer)) return config.delta.num_channels();
  return config.IsConv(layer) ? config.projected_size(layer) : config.qkv_size();
}

uint32_t OutputGateSize(const ModelConfig& config, uint32_t layer) {
  const bool is_gated = config.IsDelta(layer) || config.traits->output_gate;
  return is_gated ? config.mixed_size(layer) : 0;
}

Status CheckDeviceShape(const ModelConfig& config, std::string_view device) {
  const auto refuse = [&](std::string_view what, uint32_t value, std::string_view range) {
    return Unimplemented("{} {}: the kernels of device {} take {}; use --device cpu", what, value,
                         device, range);
  };
  BATON_RETURN_IF_ERROR(CheckLayerKinds(config, device));
  BATON_RETURN_IF_ERROR(CheckArithmetic(config, device));
  BATON_RETURN_IF_ERROR(CheckNets(config, device));
  constexpr uint32_t kVec = 8;  // elements of 16 bytes
  if (config.hidden_size % kVec != 0 || config.hidden_size > cuda::kMaxNormDim) {
    return refuse("hidden size", config.hidden_size, "multiples of 8 up to 16384");
  }
  for (const uint32_t size : {config.ffn_size, config.dense_ffn_size}) {
    if (size % kVec != 0) return refuse("ffn size", size, "multiples of 8");
  }
  if (config.head_dim != 64 && config.head_dim != 128 && config.head_dim != 256) {
    return refuse("head size", config.head_dim, "64, 128 and 256");
  }
  const uint32_t group = config.num_heads / config.num_kv_heads;
  if (group > cuda::kMaxGroup) return refuse("heads of a KV head:", group, "at most 16");
  return OkStatus();
}

}  // namespace baton::model
