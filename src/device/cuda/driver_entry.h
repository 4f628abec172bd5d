// A function of the CUDA driver by its name, found at run time: a program that finds it so starts
// without a driver. Needs the runtime.
#ifndef BATON_DEVICE_CUDA_DRIVER_ENTRY_H_
#define BATON_DEVICE_CUDA_DRIVER_ENTRY_H_

#include <cuda_runtime_api.h>

#include "src/base/status.h"

namespace baton::device {

// `name` as in cuda.h; `version` is that of the interface it is declared by, 12050 = CUDA 12.5.
// FailedPrecondition naming it when the driver has none.
template <typename Function>
Status FindInDriver(const char* name, unsigned version, Function* function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr) {
    (void)cudaGetLastError();
    return FailedPrecondition("the CUDA driver has no {}", name);
  }
  *function = reinterpret_cast<Function>(found);
  return OkStatus();
}

}  // namespace baton::device

#endif  // BATON_DEVICE_CUDA_DRIVER_ENTRY_H_
