// The operations compiled for the baseline of the target.
#define BATON_ISA portable
#include "kernels/cpu/simd_portable_i16.h"  // IWYU pragma: keep
// After the vector.
#include "kernels/cpu/op_table.h"

namespace baton::kernels {

const Ops& PortableOps() {
  static constexpr Ops kOps = portable::MakeOps(Isa::kPortable, "portable");
  return kOps;
}

}  // namespace baton::kernels
