#include "src/model/encode_matrix.h"

#include <atomic>
#include <cstring>

#include "kernels/embed.h"
#include "src/base/atomic_min.h"
#include "src/base/check.h"
#include "src/model/gguf_nvfp4.h"
#include "src/model/quantize.h"
#include "src/model/tensor_plan.h"

namespace baton::model {

using device::TaskRange;
using device::ThreadPool;
using kernels::DequantizeRow;
using kernels::Fp8Rows;
using kernels::RawRowBytes;
using kernels::TraitsOf;
using kernels::WeightType;

namespace {

uint64_t RowBytes(uint64_t k, GgmlType type) {
  const GgufTensorType& row = *FindGgufTensorType(static_cast<uint32_t>(type));
  return k / row.block_elements * row.block_bytes;
}

// Rows [n][k] in `type`, to out [n][row_bytes].
struct EncodedRows {
  GgmlType type;
  uint32_t n;
  uint32_t k;
  std::byte* out;
};

// Calls weights_of(row, fp32 [k]) for each row; the first that gives false is returned, n if none.
template <typename WeightsOf>
uint32_t EncodeEach(const EncodedRows& rows, ThreadPool& pool, const WeightsOf& weights_of) {
  const uint64_t row_bytes = RowBytes(rows.k, rows.type);
  std::atomic<uint32_t> bad_row = rows.n;
  pool.RunRanges(rows.n, 8, 4 * pool.num_threads(), [&](TaskRange range, uint32_t) {
    std::vector<float> weights(rows.k);
    for (uint32_t row = range.begin; row < range.end; ++row) {
      if (!weights_of(row, weights.data())) LowerTo(row, &bad_row);
      EncodeRow(rows.type, weights, rows.out + row * row_bytes);
    }
  });
  return bad_row;
}

// Fp8Rows or Nvfp4Rows, whose scales are all finite.
template <typename Rows>
void EncodeTo(const Rows& rows, GgmlType type, ThreadPool& pool, std::byte* out) {
  EncodeEach({type, rows.n, rows.k, out}, pool, [&rows](uint32_t row, float* weights) {
    rows.Weights(row, weights);
    return true;
  });
}

template <typename Rows>
std::vector<std::byte> Encoded(const Rows& rows, GgmlType type, ThreadPool& pool) {
  std::vector<std::byte> out(rows.n * RowBytes(rows.k, type));
  EncodeTo(rows, type, pool, out.data());
  return out;
}

}  // namespace

uint64_t EncodedRowBytes(const GgufTensor& tensor, GgmlType type) {
  return RowBytes(tensor.dims[0], type);
}

std::vector<std::byte> EncodeFp8(const Fp8Rows& rows, GgmlType type, ThreadPool& pool) {
  return Encoded(rows, type, pool);
}

std::vector<std::byte> EncodeNvfp4(const Nvfp4Rows& rows, GgmlType type, ThreadPool& pool) {
  return Encoded(rows, type, pool);
}

absl::Status EncodeRows(const GgufTensor& tensor, GgmlType type, ThreadPool& pool,
                        std::span<std::byte> out) {
  const auto k = static_cast<uint32_t>(tensor.dims[0]);
  const auto n = static_cast<uint32_t>(tensor.num_elements() / tensor.dims[0]);
  BATON_CHECK(out.size() == n * RowBytes(k, type), "{} rows of {} elements in {} bytes", n, k,
              out.size());
  if (tensor.fp8() != nullptr) {
    EncodeTo(Fp8RowsOf(tensor), type, pool, out.data());
    return OkStatus();
  }
  if (IsNvfp4(tensor)) {
    EncodeTo(Nvfp4RowsOf(tensor), type, pool, out.data());
    return OkStatus();
  }
  const WeightType from = WeightTypeOf(tensor);
  const size_t raw_bytes = RawRowBytes(from, k);
  if (tensor.type->id == static_cast<uint32_t>(type) && !TraitsOf(from).quantized()) {
    pool.RunRanges(n, 8, 4 * pool.num_threads(), [&](TaskRange range, uint32_t) {
      std::memcpy(out.data() + range.begin * raw_bytes,
                  tensor.data.data() + range.begin * raw_bytes, range.size() * raw_bytes);
    });
    return OkStatus();
  }
  const uint32_t bad_row =
      EncodeEach({type, n, k, out.data()}, pool, [&](uint32_t row, float* weights) {
        return DequantizeRow(from, tensor.data.data() + row * raw_bytes, k, weights);
      });
  if (bad_row == n) return OkStatus();
  return InvalidArgument("row {} of {} has a {} block whose scale is not a finite number", bad_row,
                         n, TraitsOf(from).name);
}

absl::StatusOr<std::vector<std::byte>> EncodeMatrix(const GgufTensor& tensor, GgmlType type,
                                                    ThreadPool& pool) {
  std::vector<std::byte> out(tensor.num_elements() / tensor.dims[0] *
                             EncodedRowBytes(tensor, type));
  BATON_RETURN_IF_ERROR(EncodeRows(tensor, type, pool, out));
  return out;
}

}  // namespace baton::model
