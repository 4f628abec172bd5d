#include "src/model/compute_device.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "src/base/log.h"
#ifdef BATON_HAVE_SIMT
#include "kernels/simt/simt_device.h"
#endif
#ifdef BATON_HAVE_CUDA
#include "src/device/cuda/cuda_device.h"
#endif

namespace baton::model {

using device::Accelerator;
using device::DeviceKind;
using device::DeviceKindName;
using device::LaunchGate;

namespace {

#ifdef BATON_HAVE_SIMT
constexpr bool kHasSimt = true;
absl::StatusOr<ComputeDevice> OpenSimt() {
  // The runner computes in one fp32 chain, because Hopper's bits cost ten times as much. It does
  // not look for races. Kernel tests do both.
  kernels::simt::RunOptions options;
  options.tensor_math = kernels::simt::TensorMath::kFloat;
  options.detect_races = false;
  return ComputeDevice{std::make_unique<kernels::simt::SimtDevice>(options),
                       &kernels::cuda::runner::Kernels()};
}
#else
constexpr bool kHasSimt = false;
absl::StatusOr<ComputeDevice> OpenSimt() { return CheckDeviceInBuild(DeviceKind::kSimt); }
#endif

#ifdef BATON_HAVE_CUDA
constexpr bool kHasCuda = true;
// Work in a stream waits for what the host gives to other streams, or for another process: no
// launch may wait for a GPU. Asked before this process's first use of the driver and
// of NCCL, which read these.
absl::Status LetLaunchesReturnAtOnce() {
  const char* const blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  if (blocking != nullptr && *blocking != 0 && std::string_view(blocking) != "0") {
    return InvalidArgument(
        "CUDA_LAUNCH_BLOCKING is set, and then what waits for another rank or for a peer by NCCL "
        "may wait for ever; unset it");
  }
  // A kernel that is loaded when it is first launched may wait for all that runs on the GPUs, so
  // for a peer that is gone. This costs the time and the memory of all kernels' code at the start,
  // those of NCCL included; not measured.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/1);
  // Another value, of the environment or of NCCL's file, makes each of its calls wait for the other
  // side, whatever a communicator is asked to be.
  ::setenv("NCCL_COMM_BLOCKING", "0", /*overwrite=*/1);
  return absl::OkStatus();
}

absl::StatusOr<ComputeDevice> OpenCuda(uint32_t num_ranks, bool awaits_others) {
  if (num_ranks > 1 || awaits_others) BATON_RETURN_IF_ERROR(LetLaunchesReturnAtOnce());
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<device::CudaDevice> device,
                         device::CudaDevice::Open(0, kernels::cuda::gpu::Kernels().check_code));
  ComputeDevice out{std::move(device), &kernels::cuda::gpu::Kernels()};
  for (uint32_t rank = 1; rank < num_ranks; ++rank) {
    BATON_ASSIGN_OR_RETURN(
        std::unique_ptr<device::CudaDevice> peer,
        device::CudaDevice::Open(static_cast<int>(rank), kernels::cuda::gpu::Kernels().check_code));
    if (peer->arithmetic() != out.accelerator->arithmetic()) {
      return FailedPrecondition("GPUs 0 and {} compute other bits: {} and {}", rank,
                                out.accelerator->Describe(), peer->Describe());
    }
    out.peers.push_back(std::move(peer));
  }
  for (Accelerator* const from : out.accelerators()) {
    for (Accelerator* const to : out.accelerators()) {
      if (from != to) BATON_RETURN_IF_ERROR(from->ReachMemoryOf(*to));
    }
  }
  return out;
}
#else
constexpr bool kHasCuda = false;
absl::StatusOr<ComputeDevice> OpenCuda(uint32_t /*num_ranks*/, bool /*awaits_others*/) {
  return CheckDeviceInBuild(DeviceKind::kCuda);
}
#endif

absl::StatusOr<ComputeDevice> Open(DeviceKind kind, uint32_t num_ranks, bool awaits_others) {
  if (kind == DeviceKind::kSimt) return OpenSimt();
  const bool is_auto = kind == DeviceKind::kUnspecified;
  if (kind == DeviceKind::kCpu && num_ranks > 1) {
    return InvalidArgument("the processor computes a model whole, not in {} ranks", num_ranks);
  }
  if (kind == DeviceKind::kCuda || (is_auto && num_ranks > 1)) {
    return OpenCuda(num_ranks, awaits_others);
  }
  if (is_auto && kHasCuda) {
    absl::StatusOr<ComputeDevice> gpu = OpenCuda(num_ranks, awaits_others);
    if (gpu.ok() || absl::IsInvalidArgument(gpu.status())) return gpu;
    // A GPU that is there and fails is the operator's to hear of: a worker beside it would compute
    // in another layout than its peers.
    if (!absl::IsFailedPrecondition(gpu.status())) {
      return WithPrefix(gpu.status(), "the GPU fails (--device cpu does without)");
    }
    ComputeDevice processor;
    processor.why_processor = std::string(gpu.status().message());
    BATON_LOG_WARN("{}; computing on the processor", processor.why_processor);
    return processor;
  }
  return ComputeDevice{};
}

}  // namespace

absl::Status CheckDeviceInBuild(DeviceKind kind) {
  const bool has_it = kind == DeviceKind::kSimt   ? kHasSimt
                      : kind == DeviceKind::kCuda ? kHasCuda
                                                  : true;
  if (has_it) return OkStatus();
  return Unimplemented(
      "--device {} is not in this build; use auto or cpu, or build it: scripts/build.sh {}",
      DeviceKindName(kind), kind == DeviceKind::kSimt ? "release baton" : "cuda-all baton");
}

std::vector<Accelerator*> ComputeDevice::accelerators() const {
  std::vector<Accelerator*> all;
  if (accelerator != nullptr) all.push_back(accelerator.get());
  for (const std::unique_ptr<Accelerator>& peer : peers) all.push_back(peer.get());
  return all;
}

absl::StatusOr<ComputeDevice> OpenComputeDevice(DeviceKind kind, uint32_t num_ranks,
                                                bool awaits_others) {
  BATON_ASSIGN_OR_RETURN(ComputeDevice device, Open(kind, num_ranks, awaits_others));
  if (num_ranks > 1) device.gate = std::make_unique<LaunchGate>();
  return device;
}

}  // namespace baton::model
