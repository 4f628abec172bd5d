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

float ScaleAt(const SafetensorsTensor& scale, uint64_t i) {
  float value = 0;
  const size_t bytes = BytesOf(scale.type);
  ToF32(scale.type, scale.data.subspan(i * bytes, bytes), 0, &value);
  return value;
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
  const std::vector<uint64_t>& shape = scale.shape;
  const std::vector<uint64_t> blocks = {(n - 1) / kHfFp8Block + 1, (k - 1) / kHfFp8Block + 1};
  if (IsFloat(scale.type)) {
    if (shape == blocks) return HfScaleGrid{kHfFp8Block, kHfFp8Block, blocks[1]};
    const bool is_one = std::all_of(shape.begin(), shape.end(), [](uint64_t d) { return d == 1; });
    const bool is_rows = shape == std::vector{n} || shape == std::vector<uint64_t>{n, 1};
    if (scale.name.ends_with("_scale") && (is_one || is_rows)) {
      return HfScaleGrid{is_one ? n : 1, static_cast<uint32_t>(k), 1};
    }
  }
  const bool is_inverse = scale.name.ends_with("_inv");
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
