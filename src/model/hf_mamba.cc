#include "src/model/hf_mamba.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "src/model/hf_config.h"
#include "src/model/hf_delta.h"
#include "src/model/model_config.h"

namespace baton::model {

namespace {

using Json = nlohmann::json;

constexpr const char* kPattern = "hybrid_override_pattern";

// A layer as the pattern writes it: 'M' of Mamba-2, '*' of attention, '-' a feed-forward layer.
// `wanted` tells what an error asks for.
absl::Status CheckKinds(const JsonObject& config, const char* key, const std::string& kinds,
                        std::string_view wanted) {
  if (kinds.empty() || kinds.size() > kMaxLayers) {
    return config.Bad(key, fmt::format("[1, {}] layers", kMaxLayers));
  }
  if (kinds.find('E') != std::string::npos) {
    return config.Unsupported(
        key, fmt::format("{}: layers of experts (nemotron_h_moe) are not computed", wanted));
  }
  if (kinds.find_first_not_of("M*-") != std::string::npos) {
    return config.Bad(key, std::string(wanted));
  }
  return OkStatus();
}

// "layers_block_type", as a pattern; '?' for a name that is not known.
absl::StatusOr<std::string> KindsOfList(const JsonObject& config, const char* key,
                                        const Json& list) {
  struct Row {
    std::string_view name;
    char kind;
  };
  constexpr std::array kRows = {
      Row{"linear_attention", 'M'}, Row{"mamba", 'M'}, Row{"full_attention", '*'},
      Row{"attention", '*'},        Row{"mlp", '-'},   Row{"moe", 'E'}};
  if (!list.is_array()) return config.Bad(key, "a list of texts");
  std::string kinds;
  for (const Json& name : list) {
    const auto is_name = [&name](const Row& row) { return name == row.name; };
    const auto row = std::ranges::find_if(kRows, is_name);
    kinds += row == kRows.end() ? '?' : row->kind;
  }
  BATON_RETURN_IF_ERROR(
      CheckKinds(config, key, kinds, "linear_attention, full_attention or mlp each"));
  return kinds;
}

// The layers of all keys that name them, which agree.
absl::StatusOr<std::string> ReadKinds(const JsonObject& config) {
  std::string kinds;
  const char* from = kPattern;
  if (config.Has(kPattern)) {
    BATON_ASSIGN_OR_RETURN(kinds, config.String(kPattern));
    BATON_RETURN_IF_ERROR(CheckKinds(config, kPattern, kinds, "M, * and - alone"));
  }
  for (const char* key : {"layers_block_type", "layer_types"}) {
    const Json* list = config.Find(key);
    if (list == nullptr) continue;
    BATON_ASSIGN_OR_RETURN(const std::string listed, KindsOfList(config, key, *list));
    if (!kinds.empty() && listed != kinds) {
      return config.Bad(key, fmt::format("the layers of \"{}\"", from));
    }
    kinds = listed;
    from = key;
  }
  if (kinds.empty()) return config.Missing(kPattern);
  BATON_ASSIGN_OR_RETURN(const uint32_t stated,
                         config.UintOr("num_hidden_layers", static_cast<uint32_t>(kinds.size())));
  if (stated != kinds.size()) {
    return config.Bad("num_hidden_layers", fmt::format("the {} of \"{}\"", kinds.size(), from));
  }
  return kinds;
}

constexpr HfDeltaKeys kShapeKeys = {.num_taps = "conv_kernel",
                                    .k_dim = "ssm_state_size",
                                    .v_dim = "mamba_head_dim",
                                    .num_k_heads = "n_groups",
                                    .num_v_heads = "mamba_num_heads"};

// The step is not cut: [0, Infinity].
absl::Status CheckStepLimit(const JsonObject& config) {
  constexpr const char* kKey = "time_step_limit";
  const Json* limit = config.Find(kKey);
  if (limit == nullptr) return OkStatus();
  const bool is_open = limit->is_array() && limit->size() == 2 && (*limit)[0].is_number() &&
                       (*limit)[1].is_number() && (*limit)[0].get<double>() == 0.0 &&
                       std::isinf((*limit)[1].get<double>()) && (*limit)[1].get<double>() > 0.0;
  return is_open ? OkStatus() : config.Unsupported(kKey, "[0, Infinity]");
}

// Keys that may only have the value of the model that is computed.
absl::Status CheckFixed(const JsonObject& config) {
  for (const char* key : {"use_bias", "mamba_proj_bias"}) {
    BATON_ASSIGN_OR_RETURN(const bool has_bias, config.BoolOr(key, false));
    if (has_bias) return config.Unsupported(key, "false");
  }
  BATON_ASSIGN_OR_RETURN(const std::string activation, config.StringOr("mamba_hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") {
    return config.Unsupported("mamba_hidden_act", "silu");
  }
  if (config.Has("sliding_window")) return config.Unsupported("sliding_window", "null");
  BATON_ASSIGN_OR_RETURN(const double epsilon, config.Double("layer_norm_epsilon"));
  BATON_ASSIGN_OR_RETURN(const double other, config.DoubleOr("rms_norm_eps", epsilon));
  if (other != epsilon) {
    return config.Bad("rms_norm_eps", fmt::format("the {} of \"layer_norm_epsilon\"", epsilon));
  }
  return CheckStepLimit(config);
}

// Two keys have the elements of a head of attention; releases differ.
absl::StatusOr<uint32_t> ReadHeadDim(const JsonObject& config) {
  constexpr const char* kOldKey = "attention_head_dim";
  constexpr uint32_t kUsual = 128;
  BATON_ASSIGN_OR_RETURN(const uint32_t old_dim, config.UintOr(kOldKey, kUsual));
  BATON_ASSIGN_OR_RETURN(const uint32_t dim, config.UintOr("head_dim", old_dim));
  if (config.Has(kOldKey) && old_dim != dim) {
    return config.Bad(kOldKey, fmt::format("the {} of \"head_dim\"", dim));
  }
  if (IsHfHeadDim(dim)) return dim;
  return config.Bad(config.Has("head_dim") ? "head_dim" : kOldKey, HfHeadDimRange());
}

}  // namespace

absl::Status ReadHfMamba(const JsonObject& config, HfConfig& out) {
  BATON_RETURN_IF_ERROR(CheckFixed(config));
  BATON_ASSIGN_OR_RETURN(const std::string kinds, ReadKinds(config));
  BATON_RETURN_IF_ERROR(ReadHfDeltaShape(config, kShapeKeys, out.delta));
  BATON_ASSIGN_OR_RETURN(const uint32_t head_dim, ReadHeadDim(config));
  BATON_ASSIGN_OR_RETURN(const uint32_t ffn, config.Uint("intermediate_size"));
  if (ffn == 0 || ffn > kMaxFfnSize) {
    return config.Bad("intermediate_size", fmt::format("[1, {}]", kMaxFfnSize));
  }
  if (out.num_kv_heads > kMaxHeads) {
    return config.Bad("num_key_value_heads", fmt::format("[1, {}]", kMaxHeads));
  }
  std::vector<int32_t> ffn_sizes;
  std::vector<int32_t> kv_heads;
  for (const char kind : kinds) {
    ffn_sizes.push_back(kind == '-' ? static_cast<int32_t>(ffn) : 0);
    kv_heads.push_back(kind == '*' ? static_cast<int32_t>(out.num_kv_heads) : 0);
  }
  out.num_layers = static_cast<uint32_t>(kinds.size());
  BATON_ASSIGN_OR_RETURN(const bool has_bias, config.BoolOr("use_conv_bias", true));
  const auto num_mamba = static_cast<uint32_t>(std::ranges::count(kinds, 'M'));
  out.num_conv_biases = has_bias ? num_mamba : 0;
  const std::string arch(out.traits->name);
  out.keys.AddU32(arch + ".block_count", out.num_layers);
  out.keys.AddInts(arch + ".feed_forward_length", ffn_sizes);
  out.keys.AddInts(arch + ".attention.head_count_kv", kv_heads);
  out.keys.AddU32(arch + ".attention.key_length", head_dim);
  out.keys.AddU32(arch + ".attention.value_length", head_dim);
  out.keys.AddU32(arch + ".ssm.conv_kernel", out.delta.num_taps);
  out.keys.AddU32(arch + ".ssm.state_size", out.delta.k_dim);
  out.keys.AddU32(arch + ".ssm.group_count", out.delta.num_k_heads);
  out.keys.AddU32(arch + ".ssm.time_step_rank", out.delta.num_v_heads);
  out.keys.AddU32(arch + ".ssm.inner_size", out.delta.value_size());
  return OkStatus();
}

std::string NameOfBackbone(std::string_view name) {
  for (const std::string_view prefix : {"backbone.", "model."}) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = name.substr(prefix.size());
    if (rest == "embeddings.weight") return "model.embed_tokens.weight";
    if (rest == "norm_f.weight") return "model.norm.weight";
    return "model." + std::string(rest);
  }
  return std::string(name);
}

}  // namespace baton::model
