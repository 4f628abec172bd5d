#include "src/device/device.h"

#include <sched.h>

namespace baton {

std::string_view DeviceKindName(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
    case DeviceKind::kSimt:
      return "simt";
    case DeviceKind::kUnspecified:
      break;
  }
  return "unspecified";
}

absl::StatusOr<DeviceKind> ParseDeviceKind(std::string_view text) {
  if (text == "auto") return DeviceKind::kUnspecified;
  if (text == "cpu") return DeviceKind::kCpu;
  if (text == "cuda") return DeviceKind::kCuda;
  if (text == "simt") return DeviceKind::kSimt;
  return InvalidArgument("device \"{}\" is not one of auto, cpu, cuda, simt", text);
}

uint32_t NumUsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count < 1 ? 1 : static_cast<uint32_t>(count);
}

}  // namespace baton
