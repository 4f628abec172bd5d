// KvGather and KvScatter, timed at one layer's slices of Llama-3.1-8B.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_SLICE_TIMING_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_SLICE_TIMING_H_

#include "absl/status/status.h"

#include "tests/kernels/gpu_check/report.h"
#include "tests/kernels/gpu_check/stages.h"

namespace baton::kernels::gpu_check {

// Findings for both, at 8, 32 and 128 MiB a launch.
absl::Status AddSliceTimings(const StageInput& input, Report& report);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_SLICE_TIMING_H_
