// Stages as NVTX ranges of the domain "baton", for Nsight Systems and whatever else a process was
// started under. NVTX is headers only: it looks for the tool that NVTX_INJECTION64_PATH names,
// once.
#ifndef BATON_DEVICE_CUDA_NVTX_STAGES_H_
#define BATON_DEVICE_CUDA_NVTX_STAGES_H_

#include "src/device/step_stage.h"

namespace baton::device {

// The process's, for any thread; null when no tool is attached. The first call looks for one.
StageSink* NvtxStages();

}  // namespace baton::device

#endif  // BATON_DEVICE_CUDA_NVTX_STAGES_H_
