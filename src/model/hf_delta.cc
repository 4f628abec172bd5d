#include "src/model/hf_delta.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "src/model/hf_config.h"
#include "src/model/model_config.h"

namespace baton::model {

using kernels::DeltaShape;
using kernels::kDeltaLanes;
using kernels::kMaxConvTaps;
using kernels::kMaxDeltaKeyDim;

namespace {

using Json = nlohmann::json;

constexpr HfDeltaKeys kShapeKeys = {.num_taps = "linear_conv_kernel_dim",
                                    .k_dim = "linear_key_head_dim",
                                    .v_dim = "linear_value_head_dim",
                                    .num_k_heads = "linear_num_key_heads",
                                    .num_v_heads = "linear_num_value_heads"};

// Which layers are nets: all but the last of each `interval`.
std::vector<bool> NetsBetween(uint32_t interval, uint32_t layers) {
  std::vector<bool> nets(layers, true);
  for (uint32_t i = interval; i <= layers && i > 0; i += interval) nets[i - 1] = false;
  return nets;
}

// "layer_types", one by one.
absl::StatusOr<std::vector<bool>> ReadListedNets(const JsonObject& config, const Json& types,
                                                 uint32_t layers) {
  if (!types.is_array() || types.size() != layers) {
    return config.Bad("layer_types", fmt::format("a list of {} texts", layers));
  }
  std::vector<bool> nets;
  for (const Json& type : types) {
    if (type != "linear_attention" && type != "full_attention") {
      return config.Bad("layer_types", "linear_attention or full_attention each");
    }
    nets.push_back(type == "linear_attention");
  }
  return nets;
}

// Which layers are nets: by layer_types, or by the interval of those of attention. The key of GGUF
// that lists them is only for those that no interval gives: older programs do not read it.
absl::Status ReadNets(const JsonObject& config, HfConfig& out) {
  constexpr const char* kInterval = "full_attention_interval";
  constexpr uint32_t kUsual = 4;
  const uint32_t layers = out.num_layers;
  BATON_ASSIGN_OR_RETURN(uint32_t interval, config.UintOr(kInterval, kUsual));
  const Json* types = config.Find("layer_types");
  std::vector<bool> nets = NetsBetween(interval, layers);
  if (types != nullptr) {
    BATON_ASSIGN_OR_RETURN(const std::vector<bool> listed, ReadListedNets(config, *types, layers));
    if (config.Has(kInterval) && listed != nets) {
      return config.Bad(kInterval, "that of \"layer_types\"");
    }
    const auto first = std::find(listed.begin(), listed.end(), false);
    interval = static_cast<uint32_t>(first - listed.begin()) + 1;
    nets = listed;
  }
  if (std::find(nets.begin(), nets.end(), false) == nets.end()) {
    return config.Unsupported(types == nullptr ? kInterval : "layer_types",
                              "at least one layer of full_attention");
  }
  if (nets != NetsBetween(interval, layers)) {
    out.delta_layers = std::move(nets);
  } else {
    out.keys.AddU32(fmt::format("{}.{}", out.traits->name, kInterval), interval);
  }
  return OkStatus();
}

// Which head of GGUF holds the heads of v that a folder has as number `head`.
uint32_t TiledHead(const DeltaShape& shape, uint32_t head) {
  const uint32_t group = shape.num_v_heads / shape.num_k_heads;  // of a head of k
  return head % group * shape.num_k_heads + head / group;
}

}  // namespace

absl::Status ReadHfDeltaShape(const JsonObject& config, const HfDeltaKeys& keys,
                              DeltaShape& shape) {
  struct Row {
    const char* key;
    uint32_t DeltaShape::*field;
    uint32_t min;
    uint32_t max;
    uint32_t step;
  };
  const std::array rows = {
      Row{keys.num_taps, &DeltaShape::num_taps, kMinConvTaps, kMaxConvTaps, 1},
      Row{keys.k_dim, &DeltaShape::k_dim, kDeltaLanes, kMaxDeltaKeyDim, kDeltaLanes},
      Row{keys.v_dim, &DeltaShape::v_dim, kDeltaLanes, 1024, kDeltaLanes},
      Row{keys.num_k_heads, &DeltaShape::num_k_heads, 1, kMaxHeads, 1},
      Row{keys.num_v_heads, &DeltaShape::num_v_heads, 1, kMaxHeads, 1},
  };
  for (const Row& row : rows) {
    BATON_ASSIGN_OR_RETURN(const uint32_t value, config.Uint(row.key));
    if (value < row.min || value > row.max || value % row.step != 0) {
      return config.Bad(row.key,
                        fmt::format("a multiple of {} in [{}, {}]", row.step, row.min, row.max));
    }
    shape.*row.field = value;
  }
  if (shape.num_v_heads % shape.num_k_heads == 0) return OkStatus();
  return config.Bad(keys.num_v_heads, fmt::format("a multiple of the {} of \"{}\"",
                                                  shape.num_k_heads, keys.num_k_heads));
}

absl::Status ReadHfDeltaNets(const JsonObject& config, HfConfig& out) {
  const std::string arch(out.traits->name);
  BATON_ASSIGN_OR_RETURN(out.num_layers, config.Uint("num_hidden_layers"));
  if (out.num_layers == 0 || out.num_layers > kMaxLayers) {
    return config.Bad("num_hidden_layers", fmt::format("[1, {}]", kMaxLayers));
  }
  BATON_ASSIGN_OR_RETURN(const bool has_gate, config.BoolOr("attn_output_gate", true));
  if (!has_gate) return config.Unsupported("attn_output_gate", "true");
  BATON_ASSIGN_OR_RETURN(const std::string dtype, config.StringOr("mamba_ssm_dtype", "float32"));
  if (dtype != "float32") return config.Unsupported("mamba_ssm_dtype", "float32");
  if (config.Has("sliding_window")) return config.Unsupported("sliding_window", "null");
  DeltaShape& shape = out.delta;
  BATON_RETURN_IF_ERROR(ReadHfDeltaShape(config, kShapeKeys, shape));
  out.keys.AddU32(arch + ".ssm.conv_kernel", shape.num_taps);
  out.keys.AddU32(arch + ".ssm.state_size", shape.k_dim);
  out.keys.AddU32(arch + ".ssm.group_count", shape.num_k_heads);
  out.keys.AddU32(arch + ".ssm.time_step_rank", shape.num_v_heads);
  out.keys.AddU32(arch + ".ssm.inner_size", shape.value_size());
  return ReadNets(config, out);
}

absl::Status TileVHeads(const DeltaShape& shape, HfVHeads form, uint64_t num_rows,
                        std::span<const std::byte> in, std::byte* out) {
  const uint64_t first = form == HfVHeads::kAfterKeys ? uint64_t{2} * shape.key_size() : 0;
  const bool columns = form == HfVHeads::kColumns;
  const uint64_t row_bytes = num_rows == 0 ? 0 : in.size() / num_rows;
  const uint64_t divided = columns ? row_bytes : num_rows - std::min(first, num_rows);
  if (form == HfVHeads::kNone || divided == 0 || divided % shape.num_v_heads != 0) {
    return InvalidArgument("{} {} for {} heads of v", divided, columns ? "bytes of a row" : "rows",
                           shape.num_v_heads);
  }
  const uint64_t a_head = divided / shape.num_v_heads * (columns ? 1 : row_bytes);  // bytes
  std::memcpy(out, in.data(), in.size());
  const uint64_t num_lines = columns ? num_rows : 1;
  for (uint64_t line = 0; line < num_lines; ++line) {
    const uint64_t begin = columns ? line * row_bytes : first * row_bytes;
    for (uint32_t head = 0; head < shape.num_v_heads; ++head) {
      std::memcpy(out + begin + TiledHead(shape, head) * a_head, in.data() + begin + head * a_head,
                  a_head);
    }
  }
  return OkStatus();
}

std::string NameOfPrediction(std::string_view name, uint32_t num_layers,
                             uint32_t* num_layers_of_prediction) {
  constexpr std::string_view kPrefix = "mtp.";
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kPrefix)) return std::string(name);
  std::string_view rest = name.substr(kPrefix.size());
  uint32_t layer = 0;
  if (rest.starts_with(kLayers)) {
    rest.remove_prefix(kLayers.size());
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    const auto length = static_cast<size_t>(end - rest.data());
    const bool is_number = error == std::errc() && layer < kMaxLayers && length < rest.size();
    if (!is_number || rest[length] != '.') return std::string(name);
    rest.remove_prefix(length + 1);
    *num_layers_of_prediction = std::max(*num_layers_of_prediction, layer + 1);
    return fmt::format("model.layers.{}.{}", num_layers + layer, rest);
  }
  *num_layers_of_prediction = std::max(*num_layers_of_prediction, 1u);
  return fmt::format("model.layers.{}.nextn.{}", num_layers, rest);
}

}  // namespace baton::model
