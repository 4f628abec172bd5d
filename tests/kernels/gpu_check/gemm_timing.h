// One weight matrix: GemmBf16 timed with any number of rows and any of its kernels, and the kernels
// of packed weights.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_GEMM_TIMING_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_GEMM_TIMING_H_

#include <string>

#include "tests/kernels/gpu_check/model_shape.h"
#include "tests/kernels/gpu_check/timing.h"

namespace baton::kernels::gpu_check {

// See the file comment. The matrix, and what the largest number of rows needs, lie on the device.
class GemmTiming {
 public:
  GemmTiming(const StageInput& input, const ProductShape& shape, uint32_t max_rows);

  const absl::Status& status() const { return status_; }
  // Adds the finding `name`; the median in microseconds.
  absl::StatusOr<double> Add(const TimedCase& named, uint32_t m, cuda::GemmPath path,
                             Report& report);
  // Products of at most kMaxJoinedRows rows that end with the work of the kernel after them, and
  // with so few that norms are divided (kMaxNormedRows, by wgmma) with their part of one.
  // GemmGated: the matrix is of gates and ups.
  absl::Status AddGated(const TimedCase& named, uint32_t m, Report& report);
  // GemmRope of at most kMaxJoinedRows rows, each of a sequence of its own; the matrix is of q, k
  // and v of the model.
  absl::Status AddRoped(const TimedCase& named, uint32_t m, Report& report);
  // GemmSum of at most kMaxNormedRows rows, by wgmma.
  absl::Status AddSum(const TimedCase& named, uint32_t m, Report& report);
  // GemmPacked of at most kGemmMaxSpreadRows rows, and Unpack, of the matrix in a packed format.
  absl::Status AddPacked(const TimedCase& named, uint32_t m, cuda::PackedFormat format,
                         Report& report);
  absl::Status AddUnpack(const TimedCase& named, cuda::PackedFormat format, Report& report);

 private:
  cuda::GemmParams ParamsOf(uint32_t m, cuda::GemmPath path);
  // The norm of so many rows of x, where there are kernels for it.
  cuda::NormedRows NormOf(uint32_t m);

  const StageInput& input_;
  const ProductShape shape_;
  RandomMemory w_;
  RandomMemory x_;
  DeviceArray<cuda::Bf16> y_;         // [max_rows][n]
  DeviceArray<cuda::Bf16> unpacked_;  // [n][k]; empty for the output layer
  DeviceArray<std::byte> partials_;
  DeviceArray<uint32_t> counters_;
  DeviceArray<float> squares_;  // of kMaxNormedRows rows of x or y
  absl::Status status_;
};

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_GEMM_TIMING_H_
