#include "src/model/hf_mixed_layers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"
#include "src/model/hf_keys.h"
#include "src/model/mixed_layers.h"
#include "src/model/model_config.h"

namespace baton::model {
namespace {

using Json = nlohmann::json;

// The divisor of a pair that does not turn, as in GGUF files.
constexpr float kUnrotated = 1e30f;

// Heads of one layer.
struct Heads {
  uint32_t dim = 0;
  uint32_t num_kv = 0;
};

// The layers of a config.
struct Layers {
  std::vector<bool> is_local;
  std::vector<Heads> heads;  // of each layer

  uint32_t count() const { return static_cast<uint32_t>(is_local.size()); }
  // The heads of the first layer of a kind; those of layer 0 where there is none.
  Heads Of(bool local) const {
    const auto first = std::find(is_local.begin(), is_local.end(), local);
    return first == is_local.end() ? heads[0]
                                   : heads[static_cast<size_t>(first - is_local.begin())];
  }
};

// Keys that other models have and this class of transformers does not read, or reads otherwise.
absl::Status CheckAbsent(const JsonObject& config) {
  for (const char* key :
       {"query_pre_attn_scalar", "rope_local_base_freq", "sliding_window_pattern",
        "_sliding_window_pattern", "rope_scaling", "rope_theta", "use_sliding_window",
        "max_window_layers", "original_max_position_embeddings"}) {
    if (config.Has(key)) return config.Unsupported(key, "null");
  }
  BATON_ASSIGN_OR_RETURN(const bool has_experts, config.BoolOr("enable_moe_block", false));
  if (has_experts) return config.Unsupported("enable_moe_block", "false");
  BATON_ASSIGN_OR_RETURN(const std::string both,
                         config.StringOr("use_bidirectional_attention", "vision"));
  // Text is causal in both.
  return both == "vision" ? OkStatus()
                          : config.Unsupported("use_bidirectional_attention", "null or vision");
}

absl::StatusOr<std::vector<bool>> ReadLocal(const JsonObject& config) {
  constexpr uint32_t kStep = 6;  // without the key
  BATON_ASSIGN_OR_RETURN(const uint32_t layers, config.Uint("num_hidden_layers"));
  if (layers == 0 || layers > kMaxLayers) {
    return config.Bad("num_hidden_layers", fmt::format("[1, {}]", kMaxLayers));
  }
  std::vector<bool> local(layers);
  for (uint32_t i = 0; i < layers; ++i) local[i] = (i + 1) % kStep != 0 && i + 1 < layers;
  const Json* types = config.Find("layer_types");
  if (types == nullptr) return local;
  if (!types->is_array() || types->size() != layers) {
    return config.Bad("layer_types", fmt::format("a list of {} texts", layers));
  }
  for (uint32_t i = 0; i < layers; ++i) {
    const Json& type = (*types)[i];
    if (type != "sliding_attention" && type != "full_attention") {
      return config.Bad("layer_types", "sliding_attention or full_attention each");
    }
    local[i] = type == "sliding_attention";
  }
  return local.back() ? config.Unsupported("layer_types", "one whose last is full_attention")
                      : absl::StatusOr<std::vector<bool>>(local);
}

// "per_layer_config": by the number of a layer, what its config has otherwise.
absl::Status ReadOverrides(const JsonObject& config, const Json& overrides, Layers& layers) {
  constexpr const char* kKey = "per_layer_config";
  if (!overrides.is_object()) return config.Bad(kKey, "an object or null");
  for (const auto& [number, values] : overrides.items()) {
    const std::string where = fmt::format("{}: {}.{}", config.where(), kKey, number);
    uint32_t layer = 0;
    const char* end = number.data() + number.size();
    const auto [parsed, error] = std::from_chars(number.data(), end, layer);
    if (error != std::errc() || parsed != end || layer >= layers.count() || !values.is_object()) {
      return config.Bad(kKey, fmt::format("objects under numbers in [0, {})", layers.count()));
    }
    const JsonObject object(values, where);
    for (const auto& [key, value] : values.items()) {
      if (key == "head_dim" || key == "num_key_value_heads" || value.is_null()) continue;
      return object.Unsupported(key, "null");
    }
    Heads& heads = layers.heads[layer];
    BATON_ASSIGN_OR_RETURN(heads.dim, object.UintOr("head_dim", heads.dim));
    BATON_ASSIGN_OR_RETURN(heads.num_kv, object.UintOr("num_key_value_heads", heads.num_kv));
  }
  return OkStatus();
}

absl::Status CheckHeads(const JsonObject& config, const Layers& layers) {
  for (uint32_t i = 0; i < layers.count(); ++i) {
    const Heads& heads = layers.heads[i];
    const Heads first = layers.Of(layers.is_local[i]);
    if (!IsHfHeadDim(heads.dim)) {
      const char* global = config.Has("per_layer_config") ? "per_layer_config" : "global_head_dim";
      return config.Bad(layers.is_local[i] ? "head_dim" : global,
                        fmt::format("{}; it is {} in layer {}", HfHeadDimRange(), heads.dim, i));
    }
    if (heads.num_kv == 0) return config.Bad("num_key_value_heads", "at least 1");
    if (heads.dim == first.dim && heads.num_kv == first.num_kv) continue;
    return config.Unsupported("per_layer_config",
                              "equal heads in all layers of one kind of layer_types");
  }
  return OkStatus();
}

// Files have the heads of global layers in one of two forms. Where both are there they must agree.
absl::StatusOr<Layers> ReadLayers(const JsonObject& config, const HfConfig& out) {
  constexpr uint32_t kGlobalHeadDim = 512;  // of the configuration class
  Layers layers;
  BATON_ASSIGN_OR_RETURN(layers.is_local, ReadLocal(config));
  BATON_ASSIGN_OR_RETURN(const uint32_t dim, config.Uint("head_dim"));
  layers.heads.assign(layers.count(), {dim, out.num_kv_heads});
  BATON_ASSIGN_OR_RETURN(const uint32_t global_dim,
                         config.UintOr("global_head_dim", kGlobalHeadDim));
  BATON_ASSIGN_OR_RETURN(const bool key_is_value, config.BoolOr("attention_k_eq_v", false));
  BATON_ASSIGN_OR_RETURN(uint32_t global_kv,
                         config.UintOr("num_global_key_value_heads", out.num_kv_heads));
  if (!key_is_value) global_kv = out.num_kv_heads;
  const Json* overrides = config.Find("per_layer_config");
  if (overrides != nullptr) {
    BATON_RETURN_IF_ERROR(ReadOverrides(config, *overrides, layers));
    const Heads global = layers.Of(false);
    if (config.Has("global_head_dim") && global.dim != global_dim) {
      return config.Bad("global_head_dim", fmt::format("the {} of per_layer_config", global.dim));
    }
    if (config.Has("num_global_key_value_heads") && global.num_kv != global_kv) {
      return config.Bad("num_global_key_value_heads",
                        fmt::format("the {} of per_layer_config", global.num_kv));
    }
  } else {
    for (uint32_t i = 0; i < layers.count(); ++i) {
      if (!layers.is_local[i]) layers.heads[i] = {global_dim, global_kv};
    }
  }
  BATON_RETURN_IF_ERROR(CheckHeads(config, layers));
  return layers;
}

void AddLayers(const Layers& layers, HfConfig& out) {
  const std::string arch(out.traits->name);
  const Heads global = layers.Of(false);
  const Heads local = layers.Of(true);
  out.keys.AddU32(arch + ".attention.key_length", global.dim);
  out.keys.AddU32(arch + ".attention.value_length", global.dim);
  out.keys.AddU32(arch + ".attention.key_length_swa", local.dim);
  out.keys.AddU32(arch + ".attention.value_length_swa", local.dim);
  out.keys.AddBools(arch + ".attention.sliding_window_pattern", layers.is_local);
  std::vector<int32_t> kv_heads;
  for (const Heads& heads : layers.heads) kv_heads.push_back(static_cast<int32_t>(heads.num_kv));
  out.keys.AddInts(arch + ".attention.head_count_kv", kv_heads);
}

// Layers that share KV are the last ones; their feed-forward layers may be twice as wide.
absl::Status ReadShared(const JsonObject& config, const Layers& layers, HfConfig& out) {
  constexpr const char* kShared = "num_kv_shared_layers";
  const std::string arch(out.traits->name);
  BATON_ASSIGN_OR_RETURN(const uint32_t shared, config.UintOr(kShared, 0));
  if (shared >= layers.count()) {
    return config.Bad(kShared, fmt::format("[0, {}]", layers.count() - 1));
  }
  const uint32_t first = layers.count() - shared;
  const auto own_end = layers.is_local.begin() + first;
  for (uint32_t i = first; i < layers.count(); ++i) {
    if (std::find(layers.is_local.begin(), own_end, layers.is_local[i]) != own_end) continue;
    return config.Bad(kShared,
                      fmt::format("one that leaves a {} layer to share",
                                  layers.is_local[i] ? "sliding_attention" : "full_attention"));
  }
  BATON_ASSIGN_OR_RETURN(const uint32_t ffn, config.Uint("intermediate_size"));
  BATON_ASSIGN_OR_RETURN(const bool wide, config.BoolOr("use_double_wide_mlp", false));
  if (ffn == 0 || ffn > kMaxFfnSize / 2) {
    return config.Bad("intermediate_size", fmt::format("[1, {}]", kMaxFfnSize / 2));
  }
  std::vector<int32_t> sizes(layers.count(), static_cast<int32_t>(ffn));
  if (wide) std::fill(sizes.begin() + first, sizes.end(), static_cast<int32_t>(2 * ffn));
  out.keys.AddInts(arch + ".feed_forward_length", sizes);
  out.keys.AddU32(arch + ".attention.shared_kv_layers", shared);
  return OkStatus();
}

absl::Status ReadPerLayer(const JsonObject& config, HfConfig& out) {
  BATON_ASSIGN_OR_RETURN(const uint32_t size, config.UintOr("hidden_size_per_layer_input", 0));
  out.keys.AddU32(fmt::format("{}.embedding_length_per_layer_input", out.traits->name), size);
  if (size == 0) return OkStatus();
  constexpr const char* kVocab = "vocab_size_per_layer_input";
  BATON_ASSIGN_OR_RETURN(const uint32_t tokens, config.Uint("vocab_size"));
  BATON_ASSIGN_OR_RETURN(const uint32_t rows, config.Uint(kVocab));
  return rows == tokens ? OkStatus()
                        : config.Unsupported(kVocab, fmt::format("the vocab_size {}", tokens));
}

// One of the kinds of rope_parameters.
struct RopeKind {
  std::string type;
  double base = 0;
  double partial = 1;
  double factor = 1;
};

absl::StatusOr<RopeKind> ReadKind(const JsonObject& kind, const ArchitectureTraits& traits) {
  BATON_RETURN_IF_ERROR(CheckHfKeys(kind, HfObject::kRope, traits));
  RopeKind out;
  BATON_ASSIGN_OR_RETURN(out.type, kind.StringOr("rope_type", "default"));
  BATON_ASSIGN_OR_RETURN(out.base, kind.Double("rope_theta"));
  BATON_ASSIGN_OR_RETURN(out.partial, kind.DoubleOr("partial_rotary_factor", 1.0));
  BATON_ASSIGN_OR_RETURN(out.factor, kind.DoubleOr("factor", 1.0));
  for (const std::string_view key : HfRopeKeys()) {
    const bool is_read = key == "rope_theta" || key == "rope_type" || key == "factor" ||
                         key == "partial_rotary_factor";
    if (!is_read && kind.Has(key)) return kind.Unsupported(key, "null");
  }
  if (!(out.base >= 1.0 && out.base <= 1e12)) return kind.Bad("rope_theta", "[1, 1e12]");
  if (!(out.factor >= 1.0 && out.factor <= 1e6)) return kind.Bad("factor", "[1, 1e6]");
  return out;
}

// Proportional rotation: the first part of the pairs turn as those of the whole head would; the
// others do not.
absl::Status AddProportional(const JsonObject& kind, const RopeKind& rope, uint32_t dim,
                             HfConfig& out) {
  const double turning = std::floor(rope.partial * dim / 2);
  if (!(rope.partial > 0.0 && rope.partial <= 1.0 && turning >= 1)) {
    return kind.Bad(
        "partial_rotary_factor",
        fmt::format("in (0, 1] and leave one pair or more of the {} elements of a head", dim));
  }
  out.rope_factors.assign(dim / 2, kUnrotated);
  std::fill_n(out.rope_factors.begin(), static_cast<size_t>(turning),
              static_cast<float>(rope.factor));
  return OkStatus();
}

absl::Status CheckDefault(const JsonObject& kind, const RopeKind& rope, std::string_view types) {
  if (rope.type != "default") {
    return FolderError(FolderErrorCode::kUnknownRopeType,
                       fmt::format("{}: rope type {} is not supported ({})", kind.where(),
                                   QuotedForMessage(rope.type), types));
  }
  if (rope.partial != 1.0) return kind.Unsupported("partial_rotary_factor", "1");
  return rope.factor == 1.0 ? OkStatus() : kind.Unsupported("factor", "1");
}

absl::Status ReadRope(const JsonObject& config, uint32_t global_dim, HfConfig& out) {
  constexpr const char* kKey = "rope_parameters";
  static const Json kDefault = Json::parse(R"({
      "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                         "rope_theta": 1e6},
      "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})");
  const Json* found = config.Find(kKey);
  const Json& kinds = found == nullptr ? kDefault : *found;
  if (!kinds.is_object()) return config.Bad(kKey, "an object or null");
  const std::string where = fmt::format("{}: {}", config.where(), kKey);
  const JsonObject object(kinds, where);
  for (const auto& [key, value] : kinds.items()) {
    if (key == "full_attention" || key == "sliding_attention" || value.is_null()) continue;
    return object.Unsupported(key, "null beside full_attention and sliding_attention");
  }
  for (const char* key : {"full_attention", "sliding_attention"}) {
    const Json* kind = object.Find(key);
    if (kind == nullptr) return object.Missing(key);
    if (!kind->is_object()) return object.Bad(key, "an object");
  }
  const JsonObject full(*object.Find("full_attention"), where + ".full_attention");
  BATON_ASSIGN_OR_RETURN(const RopeKind global, ReadKind(full, *out.traits));
  const JsonObject sliding(*object.Find("sliding_attention"), where + ".sliding_attention");
  BATON_ASSIGN_OR_RETURN(const RopeKind local, ReadKind(sliding, *out.traits));
  BATON_RETURN_IF_ERROR(CheckDefault(sliding, local, "default is"));
  BATON_RETURN_IF_ERROR(global.type == "proportional"
                            ? AddProportional(full, global, global_dim, out)
                            : CheckDefault(full, global, "default and proportional are"));
  const std::string arch(out.traits->name);
  out.keys.AddF32(arch + ".rope.freq_base", static_cast<float>(global.base));
  out.keys.AddF32(arch + ".rope.freq_base_swa", static_cast<float>(local.base));
  return OkStatus();
}

}  // namespace

absl::Status ReadHfMixedLayers(const JsonObject& config, HfConfig& out) {
  const std::string arch(out.traits->name);
  BATON_RETURN_IF_ERROR(CheckAbsent(config));
  BATON_ASSIGN_OR_RETURN(const Layers layers, ReadLayers(config, out));
  AddLayers(layers, out);
  BATON_RETURN_IF_ERROR(ReadShared(config, layers, out));
  BATON_RETURN_IF_ERROR(ReadPerLayer(config, out));
  BATON_RETURN_IF_ERROR(ReadRope(config, layers.Of(false).dim, out));
  BATON_ASSIGN_OR_RETURN(const uint32_t window, config.Uint("sliding_window"));
  if (window == 0) return config.Bad("sliding_window", "at least 1");
  out.keys.AddU32(arch + ".attention.sliding_window", window);
  BATON_ASSIGN_OR_RETURN(const bool key_is_value, config.BoolOr("attention_k_eq_v", false));
  out.keys.AddBool(arch + ".attention.key_is_value", key_is_value);
  BATON_ASSIGN_OR_RETURN(const double cap, config.DoubleOr("final_logit_softcapping", 0.0));
  if (config.Has("final_logit_softcapping") && !(cap >= kMinSoftcap && cap <= kMaxSoftcap)) {
    return config.Bad("final_logit_softcapping",
                      fmt::format("null or in [{}, {}]", kMinSoftcap, kMaxSoftcap));
  }
  out.keys.AddF32(arch + ".final_logit_softcapping", static_cast<float>(cap));
  return OkStatus();
}

}  // namespace baton::model
