// The kernels of a mixture of experts, timed at the shapes of Qwen3-30B-A3B.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_EXPERTS_TIMING_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_EXPERTS_TIMING_H_

#include "absl/status/status.h"

#include "tests/kernels/gpu_check/report.h"
#include "tests/kernels/gpu_check/stages.h"

namespace baton::kernels::gpu_check {

// Findings for each of them, at decode's and prefill's numbers of rows.
absl::Status AddExpertsTimings(const StageInput& input, Report& report);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_EXPERTS_TIMING_H_
