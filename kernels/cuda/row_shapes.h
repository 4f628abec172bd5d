// Checks of shapes that the row kernels share, and eight bf16 at a time. Included by kernels only.
#ifndef BATON_KERNELS_CUDA_ROW_SHAPES_H_
#define BATON_KERNELS_CUDA_ROW_SHAPES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "kernels/cuda/kernel_table.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// bf16 in one Vec16.
inline constexpr uint32_t kVec = 8;
inline constexpr uint32_t kMaxGridX = 0x7FFFFFFFu;

// OK when dim is a multiple of kVec in [kVec, max_dim].
inline absl::Status CheckDim(const char* kernel, uint32_t dim, uint32_t max_dim) {
  if (dim >= kVec && dim % kVec == 0 && dim <= max_dim) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(kernel) + ": dim " + std::to_string(dim) +
                                    " is not a multiple of 8 in [8, " + std::to_string(max_dim) +
                                    "]");
}

// Where chunk `chunk` of 16 bytes of row `row` lies in shared memory, of rows of 8 chunks or more:
// the eight rows that an ldmatrix reads at once then touch all 32 banks once.
BATON_DEVICE uint32_t Swizzled(uint32_t row, uint32_t chunk) { return chunk ^ (row % 8); }

// Element i of eight; i is a constant once the loop around it is unrolled.
BATON_DEVICE float Element(const simt::Vec16& v, uint32_t i) {
  const uint32_t word = v.words[i / 2];
  return simt::from_bf16({static_cast<uint16_t>(i % 2 == 0 ? word : word >> 16)});
}

BATON_DEVICE uint32_t Pair(float low, float high) {
  return simt::to_bf16(low).bits | uint32_t{simt::to_bf16(high).bits} << 16;
}

// Id `row` of what an embedding gathers (kernel_table.h).
BATON_DEVICE uint32_t IdOf(const uint32_t* ids, const uint32_t* fed, uint32_t row) {
  const uint32_t id = ids[row];
  return fed != nullptr && (id & kFedId) != 0 ? fed[id & ~kFedId] : id;
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ROW_SHAPES_H_
