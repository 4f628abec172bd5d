// Times the same work on both parts of a divided GPU. It takes longer on the part with fewer
// multiprocessors: this shows that it runs on those and on no others.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_DIVISION_TIMING_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_DIVISION_TIMING_H_

#include <cstdint>

#include "tests/kernels/gpu_check/model_rig.h"
#include "tests/kernels/gpu_check/stages.h"

namespace baton::kernels::gpu_check {

// A product that computing binds, a prompt of so many tokens (at most the rig's rows) and a step of
// one row, of a rig that is split. Without a division, as on the runner, "not run" is what is said
// of them.
absl::Status AddDivisionTimings(const StageInput& input, ModelRig& rig, uint32_t prompt,
                                Report& report);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_DIVISION_TIMING_H_
