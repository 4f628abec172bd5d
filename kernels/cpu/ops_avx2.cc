// The operations compiled for AVX2, FMA and F16C.
#define BATON_ISA avx2
#include "kernels/cpu/simd_avx2_i16.h"  // IWYU pragma: keep
// After the vector.
#include "kernels/cpu/tile_avx2.h"  // IWYU pragma: keep
// After both.
#include "kernels/cpu/op_table.h"

namespace baton::kernels {

const Ops& Avx2Ops() {
  static constexpr Ops kOps = avx2::MakeOps(Isa::kAvx2, "avx2");
  return kOps;
}

}  // namespace baton::kernels
