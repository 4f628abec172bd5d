#include "src/model/expert_keys.h"

#include <algorithm>

namespace baton::model {
namespace {

// Values of expert_gating_func.
constexpr uint32_t kGatingSoftmax = 1;
constexpr uint32_t kGatingSigmoid = 2;

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
  // lfm2moe's files do not say that weights sum to 1; its sums have another least value.
  const bool is_lfm2 = config.traits->short_convs;
  if (is_lfm2) rule.least_sum = 1e-6f;
  BATON_ASSIGN_OR_RETURN(rule.sum_to_one,
                         keys.file.BoolOr(keys.Key("expert_weights_norm"), is_lfm2));
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

absl::Status ReadScoredExperts(const ArchitectureKeys& keys, ModelConfig& config) {
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
  if (config.traits->shared_experts) {
    BATON_ASSIGN_OR_RETURN(const uint32_t shared,
                           keys.Uint("expert_shared_count", {1, kMaxFfnSize / config.ffn_size}));
    config.shared_ffn_size = shared * config.ffn_size;
  }
  return ReadRule(keys, config);
}

}  // namespace baton::model
