// The portable bodies compiled for a target that has fma: must then agree with the reference bit
// for bit, which checks the portable source itself.
#define BATON_ISA portable_fma
#include "kernels/cpu/simd_portable_i16.h"  // IWYU pragma: keep
// After the vector.
#include "kernels/cpu/op_table.h"
#include "tests/kernels/test_bodies.h"

namespace baton::kernels {

const Ops& PortableFmaOps() {
  static constexpr Ops kOps = portable_fma::MakeOps(Isa::kPortable, "portable with fma");
  return kOps;
}

}  // namespace baton::kernels
