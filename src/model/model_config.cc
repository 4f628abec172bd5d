#include "src/model/model_config.h"

#include <array>
#include <bit>
#include <cmath>
#include <string_view>

#include "src/model/tensor_plan.h"

namespace baton {
namespace {

// Inclusive range of an integer key.
struct UintRange {
  uint64_t min;
  uint64_t max;
};

absl::StatusOr<uint32_t> Ranged(std::string_view key, uint64_t value, UintRange range) {
  if (value < range.min || value > range.max) {
    return InvalidArgument("key \"{}\" is {}, supported is [{}, {}]", key, value, range.min,
                           range.max);
  }
  return static_cast<uint32_t>(value);
}

absl::StatusOr<uint32_t> RangedUint(const GgufFile& file, std::string_view key, UintRange range) {
  BATON_ASSIGN_OR_RETURN(const uint64_t value, file.Uint(key));
  return Ranged(key, value, range);
}

// Keys of architecture llama whose value, unless it is the neutral one, changes the result in a way
// that is not implemented.
struct NeutralKey {
  std::string_view key;
  double neutral;
};
constexpr std::array kNeutralKeys = {
    NeutralKey{"llama.expert_count", 0},
    NeutralKey{"llama.expert_used_count", 0},
    NeutralKey{"llama.attention.sliding_window", 0},
    NeutralKey{"llama.attention.scale", 0},
    NeutralKey{"llama.attention.clamp_kqv", 0},
    NeutralKey{"llama.attention.max_alibi_bias", 0},
    NeutralKey{"llama.attention.causal", 1},
    NeutralKey{"llama.attn_logit_softcapping", 0},
    NeutralKey{"llama.final_logit_softcapping", 0},
    NeutralKey{"llama.logit_scale", 0},
    NeutralKey{"llama.residual_scale", 0},
    NeutralKey{"llama.embedding_scale", 0},
    NeutralKey{"llama.use_parallel_residual", 0},
    NeutralKey{"llama.pooling_type", 0},
    NeutralKey{"llama.rope.scale_linear", 1},
};

absl::Status CheckNeutral(const GgufFile& file, const NeutralKey& row) {
  const GgufValue* value = file.FindValue(row.key);
  if (value == nullptr) return OkStatus();
  double number = std::nan("");
  if (value->AsUint().has_value()) number = static_cast<double>(*value->AsUint());
  if (value->AsBool().has_value()) number = *value->AsBool() ? 1 : 0;
  if (value->AsDouble().has_value()) number = *value->AsDouble();
  if (number == row.neutral) return OkStatus();
  return Unimplemented("key \"{}\" is {}, supported is only {}", row.key, number, row.neutral);
}

absl::Status CheckRopeScaling(const GgufFile& file) {
  BATON_ASSIGN_OR_RETURN(const std::string_view type,
                         file.StringOr("llama.rope.scaling.type", "none"));
  if (type == "none") return OkStatus();
  BATON_ASSIGN_OR_RETURN(const double factor, file.DoubleOr("llama.rope.scaling.factor", 1.0));
  if (type == "linear" && factor == 1.0) return OkStatus();
  return Unimplemented("rope scaling {} (factor {}) is not supported", QuotedForMessage(type),
                       factor);
}

absl::Status CheckKind(const GgufFile& file) {
  BATON_ASSIGN_OR_RETURN(const std::string_view type, file.StringOr("general.type", "model"));
  if (type != "model") {
    return Unimplemented("general.type is {}, only \"model\" is supported", QuotedForMessage(type));
  }
  BATON_ASSIGN_OR_RETURN(const std::string_view architecture, file.String("general.architecture"));
  if (architecture != "llama") {
    return Unimplemented("architecture {} is not supported (\"llama\" is)",
                         QuotedForMessage(architecture));
  }
  BATON_ASSIGN_OR_RETURN(const uint64_t version, file.UintOr("general.quantization_version", 2));
  if (version != 2) {
    return Unimplemented("general.quantization_version {} is not supported (2 is)", version);
  }
  for (const NeutralKey& row : kNeutralKeys) BATON_RETURN_IF_ERROR(CheckNeutral(file, row));
  return CheckRopeScaling(file);
}

absl::Status ReadHeads(const GgufFile& file, ModelConfig& config) {
  constexpr std::string_view kHeads = "llama.attention.head_count";
  constexpr std::string_view kKvHeads = "llama.attention.head_count_kv";
  BATON_ASSIGN_OR_RETURN(config.num_heads, RangedUint(file, kHeads, {1, kMaxHeads}));
  BATON_ASSIGN_OR_RETURN(const uint64_t kv_heads, file.UintOr(kKvHeads, config.num_heads));
  BATON_ASSIGN_OR_RETURN(config.num_kv_heads, Ranged(kKvHeads, kv_heads, {1, config.num_heads}));
  if (config.num_heads % config.num_kv_heads != 0) {
    return InvalidArgument("key \"{}\" is {}, no divisor of the {} heads", kKvHeads,
                           config.num_kv_heads, config.num_heads);
  }
  const uint64_t default_dim = config.hidden_size / config.num_heads;
  constexpr std::string_view kKeyLength = "llama.attention.key_length";
  BATON_ASSIGN_OR_RETURN(const uint64_t key_dim, file.UintOr(kKeyLength, default_dim));
  BATON_ASSIGN_OR_RETURN(config.head_dim, Ranged(kKeyLength, key_dim, {kMinHeadDim, kMaxHeadDim}));
  if (config.head_dim % kMinHeadDim != 0) {
    return Unimplemented("key \"{}\" is {}, supported are multiples of {}", kKeyLength,
                         config.head_dim, kMinHeadDim);
  }
  constexpr std::string_view kValueLength = "llama.attention.value_length";
  BATON_ASSIGN_OR_RETURN(const uint64_t value_dim, file.UintOr(kValueLength, default_dim));
  if (value_dim != config.head_dim) {
    return Unimplemented("key \"{}\" is {}, supported is only the key length {}", kValueLength,
                         value_dim, config.head_dim);
  }
  return OkStatus();
}

absl::Status ReadRope(const GgufFile& file, ModelConfig& config) {
  constexpr std::string_view kBase = "llama.rope.freq_base";
  constexpr std::string_view kDims = "llama.rope.dimension_count";
  BATON_ASSIGN_OR_RETURN(config.rope_base, file.DoubleOr(kBase, 10000.0));
  if (!(config.rope_base >= 1.0 && config.rope_base <= 1e12)) {
    return InvalidArgument("key \"{}\" is {}, supported is [1, 1e12]", kBase, config.rope_base);
  }
  BATON_ASSIGN_OR_RETURN(const uint64_t dims, file.UintOr(kDims, config.head_dim));
  BATON_ASSIGN_OR_RETURN(config.rope_dims, Ranged(kDims, dims, {2, config.head_dim}));
  if (config.rope_dims % 2 != 0) {
    return InvalidArgument("key \"{}\" is {}, it must be even", kDims, config.rope_dims);
  }
  config.rope_interleaved = true;
  config.has_rope_factors = file.FindTensor("rope_freqs.weight") != nullptr;
  return OkStatus();
}

// vocab_size, the tokenizer and token_embd must agree: a sampled id is looked up in both.
absl::Status ReadVocab(const GgufFile& file, ModelConfig& config) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  const GgufValue* tokens = file.FindValue(kTokens);
  if (tokens == nullptr) return NotFound("key \"{}\" is missing", kTokens);
  if (!tokens->is_array() || tokens->element_type() != GgufValueType::kString) {
    return InvalidArgument("key \"{}\" is no array of strings", kTokens);
  }
  BATON_ASSIGN_OR_RETURN(config.vocab_size,
                         Ranged("number of tokens", tokens->count(), {1, kMaxModelVocab}));
  BATON_ASSIGN_OR_RETURN(const uint64_t stated, file.UintOr("llama.vocab_size", config.vocab_size));
  if (stated != config.vocab_size) {
    return InvalidArgument("key \"llama.vocab_size\" is {}, the tokenizer has {} tokens", stated,
                           config.vocab_size);
  }
  return OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  BATON_RETURN_IF_ERROR(CheckKind(file));
  ModelConfig config;
  config.architecture = "llama";
  BATON_ASSIGN_OR_RETURN(const std::string_view name, file.StringOr("general.name", ""));
  config.name = std::string(name);
  BATON_ASSIGN_OR_RETURN(config.num_layers, RangedUint(file, "llama.block_count", {1, kMaxLayers}));
  BATON_ASSIGN_OR_RETURN(config.hidden_size,
                         RangedUint(file, "llama.embedding_length", {1, kMaxHiddenSize}));
  BATON_ASSIGN_OR_RETURN(config.ffn_size,
                         RangedUint(file, "llama.feed_forward_length", {1, kMaxFfnSize}));
  BATON_ASSIGN_OR_RETURN(const uint64_t context, file.Uint("llama.context_length"));
  if (context == 0) return InvalidArgument("key \"llama.context_length\" is 0");
  config.context_length = static_cast<uint32_t>(std::min<uint64_t>(context, kMaxContextTokens));
  constexpr std::string_view kEpsilon = "llama.attention.layer_norm_rms_epsilon";
  BATON_ASSIGN_OR_RETURN(const double epsilon, file.Double(kEpsilon));
  if (!(epsilon > 0.0 && epsilon <= 1.0)) {
    return InvalidArgument("key \"{}\" is {}, supported is (0, 1]", kEpsilon, epsilon);
  }
  config.rms_epsilon = static_cast<float>(epsilon);
  BATON_RETURN_IF_ERROR(ReadHeads(file, config));
  BATON_RETURN_IF_ERROR(ReadRope(file, config));
  BATON_RETURN_IF_ERROR(ReadVocab(file, config));
  config.tied_output = file.FindTensor("output.weight") == nullptr;
  BATON_RETURN_IF_ERROR(PlanTensors(file, config).status());
  return config;
}

KvLayout KvLayoutOf(const ModelConfig& config, KvDtype dtype, uint32_t block_size) {
  KvLayout layout;
  layout.dtype = dtype;
  layout.encoding = dtype == KvDtype::kBf16 ? KvEncoding::kPaired : KvEncoding::kPlain;
  layout.num_layers = config.num_layers;
  layout.num_kv_heads = config.num_kv_heads;
  layout.head_dim = config.head_dim;
  layout.block_size = block_size;
  return layout;
}

std::string CanonicalText(const ModelConfig& config) {
  return fmt::format(
      "architecture={} layers={} hidden={} ffn={} heads={} kv_heads={} head_dim={} vocab={} "
      "rms_epsilon={:08x} rope_base={:016x} rope_dims={} interleaved={} rope_factors={} tied={}",
      config.architecture, config.num_layers, config.hidden_size, config.ffn_size, config.num_heads,
      config.num_kv_heads, config.head_dim, config.vocab_size,
      std::bit_cast<uint32_t>(config.rms_epsilon), std::bit_cast<uint64_t>(config.rope_base),
      config.rope_dims, config.rope_interleaved, config.has_rope_factors, config.tied_output);
}

}  // namespace baton
