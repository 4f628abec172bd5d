#include "src/model/weight_checks.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/fp8_rows.h"
#include "src/base/atomic_min.h"
#include "src/model/nvfp4_rows.h"
#include "src/model/tensor_plan.h"

namespace baton::model {

using device::TaskRange;
using device::ThreadPool;
using kernels::IsNanCode;

namespace {

// Blocks of a byte e and 16 bytes of two digits each: elements 2^(e - 128) times 0 1 2 3 4 6 8 12
// or its negative.
bool HasInfiniteMxfp4(std::span<const std::byte> row) {
  constexpr size_t kBlockBytes = 17;
  for (size_t at = 0; at < row.size(); at += kBlockBytes) {
    const auto e = static_cast<uint32_t>(row[at]);
    if (e < 253 || e == 255) continue;  // 255, NaN, is refused when it is packed
    // The first digit that is too large: 8 at 2^125, 4 at 2^126.
    const uint32_t limit = e == 253 ? 6 : 4;
    for (const std::byte byte : row.subspan(at + 1, kBlockBytes - 1)) {
      const auto digits = static_cast<uint32_t>(byte);
      if ((digits & 7) >= limit || (digits >> 4 & 7) >= limit) return true;
    }
  }
  return false;
}

// Whether an element without its sign is `limit` or more, as bits.
template <typename Word>
bool Reaches(std::span<const std::byte> row, Word limit) {
  constexpr Word kMagnitude = std::numeric_limits<Word>::max() / 2;
  uint32_t num_bad = 0;
  for (size_t at = 0; at < row.size(); at += sizeof(Word)) {
    Word bits = 0;
    std::memcpy(&bits, row.data() + at, sizeof bits);
    num_bad += (bits & kMagnitude) >= limit ? 1 : 0;
  }
  return num_bad > 0;
}

// The fault that a row of this type can hold although packing finds none, and that no product may
// see; "" when the row has none.
std::string_view FaultOf(const GgufTensorType& row_type, std::span<const std::byte> row) {
  if (row_type.fp8 != nullptr) {
    return std::any_of(row.begin(), row.end(), IsNanCode) ? "a NaN (code 0x7F or 0xFF)" : "";
  }
  const std::string_view not_finite = "an element that is not finite in bf16";
  switch (static_cast<GgmlType>(row_type.id)) {
    case GgmlType::kF32:  // from here on it would round to an infinity of bf16, as devices have it
      return Reaches<uint32_t>(row, 0x7F7F8000) ? not_finite : "";
    case GgmlType::kF16:
      return Reaches<uint16_t>(row, 0x7C00) ? not_finite : "";
    case GgmlType::kBf16:
      return Reaches<uint16_t>(row, 0x7F80) ? not_finite : "";
    case GgmlType::kMxfp4:
      return HasInfiniteMxfp4(row) ? "an infinite element" : "";
    case GgmlType::kNvfp4:
      return HasInfiniteNvfp4(row, row_type.scale, row_type.divides) ? not_finite : "";
    default:
      return "";
  }
}

bool CanHaveFault(GgmlType type, bool is_fp8) {
  return is_fp8 || type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBf16 ||
         type == GgmlType::kMxfp4 || type == GgmlType::kNvfp4;
}

}  // namespace

absl::Status CheckRows(const GgufTensor& tensor, std::span<const std::byte> bytes, uint64_t first,
                       uint64_t num_rows, ThreadPool& pool) {
  const bool is_fp8 = tensor.fp8() != nullptr;
  const auto type = static_cast<GgmlType>(tensor.type->id);
  if (!CanHaveFault(type, is_fp8)) return OkStatus();
  const uint64_t row_bytes = tensor.data.size() / (tensor.num_elements() / tensor.dims[0]);
  const auto count = static_cast<uint32_t>(bytes.size() / row_bytes);
  const auto fault_of = [&](uint32_t row) {
    return FaultOf(*tensor.type, bytes.subspan(row * row_bytes, row_bytes));
  };
  std::atomic<uint32_t> bad_row = count;
  pool.RunRanges(count, 8, 4 * pool.num_threads(), [&](TaskRange range, uint32_t) {
    for (uint32_t row = range.begin; row < range.end; ++row) {
      if (fault_of(row).empty()) continue;
      LowerTo(row, &bad_row);
      return;
    }
  });
  if (bad_row == count) return OkStatus();
  return InvalidArgument("tensor {}: row {} of {} has {}", tensor.NameText(),
                         first + bad_row.load(), num_rows, fault_of(bad_row));
}

absl::Status CheckVector(const GgufTensor& vector) {
  const bool divides = vector.name == "rope_freqs.weight" || vector.name == kShortFactorsName ||
                       vector.name == kLongFactorsName;
  const std::vector<float> values = FloatsOf(vector);
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]) && (values[i] > 0 || !divides)) continue;
    return InvalidArgument("element {} of tensor {} is {}, not a {}number", i, vector.NameText(),
                           values[i], divides ? "positive " : "");
  }
  return OkStatus();
}

absl::Status CheckVectors(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.num_dims == 1) BATON_RETURN_IF_ERROR(CheckVector(tensor));
  }
  return OkStatus();
}

absl::Status CheckElementsOf(const GgufTensor& rows, uint64_t first, uint64_t num_rows,
                             ThreadPool& pool) {
  return CheckRows(rows, rows.data, first, num_rows, pool);
}

absl::Status CheckElements(const GgufFile& file, ThreadPool& pool) {
  for (const GgufTensor& tensor : file.tensors()) {
    BATON_RETURN_IF_ERROR(CheckElementsOf(tensor, 0, tensor.num_elements() / tensor.dims[0], pool));
  }
  return OkStatus();
}

}  // namespace baton::model
