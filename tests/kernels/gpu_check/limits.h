// What stage 3 found a device to be capable of, carried to the stages behind it by its file.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_LIMITS_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_LIMITS_H_

#include <string>

#include "nlohmann/json.hpp"

namespace baton::gpu_check {

// What computes needs more operations a byte to be held up by computing: 295 on an H100 (989
// TFLOP/s, 3.35 TB/s), 206 on an H200, 403 on an L4 and 153 on an A100, of which 120 are left where
// cuBLASLt reaches 80 %. Products of bf16 with up to 64 rows have fewer than these.
inline constexpr double kComputeFlopsPerByte = 80;

// 0 = not measured.
struct MeasuredLimits {
  double read_bytes_per_s = 0;
  double copy_bytes_per_s = 0;  // read and written together
  double bf16_flops_per_s = 0;  // the fastest product of cuBLASLt

  // The least time of so many bytes and operations; 0 when a limit that it needs is not known. That
  // of computing is needed where there are kComputeFlopsPerByte operations a byte and more: below,
  // memory binds on every GPU that we know.
  double LimitUs(double bytes, double flops) const;
  // The same of a copy; `bytes` are those read and those written.
  double CopyLimitUs(double bytes) const;
};

nlohmann::json JsonOf(const MeasuredLimits& limits);
// Of what is no such JSON all 0.
MeasuredLimits LimitsOf(const nlohmann::json& json);
// Those of stage 3's file, of the device that is described so; all 0 when there is no such file, it
// is another's, it was cut before them, or nothing was measured.
MeasuredLimits ReadLimits(const std::string& path, const std::string& device);

}  // namespace baton::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_LIMITS_H_
