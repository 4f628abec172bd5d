// A driver with green contexts that a test plays: one GPU, and what exists of its parts.
#ifndef BATON_TESTS_DEVICE_FAKE_GREEN_DRIVER_H_
#define BATON_TESTS_DEVICE_FAKE_GREEN_DRIVER_H_

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "src/device/cuda/green_contexts.h"

namespace baton::device::fake_green {

// A GPU and its driver's memory of what exists; the functions below are the driver.
struct FakeGpu {
  unsigned num_sms = 132;
  unsigned min_part = 8;
  unsigned alignment = 8;
  unsigned num_groups = 1;   // that a split gives
  int fails_at_context = 0;  // the n-th creation is refused; 0 = none
  bool refuses_streams = false;
  std::vector<unsigned> parts;  // multiprocessors of the contexts, in order
  std::set<size_t> contexts;    // alive, by number from 1
  std::set<size_t> streams;     // alive
  std::vector<int> priorities;
  std::vector<size_t> streams_of;  // contexts of the streams
  std::vector<std::string> order;
  CUdevResource described{};
};
inline FakeGpu* gpu = nullptr;

template <typename Handle>
Handle HandleOf(size_t number) {
  return reinterpret_cast<Handle>(number);
}
template <typename Handle>
size_t NumberOf(Handle handle) {
  return reinterpret_cast<size_t>(handle);
}

inline CUdevResource Sms(unsigned count) {
  CUdevResource resource{};
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm.smCount = count;
  resource.sm.minSmPartitionSize = gpu->min_part;
  resource.sm.smCoscheduledAlignment = gpu->alignment;
  return resource;
}

inline CUresult GetResource(CUdevice, CUdevResource* resource, CUdevResourceType) {
  *resource = Sms(gpu->num_sms);
  return CUDA_SUCCESS;
}
// Gives whole units to the part; what is left is the rest.
inline CUresult Split(CUdevResource* part, CUdevResource* rest, const CUdevResource& all,
                      unsigned min_count) {
  const unsigned unit = gpu->alignment;
  const unsigned count = (min_count + unit - 1) / unit * unit;
  *part = Sms(count);
  *rest = Sms(all.sm.smCount - count);
  return CUDA_SUCCESS;
}
inline CUresult Describe(CUdevResourceDesc* description, CUdevResource* resources, unsigned) {
  gpu->described = *resources;
  *description = HandleOf<CUdevResourceDesc>(1);
  return CUDA_SUCCESS;
}
inline CUresult CreateContext(CUgreenCtx* context, CUdevResourceDesc, CUdevice, unsigned flags) {
  if (flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  gpu->parts.push_back(gpu->described.sm.smCount);
  if (static_cast<int>(gpu->parts.size()) == gpu->fails_at_context) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  gpu->contexts.insert(gpu->parts.size());
  *context = HandleOf<CUgreenCtx>(gpu->parts.size());
  return CUDA_SUCCESS;
}
inline CUresult DestroyContext(CUgreenCtx context) {
  gpu->order.push_back("context");
  return gpu->contexts.erase(NumberOf(context)) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
inline CUresult CreateStream(CUstream* stream, CUgreenCtx context, unsigned flags, int priority) {
  if (gpu->refuses_streams) return CUDA_ERROR_OUT_OF_MEMORY;
  if (flags != CU_STREAM_NON_BLOCKING || !gpu->contexts.contains(NumberOf(context))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  gpu->priorities.push_back(priority);
  gpu->streams_of.push_back(NumberOf(context));
  gpu->streams.insert(gpu->priorities.size());
  *stream = HandleOf<CUstream>(gpu->priorities.size());
  return CUDA_SUCCESS;
}
inline CUresult DestroyStream(CUstream stream) {
  gpu->order.push_back("stream");
  return gpu->streams.erase(NumberOf(stream)) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
inline CUresult ErrorName(CUresult, const char** name) {
  *name = "CUDA_ERROR_OF_THE_FAKE";
  return CUDA_SUCCESS;
}

inline GreenTable Driver() {
  return {.cuDevResourceGenerateDesc = &Describe,
          .cuDevSmResourceSplitByCount =
              [](CUdevResource* result, unsigned* num_groups, const CUdevResource* input,
                 CUdevResource* rest, unsigned, unsigned min_count) {
                *num_groups = gpu->num_groups;
                return Split(result, rest, *input, min_count);
              },
          .cuDeviceGetDevResource = &GetResource,
          .cuGetErrorName = &ErrorName,
          .cuGreenCtxCreate = &CreateContext,
          .cuGreenCtxDestroy = &DestroyContext,
          .cuGreenCtxStreamCreate = &CreateStream,
          .cuStreamDestroy = &DestroyStream};
}

}  // namespace baton::device::fake_green

#endif  // BATON_TESTS_DEVICE_FAKE_GREEN_DRIVER_H_
