// What a worker's model computes on, opened by name: the processor, or an accelerator with its
// kernels. Any thread.
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

namespace baton {

// Both null: the processor.
struct ComputeDevice {
  std::unique_ptr<Accelerator> accelerator;
  const cuda::KernelTable* kernels = nullptr;
  // GPUs beside it, of a model that is divided: each reaches the memory of all.
  std::vector<std::unique_ptr<Accelerator>> peers = {};
  // Of a model that is divided, on whatever devices; else null.
  std::unique_ptr<LaunchGate> gate = {};
  // Of the processor, when auto chose it in a build with CUDA: why.
  std::string why_processor = {};

  // All of them; none for the processor.
  std::vector<Accelerator*> accelerators() const;
};

// OK when this build can compute on that kind, whether or not this machine can; Unimplemented
// naming it otherwise.
absl::Status CheckDeviceInBuild(DeviceKind kind);

// kUnspecified (auto) is the best that this machine has, and says in one line of the log, and in
// `why_processor`, why it is not a better one of this build. Errors as CheckDeviceInBuild;
// FailedPrecondition in one line when the machine lacks what the kind needs, which is auto's reason
// to go on to the next; Internal or what else the driver's error is when a GPU that is there fails,
// of auto too. With `num_ranks` > 1 the first so many GPUs, or the one device of the runner, which
// has all ranks: auto is then never the processor. `num_ranks` is at least 1. With `awaits_others`
// work in a stream may wait for another one's or, as NCCL's, for another process; that of several
// ranks always does. GPUs then load all kernels at the start, and launches that wait for what they
// launched (CUDA_LAUNCH_BLOCKING) are InvalidArgument: these are variables of the process, as is
// NCCL_COMM_BLOCKING, so it is to be asked before anything else uses a GPU.
absl::StatusOr<ComputeDevice> OpenComputeDevice(DeviceKind kind, uint32_t num_ranks = 1,
                                                bool awaits_others = false);

}  // namespace baton

#endif  // BATON_MODEL_COMPUTE_DEVICE_H_
