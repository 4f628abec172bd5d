#include <cuda_runtime.h>

#include <string>

#include "tests/kernels/gpu_check/device_body.h"

namespace baton::gpu_check {
namespace {

absl::Status FromCuda(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(std::string(what) + ": " + cudaGetErrorName(error) + ", " +
                             cudaGetErrorString(error));
}

absl::Status Open(std::string* device, int* major) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return absl::UnavailableError(std::string("no GPU: ") + cudaGetErrorName(error) + ", " +
                                  cudaGetErrorString(error));
  }
  cudaDeviceProp properties;
  const absl::Status status =
      FromCuda("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, 0));
  if (!status.ok()) return status;
  *device = std::string(properties.name) + ", sm_" + std::to_string(properties.major) +
            std::to_string(properties.minor);
  *major = properties.major;
  return absl::OkStatus();
}

absl::Status Allocate(size_t bytes, void** memory) {
  absl::Status status = FromCuda("cudaMalloc", cudaMalloc(memory, bytes > 0 ? bytes : 1));
  if (status.ok()) status = FromCuda("cudaMemset", cudaMemset(*memory, 0xFF, bytes));
  return status;
}

void Release(void* memory) { cudaFree(memory); }

absl::Status CopyIn(void* to_device, const void* from, size_t bytes) {
  return FromCuda("copy to the GPU", cudaMemcpy(to_device, from, bytes, cudaMemcpyHostToDevice));
}

absl::Status CopyOut(void* to, const void* from_device, size_t bytes) {
  const absl::Status status = FromCuda("kernel", cudaDeviceSynchronize());
  if (!status.ok()) return status;
  return FromCuda("copy from the GPU", cudaMemcpy(to, from_device, bytes, cudaMemcpyDeviceToHost));
}

constexpr DeviceBody kBody = {.name = "gpu",
                              .open = Open,
                              .allocate = Allocate,
                              .release = Release,
                              .copy_in = CopyIn,
                              .copy_out = CopyOut,
                              .primitives = gpu::AllPrimitives,
                              .kernels = cuda::gpu::Kernels};

}  // namespace

const DeviceBody* GpuBody() { return &kBody; }

}  // namespace baton::gpu_check
