// The operations compiled for AVX-512 (F, BW, DQ, VL, VNNI).
#define BATON_ISA avx512
#include "kernels/cpu/simd_avx512_i16.h"  // IWYU pragma: keep
// After the vector.
#include "kernels/cpu/tile_avx512.h"  // IWYU pragma: keep
// After both.
#include "kernels/cpu/op_table.h"

namespace baton::kernels {

const Ops& Avx512Ops() {
  static constexpr Ops kOps = avx512::MakeOps(Isa::kAvx512, "avx512");
  return kOps;
}

}  // namespace baton::kernels
