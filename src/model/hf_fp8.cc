#include "src/model/hf_fp8.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "kernels/fp8_rows.h"
#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"
#include "src/model/hf_tensors.h"

namespace baton::model {

using kernels::kMaxFp8Scale;

namespace {

using Json = nlohmann::json;

// Blocks of another size than 128 x 128 are refused.
absl::Status CheckBlock(const JsonObject& object, const char* key) {
  const Json* block = object.Find(key);
  if (block == nullptr || *block == Json({kHfFp8Block, kHfFp8Block})) return OkStatus();
  return object.Unsupported(key, "[128, 128]");
}

absl::Status CheckIsText(const JsonObject& object, const char* key, std::string_view wanted) {
  BATON_ASSIGN_OR_RETURN(const std::string text, object.StringOr(key, wanted));
  return text == wanted ? OkStatus() : object.Unsupported(key, wanted);
}

// compressed-tensors describes the weights of each group of modules.
absl::Status CheckGroups(const JsonObject& config) {
  // Models that compute in fp8 say "float-quantized"; models that only keep weights in fp8 say
  // "naive-quantized". Weights lie in the same way in both.
  BATON_ASSIGN_OR_RETURN(const std::string format, config.StringOr("format", "float-quantized"));
  if (format != "float-quantized" && format != "naive-quantized") {
    return config.Unsupported("format", "float-quantized, naive-quantized");
  }
  const Json* transforms = config.Find("transform_config");
  if (transforms != nullptr && !transforms->is_null() && !transforms->empty()) {
    return config.Unsupported("transform_config", "none");
  }
  const Json* groups = config.Find("config_groups");
  if (groups == nullptr) return OkStatus();
  if (!groups->is_object()) return config.Bad("config_groups", "an object");
  for (const Json& group : *groups) {
    if (!group.is_object()) return config.Bad("config_groups", "an object of objects");
    const auto weights = group.find("weights");
    if (weights == group.end() || !weights->is_object()) {
      return config.Bad("config_groups", "groups that have \"weights\"");
    }
    const JsonObject object(*weights, "config.json: quantization_config: weights");
    BATON_RETURN_IF_ERROR(CheckIsText(object, "type", "float"));
    BATON_ASSIGN_OR_RETURN(const uint32_t bits, object.UintOr("num_bits", 8));
    if (bits != 8) return object.Unsupported("num_bits", "8");
    BATON_RETURN_IF_ERROR(CheckBlock(object, "block_structure"));
  }
  return OkStatus();
}

absl::Status CheckMethod(const JsonObject& quantization, bool has_mxfp4) {
  BATON_ASSIGN_OR_RETURN(const std::string method, quantization.StringOr("quant_method", ""));
  if (method == "fbgemm_fp8") return OkStatus();
  if (method == "mxfp4" && has_mxfp4) return OkStatus();
  if (method == "compressed-tensors") return CheckGroups(quantization);
  if (method == "fp8") {
    BATON_RETURN_IF_ERROR(CheckIsText(quantization, "fmt", "e4m3"));
    return CheckBlock(quantization, "weight_block_size");
  }
  return FolderError(
      FolderErrorCode::kQuantized,
      fmt::format("{} (method {}) is not supported; take the model in bf16, f16, f32 or fp8 "
                  "(e4m3), or a GGUF file of it",
                  quantization.where(), method.empty() ? "unnamed" : QuotedForMessage(method)));
}

std::string ShapeText(const SafetensorsTensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape, ", "));
}

float ScaleAt(const SafetensorsTensor& scale, uint64_t i) {
  float value = 0;
  const size_t bytes = BytesOf(scale.type);
  ToF32(scale.type, scale.data.subspan(i * bytes, bytes), 0, &value);
  return value;
}

}  // namespace

absl::Status CheckHfQuantization(const JsonObject& config) {
  // Experts in MXFP4, which their tensors say themselves.
  BATON_ASSIGN_OR_RETURN(const std::string type, config.StringOr("model_type", ""));
  // The second is the name that compressed-tensors had first.
  for (const char* key : {"quantization_config", "compression_config"}) {
    const Json* value = config.Find(key);
    if (value == nullptr) continue;
    if (!value->is_object()) return config.Bad(key, "an object");
    BATON_RETURN_IF_ERROR(CheckMethod(
        JsonObject(*value, fmt::format("{}: {}", config.where(), key)), type == "gpt_oss"));
  }
  return OkStatus();
}

std::string_view WeightOfHfScale(std::string_view name) {
  for (const std::string_view suffix : {"_scale", "_scale_inv"}) {
    if (!name.ends_with(suffix)) continue;
    const std::string_view weight = name.substr(0, name.size() - suffix.size());
    if (weight.ends_with(".weight")) return weight;
  }
  return "";
}

bool IsHfActivationScale(std::string_view name) {
  constexpr std::array<std::string_view, 6> kSuffixes = {
      ".input_scale", ".output_scale", ".q_scale", ".k_scale", ".v_scale", ".kv_scale"};
  return std::any_of(kSuffixes.begin(), kSuffixes.end(),
                     [name](std::string_view suffix) { return name.ends_with(suffix); });
}

absl::StatusOr<HfScaleGrid> HfScaleGridOf(const SafetensorsTensor& weight,
                                          const SafetensorsTensor& scale) {
  const bool is_matrix = weight.shape.size() == 2 && weight.shape[0] <= UINT32_MAX &&
                         weight.shape[1] >= kMinHfFp8Row && weight.shape[1] <= UINT32_MAX;
  if (!is_matrix) {
    return FolderError(FolderErrorCode::kBadShape,
                       fmt::format("tensor {}: F8_E4M3 of shape {} is no matrix of rows of {} "
                                   "elements and more",
                                   QuotedForMessage(weight.name), ShapeText(weight), kMinHfFp8Row));
  }
  const uint64_t n = weight.shape[0];
  const uint64_t k = weight.shape[1];
  const std::vector<uint64_t>& shape = scale.shape;
  const std::vector<uint64_t> blocks = {(n - 1) / kHfFp8Block + 1, (k - 1) / kHfFp8Block + 1};
  if (scale.type != SafetensorsType::kF8E4M3) {
    if (shape == blocks) return HfScaleGrid{kHfFp8Block, kHfFp8Block, blocks[1]};
    const bool is_one = std::all_of(shape.begin(), shape.end(), [](uint64_t d) { return d == 1; });
    const bool is_rows = shape == std::vector{n} || shape == std::vector<uint64_t>{n, 1};
    if (scale.name.ends_with("_scale") && (is_one || is_rows)) {
      return HfScaleGrid{is_one ? n : 1, static_cast<uint32_t>(k), 1};
    }
  }
  const bool is_inverse = scale.name.ends_with("_inv");
  return FolderError(
      FolderErrorCode::kBadScale,
      fmt::format("tensor {}: shape {} does not scale {}, which is {} (wanted: {}{} as {}, in F32, "
                  "BF16 or F16)",
                  QuotedForMessage(scale.name), ShapeText(scale), QuotedForMessage(weight.name),
                  ShapeText(weight), is_inverse ? "" : fmt::format("[1], [{}], [{}, 1], or ", n, n),
                  "one for each 128 x 128", fmt::format("[{}]", fmt::join(blocks, ", "))));
}

absl::Status ReadHfScales(const SafetensorsTensor& scale, const HfScaleGrid& grid, uint64_t n,
                          float* out) {
  for (uint64_t row = 0; row < n; ++row, out += grid.groups) {
    if (row % grid.rows_each != 0) {
      std::copy_n(out - grid.groups, grid.groups, out);
      continue;
    }
    for (uint64_t i = 0; i < grid.groups; ++i) {
      const uint64_t at = row / grid.rows_each * grid.groups + i;
      out[i] = ScaleAt(scale, at);
      if (out[i] > 0 && out[i] <= kMaxFp8Scale) continue;
      return FolderError(FolderErrorCode::kBadScale,
                         fmt::format("tensor {}: element {} is {}, wanted a number in (0, {}]",
                                     QuotedForMessage(scale.name), at, out[i], kMaxFp8Scale));
    }
  }
  return OkStatus();
}

}  // namespace baton::model
