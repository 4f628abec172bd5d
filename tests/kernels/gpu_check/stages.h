// The stages of gpu_check. Each adds its findings to the report, one for everything it looked at,
// and returns Internal only when the report cannot be written.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_STAGES_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_STAGES_H_

#include "absl/status/status.h"

#include "tests/kernels/gpu_check/device_body.h"
#include "tests/kernels/gpu_check/report.h"

namespace baton::gpu_check {

// What a stage runs on, and how much of it.
struct StageInput {
  const DeviceBody& body;
  int major;     // compute capability; Hopper's arithmetic is expected of 9 only
  bool is_tiny;  // a few values of each kind: for the runner
};

// Stage 0: device, driver, and what of the driver API answers. With the runner there is only the
// runner.
absl::Status CheckMachine(const StageInput& input, Report& report);
// Stage 1: every primitive of kernels/simt against the host's own arithmetic and the model of the
// tensor cores. Outputs are kept, to be committed as goldens.
absl::Status CheckPrimitives(const StageInput& input, Report& report);
// Stage 2: the kernels against kernel_reference.h and attention_reference.h.
absl::Status CheckKernels(const StageInput& input, Report& report);
// Parts of it: RopeAppend; AttentionPrefill and AttentionDecode; KvGather and KvScatter; Sample
// against the processor's.
absl::Status CheckRopeAppend(const StageInput& input, Report& report);
absl::Status CheckAttentionKernels(const StageInput& input, Report& report);
absl::Status CheckKvSlices(const StageInput& input, Report& report);
absl::Status CheckSample(const StageInput& input, Report& report);

}  // namespace baton::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_STAGES_H_
