// The limits of a GPU, which the host asks for before it launches. CUDA builds only.
#include "kernels/simt/gpu_limits.h"

#include <cuda_runtime_api.h>

#include <string>

#include "src/base/status.h"

namespace baton::kernels::simt {
inline namespace gpu {
namespace {

// The limits of the device that was current last, for the calling thread.
struct DeviceLimits {
  int device = -1;
  int major = 0;
  uint32_t shared_bytes = 0;
};

int AttributeOf(int device, cudaDeviceAttr which) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, device) == cudaSuccess) return value;
  (void)cudaGetLastError();
  return 0;
}

const DeviceLimits& CurrentLimits() {
  static thread_local DeviceLimits limits;
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) (void)cudaGetLastError();
  if (device != limits.device) {
    limits = {device, AttributeOf(device, cudaDevAttrComputeCapabilityMajor),
              static_cast<uint32_t>(AttributeOf(device, cudaDevAttrMaxSharedMemoryPerBlockOptin))};
  }
  return limits;
}

}  // namespace

// Not of what came after Hopper: wgmma exists on sm_90a alone, and only where that was compiled
// for.
bool has_wgmma() { return BATON_HAS_SM90A_CODE != 0 && CurrentLimits().major == 9; }

uint32_t max_shared_bytes() { return CurrentLimits().shared_bytes; }

bool overlaps_launches() { return CurrentLimits().major >= 9; }

absl::Status check_code_of(const void* kernel) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess) {
    // Compiled for less, a kernel waits for none that it overlaps with (gpu_body.h).
    constexpr int kWaits = 90;
    if (!overlaps_launches() || attributes.ptxVersion >= kWaits) return absl::OkStatus();
    return FailedPrecondition("its code is of compute_{}, this GPU needs compute_{} or newer",
                              attributes.ptxVersion, kWaits);
  }
  const std::string text =
      fmt::format("{}, {}", cudaGetErrorName(error), cudaGetErrorString(error));
  const bool has_none =
      error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
      error == cudaErrorUnsupportedPtxVersion || error == cudaErrorJitCompilerNotFound;
  if (!has_none) return Internal("{}", text);
  (void)cudaGetLastError();  // not sticky
  return FailedPrecondition("{}", text);
}

}  // namespace gpu
}  // namespace baton::kernels::simt
