// Facts about GPUs, as the GPU driver, NVML and NCCL tell them. Each of these libraries is found at
// run time. Also the form in which a probe process tells the facts to the process that asked. Plain
// data; any thread.
#ifndef BATON_CLI_DOCTOR_GPU_FACTS_H_
#define BATON_CLI_DOCTOR_GPU_FACTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace baton::cli {

// One GPU as the CUDA driver sees it.
struct GpuFact {
  std::string name;
  uint64_t memory_bytes = 0;
  int major = 0;  // compute capability
  int minor = 0;
  int num_nvlinks = 0;  // active ones, of NVML
};

// How two GPUs reach each other without NVLink, nearest first.
enum class GpuPath : uint8_t { kSameBoard, kOneSwitch, kSwitches, kHostBridge, kNode, kSystem };
std::string_view GpuPathName(GpuPath path);

// Two GPUs of the host, first < second.
struct GpuPair {
  int first = 0;
  int second = 0;
  GpuPath path = GpuPath::kSystem;
};

// See the file comment.
struct GpuFacts {
  bool build_has_cuda = false;
  std::string_view build_code;     // BuildGpuCode
  bool program_is_static = false;  // it can load no library
  uint32_t num_device_nodes = 0;   // /dev/nvidia0, ...
  std::string driver_error;        // "" = libcuda was loaded and answers
  int cuda_version = 0;            // of the driver: 13000 = CUDA 13.0
  std::vector<GpuFact> gpus;
  std::string nvml_error;  // "" = pairs and NVLinks are known
  std::vector<GpuPair> pairs;
  std::string nccl_error;  // "" = the library was loaded
  int nccl_version = 0;    // 22809 = 2.28.9
};

// The part that a probe process finds out, as JSON and back; DataLoss for anything else.
std::string WriteGpuReport(const GpuFacts& facts);
Status ReadGpuReport(std::string_view json, GpuFacts* facts);

}  // namespace baton::cli

#endif  // BATON_CLI_DOCTOR_GPU_FACTS_H_
