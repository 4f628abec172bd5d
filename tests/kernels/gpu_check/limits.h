// The limits of a device that stage 3 measured. Its file carries them to later stages.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_LIMITS_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_LIMITS_H_

#include <string>

#include "nlohmann/json.hpp"

namespace baton::kernels::gpu_check {

// Work with fewer operations a byte than this is not limited by computing. An H100 (989 TFLOP/s,
// 3.35 TB/s) needs 295 operations a byte before computing is its limit. An H200 needs 206, an L4
// 403 and an A100 153; the A100 needs 120 where cuBLASLt reaches 80 %. Products of bf16 with up to
// 64 rows have fewer operations a byte than these.
inline constexpr double kComputeFlopsPerByte = 80;

// 0 = not measured.
struct MeasuredLimits {
  double read_bytes_per_s = 0;
  double copy_bytes_per_s = 0;  // read and written together
  double bf16_flops_per_s = 0;  // the fastest product of cuBLASLt

  // The least time of so many bytes and operations; 0 when a limit that it needs is not known. It
  // needs the limit of computing where there are kComputeFlopsPerByte operations a byte or more.
  // Below that, memory is the limit on every GPU that we know.
  double LimitUs(double bytes, double flops) const;
  // The least time of a copy; `bytes` are the bytes read plus the bytes written.
  double CopyLimitUs(double bytes) const;
};

nlohmann::json JsonOf(const MeasuredLimits& limits);
// A limit is 0 where `json` does not hold it.
MeasuredLimits LimitsOf(const nlohmann::json& json);
// The limits in stage 3's file, for the device with this description. All are 0 when there is no
// such file, it is another device's, it was cut before them, or nothing was measured.
MeasuredLimits ReadLimits(const std::string& path, const std::string& device);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_LIMITS_H_
