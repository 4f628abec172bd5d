// A libcuda.so.1 with one device, to run gpu_check's stage 0 where there is no driver. It has what
// must be there and nothing of what may be missing. $FAKE_DRIVER_LACKS "memory": no exported
// memory; "read only": none that is only read; "attribute": it says that it exports none; "words":
// it says that it does, and fails.
#include <cuda.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

bool Lacks(std::string_view what) {
  const char* const lacks = std::getenv("FAKE_DRIVER_LACKS");
  return lacks != nullptr && lacks == what;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned int) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::strncpy(name, "Fake", static_cast<size_t>(size));
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
  *bytes = size_t{141} << 30;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  if (attribute == CU_DEVICE_ATTRIBUTE_MPS_ENABLED) return CUDA_ERROR_INVALID_VALUE;
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 1;
  const bool is_export =
      attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
  if (is_export && Lacks("attribute")) *value = 0;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = nullptr;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuMemAlloc(CUdeviceptr* memory, size_t) {
  *memory = 1;
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr) { return CUDA_SUCCESS; }
CUresult cuIpcGetMemHandle(CUipcMemHandle*, CUdeviceptr) { return CUDA_SUCCESS; }
CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *bytes = 2 << 20;
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t, const CUmemAllocationProp*,
                     unsigned long long) {
  *handle = 1;
  if (Lacks("attribute") || Lacks("words")) return CUDA_ERROR_INVALID_VALUE;
  return Lacks("memory") ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
CUresult cuMemExportToShareableHandle(void* handle, CUmemGenericAllocationHandle,
                                      CUmemAllocationHandleType, unsigned long long) {
  *static_cast<int*>(handle) = dup(0);
  return CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* fd,
                                        CUmemAllocationHandleType) {
  *handle = 2;
  const auto number = static_cast<int>(reinterpret_cast<intptr_t>(fd));
  return fcntl(number, F_GETFD) < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t, size_t, CUdeviceptr,
                             unsigned long long) {
  *address = 2 << 20;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  return handle == 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemUnmap(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc* access, size_t) {
  const bool is_refused = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ && Lacks("read only");
  return is_refused ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult result, const char** name) {
  *name = result == CUDA_ERROR_NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED" : nullptr;
  return CUDA_SUCCESS;
}

}  // extern "C"
