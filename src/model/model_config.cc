#include "src/model/model_config.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/ops.h"
#include "src/base/limits.h"
#include "src/base/quoted_text.h"
#include "src/model/architecture_keys.h"
#include "src/model/delta_config.h"
#include "src/model/expert_keys.h"
#include "src/model/latent_keys.h"
#include "src/model/mixed_layers.h"
#include "src/model/state_map.h"
#include "src/model/tensor_plan.h"

namespace baton::model {

using kernels::kMaxConvTaps;
using kv::KvDtype;
using kv::KvEncoding;
using kv::KvLayout;
using limits::kMaxContextTokens;

namespace {

// Keys whose value, unless it is the neutral one, changes the result in a way that is not
// implemented.
struct NeutralKey {
  std::string_view name;
  double neutral;
};
constexpr std::array kNeutralKeys = {
    NeutralKey{"attention.clamp_kqv", 0},   NeutralKey{"attention.max_alibi_bias", 0},
    NeutralKey{"attention.causal", 1},      NeutralKey{"attn_logit_softcapping", 0},
    NeutralKey{"use_parallel_residual", 0}, NeutralKey{"rope.scale_linear", 1},
};
constexpr std::array kNeutralWithoutSoftcap = {NeutralKey{"final_logit_softcapping", 0}};
constexpr std::array kNeutralWithoutMultipliers = {
    NeutralKey{"attention.scale", 0},
    NeutralKey{"logit_scale", 0},
    NeutralKey{"residual_scale", 0},
    NeutralKey{"embedding_scale", 0},
};
// Where it is false such a model does not rotate at all.
constexpr std::array kNeutralWithMultipliers = {NeutralKey{"rope.scaling.finetuned", 1}};
constexpr std::array kNeutralWithoutTemperature = {
    NeutralKey{"attention.temperature_scale", 0},
    NeutralKey{"attention.temperature_length", 0},
};
constexpr std::array kNeutralWithoutWindow = {NeutralKey{"attention.sliding_window", 0}};
constexpr std::array kNeutralWithoutExperts = {
    NeutralKey{"expert_count", 0},
    NeutralKey{"expert_used_count", 0},
};
// Softmax over the chosen experts, every layer alike.
constexpr std::array kNeutralWithExperts = {
    NeutralKey{"expert_weights_scale", 1},
    NeutralKey{"expert_group_count", 1},
    NeutralKey{"leading_dense_block_count", 0},
    NeutralKey{"interleave_moe_layer_step", 1},
};
constexpr std::array kNeutralWithoutSharedExperts = {
    NeutralKey{"expert_shared_count", 0}, NeutralKey{"expert_shared_feed_forward_length", 0}};
// Other programs read neither, and compute these.
constexpr std::array kNeutralWithGatedSharedExpert = {NeutralKey{"expert_shared_count", 1},
                                                      NeutralKey{"expert_weights_norm", 1}};
constexpr std::array kNeutralWithScoredExperts = {
    NeutralKey{"attention.scale", 0},
    NeutralKey{"logit_scale", 0},
    NeutralKey{"residual_scale", 0},
    NeutralKey{"embedding_scale", 0},
    NeutralKey{"expert_group_scale", 0},
    NeutralKey{"nextn_predict_layers", 0},
    NeutralKey{"interleave_moe_layer_step", 1},
};
// Softmax, of all experts or of the chosen ones.
constexpr std::array kNeutralWithoutExpertBiases = {NeutralKey{"expert_gating_func", 1}};
constexpr std::array kNeutralWithExpertBiases = {NeutralKey{"expert_gating_func", 3}};
// The numbers of kernels::Ops::clamped_swiglu. llama.cpp writes neither; a file that states
// another one is not computed.
constexpr std::array kNeutralWithClamp = {NeutralKey{"swiglu_alpha", kernels::kSwigluAlpha},
                                          NeutralKey{"swiglu_limit", kernels::kSwigluLimit},
                                          NeutralKey{"swiglu_clamp_exp", kernels::kSwigluLimit}};

// Keys of attention.*, rope.* and shortconv.* that are read or change nothing. Every other key of
// these three must be 0 or false: a new key there changes numbers.
constexpr std::string_view kKnownKeys[] = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.scale",
    "attention.temperature_scale",
    "attention.temperature_length",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.causal",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.dimension_sections",  // of images: all positions of a text are one
    "rope.unrotated_layers",
    "shortconv.l_cache",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_truncate",
};

// Keys of models whose layers differ (traits->mixed_layers).
constexpr std::string_view kKnownOfMixedLayers[] = {
    "attention.key_length_swa", "attention.value_length_swa", "attention.shared_kv_layers",
    "attention.key_is_value",  // our own key; other programs look whether attn_v is there
    "rope.dimension_count_swa",
};

// A number or a bool as a number; NaN for any other value.
double NumberOf(const GgufValue& value) {
  if (value.AsUint().has_value()) return static_cast<double>(*value.AsUint());
  if (value.AsBool().has_value()) return *value.AsBool() ? 1 : 0;
  return value.AsDouble().value_or(std::nan(""));
}

bool IsKnown(std::string_view name, const ArchitectureTraits& traits) {
  const auto is_in = [name](std::span<const std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return is_in(kKnownKeys) || (traits.mixed_layers && is_in(kKnownOfMixedLayers)) ||
         (traits.delta_nets && name == kDeltaLayersKey) || (traits.latent_kv && IsLatentKey(name));
}

absl::Status CheckKnown(const ArchitectureKeys& keys, const ArchitectureTraits& traits) {
  const std::string prefix = keys.Key("");
  for (const GgufEntry& entry : keys.file.entries()) {
    if (!entry.key.starts_with(prefix)) continue;
    const std::string_view name = entry.key.substr(prefix.size());
    const bool is_checked = name.starts_with("attention.") || name.starts_with("rope.") ||
                            name.starts_with("shortconv.");
    if (!is_checked) continue;
    if (IsKnown(name, traits) || NumberOf(entry.value) == 0.0) continue;
    return Unimplemented("key {} is not known to a {} model, supported is only 0",
                         QuotedForMessage(entry.key), keys.architecture);
  }
  return OkStatus();
}

absl::Status CheckNeutral(const ArchitectureKeys& keys, std::span<const NeutralKey> rows) {
  for (const NeutralKey& row : rows) {
    const GgufValue* value = keys.file.FindValue(keys.Key(row.name));
    if (value == nullptr) continue;
    const double number = NumberOf(*value);
    if (number == row.neutral) continue;
    return Unimplemented("key \"{}\" is {}, supported is only {}", keys.Key(row.name), number,
                         row.neutral);
  }
  return OkStatus();
}

absl::Status CheckKeys(const ArchitectureKeys& keys, const ArchitectureTraits& traits) {
  BATON_RETURN_IF_ERROR(CheckKnown(keys, traits));
  BATON_RETURN_IF_ERROR(CheckNeutral(keys, kNeutralKeys));
  if (!traits.mixed_layers) BATON_RETURN_IF_ERROR(CheckNeutral(keys, kNeutralWithoutSoftcap));
  if (!traits.query_temperature) {
    BATON_RETURN_IF_ERROR(CheckNeutral(keys, kNeutralWithoutTemperature));
  }
  if (!traits.windowed && !traits.uniform_window) {
    BATON_RETURN_IF_ERROR(CheckNeutral(keys, kNeutralWithoutWindow));
  }
  if (traits.experts && !traits.shared_experts) {
    BATON_RETURN_IF_ERROR(CheckNeutral(keys, kNeutralWithoutSharedExperts));
  }
  if (traits.gated_shared_expert) {
    BATON_RETURN_IF_ERROR(CheckNeutral(keys, kNeutralWithGatedSharedExpert));
  }
  if (traits.scored_experts) return CheckNeutral(keys, kNeutralWithScoredExperts);
  BATON_RETURN_IF_ERROR(traits.multipliers ? CheckNeutral(keys, kNeutralWithMultipliers)
                                           : CheckNeutral(keys, kNeutralWithoutMultipliers));
  if (!traits.experts) return CheckNeutral(keys, kNeutralWithoutExperts);
  BATON_RETURN_IF_ERROR(traits.expert_biases ? CheckNeutral(keys, kNeutralWithExpertBiases)
                                             : CheckNeutral(keys, kNeutralWithoutExpertBiases));
  if (traits.activation == GateActivation::kClampedSwiglu) {
    BATON_RETURN_IF_ERROR(CheckNeutral(keys, kNeutralWithClamp));
  }
  return CheckNeutral(keys, kNeutralWithExperts);
}

absl::StatusOr<const ArchitectureTraits*> ReadArchitecture(const GgufFile& file) {
  BATON_ASSIGN_OR_RETURN(const std::string_view type, file.StringOr("general.type", "model"));
  if (type != "model") {
    return Unimplemented("general.type is {}, only \"model\" is supported", QuotedForMessage(type));
  }
  BATON_ASSIGN_OR_RETURN(const std::string_view architecture, file.String("general.architecture"));
  const ArchitectureTraits* traits = FindArchitecture(architecture);
  if (traits == nullptr) {
    return Unimplemented("architecture {} is not supported ({} are)",
                         QuotedForMessage(architecture), ArchitectureNames());
  }
  BATON_ASSIGN_OR_RETURN(const uint64_t version, file.UintOr("general.quantization_version", 2));
  if (version != 2) {
    return Unimplemented("general.quantization_version {} is not supported (2 is)", version);
  }
  return traits;
}

float AttentionScale(const ModelConfig& config) {
  const bool by_hidden = config.has_local_rope() && config.num_layers == kGemma27bLayers;
  const uint32_t dim = by_hidden ? config.hidden_size / config.num_heads : config.head_dim;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
}

constexpr std::string_view kKvHeads = "attention.head_count_kv";

// The KV heads of a model whose layers are not all of attention: for each layer its number, 0 for
// a convolution.
absl::Status ReadConvLayers(const ArchitectureKeys& keys, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(config.conv_taps,
                         keys.Uint("shortconv.l_cache", {kMinConvTaps, kMaxConvTaps}));
  config.layer_is_conv.assign(config.num_layers, false);
  const std::string key = keys.Key(kKvHeads);
  const GgufValue* value = keys.file.FindValue(key);
  if (value == nullptr || !value->is_array()) {  // a number: every layer is of attention
    BATON_ASSIGN_OR_RETURN(config.num_kv_heads, keys.Uint(kKvHeads, {1, config.num_heads}));
    return OkStatus();
  }
  if (value->count() != config.num_layers) {
    return InvalidArgument("key \"{}\" has {} numbers, the model has {} layers", key,
                           value->count(), config.num_layers);
  }
  uint32_t first = config.num_layers;  // of attention
  for (uint32_t i = 0; i < config.num_layers; ++i) {
    const std::optional<uint64_t> heads = value->At(i).value_or(GgufValue()).AsUint();
    if (!heads.has_value()) return InvalidArgument("key \"{}\": element {} is no number", key, i);
    config.layer_is_conv[i] = *heads == 0;
    if (*heads == 0) continue;
    if (first == config.num_layers) {
      first = i;
      BATON_ASSIGN_OR_RETURN(config.num_kv_heads, keys.Ranged(key, *heads, {1, config.num_heads}));
    }
    if (*heads == config.num_kv_heads) continue;
    return Unimplemented(
        "key \"{}\" is {} in layer {} and {} in layer {}: only 0 and one other number are "
        "supported",
        key, config.num_kv_heads, first, *heads, i);
  }
  if (first < config.num_layers) return OkStatus();
  return Unimplemented("key \"{}\" is 0 in every layer: a model without attention is not supported",
                       key);
}

// A convolution's inputs take the room of so many layers of attention.
absl::Status CheckSlices(const ArchitectureKeys& keys, const ModelConfig& config) {
  if (config.num_conv_layers() == 0 || config.num_slices() <= kMaxKvSlices) return OkStatus();
  return Unimplemented(
      "key \"{}\" is {}: {} convolutions of it take {} times the KV of a layer of attention each, "
      "{} "
      "for all layers, supported is {}",
      keys.Key("embedding_length"), config.hidden_size, config.num_conv_layers(),
      config.conv_slices(), config.num_slices(), kMaxKvSlices);
}

absl::Status ReadHeads(const ArchitectureKeys& keys, ModelConfig& config) {
  if (config.traits->latent_kv) return ReadLatentHeads(keys, config);
  BATON_ASSIGN_OR_RETURN(config.num_heads,
                         keys.EqualUint("attention.head_count", config.num_layers, {1, kMaxHeads}));
  if (!config.traits->mamba) config.num_kv_heads = config.num_heads;
  if (config.traits->mixed_layers) return ReadMixedHeads(keys, config);
  if (config.traits->short_convs) {
    BATON_RETURN_IF_ERROR(ReadConvLayers(keys, config));
  } else if (!config.traits->mamba && keys.file.FindValue(keys.Key(kKvHeads)) != nullptr) {
    BATON_ASSIGN_OR_RETURN(config.num_kv_heads,
                           keys.EqualUint(kKvHeads, config.num_layers, {1, config.num_heads}));
  }
  if (config.num_heads % config.num_kv_heads != 0) {
    return InvalidArgument("key \"{}\" is {}, no divisor of the {} heads", keys.Key(kKvHeads),
                           config.num_kv_heads, config.num_heads);
  }
  const uint64_t default_dim = config.hidden_size / config.num_heads;
  constexpr std::string_view kKeyLength = "attention.key_length";
  BATON_ASSIGN_OR_RETURN(config.head_dim,
                         keys.UintOr(kKeyLength, default_dim, {kMinHeadDim, kMaxHeadDim}));
  if (config.head_dim % kMinHeadDim != 0) {
    return Unimplemented("key \"{}\" is {}, supported are multiples of {}", keys.Key(kKeyLength),
                         config.head_dim, kMinHeadDim);
  }
  const std::string value_key = keys.Key("attention.value_length");
  BATON_ASSIGN_OR_RETURN(const uint64_t value_dim, keys.file.UintOr(value_key, default_dim));
  if (value_dim != config.head_dim) {
    return Unimplemented("key \"{}\" is {}, supported is only the key length {}", value_key,
                         value_dim, config.head_dim);
  }
  config.attention_scale = AttentionScale(config);
  return CheckSlices(keys, config);
}

absl::Status ReadRope(const ArchitectureKeys& keys, ModelConfig& config) {
  constexpr std::string_view kDims = "rope.dimension_count";
  if (!config.traits->rotates) {  // files state numbers of a rotation that is not computed
    config.rope_base = config.traits->hf_rope_base;
    config.rope_dims = config.head_dim;
    config.rope_interleaved = false;
    return OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(config.rope_base, keys.RopeBase("rope.freq_base"));
  BATON_ASSIGN_OR_RETURN(config.rope_dims,
                         keys.UintOr(kDims, config.head_dim, {2, config.head_dim}));
  if (config.rope_dims % 2 != 0) {
    return InvalidArgument("key \"{}\" is {}, it must be even", keys.Key(kDims), config.rope_dims);
  }
  config.rope_interleaved = config.traits->rope_interleaved;
  if (config.reorders_heads() && !config.traits->partial_rope) {
    return Unimplemented("key \"{}\" is {}, supported is only the head's {}", keys.Key(kDims),
                         config.rope_dims, config.head_dim);
  }
  if (config.traits->long_rope && HasLongRope(keys.file, config.architecture)) {
    config.has_rope_factors = true;
    BATON_ASSIGN_OR_RETURN(config.rope_scaling,
                           ReadLongRope(keys.file, config.architecture, config.context_length));
    return OkStatus();
  }
  config.has_rope_factors = keys.file.FindTensor("rope_freqs.weight") != nullptr;
  BATON_ASSIGN_OR_RETURN(config.rope_scaling,
                         ReadRopeScaling(keys.file, *config.traits, config.context_length));
  config.attention_scale =
      static_cast<float>(config.attention_scale * config.rope_scaling.score_scale);
  return OkStatus();
}

// Which layers are local: every but the last of each `pattern` (a number), or as listed.
absl::Status ReadLocalLayers(const ArchitectureKeys& keys, ModelConfig& config) {
  const std::string key = keys.Key("attention.sliding_window_pattern");
  const GgufValue* value = keys.file.FindValue(key);
  if (value != nullptr && value->is_array()) {
    if (value->element_type() != GgufValueType::kBool || value->count() != config.num_layers) {
      return InvalidArgument("key \"{}\" must be a number or {} bools", key, config.num_layers);
    }
    for (uint32_t i = 0; i < config.num_layers; ++i) {
      config.layer_is_local[i] = value->At(i).value_or(GgufValue()).AsBool().value_or(false);
    }
    return OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(
      const uint32_t pattern,
      keys.UintOr("attention.sliding_window_pattern", config.traits->local_step, {1, kMaxLayers}));
  for (uint32_t i = 0; i < config.num_layers; ++i) {
    config.layer_is_local[i] = i % pattern != pattern - 1;
  }
  return OkStatus();
}

// One window for all layers; 0, and one of the whole context, is none.
absl::Status ReadUniformWindow(const ArchitectureKeys& keys, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(const uint32_t window,
                         keys.UintOr("attention.sliding_window", 0, {0, UINT32_MAX}));
  if (window == 0 || window >= config.context_length) return OkStatus();
  config.window = window;
  config.layer_is_local.assign(config.num_layers, true);
  return OkStatus();
}

absl::Status ReadWindow(const ArchitectureKeys& keys, ModelConfig& config) {
  config.layer_is_local.assign(config.num_layers, false);
  if (config.traits->uniform_window) return ReadUniformWindow(keys, config);
  if (!config.traits->windowed) return OkStatus();
  BATON_ASSIGN_OR_RETURN(config.window,
                         keys.Uint("attention.sliding_window", {1, kMaxContextTokens}));
  constexpr std::string_view kLocalBase = "rope.freq_base_swa";
  if (config.has_local_rope()) {
    BATON_ASSIGN_OR_RETURN(config.local_rope_base, keys.RopeBase(kLocalBase));
  } else {
    config.local_rope_base = config.rope_base;
    BATON_ASSIGN_OR_RETURN(const double base,
                           keys.file.DoubleOr(keys.Key(kLocalBase), config.rope_base));
    if (base != config.rope_base) {
      return Unimplemented("key \"{}\" is {}, supported is only the base of all layers, {}",
                           keys.Key(kLocalBase), base, config.rope_base);
    }
  }
  return ReadLocalLayers(keys, config);
}

// Which layers do not turn: the last of each `unrotated_step`, or as listed. The list is our own
// key; other programs' files have none.
absl::Status ReadUnrotated(const ArchitectureKeys& keys, ModelConfig& config) {
  const std::string key = keys.Key("rope.unrotated_layers");
  const GgufValue* value = keys.file.FindValue(key);
  const uint32_t step = config.traits->unrotated_step;
  if (step == 0) {
    return value == nullptr ? OkStatus()
                            : Unimplemented("key \"{}\": all layers of a {} model rotate", key,
                                            config.traits->name);
  }
  config.layer_is_unrotated.assign(config.num_layers, false);
  if (value == nullptr) {
    for (uint32_t i = 0; i < config.num_layers; ++i) {
      config.layer_is_unrotated[i] = i % step == step - 1;
    }
    return OkStatus();
  }
  const bool is_list = value->is_array() && value->element_type() == GgufValueType::kBool &&
                       value->count() == config.num_layers;
  if (!is_list) return InvalidArgument("key \"{}\" must be {} bools", key, config.num_layers);
  for (uint32_t i = 0; i < config.num_layers; ++i) {
    config.layer_is_unrotated[i] = value->At(i).value_or(GgufValue()).AsBool().value_or(false);
  }
  return OkStatus();
}

// A scale of a model that has them; an absent one, and 0, is `fallback`.
absl::StatusOr<double> ReadScale(const ArchitectureKeys& keys, std::string_view name,
                                 double fallback) {
  const std::string key = keys.Key(name);
  BATON_ASSIGN_OR_RETURN(const double value, keys.file.DoubleOr(key, 0.0));
  if (value == 0.0) return fallback;
  // The least number may become smaller in fp32.
  if (value >= 0.99 * kMinMultiplier && value <= kMaxMultiplier) return value;
  return InvalidArgument("key \"{}\" is {}, supported is [{}, {}]", key, value, kMinMultiplier,
                         kMaxMultiplier);
}

absl::Status ReadMultipliers(const ArchitectureKeys& keys, ModelConfig& config) {
  if (!config.traits->multipliers) return OkStatus();
  BATON_ASSIGN_OR_RETURN(const double attention,
                         ReadScale(keys, "attention.scale", config.attention_scale));
  BATON_ASSIGN_OR_RETURN(const double embedding, ReadScale(keys, "embedding_scale", 1.0));
  BATON_ASSIGN_OR_RETURN(const double branch, ReadScale(keys, "residual_scale", 1.0));
  BATON_ASSIGN_OR_RETURN(const double logits, ReadScale(keys, "logit_scale", 1.0));
  config.attention_scale = static_cast<float>(attention);
  config.branch_scale = static_cast<float>(branch);
  config.embedding_scale = static_cast<float>(embedding / branch);
  config.rms_epsilon = static_cast<float>(config.rms_epsilon / (branch * branch));
  config.logit_scale = static_cast<float>(1.0 / logits);
  return OkStatus();
}

// The length is the original context of YaRN; another one is not computed.
absl::Status ReadTemperature(const ArchitectureKeys& keys, ModelConfig& config) {
  if (!config.traits->query_temperature) return OkStatus();
  const std::string key = keys.Key("attention.temperature_scale");
  BATON_ASSIGN_OR_RETURN(const double beta, keys.file.DoubleOr(key, 0.0));
  if (!(beta >= 0.0 && beta <= kMaxTemperatureBeta)) {
    return InvalidArgument("key \"{}\" is {}, supported is [0, {}]", key, beta,
                           kMaxTemperatureBeta);
  }
  if (beta == 0.0) return OkStatus();
  if (config.rope_scaling.type != RopeScalingType::kYarn) {
    return Unimplemented("key \"{}\" is {} without rope scaling yarn, supported is only 0", key,
                         beta);
  }
  config.temperature_beta = static_cast<float>(beta);
  config.temperature_length = config.rope_scaling.original_context;
  const std::string length_key = keys.Key("attention.temperature_length");
  BATON_ASSIGN_OR_RETURN(const uint64_t length,
                         keys.file.UintOr(length_key, config.temperature_length));
  if (length == config.temperature_length) return OkStatus();
  return Unimplemented("key \"{}\" is {}, supported is only the original context {}", length_key,
                       length, config.temperature_length);
}

absl::Status ReadFeedForward(const ArchitectureKeys& keys, ModelConfig& config) {
  if (config.traits->mamba) return OkStatus();  // ReadMambaLayers
  if (config.traits->mixed_layers) return ReadMixedFeedForward(keys, config);
  if (config.traits->scored_experts) return ReadScoredExperts(keys, config);
  if (!config.traits->experts) {
    BATON_ASSIGN_OR_RETURN(config.ffn_size, keys.EqualUint("feed_forward_length", config.num_layers,
                                                           {1, kMaxFfnSize}));
    return OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(config.num_experts, keys.Uint("expert_count", {1, kMaxExperts}));
  const uint64_t most = std::min(config.num_experts, kMaxExpertsUsed);
  BATON_ASSIGN_OR_RETURN(config.num_experts_used, keys.Uint("expert_used_count", {1, most}));
  BATON_ASSIGN_OR_RETURN(config.experts_sum_to_one,
                         keys.file.BoolOr(keys.Key("expert_weights_norm"), true));
  BATON_ASSIGN_OR_RETURN(config.ffn_size,
                         keys.Uint("expert_feed_forward_length", {1, kMaxFfnSize}));
  if (config.traits->gated_shared_expert) {
    BATON_ASSIGN_OR_RETURN(config.shared_ffn_size,
                           keys.Uint("expert_shared_feed_forward_length", {1, kMaxFfnSize}));
  }
  return OkStatus();
}

// Where one layer has biases, all must have them.
void ReadBiases(const GgufFile& file, ModelConfig& config) {
  const ArchitectureTraits& traits = *config.traits;
  const auto has_tensor = [&file](std::initializer_list<std::string_view> ends) {
    return std::ranges::any_of(file.tensors(), [&](const GgufTensor& tensor) {
      return std::ranges::any_of(ends, [&](auto end) { return tensor.name.ends_with(end); });
    });
  };
  config.has_qkv_bias = traits.qkv_bias;
  config.has_output_bias = traits.output_bias;
  if (traits.attention_biases) {
    config.has_qkv_bias =
        has_tensor({".attn_q.bias", ".attn_k.bias", ".attn_v.bias", ".attn_qkv.bias"});
    config.has_output_bias = has_tensor({".attn_output.bias"});
  }
  if (traits.ffn_biases) {
    config.has_ffn_bias = has_tensor({".ffn_gate.bias", ".ffn_up.bias", ".ffn_down.bias"});
  }
}

// vocab_size, the tokenizer and token_embd must agree: a sampled id is looked up in both. A model
// folder has its tokenizer in a file of its own, which src/text compares.
absl::Status ReadVocab(const ArchitectureKeys& keys, ModelConfig& config) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  const GgufValue* tokens = keys.file.FindValue(kTokens);
  if (tokens == nullptr && keys.file.is_folder()) {
    BATON_ASSIGN_OR_RETURN(config.vocab_size, keys.Uint("vocab_size", {1, kMaxModelVocab}));
    return OkStatus();
  }
  if (tokens == nullptr) return NotFound("key \"{}\" is missing", kTokens);
  if (!tokens->is_array() || tokens->element_type() != GgufValueType::kString) {
    return InvalidArgument("key \"{}\" is no array of strings", kTokens);
  }
  BATON_ASSIGN_OR_RETURN(
      config.vocab_size,
      ArchitectureKeys::Ranged("number of tokens", tokens->count(), {1, kMaxModelVocab}));
  const std::string stated_key = keys.Key("vocab_size");
  BATON_ASSIGN_OR_RETURN(const uint64_t stated, keys.file.UintOr(stated_key, config.vocab_size));
  if (stated != config.vocab_size) {
    return InvalidArgument("key \"{}\" is {}, the tokenizer has {} tokens", stated_key, stated,
                           config.vocab_size);
  }
  return OkStatus();
}

// Fields that only some architectures have, as text; empty when the config has none of them.
std::string CanonicalExtras(const ModelConfig& config) {
  std::string out;
  if (config.rope_scaling.type != RopeScalingType::kNone) {
    out += fmt::format(" rope_scaling={}", CanonicalText(config.rope_scaling));
  }
  if (config.traits->windowed) {
    out += fmt::format(" window={} local_rope_base={:016x} local=", config.window,
                       std::bit_cast<uint64_t>(config.local_rope_base));
    for (bool local : config.layer_is_local) out += local ? '1' : '0';
  }
  // Models with one tensor for q, k and v (phi3) had it from the start, also where it is 0.
  if (config.traits->uniform_window && (config.window > 0 || config.traits->fused_projections)) {
    out += fmt::format(" window={}", config.window);
  }
  if (config.traits->mixed_layers) out += CanonicalMixedLayers(config);
  if (!config.layer_is_unrotated.empty()) {
    out += " unrotated=";
    for (bool unrotated : config.layer_is_unrotated) out += unrotated ? '1' : '0';
  }
  if (!config.layer_is_delta.empty()) {
    const kernels::DeltaShape& delta = config.delta;
    out += fmt::format(" delta={}x{}:{}x{} taps={} delta_nets=", delta.num_k_heads, delta.k_dim,
                       delta.num_v_heads, delta.v_dim, delta.num_taps);
    for (bool is_delta : config.layer_is_delta) out += is_delta ? '1' : '0';
  }
  if (config.traits->mamba) out += fmt::format(" ffn_sizes={}", fmt::join(config.ffn_sizes, ","));
  if (!config.layer_is_conv.empty()) {
    out += fmt::format(" conv_taps={} convolutions=", config.conv_taps);
    for (bool conv : config.layer_is_conv) out += conv ? '1' : '0';
  }
  if (config.traits->multipliers) {
    const auto bits = [](float scale) { return std::bit_cast<uint32_t>(scale); };
    out += fmt::format(" embedding_scale={:08x} attention_scale={:08x} logit_scale={:08x}",
                       bits(config.embedding_scale), bits(config.attention_scale),
                       bits(config.logit_scale));
  }
  if (config.temperature_beta != 0.0f) {
    out += fmt::format(" temperature={:08x}:{}", std::bit_cast<uint32_t>(config.temperature_beta),
                       config.temperature_length);
  }
  if (config.traits->experts) {
    out += fmt::format(" experts={} used={}", config.num_experts, config.num_experts_used);
    if (!config.experts_sum_to_one) out += " weights_of_all";
  }
  if (config.traits->gated_shared_expert) {
    out += fmt::format(" gated_shared={}", config.shared_ffn_size);
  }
  if (config.traits->latent_kv) {
    out += fmt::format(" latent={} q_rank={} nope={} value={} attention_scale={:08x}",
                       config.latent_dim, config.q_rank, config.nope_dim, config.value_dim,
                       std::bit_cast<uint32_t>(config.attention_scale));
  }
  if (config.traits->scored_experts) {
    out += fmt::format(" dense={}:{} shared={} rule={}", config.num_dense_layers,
                       config.dense_ffn_size, config.shared_ffn_size,
                       CanonicalText(config.expert_rule));
  }
  if (config.pooling != Pooling::kLast)
    out += fmt::format(" pooling={}", PoolingName(config.pooling));
  return out;
}

}  // namespace

uint32_t ModelConfig::num_conv_layers() const {
  return static_cast<uint32_t>(std::count(layer_is_conv.begin(), layer_is_conv.end(), true));
}

uint32_t ModelConfig::FirstSlice(uint32_t layer) const {
  const bool one_each = layer_is_conv.empty() && layer_is_delta.empty() && local_head_dim == 0;
  if (one_each) return layer;
  uint32_t first = 0;
  for (uint32_t earlier = 0; earlier < layer; ++earlier) first += NumSlices(earlier);
  return first;
}

uint64_t ModelConfig::WeightsPerRow() const {
  if (local_head_dim != 0) return MixedWeightsPerRow(*this);
  if (traits->mamba) return MambaWeightsPerRow(*this);
  const uint64_t hidden = hidden_size;
  const uint64_t num_ffn = num_experts == 0 ? 1 : num_experts_used;
  const uint64_t latents =
      hidden * (projected_size(0) + head_dim) + uint64_t{q_rank} * latent_q_size() +
      uint64_t{num_heads} * latent_dim * (nope_dim + value_dim) + mixed_size(0) * hidden;
  const uint64_t gates = traits->output_gate ? hidden * q_size() : 0;
  const uint64_t attention =
      latent_dim > 0 ? latents : hidden * qkv_size() + gates + q_size() * hidden;
  // A state is read twice and written once, as three weights for each of its elements would be.
  const uint64_t state = uint64_t{3} * delta.num_v_heads * delta.k_dim * delta.v_dim;
  const uint64_t delta_net = hidden * delta.input_size() + delta.value_size() * hidden + state;
  const uint64_t convolution = hidden * 3 * hidden + hidden * conv_taps + hidden * hidden;
  const uint64_t num_routers = num_experts + (traits->gated_shared_expert ? 1 : 0);
  const uint64_t feed_forward =
      hidden * num_routers + 3 * hidden * (num_ffn * ffn_size + shared_ffn_size);
  const uint64_t dense = 3 * hidden * dense_ffn_size;
  return num_attention_layers() * attention + num_conv_layers() * convolution +
         num_delta_layers() * delta_net + (num_layers - num_dense_layers) * feed_forward +
         num_dense_layers * dense;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  ModelConfig config;
  BATON_ASSIGN_OR_RETURN(config.traits, ReadArchitecture(file));
  config.architecture = std::string(config.traits->name);
  const ArchitectureKeys keys{file, config.traits->name};
  BATON_RETURN_IF_ERROR(CheckKeys(keys, *config.traits));
  BATON_ASSIGN_OR_RETURN(const std::string_view name, file.StringOr("general.name", ""));
  config.name = std::string(name);
  BATON_ASSIGN_OR_RETURN(config.num_layers, keys.Uint("block_count", {1, kMaxLayers}));
  BATON_ASSIGN_OR_RETURN(config.hidden_size, keys.Uint("embedding_length", {1, kMaxHiddenSize}));
  if (config.traits->delta_nets) BATON_RETURN_IF_ERROR(ReadDeltaNets(file, config));
  if (config.traits->mamba) BATON_RETURN_IF_ERROR(ReadMambaLayers(file, config));
  BATON_RETURN_IF_ERROR(ReadFeedForward(keys, config));
  BATON_ASSIGN_OR_RETURN(const uint64_t context, file.Uint(keys.Key("context_length")));
  if (context < kMinContextTokens) {
    return InvalidArgument("key \"{}\" is {}, at least {} are needed: a prompt and an answer",
                           keys.Key("context_length"), context, kMinContextTokens);
  }
  config.context_length = static_cast<uint32_t>(std::min<uint64_t>(context, kMaxContextTokens));
  std::string epsilon_key = keys.Key("attention.layer_norm_rms_epsilon");
  if (config.traits->mamba && file.FindValue(epsilon_key) == nullptr) {
    epsilon_key = keys.Key("attention.layer_norm_epsilon");
  }
  BATON_ASSIGN_OR_RETURN(const double epsilon, file.Double(epsilon_key));
  if (!(epsilon > 0.0 && epsilon <= 1.0)) {
    return InvalidArgument("key \"{}\" is {}, supported is (0, 1]", epsilon_key, epsilon);
  }
  config.rms_epsilon = static_cast<float>(epsilon);
  BATON_RETURN_IF_ERROR(ReadHeads(keys, config));
  BATON_RETURN_IF_ERROR(CheckState(config));
  BATON_RETURN_IF_ERROR(ReadRope(keys, config));
  BATON_RETURN_IF_ERROR(ReadWindow(keys, config));
  if (config.traits->mixed_layers) BATON_RETURN_IF_ERROR(ReadMixedLayers(keys, config));
  BATON_RETURN_IF_ERROR(ReadUnrotated(keys, config));
  BATON_RETURN_IF_ERROR(ReadMultipliers(keys, config));
  BATON_RETURN_IF_ERROR(ReadTemperature(keys, config));
  BATON_RETURN_IF_ERROR(ReadVocab(keys, config));
  BATON_ASSIGN_OR_RETURN(
      const uint32_t pooling,
      keys.UintOr("pooling_type", static_cast<uint64_t>(Pooling::kLast), {0, kMaxPooling}));
  config.pooling = static_cast<Pooling>(pooling);
  if (config.traits->scaled_embedding) {
    config.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(config.hidden_size)));
  }
  config.tied_output = file.FindTensor("output.weight") == nullptr;
  ReadBiases(file, config);
  BATON_RETURN_IF_ERROR(PlanTensors(file, config).status());
  return config;
}

KvLayout KvLayoutOf(const ModelConfig& config, KvDtype dtype, uint32_t block_size) {
  KvLayout layout;
  layout.dtype = dtype;
  layout.encoding = dtype == KvDtype::kBf16  ? KvEncoding::kPaired
                    : dtype == KvDtype::kFp8 ? KvEncoding::kFragments
                    : dtype == KvDtype::kQ8  ? KvEncoding::kLanes
                                             : KvEncoding::kPlain;
  if (config.traits->latent_kv) layout.encoding = KvEncoding::kLatent;
  layout.num_layers = config.num_slices();
  layout.num_kv_heads = config.slice_kv_heads();
  layout.head_dim = config.slice_head_dim();
  layout.block_size = block_size;
  layout.state_blocks = StateBlocksOf(config, layout.SliceBytes());
  return layout;
}

std::string CanonicalText(const ModelConfig& config) {
  return fmt::format(
      "architecture={} layers={} hidden={} ffn={} heads={} kv_heads={} head_dim={} vocab={} "
      "rms_epsilon={:08x} rope_base={:016x} rope_dims={} interleaved={} rope_factors={} tied={}{}",
      config.architecture, config.num_layers, config.hidden_size, config.ffn_size, config.num_heads,
      config.num_kv_heads, config.head_dim, config.vocab_size,
      std::bit_cast<uint32_t>(config.rms_epsilon), std::bit_cast<uint64_t>(config.rope_base),
      config.rope_dims, config.rope_interleaved, config.has_rope_factors, config.tied_output,
      CanonicalExtras(config));
}

}  // namespace baton::model
