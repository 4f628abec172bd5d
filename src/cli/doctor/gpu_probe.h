// Asks the GPU driver, NVML and NCCL, which are found at run time, from a child process: a driver
// that hangs or crashes costs its deadline and is a finding, not the end of `baton doctor`.
#ifndef BATON_CLI_DOCTOR_GPU_PROBE_H_
#define BATON_CLI_DOCTOR_GPU_PROBE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "src/base/status.h"
#include "src/cli/doctor/gpu_facts.h"

namespace baton::cli {

// Fills `facts`; at most 2.5 s. No other thread of the process runs.
void ProbeGpus(GpuFacts* facts);

// Computes `body` in a child process and returns its result. DeadlineExceeded when it took longer
// (the child is killed then). Unavailable when the child died, naming the signal or the exit code.
// No other thread runs.
StatusOr<std::string> RunApart(const std::function<std::string()>& body, int64_t timeout_ms);

}  // namespace baton::cli

#endif  // BATON_CLI_DOCTOR_GPU_PROBE_H_
