// The limits of a GPU, which the host asks for before it launches: the current device of the
// calling thread. Plain C++, so that nvcc and g++ read it; kernels use it through device.h.
// runner_body.h has the same names.
#ifndef BATON_KERNELS_SIMT_GPU_LIMITS_H_
#define BATON_KERNELS_SIMT_GPU_LIMITS_H_

#include <cstdint>

#include "absl/status/status.h"

namespace baton::kernels::simt {
inline namespace gpu {

// Whether the device is a Hopper.
bool has_wgmma();
// The most shared memory of a cta, after opting in; 0 when the device does not answer.
uint32_t max_shared_bytes();
// Whether a launch may begin while the one before it runs (programmatic dependent launch): from
// sm_90 on, and elsewhere wait_for_previous has nothing to wait for.
bool overlaps_launches();
// OK when this build has machine code of the kernel for the device, or PTX that the driver compiles
// here and now. FailedPrecondition with CUDA's words.
absl::Status check_code_of(const void* kernel);
template <typename P>
absl::Status check_code(void (*kernel)(P)) {
  return check_code_of(reinterpret_cast<const void*>(kernel));
}

}  // namespace gpu
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_GPU_LIMITS_H_
