// The GPUs for which this build's kernels were compiled, as CMake names architectures, and what
// that means for a GPU. Pure. A CUDA build asks the runtime before it computes
// (KernelTable::check_code). This file is for messages, and for callers that must not touch a GPU.
#ifndef BATON_DEVICE_GPU_CODE_H_
#define BATON_DEVICE_GPU_CODE_H_

#include <string>
#include <string_view>

namespace baton::device {

// The compute capability of one GPU; sm_89 is {8, 9}.
struct ComputeCapability {
  int major;
  int minor;
};

// The oldest CUDA that a driver may be for, as the driver numbers it: 13.0. The runtime that is
// built in refuses older ones.
inline constexpr int kOldestCuda = 13000;

// "CUDA 12.4" of 12040.
std::string CudaVersionText(int version);

// The architectures that the preset cuda-all compiles for; no GPU that they do not serve runs
// kernels.
inline constexpr std::string_view kMostGpuCode =
    "80-real, 90a-real, 100-real, 120-real, 90-virtual";

// As kMostGpuCode, for this build; empty without CUDA.
std::string_view BuildGpuCode();

// Whether a GPU runs code for these architectures. NN-real is machine code: GPUs of the same major
// version and at least that minor one run it. NN-virtual is PTX: the driver compiles it for all
// later GPUs, but PTX below 90 not for GPUs from sm_90 on, where launches overlap. NN is both. An f
// after the number (100f) means its family, which is machine code and PTX for GPUs of that major
// version alone. Another letter (90a) means that GPU alone.
bool GpuCodeServes(std::string_view architectures, ComputeCapability gpu);

// Whether a GPU of this capability has run scripts/gpu_check.sh; benchmarks/GPU.md has its answers.
// The bits of other GPUs are not known. A worker on such a GPU says so in one line of its log.
bool HasBeenChecked(ComputeCapability gpu);

// "bf16.sm80.1": the order and rounding of what a GPU computes, a part of numerics_id. By major and
// minor, because of tensor cores nobody promises more; the kernels' own code gives the same bits
// everywhere, whether it came as machine code or as PTX.
std::string GpuArithmetic(ComputeCapability gpu);

}  // namespace baton::device

#endif  // BATON_DEVICE_GPU_CODE_H_
