// The rules for a shape for tensor copies, which hold for every maker of a map.
#ifndef BATON_KERNELS_SIMT_TENSOR_SHAPE_H_
#define BATON_KERNELS_SIMT_TENSOR_SHAPE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "kernels/simt/types.h"

namespace baton::kernels::simt {

// InvalidArgument naming the shape unless it is as TensorShape says.
inline absl::Status CheckTensorShape(const TensorShape& shape) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(shape.data) % 16 == 0;
  if (is_aligned && shape.num_rows > 0 && shape.row_elements > 0 && shape.row_elements % 8 == 0 &&
      shape.tile_rows > 0 && shape.tile_rows <= kMaxTileRows) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("no tensor map of " + std::to_string(shape.num_rows) +
                                    " rows of " + std::to_string(shape.row_elements) +
                                    " elements in tiles of " + std::to_string(shape.tile_rows) +
                                    (is_aligned ? "" : ", not aligned to 16 bytes"));
}

}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_TENSOR_SHAPE_H_
