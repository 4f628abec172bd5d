// Where gpu_check runs: the memory, the kernels and the clock of one body of the CUDA sources.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_DEVICE_BODY_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_DEVICE_BODY_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "kernels/cuda/kernel_table.h"
#include "tests/kernels/gpu_check/memory_loops.h"
#include "tests/kernels/gpu_check/primitives.h"

namespace baton::kernels::gpu_check {

// The description that a device gives of itself.
struct DeviceInfo {
  std::string description;  // for people
  std::string product;      // as the driver calls it; empty on the runner
  int major = 0;            // compute capability; 9 for Hopper
};

// Work that is timed: launch number i of a sample puts one piece of it into the stream. Pieces may
// differ in what memory they touch, so that none finds its data in a cache; any i has one.
struct TimedWork {
  std::function<absl::Status(void* stream, uint32_t i)> launch;
  uint32_t num_launches = 1;  // of a sample, at least
  uint32_t num_samples = 1;
};

// How often the launches of a sample that took `sample_ms` are repeated so that it takes 1 ms: what
// an event costs and how finely it is told (some us) are then 1 % at most. A graph of 2048 launches
// is the longest.
inline uint32_t RepeatsFor(double sample_ms, uint32_t num_launches) {
  constexpr double kEnoughMs = 1.0;
  constexpr uint32_t kMostLaunches = 2048;
  const double wanted = std::ceil(kEnoughMs / std::max(sample_ms, 1e-6));
  const uint32_t most = std::max(kMostLaunches / std::max(num_launches, 1u), 1u);
  return static_cast<uint32_t>(std::clamp<double>(wanted, 1, most));
}

// A device as functions; any of them may fail with the device's own words. One thread.
struct DeviceBody {
  const char* name;  // "gpu", "simt"
  bool is_gpu;
  // Unavailable when there is no device.
  absl::Status (*open)(DeviceInfo* info);
  // Internal once nothing more can be computed in this process; waits for what was launched.
  absl::Status (*ask)();
  // Aligned to 256, poisoned with 0xFF. Poison and copies are there for kernels of any stream.
  absl::Status (*allocate)(size_t bytes, void** memory);
  void (*release)(void* memory);
  absl::Status (*copy_in)(void* to_device, const void* from, size_t bytes);
  // Waits for everything launched before; says what went wrong in it.
  absl::Status (*copy_out)(void* to, const void* from_device, size_t bytes);
  // Microseconds a launch, one number a sample. A GPU runs samples without the host, as a recorded
  // graph again and again with an event between two, after runs that do not count. The runner's
  // times are of this processor's clock: they say that timing works, and nothing about kernels.
  absl::Status (*time)(const TimedWork& work, std::vector<double>* us);
  const Primitives& (*primitives)();
  const MemoryLoops& (*loops)();
  const cuda::KernelTable& (*kernels)();
};

// The runner's body; and the GPU's, null in a build without CUDA.
const DeviceBody& SimtBody();
const DeviceBody* GpuBody();

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_DEVICE_BODY_H_
