// VmmTable: the driver's functions for memory that other processes can map, found at run time, so
// that a build starts without a driver. Constant once loaded; any thread.
#ifndef BATON_DEVICE_CUDA_VMM_TABLE_H_
#define BATON_DEVICE_CUDA_VMM_TABLE_H_

#include <cuda.h>

#include "src/base/status.h"

namespace baton::device {

// X(name) for every function, under its own name.
#define BATON_VMM_FUNCTIONS(X)              \
  X(cuDeviceGetAttribute)                   \
  X(cuGetErrorName)                         \
  X(cuMemAddressFree)                       \
  X(cuMemAddressReserve)                    \
  X(cuMemCreate)                            \
  X(cuMemExportToShareableHandle)           \
  X(cuMemGetAllocationGranularity)          \
  X(cuMemGetAllocationPropertiesFromHandle) \
  X(cuMemGetInfo)                           \
  X(cuMemImportFromShareableHandle)         \
  X(cuMemMap)                               \
  X(cuMemRelease)                           \
  X(cuMemSetAccess)                         \
  X(cuMemUnmap)

// See the file comment.
struct VmmTable {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declarator
#define BATON_DECLARE(name) decltype(&::name) name = nullptr;
  BATON_VMM_FUNCTIONS(BATON_DECLARE)
#undef BATON_DECLARE
};

// FailedPrecondition naming the function that the driver lacks.
StatusOr<VmmTable> LoadVmmTable();

}  // namespace baton::device

#endif  // BATON_DEVICE_CUDA_VMM_TABLE_H_
