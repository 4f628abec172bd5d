// The host's part of tensor copies on a GPU: maps, by a function of the driver that is found at run
// time. CUDA builds only.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/simt/tensor_shape.h"
#include "kernels/simt/types.h"
#include "src/base/status.h"
#include "src/device/cuda/driver_entry.h"

namespace baton::kernels::simt {

using device::FindInDriver;

inline namespace gpu {

// gpu_wgmma.h declares this function too, but only nvcc reads that header.
absl::Status make_tensor_map(const TensorShape& shape, TensorMap* map);

namespace {

using EncodeFunction = decltype(&cuTensorMapEncodeTiled);
static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= 64);

absl::StatusOr<EncodeFunction> FindEncode() {
  constexpr unsigned kInterface = 12000;  // the first with tensor maps
  EncodeFunction function = nullptr;
  BATON_RETURN_IF_ERROR(FindInDriver("cuTensorMapEncodeTiled", kInterface, &function));
  return function;
}

}  // namespace

absl::Status make_tensor_map(const TensorShape& shape, TensorMap* map) {
  if (absl::Status status = CheckTensorShape(shape); !status.ok()) return status;
  static const absl::StatusOr<EncodeFunction> encode = FindEncode();
  if (!encode.ok()) return encode.status();
  const cuuint64_t sizes[] = {shape.row_elements, shape.num_rows};
  const cuuint64_t row_bytes[] = {cuuint64_t{shape.row_elements} * sizeof(Bf16)};
  const cuuint32_t tile[] = {kTileColumns, shape.tile_rows};
  const cuuint32_t steps[] = {1, 1};
  CUtensorMap encoded;
  const CUresult result =
      (*encode)(&encoded, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<Bf16*>(shape.data), sizes,
                row_bytes, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return Internal("cuTensorMapEncodeTiled of {} rows of {} elements: error {}", shape.num_rows,
                    shape.row_elements, static_cast<int>(result));
  }
  std::memcpy(map, &encoded, sizeof(encoded));
  return absl::OkStatus();
}

}  // namespace gpu
}  // namespace baton::kernels::simt
