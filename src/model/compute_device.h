// What a worker's model computes on, opened by name: the processor, or an accelerator with its
// kernels. Any thread.
#ifndef BATON_MODEL_COMPUTE_DEVICE_H_
#define BATON_MODEL_COMPUTE_DEVICE_H_

#include <memory>

#include "kernels/cuda/kernel_table.h"
#include "src/base/status.h"
#include "src/device/accelerator.h"
#include "src/device/device.h"

namespace baton {

// Both null: the processor.
struct ComputeDevice {
  std::unique_ptr<Accelerator> accelerator;
  const cuda::KernelTable* kernels = nullptr;
};

// Unimplemented, naming the kinds of this build, for another one.
absl::StatusOr<ComputeDevice> OpenComputeDevice(DeviceKind kind);

}  // namespace baton

#endif  // BATON_MODEL_COMPUTE_DEVICE_H_
