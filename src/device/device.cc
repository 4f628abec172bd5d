#include "src/device/device.h"

#include "src/base/cpus.h"

namespace baton::device {

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
  return CpusWithin(static_cast<uint32_t>(AffinityCpus().size()), CpuQuota());
}

}  // namespace baton::device
