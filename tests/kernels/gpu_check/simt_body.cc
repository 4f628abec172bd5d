#include <cstring>

#include "kernels/simt/device_memory.h"
#include "tests/kernels/gpu_check/device_body.h"

namespace baton::gpu_check {
namespace {

absl::Status Open(std::string* device, int* major) {
  *device = "the runner of kernels/simt, with Hopper's bits";
  *major = 9;
  return absl::OkStatus();
}

absl::Status Allocate(size_t bytes, void** memory) {
  const auto begin = simt::DeviceMemory::OfThisThread().arena.Allocate(bytes, "gpu_check");
  if (!begin.ok()) return begin.status();
  *memory = *begin;
  return absl::OkStatus();
}

void Release(void* memory) {
  simt::DeviceMemory::OfThisThread().arena.Free(static_cast<std::byte*>(memory));
}

absl::Status Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return absl::OkStatus();
}

constexpr DeviceBody kBody = {.name = "simt",
                              .open = Open,
                              .allocate = Allocate,
                              .release = Release,
                              .copy_in = Copy,
                              .copy_out = Copy,
                              .primitives = runner::AllPrimitives,
                              .kernels = cuda::runner::Kernels};

}  // namespace

const DeviceBody& SimtBody() { return kBody; }

#ifndef BATON_GPU_CHECK_HAS_GPU
const DeviceBody* GpuBody() { return nullptr; }
#endif

}  // namespace baton::gpu_check
