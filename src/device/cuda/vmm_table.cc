#include "src/device/cuda/vmm_table.h"

#include <cuda_runtime_api.h>

namespace baton {
namespace {

// The interface that is asked for: all of it is as old as CUDA 11.
constexpr unsigned kDriverInterface = 12000;

template <typename Function>
Status Find(const char* name, Function* function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, kDriverInterface, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr) {
    (void)cudaGetLastError();
    return FailedPrecondition("the CUDA driver has no {}", name);
  }
  *function = reinterpret_cast<Function>(found);
  return OkStatus();
}

}  // namespace

StatusOr<VmmTable> LoadVmmTable() {
  VmmTable table;
#define BATON_FIND(name) BATON_RETURN_IF_ERROR(Find(#name, &table.name));
  BATON_VMM_FUNCTIONS(BATON_FIND)
#undef BATON_FIND
  return table;
}

}  // namespace baton
