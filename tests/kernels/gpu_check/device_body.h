// Where gpu_check runs: the memory and the kernels of one body of the CUDA sources.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_DEVICE_BODY_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_DEVICE_BODY_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"

#include "kernels/cuda/kernel_table.h"
#include "tests/kernels/gpu_check/primitives.h"

namespace baton::gpu_check {

// A device as functions; any of them may fail with the device's own words. One thread.
struct DeviceBody {
  const char* name;  // "gpu", "simt"
  // OK when there is a device; what it is called and its compute capability (9 for Hopper).
  absl::Status (*open)(std::string* device, int* major);
  absl::Status (*allocate)(size_t bytes, void** memory);  // aligned to 256, poisoned with 0xFF
  void (*release)(void* memory);
  absl::Status (*copy_in)(void* to_device, const void* from, size_t bytes);
  // Waits for everything launched before; says what went wrong in it.
  absl::Status (*copy_out)(void* to, const void* from_device, size_t bytes);
  const Primitives& (*primitives)();
  const cuda::KernelTable& (*kernels)();
};

// The runner's body; and the GPU's, null in a build without CUDA.
const DeviceBody& SimtBody();
const DeviceBody* GpuBody();

}  // namespace baton::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_DEVICE_BODY_H_
