// A matrix of a model file in another element type, for `baton convert` and for devices that take
// bf16. One call uses the pool given. Private to src/model.
#ifndef BATON_MODEL_ENCODE_MATRIX_H_
#define BATON_MODEL_ENCODE_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/fp8_rows.h"
#include "src/base/status.h"
#include "src/device/thread_pool.h"
#include "src/model/gguf.h"
#include "src/model/gguf_types.h"
#include "src/model/nvfp4_rows.h"

namespace baton::model {

// Bytes of one row of the tensor in `type`; its width is a multiple of the type's block.
uint64_t EncodedRowBytes(const GgufTensor& tensor, GgmlType type);

// All rows of the tensor in `type`, one of EncodeRow's (quantize.h), to `out`
// [rows][EncodedRowBytes]. InvalidArgument naming the first row whose scale is not a finite number.
// Rows that are of the type already are copied. Memory: a row in fp32 for each thread.
absl::Status EncodeRows(const GgufTensor& tensor, GgmlType type, device::ThreadPool& pool,
                        std::span<std::byte> out);
// As EncodeRows, to memory of its own, with the same errors.
absl::StatusOr<std::vector<std::byte>> EncodeMatrix(const GgufTensor& tensor, GgmlType type,
                                                    device::ThreadPool& pool);
// As EncodeMatrix, for rows in fp8 or NVFP4; no errors.
std::vector<std::byte> EncodeFp8(const kernels::Fp8Rows& rows, GgmlType type,
                                 device::ThreadPool& pool);
std::vector<std::byte> EncodeNvfp4(const Nvfp4Rows& rows, GgmlType type, device::ThreadPool& pool);

}  // namespace baton::model

#endif  // BATON_MODEL_ENCODE_MATRIX_H_
