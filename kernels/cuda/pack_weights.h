// From the blocks of a model file to the tiles of packed_weights.h. Host code; any thread.
#ifndef BATON_KERNELS_CUDA_PACK_WEIGHTS_H_
#define BATON_KERNELS_CUDA_PACK_WEIGHTS_H_

#include <cstddef>
#include <span>

#include "kernels/cuda/packed_weights.h"
#include "kernels/fp8_rows.h"
#include "kernels/packed_matrix.h"
#include "kernels/weight_type.h"
#include "src/base/status.h"
#include "src/device/thread_pool.h"

namespace baton::kernels::cuda {

// kBf16 when a device keeps weights of this type dequantised.
PackedFormat PackedFormatOf(WeightType type);

// The rows [rows.n][k] of a type that has a format, into `out` [PackedBytes]. InvalidArgument with
// the values when a size does not match, or naming the row whose scale is not a finite number.
absl::Status PackWeights(const RawRows& rows, uint32_t k, device::ThreadPool& pool,
                         std::span<std::byte> out);

// Whether a device takes the rows packed: k is a multiple of 32, and no tile needs two scales of a
// row. Else kBf16.
PackedFormat PackedFormatOf(const Fp8Rows& rows);

// As PackWeights, in kE4m3. Codes and scales are what Fp8Rows says they are.
absl::Status PackFp8(const Fp8Rows& rows, device::ThreadPool& pool, std::span<std::byte> out);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_PACK_WEIGHTS_H_
