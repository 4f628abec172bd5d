// The AVX-512 bodies, from their exact source, through an emulation that needs only AVX2.
#define BATON_ISA avx512_emulated
#define BATON_AVX512_EMULATION "tests/kernels/avx512_emulation_names.h"
#include "kernels/cpu/simd_avx512_i16.h"  // IWYU pragma: keep
// After the vector.
#include "kernels/cpu/op_table.h"
#include "tests/kernels/test_bodies.h"

namespace baton::kernels {

const Ops& EmulatedAvx512Ops() {
  static constexpr Ops kOps = avx512_emulated::MakeOps(Isa::kAvx512, "avx512 emulated");
  return kOps;
}

}  // namespace baton::kernels
