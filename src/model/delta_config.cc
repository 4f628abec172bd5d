#include "src/model/delta_config.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "kernels/ops.h"

namespace baton::model {

using kernels::kDeltaLanes;
using kernels::kMaxConvTaps;
using kernels::kMaxDeltaKeyDim;
using kv::KvDtype;
using kv::KvLayout;

namespace {

constexpr uint32_t kMaxDeltaSize = 1u << 20;  // elements of all heads of v; 27B has 6144

// The keys of one architecture.
struct DeltaKeys {
  const GgufFile& file;
  std::string_view architecture;

  std::string Key(std::string_view name) const { return fmt::format("{}.{}", architecture, name); }
  absl::StatusOr<uint32_t> Uint(std::string_view name, uint64_t min, uint64_t max) const {
    BATON_ASSIGN_OR_RETURN(const uint64_t value, file.Uint(Key(name)));
    if (value >= min && value <= max) return static_cast<uint32_t>(value);
    return InvalidArgument("key \"{}\" is {}, supported is [{}, {}]", Key(name), value, min, max);
  }
  absl::Status NoMultiple(std::string_view name, uint64_t value, uint64_t of) const {
    return Unimplemented("key \"{}\" is {}, supported are multiples of {}", Key(name), value, of);
  }
};

absl::Status ReadShape(const DeltaKeys& keys, ModelConfig& config) {
  kernels::DeltaShape& shape = config.delta;
  BATON_ASSIGN_OR_RETURN(shape.num_taps, keys.Uint("ssm.conv_kernel", kMinConvTaps, kMaxConvTaps));
  BATON_ASSIGN_OR_RETURN(shape.k_dim, keys.Uint("ssm.state_size", 1, kMaxDeltaKeyDim));
  BATON_ASSIGN_OR_RETURN(shape.num_k_heads, keys.Uint("ssm.group_count", 1, kMaxHeads));
  BATON_ASSIGN_OR_RETURN(shape.num_v_heads, keys.Uint("ssm.time_step_rank", 1, kMaxHeads));
  BATON_ASSIGN_OR_RETURN(const uint32_t inner, keys.Uint("ssm.inner_size", 1, kMaxDeltaSize));
  if (shape.k_dim % kDeltaLanes != 0) {
    return keys.NoMultiple("ssm.state_size", shape.k_dim, kDeltaLanes);
  }
  if (shape.num_v_heads % shape.num_k_heads != 0) {
    return keys.NoMultiple("ssm.time_step_rank", shape.num_v_heads, shape.num_k_heads);
  }
  const uint64_t step = uint64_t{kDeltaLanes} * shape.num_v_heads;
  if (inner % step != 0) return keys.NoMultiple("ssm.inner_size", inner, step);
  shape.v_dim = inner / shape.num_v_heads;
  return OkStatus();
}

// The states of the layers before one.
struct StatePlace {
  size_t num_before = 0;  // in the slice that its own state would lie in
  size_t most = 0;        // in any slice
};

StatePlace StatePlaceBefore(const ModelConfig& config, uint32_t end) {
  const uint32_t num_slices = config.num_slices();
  StatePlace place;
  uint32_t slice = 0;
  for (uint32_t layer = 0; layer < end; ++layer) {
    if (config.IsDelta(layer)) {
      place.most = std::max(place.most, ++place.num_before);
    } else if (++slice < num_slices) {
      place.num_before = 0;
    }
  }
  return place;
}

}  // namespace

absl::Status ReadDeltaNets(const GgufFile& file, ModelConfig& config) {
  constexpr std::string_view kInterval = "full_attention_interval";
  constexpr std::string_view kPrediction = "nextn_predict_layers";
  const DeltaKeys keys{file, config.traits->name};
  BATON_ASSIGN_OR_RETURN(const uint64_t num_mtp, file.UintOr(keys.Key(kPrediction), 0));
  if (num_mtp >= config.num_layers) {
    return InvalidArgument("key \"{}\" is {} of {} layers", keys.Key(kPrediction), num_mtp,
                           config.num_layers);
  }
  config.num_mtp_layers = static_cast<uint32_t>(num_mtp);
  config.num_layers -= config.num_mtp_layers;
  BATON_RETURN_IF_ERROR(ReadShape(keys, config));
  constexpr uint64_t kUsualInterval = 4;
  BATON_ASSIGN_OR_RETURN(const uint64_t interval, file.UintOr(keys.Key(kInterval), kUsualInterval));
  if (interval == 0 || interval > config.num_layers) {
    return Unimplemented(
        "key \"{}\" is {}, supported is [1, {}]: a model of {} layers without attention is not",
        keys.Key(kInterval), interval, config.num_layers, config.num_layers);
  }
  config.layer_is_delta.assign(config.num_layers, true);
  for (uint64_t i = interval - 1; i < config.num_layers; i += interval) {
    config.layer_is_delta[i] = false;
  }
  return OkStatus();
}

absl::Status CheckState(const ModelConfig& config) {
  if (config.num_delta_layers() == 0) return OkStatus();
  const KvLayout layout = KvLayoutOf(config, KvDtype::kBf16, KvLayout().block_size);
  const absl::Status status = layout.Validate();
  if (status.ok()) return status;
  return Unimplemented("architecture {}: the state of a sequence: {}", config.architecture,
                       std::string(status.message()));
}

uint32_t StateBlocksOf(const ModelConfig& config, size_t slice_bytes) {
  // Bytes of the fullest slice.
  const size_t bytes =
      StatePlaceBefore(config, config.num_layers).most * config.delta.state_bytes();
  const uint64_t blocks = (bytes + slice_bytes - 1) / slice_bytes;
  return static_cast<uint32_t>(std::min<uint64_t>(blocks, UINT32_MAX));
}

uint32_t StateSlice(const ModelConfig& config, uint32_t layer) {
  return std::min(config.FirstSlice(layer), config.num_slices() - 1);
}

size_t StateOffset(const ModelConfig& config, uint32_t layer) {
  return StatePlaceBefore(config, layer).num_before * config.delta.state_bytes();
}

uint32_t NumStoredSlices(const ModelConfig& config, uint32_t layer) {
  const uint32_t last = config.num_layers - 1;
  if (layer == last) return config.num_slices();
  // The last slices wait for the delta nets after the last layer of attention.
  return std::min(config.FirstSlice(layer + 1),
                  config.num_slices() - (config.IsDelta(last) ? 1 : 0));
}

uint32_t ModelConfig::num_delta_layers() const {
  return static_cast<uint32_t>(std::count(layer_is_delta.begin(), layer_is_delta.end(), true));
}

}  // namespace baton::model
