#include "src/model/weight_parts.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"

namespace baton::model {

namespace cuda = kernels::cuda;

namespace {

bool AreAlike(const WeightPart& a, const WeightPart& b) {
  return a.cut.rows == b.cut.rows && a.cut.columns == b.cut.columns &&
         a.cut.picked == b.cut.picked && a.form == b.form && a.stride == b.stride;
}

}  // namespace

size_t WeightForm::Offset(uint64_t row, uint64_t k) const {
  if (is_float) return row * k * sizeof(float);
  if (format == cuda::PackedFormat::kBf16) return row * k * sizeof(uint16_t);
  BATON_CHECK(row % cuda::kPackedRows == 0, "row {} begins no tile", row);
  return row / cuda::kPackedRows * cuda::PackedTilesOfRow(static_cast<uint32_t>(k)) *
         cuda::PackedTileBytes(format);
}

size_t WeightForm::Bytes(uint64_t rows, uint64_t k) const {
  if (is_float || format == cuda::PackedFormat::kBf16) return Offset(rows, k);
  return cuda::PackedBytes(format, static_cast<uint32_t>(rows), static_cast<uint32_t>(k));
}

void WeightParts::Add(WeightPart part) {
  std::vector<WeightPart>& of_tensor = parts_[part.cut.tensor];
  const auto like = std::find_if(of_tensor.begin(), of_tensor.end(),
                                 [&](const WeightPart& other) { return AreAlike(part, other); });
  if (like == of_tensor.end()) {
    of_tensor.push_back(std::move(part));
    return;
  }
  BATON_CHECK(like->targets.back().device_idx <= part.targets[0].device_idx,
              "parts of device {} come after those of device {}", part.targets[0].device_idx,
              like->targets.back().device_idx);
  like->targets.push_back(part.targets[0]);
}

std::span<const WeightPart> WeightParts::Of(const GgufTensor& tensor) const {
  const auto found = parts_.find(&tensor);
  if (found == parts_.end()) return {};
  return found->second;
}

}  // namespace baton::model
