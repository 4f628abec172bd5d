#include "src/model/latent_keys.h"

#include <cmath>

namespace baton::model {
namespace {

constexpr std::string_view kKeyLength = "attention.key_length";
constexpr std::string_view kValueLength = "attention.value_length";
constexpr std::string_view kKeyLengthMla = "attention.key_length_mla";
constexpr std::string_view kValueLengthMla = "attention.value_length_mla";
constexpr std::string_view kLatentRank = "attention.kv_lora_rank";
constexpr std::string_view kQueryRank = "attention.q_lora_rank";

// A key whose value follows from others.
absl::Status CheckImplied(const ArchitectureKeys& keys, std::string_view name, uint32_t implied,
                          std::string_view why) {
  BATON_ASSIGN_OR_RETURN(const uint64_t value, keys.file.UintOr(keys.Key(name), implied));
  if (value == implied) return OkStatus();
  return InvalidArgument("key \"{}\" is {}, not the {} of {}", keys.Key(name), value, implied, why);
}

// Key and value length of a head: their own keys beside those of the absorbed form, or the usual
// ones.
absl::Status ReadHeadLengths(const ArchitectureKeys& keys, uint32_t* key, ModelConfig& config) {
  const UintRange lengths = {kMinHeadDim, kMaxLatentHeadDim};
  const bool is_absorbed = keys.file.FindValue(keys.Key(kKeyLengthMla)) != nullptr;
  BATON_ASSIGN_OR_RETURN(*key, keys.Uint(is_absorbed ? kKeyLengthMla : kKeyLength, lengths));
  BATON_ASSIGN_OR_RETURN(config.value_dim,
                         keys.Uint(is_absorbed ? kValueLengthMla : kValueLength, lengths));
  if (!is_absorbed) {
    return CheckImplied(keys, "attention.head_count_kv", config.num_heads, "attention.head_count");
  }
  BATON_RETURN_IF_ERROR(
      CheckImplied(keys, kKeyLength, config.head_dim, "kv_lora_rank and rope.dimension_count"));
  BATON_RETURN_IF_ERROR(CheckImplied(keys, kValueLength, config.latent_dim, "kv_lora_rank"));
  return CheckImplied(keys, "attention.head_count_kv", 1, "the absorbed form");
}

}  // namespace

bool IsLatentKey(std::string_view name) {
  return name == kKeyLengthMla || name == kValueLengthMla || name == kLatentRank ||
         name == kQueryRank;
}

absl::Status ReadLatentHeads(const ArchitectureKeys& keys, ModelConfig& config) {
  constexpr std::string_view kRopeDims = "rope.dimension_count";
  BATON_ASSIGN_OR_RETURN(config.num_heads,
                         keys.EqualUint("attention.head_count", config.num_layers, {1, kMaxHeads}));
  config.num_kv_heads = 1;
  BATON_ASSIGN_OR_RETURN(config.latent_dim, keys.Uint(kLatentRank, {kMinHeadDim, kMaxLatentDim}));
  BATON_ASSIGN_OR_RETURN(config.q_rank, keys.UintOr(kQueryRank, 0, {0, kMaxHiddenSize}));
  BATON_ASSIGN_OR_RETURN(config.rope_dims, keys.Uint(kRopeDims, {2, kMaxHeadDim}));
  if (config.latent_dim % 2 != 0 || config.rope_dims % 2 != 0) {
    return InvalidArgument("keys \"{}\" {} and \"{}\" {} must be even", keys.Key(kLatentRank),
                           config.latent_dim, keys.Key(kRopeDims), config.rope_dims);
  }
  config.head_dim = config.latent_dim + config.rope_dims;
  uint32_t key_dim = 0;
  BATON_RETURN_IF_ERROR(ReadHeadLengths(keys, &key_dim, config));
  if (key_dim <= config.rope_dims) {
    return InvalidArgument("a head of {} elements has no part beside the {} of \"{}\"", key_dim,
                           config.rope_dims, keys.Key(kRopeDims));
  }
  config.nope_dim = key_dim - config.rope_dims;
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(key_dim)));
  return OkStatus();
}

}  // namespace baton::model
