#include "src/model/delta_config.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.h"
#include "src/model/architecture_keys.h"

namespace baton::model {

using kernels::DeltaRule;
using kernels::kDeltaLanes;
using kernels::kMaxConvTaps;
using kernels::kMaxDeltaKeyDim;
using kv::KvDtype;
using kv::KvLayout;

namespace {

constexpr uint32_t kMaxDeltaSize = 1u << 20;  // elements of all heads of v; 27B has 6144

absl::Status NoMultiple(const std::string& key, uint64_t value, uint64_t of) {
  return Unimplemented("key \"{}\" is {}, supported are multiples of {}", key, value, of);
}

absl::Status ReadShape(const ArchitectureKeys& keys, ModelConfig& config) {
  kernels::DeltaShape& shape = config.delta;
  BATON_ASSIGN_OR_RETURN(shape.num_taps,
                         keys.Uint("ssm.conv_kernel", {kMinConvTaps, kMaxConvTaps}));
  BATON_ASSIGN_OR_RETURN(shape.k_dim, keys.Uint("ssm.state_size", {1, kMaxDeltaKeyDim}));
  BATON_ASSIGN_OR_RETURN(shape.num_k_heads, keys.Uint("ssm.group_count", {1, kMaxHeads}));
  BATON_ASSIGN_OR_RETURN(shape.num_v_heads, keys.Uint("ssm.time_step_rank", {1, kMaxHeads}));
  BATON_ASSIGN_OR_RETURN(const uint32_t inner, keys.Uint("ssm.inner_size", {1, kMaxDeltaSize}));
  if (shape.k_dim % kDeltaLanes != 0) {
    return NoMultiple(keys.Key("ssm.state_size"), shape.k_dim, kDeltaLanes);
  }
  if (shape.num_v_heads % shape.num_k_heads != 0) {
    return NoMultiple(keys.Key("ssm.time_step_rank"), shape.num_v_heads, shape.num_k_heads);
  }
  const uint64_t step = uint64_t{kDeltaLanes} * shape.num_v_heads;
  if (inner % step != 0) return NoMultiple(keys.Key("ssm.inner_size"), inner, step);
  shape.v_dim = inner / shape.num_v_heads;
  return OkStatus();
}

// An element of a list of flags, which programs write as bools or as numbers.
std::optional<bool> FlagOf(const GgufValue& list, uint64_t idx) {
  const GgufValue element = list.At(idx).value_or(GgufValue());
  const std::optional<uint64_t> number = element.AsUint();
  if (list.element_type() == GgufValueType::kBool || !number.has_value()) return element.AsBool();
  return *number > 1 ? std::nullopt : std::optional<bool>(*number == 1);
}

// Which layers are nets by the list of the file, which has layers of prediction too.
absl::Status ReadListedNets(const ArchitectureKeys& keys, const GgufValue& list,
                            ModelConfig& config) {
  const std::string key = keys.Key(kDeltaLayersKey);
  const uint32_t num_blocks = config.num_layers + config.num_mtp_layers;
  if (!list.is_array() || list.count() != num_blocks) {
    return InvalidArgument("key \"{}\" must be {} bools, one for each block", key, num_blocks);
  }
  for (uint32_t i = 0; i < num_blocks; ++i) {
    const std::optional<bool> is_net = FlagOf(list, i);
    if (!is_net.has_value()) return InvalidArgument("key \"{}\": element {} is no bool", key, i);
    if (i < config.num_layers) {
      config.layer_is_delta[i] = *is_net;
    } else if (*is_net) {
      return InvalidArgument("key \"{}\" makes layer {} of prediction a gated delta net", key, i);
    }
  }
  if (config.num_delta_layers() < config.num_layers) return OkStatus();
  return Unimplemented("key \"{}\": all {} layers are: a model without attention is not supported",
                       key, config.num_layers);
}

// Without a list one layer of attention follows equal numbers of nets.
absl::Status ReadDeltaLayers(const ArchitectureKeys& keys, ModelConfig& config) {
  constexpr std::string_view kInterval = "full_attention_interval";
  constexpr uint64_t kUsualInterval = 4;
  config.layer_is_delta.assign(config.num_layers, true);
  const GgufValue* list = keys.file.FindValue(keys.Key(kDeltaLayersKey));
  if (list != nullptr) return ReadListedNets(keys, *list, config);
  BATON_ASSIGN_OR_RETURN(const uint64_t interval,
                         keys.file.UintOr(keys.Key(kInterval), kUsualInterval));
  if (interval == 0 || interval > config.num_layers) {
    return Unimplemented(
        "key \"{}\" is {}, supported is [1, {}]: a model of {} layers without attention is not",
        keys.Key(kInterval), interval, config.num_layers, config.num_layers);
  }
  for (uint64_t i = interval - 1; i < config.num_layers; i += interval) {
    config.layer_is_delta[i] = false;
  }
  return OkStatus();
}

}  // namespace

absl::Status ReadDeltaNets(const GgufFile& file, ModelConfig& config) {
  constexpr std::string_view kPrediction = "nextn_predict_layers";
  const ArchitectureKeys keys{file, config.traits->name};
  BATON_ASSIGN_OR_RETURN(const uint64_t num_mtp, file.UintOr(keys.Key(kPrediction), 0));
  if (num_mtp >= config.num_layers) {
    return InvalidArgument("key \"{}\" is {} of {} layers", keys.Key(kPrediction), num_mtp,
                           config.num_layers);
  }
  config.num_mtp_layers = static_cast<uint32_t>(num_mtp);
  config.num_layers -= config.num_mtp_layers;
  BATON_RETURN_IF_ERROR(ReadShape(keys, config));
  return ReadDeltaLayers(keys, config);
}

absl::Status ReadMambaLayers(const GgufFile& file, ModelConfig& config) {
  constexpr std::string_view kFfn = "feed_forward_length";
  constexpr std::string_view kKvHeads = "attention.head_count_kv";
  const ArchitectureKeys keys{file, config.traits->name};
  BATON_RETURN_IF_ERROR(ReadShape(keys, config));
  config.delta.rule = DeltaRule::kAdd;
  const uint32_t num_layers = config.num_layers;
  BATON_ASSIGN_OR_RETURN(config.ffn_sizes, keys.UintPerLayer(kFfn, num_layers, {0, kMaxFfnSize}));
  BATON_ASSIGN_OR_RETURN(const std::vector<uint32_t> kv_heads,
                         keys.UintPerLayer(kKvHeads, num_layers, {0, kMaxHeads}));
  config.layer_is_delta.assign(num_layers, false);
  for (uint32_t i = 0; i < num_layers; ++i) {
    config.layer_is_delta[i] = config.ffn_sizes[i] == 0 && kv_heads[i] == 0;
    if (kv_heads[i] == 0) continue;
    if (config.ffn_sizes[i] > 0) {
      return Unimplemented(
          "keys \"{}\" and \"{}\" are {} and {} in layer {}: supported are layers of one kind, "
          "with 0 "
          "for one of them, or for both in a layer of Mamba-2",
          keys.Key(kFfn), keys.Key(kKvHeads), config.ffn_sizes[i], kv_heads[i], i);
    }
    if (config.num_kv_heads == 0) config.num_kv_heads = kv_heads[i];
    if (kv_heads[i] == config.num_kv_heads) continue;
    return Unimplemented("key \"{}\" is {} in layer {}, supported are 0 and one other number, {}",
                         keys.Key(kKvHeads), kv_heads[i], i, config.num_kv_heads);
  }
  config.ffn_size = *std::max_element(config.ffn_sizes.begin(), config.ffn_sizes.end());
  if (config.ffn_size > 0 && config.num_kv_heads > 0) return OkStatus();
  return Unimplemented(
      "key \"{}\" is 0 in every layer: supported are models with a layer of attention and a "
      "feed-forward layer",
      keys.Key(config.ffn_size == 0 ? kFfn : kKvHeads));
}

uint64_t MambaWeightsPerRow(const ModelConfig& config) {
  const uint64_t hidden = config.hidden_size;
  const kernels::DeltaShape& shape = config.delta;
  // A state is read once and written once, as two weights for each of its elements would be.
  const uint64_t state = uint64_t{2} * shape.num_v_heads * shape.k_dim * shape.v_dim;
  uint64_t total = 0;
  for (uint32_t i = 0; i < config.num_layers; ++i) {
    total += hidden * (config.projected_size(i) + config.mixed_size(i)) +
             2 * hidden * config.FfnSize(i) + (config.IsDelta(i) ? state : 0);
  }
  return total;
}

absl::Status CheckState(const ModelConfig& config) {
  if (config.num_delta_layers() == 0) return OkStatus();
  const KvLayout layout = KvLayoutOf(config, KvDtype::kBf16, KvLayout().block_size);
  const absl::Status status = layout.Validate();
  if (status.ok()) return status;
  return Unimplemented("architecture {}: the state of a sequence: {}", config.architecture,
                       std::string(status.message()));
}

uint32_t ModelConfig::num_attention_layers() const {
  uint32_t num = 0;
  for (uint32_t layer = 0; layer < num_layers; ++layer) num += IsAttention(layer) ? 1 : 0;
  return num;
}

uint32_t ModelConfig::num_delta_layers() const {
  return static_cast<uint32_t>(std::count(layer_is_delta.begin(), layer_is_delta.end(), true));
}

}  // namespace baton::model
