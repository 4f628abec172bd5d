#include "src/model/latent_keys.h"

#include <algorithm>
#include <cmath>

namespace baton::model {
namespace {

constexpr std::string_view kKeyLength = "attention.key_length";
constexpr std::string_view kValueLength = "attention.value_length";
constexpr std::string_view kKeyLengthMla = "attention.key_length_mla";
constexpr std::string_view kValueLengthMla = "attention.value_length_mla";
constexpr std::string_view kLatentRank = "attention.kv_lora_rank";
constexpr std::string_view kQueryRank = "attention.q_lora_rank";

// Values of expert_gating_func.
constexpr uint32_t kGatingSoftmax = 1;
constexpr uint32_t kGatingSigmoid = 2;

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

absl::StatusOr<ExpertScore> ReadScore(const ArchitectureKeys& keys) {
  const std::string key = keys.Key("expert_gating_func");
  BATON_ASSIGN_OR_RETURN(const uint64_t value, keys.file.UintOr(key, 0));
  // Files of V2 and V2.5 have 0 or no such key.
  if (value == 0 || value == kGatingSoftmax) return ExpertScore::kSoftmax;
  if (value == kGatingSigmoid) return ExpertScore::kSigmoid;
  return Unimplemented("key \"{}\" is {}, supported are 1 (softmax) and 2 (sigmoid)", key, value);
}

absl::Status ReadGroups(const ArchitectureKeys& keys, ModelConfig& config) {
  ExpertRule& rule = config.expert_rule;
  constexpr std::string_view kGroups = "expert_group_count";
  constexpr std::string_view kUsed = "expert_group_used_count";
  BATON_ASSIGN_OR_RETURN(rule.num_groups, keys.UintOr(kGroups, 1, {1, kMaxExpertGroups}));
  BATON_ASSIGN_OR_RETURN(rule.num_groups_used, keys.UintOr(kUsed, 1, {1, rule.num_groups}));
  const uint32_t size = config.num_experts / rule.num_groups;
  if (config.num_experts % rule.num_groups != 0 ||
      (rule.score == ExpertScore::kSigmoid && rule.num_groups > 1 && size < 2)) {
    return InvalidArgument("key \"{}\" is {}: {} experts are not so many groups of {}",
                           keys.Key(kGroups), rule.num_groups, config.num_experts,
                           rule.score == ExpertScore::kSigmoid ? "two or more" : "one or more");
  }
  if (config.num_experts_used <= size * rule.num_groups_used) return OkStatus();
  return InvalidArgument("key \"{}\" is {}: they have {} experts, a row needs {}", keys.Key(kUsed),
                         rule.num_groups_used, size * rule.num_groups_used,
                         config.num_experts_used);
}

absl::Status ReadRule(const ArchitectureKeys& keys, ModelConfig& config) {
  ExpertRule& rule = config.expert_rule;
  BATON_ASSIGN_OR_RETURN(rule.score, ReadScore(keys));
  BATON_ASSIGN_OR_RETURN(rule.sum_to_one, keys.file.BoolOr(keys.Key("expert_weights_norm"), false));
  const std::string key = keys.Key("expert_weights_scale");
  BATON_ASSIGN_OR_RETURN(const double scale, keys.file.DoubleOr(key, 0.0));
  if (scale != 0.0 && !(scale >= kMinMultiplier && scale <= kMaxMultiplier)) {
    return InvalidArgument("key \"{}\" is {}, supported is [{}, {}], and 0 for none", key, scale,
                           kMinMultiplier, kMaxMultiplier);
  }
  rule.scale = scale == 0.0 ? 1.0f : static_cast<float>(scale);
  return ReadGroups(keys, config);
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

absl::Status ReadSharedExperts(const ArchitectureKeys& keys, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(
      config.dense_ffn_size,
      keys.EqualUint("feed_forward_length", config.num_layers, {1, kMaxFfnSize}));
  BATON_ASSIGN_OR_RETURN(config.num_dense_layers,
                         keys.UintOr("leading_dense_block_count", 0, {0, config.num_layers}));
  BATON_ASSIGN_OR_RETURN(config.num_experts, keys.Uint("expert_count", {1, kMaxExperts}));
  const uint64_t most = std::min(config.num_experts, kMaxExpertsUsed);
  BATON_ASSIGN_OR_RETURN(config.num_experts_used, keys.Uint("expert_used_count", {1, most}));
  BATON_ASSIGN_OR_RETURN(config.ffn_size,
                         keys.Uint("expert_feed_forward_length", {1, kMaxFfnSize}));
  BATON_ASSIGN_OR_RETURN(const uint32_t shared,
                         keys.Uint("expert_shared_count", {1, kMaxFfnSize / config.ffn_size}));
  config.shared_ffn_size = shared * config.ffn_size;
  return ReadRule(keys, config);
}

}  // namespace baton::model
