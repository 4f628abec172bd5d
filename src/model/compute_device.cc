#include "src/model/compute_device.h"

#include <utility>

#include "src/base/log.h"
#ifdef BATON_HAVE_SIMT
#include "kernels/simt/simt_device.h"
#endif
#ifdef BATON_HAVE_CUDA
#include "src/device/cuda/cuda_device.h"
#endif

namespace baton {
namespace {

#ifdef BATON_HAVE_SIMT
constexpr bool kHasSimt = true;
absl::StatusOr<ComputeDevice> OpenSimt() {
  // One fp32 chain instead of Hopper's bits, which cost ten times as much, and no races looked for:
  // kernel tests do both.
  simt::RunOptions options;
  options.tensor_math = simt::TensorMath::kFloat;
  options.detect_races = false;
  return ComputeDevice{std::make_unique<simt::SimtDevice>(options), &cuda::runner::Kernels()};
}
#else
constexpr bool kHasSimt = false;
absl::StatusOr<ComputeDevice> OpenSimt() { return CheckDeviceInBuild(DeviceKind::kSimt); }
#endif

#ifdef BATON_HAVE_CUDA
constexpr bool kHasCuda = true;
absl::StatusOr<ComputeDevice> OpenCuda() {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device, CudaDevice::Open(0));
  return ComputeDevice{std::move(device), &cuda::gpu::Kernels()};
}
#else
constexpr bool kHasCuda = false;
absl::StatusOr<ComputeDevice> OpenCuda() { return CheckDeviceInBuild(DeviceKind::kCuda); }
#endif

}  // namespace

absl::Status CheckDeviceInBuild(DeviceKind kind) {
  if ((kind == DeviceKind::kSimt && !kHasSimt) || (kind == DeviceKind::kCuda && !kHasCuda)) {
    return Unimplemented("--device {} is not in this build; use auto or cpu", DeviceKindName(kind));
  }
  return OkStatus();
}

absl::StatusOr<ComputeDevice> OpenComputeDevice(DeviceKind kind) {
  if (kind == DeviceKind::kSimt) return OpenSimt();
  if (kind == DeviceKind::kCuda) return OpenCuda();
  if (kind == DeviceKind::kUnspecified && kHasCuda) {
    absl::StatusOr<ComputeDevice> gpu = OpenCuda();
    if (gpu.ok()) return gpu;
    BATON_LOG_WARN("{}; computing on the processor", std::string(gpu.status().message()));
  }
  return ComputeDevice{};
}

}  // namespace baton
