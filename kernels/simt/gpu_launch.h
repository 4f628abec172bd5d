// How the GPU body starts a kernel. Included through device.h only; runner_body.h has the same
// name.
#ifndef BATON_KERNELS_SIMT_GPU_LAUNCH_H_
#define BATON_KERNELS_SIMT_GPU_LAUNCH_H_

#include <cuda_runtime.h>

#include <string>
#include <type_traits>

#include "absl/status/status.h"

#include "kernels/simt/gpu_limits.h"
#include "kernels/simt/types.h"

namespace baton::kernels::simt {
inline namespace gpu {

// Puts the kernel into the stream. FailedPrecondition when the device has too little shared memory;
// Internal, with CUDA's name of the error, when the launch is refused; what goes wrong inside the
// kernel appears when the stream is waited for.
template <typename P>
absl::Status launch(const LaunchConfig& config, void (*kernel)(P),
                    const std::type_identity_t<P>& params) {
  constexpr uint32_t kDefaultSharedBytes = 48 * 1024;
  cudaError_t error = cudaSuccess;
  if (config.shared_bytes > kDefaultSharedBytes) {
    if (config.shared_bytes > max_shared_bytes()) {
      return absl::FailedPreconditionError(
          std::string("kernel ") + config.name + " needs " + std::to_string(config.shared_bytes) +
          " bytes of shared memory, the device has " + std::to_string(max_shared_bytes()));
    }
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(config.shared_bytes));
  }
  const dim3 grid(config.grid.x, config.grid.y, config.grid.z);
  const dim3 threads(config.num_threads);
  auto* const stream = static_cast<cudaStream_t>(config.stream);
  P copy = params;
  void* arguments[] = {&copy};
  const auto* entry = reinterpret_cast<const void*>(kernel);
  cudaLaunchAttribute attributes[2] = {};
  unsigned num_attributes = 0;
  if (config.cooperative) {
    attributes[num_attributes].id = cudaLaunchAttributeCooperative;
    attributes[num_attributes++].val.cooperative = 1;
  }
  if (config.overlaps && overlaps_launches()) {
    attributes[num_attributes].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[num_attributes++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t how = {};
  how.gridDim = grid;
  how.blockDim = threads;
  how.dynamicSmemBytes = config.shared_bytes;
  how.stream = stream;
  how.attrs = attributes;
  how.numAttrs = num_attributes;
  if (error == cudaSuccess) error = cudaLaunchKernelExC(&how, entry, arguments);
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(std::string("kernel ") + config.name + ": " + cudaGetErrorName(error));
}

}  // namespace gpu
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_GPU_LAUNCH_H_
