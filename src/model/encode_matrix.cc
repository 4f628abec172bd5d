#include "src/model/encode_matrix.h"

#include <algorithm>
#include <span>

#include "kernels/ops.h"
#include "kernels/packed_matrix.h"
#include "src/model/quantize.h"
#include "src/model/tensor_plan.h"

namespace baton {

uint64_t EncodedRowBytes(const GgufTensor& tensor, GgmlType type) {
  const GgufTensorType& row = *FindGgufTensorType(static_cast<uint32_t>(type));
  return tensor.dims[0] / row.block_elements * row.block_bytes;
}

absl::StatusOr<std::vector<std::byte>> EncodeMatrix(const GgufTensor& tensor, GgmlType type,
                                                    ThreadPool& pool) {
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
