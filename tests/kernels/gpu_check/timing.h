// A case that is timed: what it must move and compute, and the line that comes of it. Memory is
// walked over, so that no launch finds its operands in L2.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_TIMING_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_TIMING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/device_body.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/gpu_check/targets.h"

namespace baton::kernels::gpu_check {

// The case that is timed, and the least that one launch needs. One of `bytes` and `flops` may be 0.
struct TimedCase {
  std::string name;
  TimedWork work;
  double bytes = 0;
  double flops = 0;
  Target target = {};
  bool is_copy = false;      // its limit is that of copying
  bool is_resident = false;  // every launch finds its data in L2, of which no limit was measured
};

double MedianOf(std::vector<double> values);

// The work of a sample: on a GPU enough launches for 0.1 ms and more, on the runner few.
TimedWork WorkOf(const StageInput& input, uint32_t num_launches,
                 std::function<absl::Status(void* stream, uint32_t i)> launch);

// Times the case and adds the finding: raw samples and their median; on a GPU also rates and, where
// stage 3 measured what they need, the share of the limit. Returns the median; Internal when the
// report cannot be written. A case that fails is a finding, and 0; one that an earlier process had
// is left out, and 0.
absl::StatusOr<double> AddTimed(const StageInput& input, const TimedCase& timed, Report& report);
// Adds the judgement of a finding's number: in words beside it, and as its "target".
void AddTarget(const TargetResult& result, Finding& finding);
// A step that was timed otherwise; the finding has its name and what else is to be kept.
absl::Status AddSamples(const StageInput& input, const TimedCase& timed,
                        const std::vector<double>& samples_us, Finding finding, Report& report);

// Random bf16 on a device, handed out in pieces that follow one another and start again.
class RandomMemory {
 public:
  // At least `bytes`; twice that and no more on the runner, enough to be cold on a GPU.
  RandomMemory(const StageInput& input, size_t bytes, float spread);

  const absl::Status& status() const { return status_; }
  // Pieces of so many bytes (a multiple of 256), of which there are NumPieces.
  std::byte* Piece(size_t bytes, uint32_t i) {
    return memory_.data() + i % NumPieces(bytes) * bytes;
  }
  // As many as fit, at least one and at most 1024.
  uint32_t NumPieces(size_t bytes) const;

 private:
  size_t size_;
  DeviceArray<std::byte> memory_;
  absl::Status status_;
};

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_TIMING_H_
