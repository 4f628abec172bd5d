// Where gpu_check runs: the memory, the kernels and the clock of one body of the CUDA sources.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_DEVICE_BODY_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_DEVICE_BODY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "kernels/cuda/kernel_table.h"
#include "tests/kernels/gpu_check/memory_loops.h"
#include "tests/kernels/gpu_check/primitives.h"

namespace baton::gpu_check {

// What a device says of itself.
struct DeviceInfo {
  std::string description;  // for people
  std::string product;      // as the driver calls it; empty on the runner
  int major = 0;            // compute capability; 9 for Hopper
};

// Work that is timed: launch number i of a sample puts one piece of it into the stream. Pieces may
// differ in what memory they touch, so that none finds its data in a cache.
struct TimedWork {
  std::function<absl::Status(void* stream, uint32_t i)> launch;
  uint32_t num_launches = 1;  // of a sample
  uint32_t num_samples = 1;
};

// A device as functions; any of them may fail with the device's own words. One thread.
struct DeviceBody {
  const char* name;  // "gpu", "simt"
  bool is_gpu;
  // Unavailable when there is no device.
  absl::Status (*open)(DeviceInfo* info);
  // Aligned to 256, poisoned with 0xFF. Poison and copies are there for kernels of any stream.
  absl::Status (*allocate)(size_t bytes, void** memory);
  void (*release)(void* memory);
  absl::Status (*copy_in)(void* to_device, const void* from, size_t bytes);
  // Waits for everything launched before; says what went wrong in it.
  absl::Status (*copy_out)(void* to, const void* from_device, size_t bytes);
  // Microseconds a launch, one number a sample. A GPU runs a sample without the host, as a recorded
  // graph between two events, after three that do not count. The runner's are of this processor's
  // clock: they say that timing works, and nothing about kernels.
  absl::Status (*time)(const TimedWork& work, std::vector<double>* us);
  const Primitives& (*primitives)();
  const MemoryLoops& (*loops)();
  const cuda::KernelTable& (*kernels)();
};

// The runner's body; and the GPU's, null in a build without CUDA.
const DeviceBody& SimtBody();
const DeviceBody* GpuBody();

}  // namespace baton::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_DEVICE_BODY_H_
