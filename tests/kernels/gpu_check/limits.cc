#include "tests/kernels/gpu_check/limits.h"

#include <algorithm>

#include "tests/kernels/gpu_check/results_file.h"

namespace baton::kernels::gpu_check {

double MeasuredLimits::LimitUs(double bytes, double flops) const {
  const bool may_compute_bind = flops > 0 && flops >= kComputeFlopsPerByte * bytes;
  if (bytes > 0 && read_bytes_per_s <= 0) return 0;
  if (may_compute_bind && bf16_flops_per_s <= 0) return 0;
  const double read_us = bytes > 0 ? bytes / read_bytes_per_s * 1e6 : 0;
  const double compute_us = bf16_flops_per_s > 0 ? flops / bf16_flops_per_s * 1e6 : 0;
  return std::max(read_us, compute_us);
}

double MeasuredLimits::CopyLimitUs(double bytes) const {
  return copy_bytes_per_s > 0 ? bytes / copy_bytes_per_s * 1e6 : 0;
}

nlohmann::json JsonOf(const MeasuredLimits& limits) {
  return {{"read_bytes_per_s", limits.read_bytes_per_s},
          {"copy_bytes_per_s", limits.copy_bytes_per_s},
          {"bf16_flops_per_s", limits.bf16_flops_per_s}};
}

MeasuredLimits LimitsOf(const nlohmann::json& json) {
  if (!json.is_object()) return {};
  return {json.value("read_bytes_per_s", 0.0), json.value("copy_bytes_per_s", 0.0),
          json.value("bf16_flops_per_s", 0.0)};
}

MeasuredLimits ReadLimits(const std::string& path, const std::string& device) {
  const nlohmann::json result = ReadResults(path);
  if (!result.is_object() || !result.contains("limits")) return {};
  if (result.value("device", "") != device) return {};
  return LimitsOf(result["limits"]);
}

}  // namespace baton::kernels::gpu_check
