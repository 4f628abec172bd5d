#include "src/model/tensor_part.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/embed.h"
#include "src/model/encode_matrix.h"
#include "src/model/gguf_nvfp4.h"
#include "src/model/weight_checks.h"

namespace baton::model {

using device::ThreadPool;
using kernels::DequantizeRow;
using kernels::RawRows;
using kernels::WeightType;

namespace {

uint32_t RowsOf(const GgufTensor& tensor) { return static_cast<uint32_t>(tensor.dims[1]); }

// The rows of each head in the order of TargetOf.
std::vector<std::byte> ReorderHeads(const HeadOrder& order, std::span<const std::byte> rows,
                                    size_t row_bytes) {
  std::vector<std::byte> out(rows.begin(), rows.end());
  for (size_t i = 0; i < size_t{order.num_heads} * order.head_dim; ++i) {
    const size_t first = i / order.head_dim * order.head_dim;
    const size_t target = first + TargetOf(order, i - first);
    std::copy_n(rows.data() + i * row_bytes, row_bytes, out.data() + target * row_bytes);
  }
  return out;
}

std::span<const std::byte> BytesOf(const TensorPart& part) {
  const uint64_t row_bytes = part.tensor->data.size() / NumRowsOf(*part.tensor);
  return part.tensor->data.subspan(part.first_row * row_bytes, part.num_rows * row_bytes);
}

}  // namespace

TensorPart WholePart(const GgufTensor* tensor) { return {tensor, 0, RowsOf(*tensor)}; }

TensorPart ExpertPart(const GgufTensor* tensor, size_t expert) {
  return {tensor, expert * RowsOf(*tensor), RowsOf(*tensor)};
}

uint64_t NumRowsOf(const GgufTensor& tensor) { return tensor.num_elements() / tensor.dims[0]; }

size_t TargetOf(const HeadOrder& order, size_t i) {
  const size_t half = order.head_dim / 2;
  const size_t turning = order.rope_dims / 2;
  if (i < turning) return i;
  if (i < 2 * turning) return half + i - turning;
  const size_t rest = i - 2 * turning;
  const size_t in_lower = half - turning;
  return rest < in_lower ? turning + rest : half + turning + (rest - in_lower);
}

std::vector<uint32_t> PickHeads(const HeadOrder& order, const HeadRows& rows, bool turns) {
  std::vector<uint32_t> picked(size_t{rows.num_heads} * order.head_dim);
  for (uint32_t head = 0; head < rows.num_heads; ++head) {
    for (uint32_t i = 0; i < order.head_dim; ++i) {
      const size_t target = turns ? TargetOf(order, i) : i;
      picked[size_t{head} * order.head_dim + target] = head * rows.per_head + rows.first + i;
    }
  }
  return picked;
}

std::vector<uint32_t> PickNorm(const HeadOrder& order) {
  return PickHeads(order, {.num_heads = 1, .per_head = order.head_dim}, /*turns=*/true);
}

absl::Status CheckPart(const TensorPart& part, ThreadPool& pool) {
  return CheckRows(*part.tensor, BytesOf(part), part.first_row, NumRowsOf(*part.tensor), pool);
}

WeightType PackedTypeOf(const GgufTensor& tensor) {
  return IsNvfp4(tensor) ? WeightType::kBf16 : WeightTypeOf(tensor);
}

RawRows RawRowsOf(const TensorPart& part, ThreadPool& pool, std::vector<std::byte>& made) {
  const GgufTensor& tensor = *part.tensor;
  RawRows rows{WeightTypeOf(tensor), BytesOf(part), part.num_rows};
  if (tensor.fp8() != nullptr) {
    const auto first = static_cast<uint32_t>(part.first_row);
    made = EncodeFp8(Fp8RowsOf(tensor).Part(first, part.num_rows), GgmlType::kBf16, pool);
    rows = {WeightType::kBf16, made, part.num_rows};
  } else if (IsNvfp4(tensor)) {
    Nvfp4Rows of_part = Nvfp4RowsOf(tensor);
    of_part.bytes = BytesOf(part);
    of_part.n = part.num_rows;
    made = EncodeNvfp4(of_part, GgmlType::kBf16, pool);
    rows = {WeightType::kBf16, made, part.num_rows};
  }
  if (!part.picked.empty()) {
    const size_t row_bytes = rows.bytes.size() / part.num_rows;
    std::vector<std::byte> picked(part.picked.size() * row_bytes);
    for (size_t i = 0; i < part.picked.size(); ++i) {
      std::copy_n(rows.bytes.data() + part.picked[i] * row_bytes, row_bytes,
                  picked.data() + i * row_bytes);
    }
    made = std::move(picked);
    rows.bytes = made;
    rows.n = static_cast<uint32_t>(part.picked.size());
    return rows;
  }
  if (part.order.num_heads == 0) return rows;
  made = ReorderHeads(part.order, rows.bytes, rows.bytes.size() / part.num_rows);
  rows.bytes = made;
  return rows;
}

absl::StatusOr<std::vector<std::byte>> ElementsOf(const TensorPart& part, ThreadPool& pool) {
  std::vector<std::byte> in_bf16;
  const RawRows raw = RawRowsOf(part, pool, in_bf16);
  if (!TraitsOf(raw.type).quantized()) {
    return std::vector<std::byte>(raw.bytes.begin(), raw.bytes.end());
  }
  const auto k = static_cast<uint32_t>(part.tensor->dims[0]);
  const size_t row_bytes = raw.bytes.size() / part.num_rows;
  std::vector<std::byte> out(size_t{part.num_rows} * k * sizeof(float));
  std::vector<float> weights(k);
  for (uint32_t row = 0; row < part.num_rows; ++row) {
    if (!DequantizeRow(raw.type, raw.bytes.data() + row * row_bytes, k, weights.data())) {
      return InvalidArgument("tensor {}: row {} has a block whose scale is not a finite number",
                             part.tensor->NameText(), part.first_row + row);
    }
    std::memcpy(out.data() + row * k * sizeof(float), weights.data(), k * sizeof(float));
  }
  return out;
}

}  // namespace baton::model
