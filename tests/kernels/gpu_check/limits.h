// What stage 3 found a device to be capable of, carried to the stages behind it by its file.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_LIMITS_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_LIMITS_H_

#include <string>

#include "nlohmann/json.hpp"

namespace baton::gpu_check {

// 0 = not measured.
struct MeasuredLimits {
  double read_bytes_per_s = 0;
  double copy_bytes_per_s = 0;  // read and written together
  double bf16_flops_per_s = 0;  // the fastest product of cuBLASLt

  // The least time of so many bytes and operations; 0 when a limit that it needs is not known.
  double LimitUs(double bytes, double flops) const;
  // The same of a copy; `bytes` are those read and those written.
  double CopyLimitUs(double bytes) const;
};

nlohmann::json JsonOf(const MeasuredLimits& limits);
// Those of stage 3's file; all 0 when there is no such file, it was cut before them, or nothing was
// measured.
MeasuredLimits ReadLimits(const std::string& path);

}  // namespace baton::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_LIMITS_H_
