#include "src/model/hf_deepseek.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string>

#include "src/model/model_config.h"

namespace baton::model {
namespace {

// A key of config.json and its range; even sizes are pairs or bytes of a block.
struct SizeRow {
  const char* key;
  uint32_t min;
  uint32_t max;
  bool even;
};

absl::StatusOr<uint32_t> ReadSize(const JsonObject& config, const SizeRow& row) {
  BATON_ASSIGN_OR_RETURN(const uint32_t value, config.Uint(row.key));
  if (value >= row.min && value <= row.max && !(row.even && value % 2 != 0)) return value;
  return config.Bad(row.key, fmt::format("{} in [{}, {}]", row.even ? "an even number" : "a number",
                                         row.min, row.max));
}

// A key that repeats what follows from others.
absl::Status CheckRepeated(const JsonObject& config, const char* key, uint32_t wanted,
                           std::string_view of) {
  BATON_ASSIGN_OR_RETURN(const uint32_t value, config.UintOr(key, wanted));
  return value == wanted ? OkStatus() : config.Bad(key, fmt::format("the {} of {}", wanted, of));
}

// Keys that may only have the value that is computed.
absl::Status CheckFixed(const JsonObject& config, bool is_v3) {
  BATON_RETURN_IF_ERROR(config.CheckText("scoring_func", is_v3 ? "sigmoid" : "softmax"));
  BATON_ASSIGN_OR_RETURN(const uint32_t frequency, config.UintOr("moe_layer_freq", 1));
  if (frequency != 1) return config.Unsupported("moe_layer_freq", "1");
  BATON_ASSIGN_OR_RETURN(const bool interleaved, config.BoolOr("rope_interleave", true));
  if (!interleaved) return config.Unsupported("rope_interleave", "true");
  // transformers does not read it of a deepseek_v2, the model's authors do.
  BATON_ASSIGN_OR_RETURN(const bool normed, config.BoolOr("norm_topk_prob", is_v3));
  return normed && !is_v3 ? config.Unsupported("norm_topk_prob", "false") : OkStatus();
}

// Groups of V2 count only with its method of that name.
absl::Status ReadGroups(const JsonObject& config, bool is_v3, uint32_t experts, HfConfig& out) {
  constexpr const char* kMethod = "topk_method";
  const std::string_view usual = is_v3 ? "noaux_tc" : "greedy";
  BATON_ASSIGN_OR_RETURN(const std::string method, config.StringOr(kMethod, usual));
  const bool is_limited = is_v3 || method == "group_limited_greedy";
  if (method != usual && !(is_limited && !is_v3)) {
    return config.Unsupported(kMethod, is_v3 ? usual : "greedy or group_limited_greedy");
  }
  if (!is_limited) return OkStatus();
  BATON_ASSIGN_OR_RETURN(const uint32_t groups,
                         ReadSize(config, {"n_group", 1, kMaxExpertGroups, false}));
  if (experts % groups != 0) {
    return config.Bad("n_group", fmt::format("a divisor of the {} experts", experts));
  }
  BATON_ASSIGN_OR_RETURN(const uint32_t used, ReadSize(config, {"topk_group", 1, groups, false}));
  const std::string arch(out.traits->name);
  out.keys.AddU32(arch + ".expert_group_count", groups);
  out.keys.AddU32(arch + ".expert_group_used_count", used);
  return OkStatus();
}

}  // namespace

absl::StatusOr<uint32_t> ReadHfLatentHeads(const JsonObject& config, HfConfig& out) {
  const std::string arch(out.traits->name);
  HfLatentShape& shape = out.latent;
  shape.heads = out.num_heads;
  if (out.num_kv_heads != out.num_heads) {
    return config.Bad("num_key_value_heads", fmt::format("null or the {} heads", out.num_heads));
  }
  constexpr SizeRow kLatent = {"kv_lora_rank", kMinHeadDim, kMaxLatentDim, true};
  constexpr SizeRow kRope = {"qk_rope_head_dim", 2, kMaxHeadDim, true};
  constexpr SizeRow kNope = {"qk_nope_head_dim", 1, kMaxLatentHeadDim - kMaxHeadDim, false};
  constexpr SizeRow kValue = {"v_head_dim", kMinHeadDim, kMaxLatentHeadDim, false};
  BATON_ASSIGN_OR_RETURN(shape.latent, ReadSize(config, kLatent));
  BATON_ASSIGN_OR_RETURN(const uint32_t rope, ReadSize(config, kRope));
  BATON_ASSIGN_OR_RETURN(shape.nope, ReadSize(config, kNope));
  BATON_ASSIGN_OR_RETURN(shape.value, ReadSize(config, kValue));
  BATON_RETURN_IF_ERROR(CheckRepeated(config, "head_dim", rope, "qk_rope_head_dim"));
  BATON_RETURN_IF_ERROR(CheckRepeated(config, "qk_head_dim", shape.nope + rope,
                                      "qk_nope_head_dim and qk_rope_head_dim"));
  if (config.Has("q_lora_rank")) {
    BATON_ASSIGN_OR_RETURN(const uint32_t rank,
                           ReadSize(config, {"q_lora_rank", 1, kMaxHiddenSize, false}));
    out.keys.AddU32(arch + ".attention.q_lora_rank", rank);
  }
  out.keys.AddU32(arch + ".attention.head_count_kv", 1);
  out.keys.AddU32(arch + ".attention.kv_lora_rank", shape.latent);
  out.keys.AddU32(arch + ".attention.key_length", shape.latent + rope);
  out.keys.AddU32(arch + ".attention.value_length", shape.latent);
  out.keys.AddU32(arch + ".attention.key_length_mla", shape.nope + rope);
  out.keys.AddU32(arch + ".attention.value_length_mla", shape.value);
  out.keys.AddU32(arch + ".rope.dimension_count", rope);
  return rope;
}

absl::Status ReadHfSharedExperts(const JsonObject& config, std::string_view model_type,
                                 HfConfig& out) {
  const bool is_v3 = model_type == "deepseek_v3";
  const std::string arch(out.traits->name);
  BATON_RETURN_IF_ERROR(CheckFixed(config, is_v3));
  BATON_ASSIGN_OR_RETURN(out.num_experts,
                         ReadSize(config, {"n_routed_experts", 1, kMaxExperts, false}));
  for (const char* key : {"num_experts", "num_local_experts"}) {
    BATON_RETURN_IF_ERROR(CheckRepeated(config, key, out.num_experts, "n_routed_experts"));
  }
  const uint32_t most = std::min(out.num_experts, kMaxExpertsUsed);
  BATON_ASSIGN_OR_RETURN(const uint32_t used,
                         ReadSize(config, {"num_experts_per_tok", 1, most, false}));
  BATON_ASSIGN_OR_RETURN(const uint32_t ffn,
                         ReadSize(config, {"moe_intermediate_size", 1, kMaxFfnSize, false}));
  BATON_ASSIGN_OR_RETURN(const uint32_t shared,
                         ReadSize(config, {"n_shared_experts", 1, kMaxFfnSize / ffn, false}));
  BATON_ASSIGN_OR_RETURN(const uint32_t layers, config.Uint("num_hidden_layers"));
  BATON_ASSIGN_OR_RETURN(const uint32_t dense, config.UintOr("first_k_dense_replace", 0));
  BATON_ASSIGN_OR_RETURN(const double scale, config.DoubleOr("routed_scaling_factor", 1.0));
  if (!(scale >= kMinMultiplier && scale <= kMaxMultiplier)) {
    return config.Bad("routed_scaling_factor",
                      fmt::format("[{}, {}]", kMinMultiplier, kMaxMultiplier));
  }
  out.keys.AddU32(arch + ".expert_count", out.num_experts);
  out.keys.AddU32(arch + ".expert_used_count", used);
  out.keys.AddU32(arch + ".expert_feed_forward_length", ffn);
  out.keys.AddU32(arch + ".expert_shared_count", shared);
  out.keys.AddU32(arch + ".leading_dense_block_count", std::min(dense, layers));
  out.keys.AddF32(arch + ".expert_weights_scale", static_cast<float>(scale));
  out.keys.AddU32(arch + ".expert_gating_func", is_v3 ? 2 : 1);
  BATON_ASSIGN_OR_RETURN(const bool normed, config.BoolOr("norm_topk_prob", is_v3));
  if (normed) out.keys.AddBool(arch + ".expert_weights_norm", true);
  const char* ahead = config.Has("num_mtp_layers") ? "num_mtp_layers" : "num_nextn_predict_layers";
  BATON_ASSIGN_OR_RETURN(const uint32_t num_ahead, config.UintOr(ahead, 0));
  if (num_ahead > kMaxLayers) return config.Bad(ahead, fmt::format("[0, {}]", kMaxLayers));
  out.prediction_layers = {layers, layers + num_ahead};
  return ReadGroups(config, is_v3, out.num_experts, out);
}

std::string_view LatentPartOfHf(std::string_view part) {
  struct PartName {
    std::string_view hf;
    std::string_view gguf;
  };
  constexpr std::array kNames = {
      PartName{"self_attn.q_a_proj", "attn_q_a"},
      PartName{"self_attn.q_a_layernorm", "attn_q_a_norm"},
      PartName{"self_attn.q_b_proj", "attn_q_b"},
      PartName{"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
      PartName{"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
      PartName{"self_attn.kv_b_proj", "attn_k_b"},
      PartName{"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
      PartName{"mlp.shared_experts.up_proj", "ffn_up_shexp"},
      PartName{"mlp.shared_experts.down_proj", "ffn_down_shexp"},
  };
  for (const PartName& row : kNames) {
    if (row.hf == part) return row.gguf;
  }
  return "";
}

bool IsPredictionTensor(std::string_view name, const HfLayerRange& layers) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  uint32_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  return error == std::errc() && layer >= layers.begin && layer < layers.end;
}

void SplitKvB(const HfLatentShape& shape, size_t element_bytes, std::span<const std::byte> kv_b,
              std::byte* k_b, std::byte* v_b) {
  const size_t row_bytes = shape.latent * element_bytes;
  const size_t value_bytes = shape.value * row_bytes;
  const std::byte* from = kv_b.data();
  for (uint32_t head = 0; head < shape.heads; ++head) {
    for (uint32_t i = 0; i < shape.latent; ++i) {
      for (uint32_t row = 0; row < shape.nope; ++row, k_b += element_bytes) {
        std::memcpy(k_b, from + row * row_bytes + i * element_bytes, element_bytes);
      }
    }
    from += shape.nope * row_bytes;
    std::memcpy(v_b, from, value_bytes);
    from += value_bytes;
    v_b += value_bytes;
  }
}

}  // namespace baton::model
