// The time of a model's step, from the call to the tokens on the host; where steps overlap, from
// the tokens of the one before.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_STEP_TIMING_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_STEP_TIMING_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "tests/kernels/gpu_check/model_rig.h"
#include "tests/kernels/gpu_check/timing.h"

namespace baton::kernels::gpu_check {

// One kind of step: rows that decode, each of a sequence of its own, or a prompt.
struct TimedStep {
  uint32_t decode_rows;
  uint32_t prefill_tokens;
  uint32_t context;  // of every row's sequence, the step included
  const char* how = "";
  bool overlaps = false;  // each step is begun before the one before it has ended, and fed by it
};

using Microseconds = std::chrono::duration<double, std::micro>;

// The bytes that such a step has to read, and the operations that it has to compute. The design has
// a target for a step that is recorded, and for a prompt.
TimedCase CaseOf(std::string name, const model::DeviceModel& model, const TimedStep& step);

// So many samples after two steps that are not; what is in the blocks does not matter.
absl::StatusOr<std::vector<double>> TimeStep(ModelRig& rig, const TimedStep& step,
                                             uint32_t num_samples);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_STEP_TIMING_H_
