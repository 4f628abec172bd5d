// Device kinds: what a worker computes on, chosen at run time by `--device`. Pure data; any thread.
#ifndef BATON_DEVICE_DEVICE_H_
#define BATON_DEVICE_DEVICE_H_

#include <cstdint>
#include <string_view>

#include "src/base/status.h"

namespace baton::device {

// Where kernels run. kSimt runs CUDA sources on the processor, for tests.
enum class DeviceKind : uint8_t { kUnspecified = 0, kCpu = 1, kCuda = 2, kSimt = 3 };

// "cpu", "cuda", "simt".
std::string_view DeviceKindName(DeviceKind kind);

// cpu|cuda|simt to a kind, auto to kUnspecified: the best that can be opened. InvalidArgument for
// another word. src/model/compute_device.h knows which kinds this build and this machine have.
absl::StatusOr<DeviceKind> ParseDeviceKind(std::string_view text);

// Processors that this process can keep busy: those of its affinity mask, and no more than the
// quota of its control groups, rounded up. At least 1.
uint32_t NumUsableCpus();

}  // namespace baton::device

#endif  // BATON_DEVICE_DEVICE_H_
