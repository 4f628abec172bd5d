#include "src/model/hf_fp8.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/fp8_rows.h"
#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"
#include "src/model/hf_tensors.h"

namespace baton::model {

using kernels::kMaxFp8Scale;

namespace {

bool IsPowers(SafetensorsType type) {
  return type == SafetensorsType::kU8 || type == SafetensorsType::kF8E8M0;
}

float ScaleAt(const SafetensorsTensor& scale, uint64_t i) {
  float value = 0;
  const size_t bytes = BytesOf(scale.type);
  const SafetensorsType type = IsPowers(scale.type) ? SafetensorsType::kF8E8M0 : scale.type;
  ToF32(type, scale.data.subspan(i * bytes, bytes), 0, &value);
  return value;
}

// Blocks of ModelOpt have a dimension of one after each of theirs.
std::vector<uint64_t> GridShapeOf(const SafetensorsTensor& scale) {
  const std::vector<uint64_t>& shape = scale.shape;
  const bool is_of_four = shape.size() == 4 && shape[1] == 1 && shape[3] == 1;
  return is_of_four ? std::vector{shape[0], shape[2]} : shape;
}

}  // namespace

std::string_view WeightOfHfScale(std::string_view name) {
  for (const std::string_view suffix : {"_scale", "_scale_inv"}) {
    if (!name.ends_with(suffix)) continue;
    const std::string_view weight = name.substr(0, name.size() - suffix.size());
    if (weight.ends_with(".weight")) return weight;
  }
  return "";
}

bool IsHfActivationScale(std::string_view name) {
  constexpr std::array<std::string_view, 9> kSuffixes = {
      ".input_scale", ".output_scale",     ".q_scale",           ".k_scale",           ".v_scale",
      ".kv_scale",    ".input_zero_point", ".output_zero_point", ".input_global_scale"};
  return std::any_of(kSuffixes.begin(), kSuffixes.end(),
                     [name](std::string_view suffix) { return name.ends_with(suffix); });
}

absl::StatusOr<HfScaleGrid> HfScaleGridOf(const SafetensorsTensor& weight,
                                          const SafetensorsTensor& scale) {
  const bool is_matrix = weight.shape.size() == 2 && weight.shape[0] <= UINT32_MAX &&
                         weight.shape[1] >= kMinHfFp8Row && weight.shape[1] <= UINT32_MAX;
  if (!is_matrix) {
    return TensorError(
        FolderErrorCode::kBadShape, weight.name,
        fmt::format("F8_E4M3 of shape {} is no matrix of rows of {} elements and more",
                    ShapeText(weight), kMinHfFp8Row));
  }
  const uint64_t n = weight.shape[0];
  const uint64_t k = weight.shape[1];
  const std::vector<uint64_t> shape = GridShapeOf(scale);
  const std::vector<uint64_t> blocks = {(n - 1) / kHfFp8Block + 1, (k - 1) / kHfFp8Block + 1};
  const bool is_inverse = scale.name.ends_with("_inv");
  const bool fits_blocks = shape == blocks && scale.type != SafetensorsType::kU8;
  if (fits_blocks && (IsFloat(scale.type) || IsPowers(scale.type))) {
    return HfScaleGrid{kHfFp8Block, kHfFp8Block, blocks[1]};
  }
  if (IsPowers(scale.type) && !is_inverse) {
    const std::vector<uint64_t> groups = {n, k / kHfMxGroup};
    if (k % kHfMxGroup == 0 && shape == groups) return HfScaleGrid{1, kHfMxGroup, groups[1]};
    return TensorError(
        FolderErrorCode::kBadScale, scale.name,
        fmt::format("{} of shape {} does not scale {}, which is {} (wanted: one for each {} of a "
                    "row, [{}, {} / {}])",
                    SafetensorsTypeName(scale.type), ShapeText(scale),
                    QuotedForMessage(weight.name), ShapeText(weight), kHfMxGroup, n, k,
                    kHfMxGroup));
  }
  if (IsFloat(scale.type)) {
    const bool is_one = std::all_of(shape.begin(), shape.end(), [](uint64_t d) { return d == 1; });
    const bool is_rows = shape == std::vector{n} || shape == std::vector<uint64_t>{n, 1};
    if (!is_inverse && (is_one || is_rows)) {
      return HfScaleGrid{is_one ? n : 1, static_cast<uint32_t>(k), 1};
    }
  }
  return TensorError(
      FolderErrorCode::kBadScale, scale.name,
      fmt::format("shape {} does not scale {}, which is {} (wanted: {}{} as {}, in F32, "
                  "BF16 or F16)",
                  ShapeText(scale), QuotedForMessage(weight.name), ShapeText(weight),
                  is_inverse ? "" : fmt::format("[1], [{}], [{}, 1], or ", n, n),
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
      return TensorError(
          FolderErrorCode::kBadScale, scale.name,
          fmt::format("element {} is {}, wanted a number in (0, {}]", at, out[i], kMaxFp8Scale));
    }
  }
  return OkStatus();
}

}  // namespace baton::model
