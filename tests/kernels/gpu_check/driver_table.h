// The driver's functions that gpu_check asks, found at run time: a program that names them has no
// DT_NEEDED on libcuda and starts where there is no driver. CUDA builds only.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_DRIVER_TABLE_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_DRIVER_TABLE_H_

#include <cuda.h>

#include <string>

#include "absl/status/statusor.h"

namespace baton::kernels::gpu_check {

// X(name): must be there. O(name): newer than the oldest driver we take, null where missing. The
// header renames some to versioned symbols, so the string is made after that.
#define BATON_DRIVER_FUNCTIONS(X, O) \
  X(cuInit)                          \
  X(cuDriverGetVersion)              \
  X(cuDeviceGetCount)                \
  X(cuDeviceGet)                     \
  X(cuDeviceGetName)                 \
  X(cuDeviceTotalMem)                \
  X(cuDeviceGetAttribute)            \
  X(cuDevicePrimaryCtxRetain)        \
  X(cuDevicePrimaryCtxRelease)       \
  X(cuCtxSetCurrent)                 \
  X(cuMemAlloc)                      \
  X(cuMemFree)                       \
  X(cuIpcGetMemHandle)               \
  X(cuMemGetAllocationGranularity)   \
  X(cuMemCreate)                     \
  X(cuMemRelease)                    \
  X(cuMemExportToShareableHandle)    \
  X(cuMemImportFromShareableHandle)  \
  X(cuMemAddressReserve)             \
  X(cuMemAddressFree)                \
  X(cuMemMap)                        \
  X(cuMemUnmap)                      \
  X(cuMemSetAccess)                  \
  X(cuGetErrorName)                  \
  O(cuDeviceGetDevResource)          \
  O(cuGreenCtxCreate)

// Pointers into libcuda.so.1, which stays loaded.
struct DriverTable {
#define BATON_DECLARE(name) decltype(&::name) name = nullptr;
  BATON_DRIVER_FUNCTIONS(BATON_DECLARE, BATON_DECLARE)
#undef BATON_DECLARE
};

// Unavailable when the library or a function that must be there is missing.
absl::StatusOr<DriverTable> LoadDriver();

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_DRIVER_TABLE_H_
