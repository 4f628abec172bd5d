// ComputeDevice: the device that a worker's model computes on, opened by name. It is the processor,
// or an accelerator with its kernels. Any thread.
#ifndef BATON_MODEL_COMPUTE_DEVICE_H_
#define BATON_MODEL_COMPUTE_DEVICE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/kernel_table.h"
#include "src/base/status.h"
#include "src/device/accelerator.h"
#include "src/device/device.h"
#include "src/device/launch_gate.h"

namespace baton::model {

// `accelerator` and `kernels` are both null for the processor.
struct ComputeDevice {
  std::unique_ptr<device::Accelerator> accelerator;
  const kernels::cuda::KernelTable* kernels = nullptr;
  // The GPUs beside `accelerator` for a model that is divided. Each reaches the memory of all.
  std::vector<std::unique_ptr<device::Accelerator>> peers = {};
  // Set for a model that is divided, on whatever devices; else null.
  std::unique_ptr<device::LaunchGate> gate = {};
  // Why auto chose the processor in a build with CUDA; else empty.
  std::string why_processor = {};

  // All of them; none for the processor.
  std::vector<device::Accelerator*> accelerators() const;
};

// OK when this build can compute on that kind, whether or not this machine can; Unimplemented
// naming it otherwise.
absl::Status CheckDeviceInBuild(device::DeviceKind kind);

// kUnspecified (auto) opens the best device that this machine has. One line of the log, and
// `why_processor`, say why it is not a better device of this build. Errors as CheckDeviceInBuild.
// FailedPrecondition in one line when the machine lacks what the kind needs; for this reason auto
// goes on to the next kind. Internal, or another error of the driver, when a GPU that is there
// fails; auto returns this error too.
//
// With `num_ranks` > 1 the function opens the first `num_ranks` GPUs, or the one device of the
// runner, which has all ranks. Then auto never chooses the processor. `num_ranks` is at least 1.
// With `awaits_others`, work in one stream may wait for work in another stream or, as with NCCL, in
// another process. Work of several ranks always does. GPUs then load all kernels at the start. It
// is then InvalidArgument if launches wait for their own work (CUDA_LAUNCH_BLOCKING). These are
// variables of the process, as is NCCL_COMM_BLOCKING, so call this function before anything else
// uses a GPU.
absl::StatusOr<ComputeDevice> OpenComputeDevice(device::DeviceKind kind, uint32_t num_ranks = 1,
                                                bool awaits_others = false);

}  // namespace baton::model

#endif  // BATON_MODEL_COMPUTE_DEVICE_H_
