#include "src/model/encode_matrix.h"

#include <algorithm>
#include <span>

#include "kernels/ops.h"
#include "kernels/packed_matrix.h"
#include "src/model/quantize.h"
#include "src/model/tensor_plan.h"

namespace baton {
namespace {

uint64_t RowBytes(uint64_t k, GgmlType type) {
  const GgufTensorType& row = *FindGgufTensorType(static_cast<uint32_t>(type));
  return k / row.block_elements * row.block_bytes;
}

}  // namespace

uint64_t EncodedRowBytes(const GgufTensor& tensor, GgmlType type) {
  return RowBytes(tensor.dims[0], type);
}

std::vector<std::byte> EncodeFp8(const Fp8Rows& rows, GgmlType type, ThreadPool& pool) {
  const uint64_t row_bytes = RowBytes(rows.k, type);
  std::vector<std::byte> out(rows.n * row_bytes);
  pool.RunRanges(rows.n, 8, 4 * pool.num_threads(), [&](TaskRange range, uint32_t) {
    std::vector<float> weights(rows.k);
    for (uint32_t row = range.begin; row < range.end; ++row) {
      rows.Weights(row, weights.data());
      EncodeRow(type, weights, out.data() + row * row_bytes);
    }
  });
  return out;
}

absl::StatusOr<std::vector<std::byte>> EncodeMatrix(const GgufTensor& tensor, GgmlType type,
                                                    ThreadPool& pool) {
  if (tensor.fp8() != nullptr) return EncodeFp8(Fp8RowsOf(tensor), type, pool);
  const uint32_t k = static_cast<uint32_t>(tensor.dims[0]);
  const uint32_t n = static_cast<uint32_t>(tensor.num_elements() / tensor.dims[0]);
  BATON_ASSIGN_OR_RETURN(const PackedMatrix matrix,
                         PackedMatrix::Pack(WeightTypeOf(tensor), tensor.data, n, k, pool));
  BATON_ASSIGN_OR_RETURN(const Ops* ops, OpsFor(Isa::kAuto));
  const uint64_t row_bytes = EncodedRowBytes(tensor, type);
  std::vector<std::byte> out(n * row_bytes);
  constexpr uint32_t kRows = 256;
  std::vector<float> rows(size_t{std::min(kRows, n)} * k);
  std::vector<int32_t> ids;
  for (uint32_t begin = 0; begin < n; begin += kRows) {
    const uint32_t count = std::min(kRows, n - begin);
    ids.clear();
    for (uint32_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(begin + i));
    ops->embed(pool, matrix, ids, rows.data());
    pool.RunRanges(count, 8, 4 * pool.num_threads(), [&](TaskRange range, uint32_t) {
      for (uint32_t i = range.begin; i < range.end; ++i) {
        EncodeRow(type, std::span(rows).subspan(size_t{i} * k, k),
                  out.data() + (begin + i) * row_bytes);
      }
    });
  }
  return out;
}

}  // namespace baton
