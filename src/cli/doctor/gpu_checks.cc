// Checks of `baton doctor` about GPUs.
#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_join.h"
#include "fmt/format.h"

#include "src/base/size_text.h"
#include "src/cli/doctor/host_checks.h"
#include "src/device/gpu_code.h"

namespace baton::cli {

using device::CudaVersionText;
using device::GpuCodeServes;
using device::kMostGpuCode;
using device::kOldestCuda;

namespace {

std::string NcclText(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// Something here is of NVIDIA.
bool HasGpu(const GpuFacts& gpu) { return gpu.num_device_nodes > 0 || !gpu.gpus.empty(); }

HostCheck CheckDriver(const GpuFacts& gpu, const HostNeeds& needs) {
  HostCheck check{.id = "gpu_driver",
                  .why = "kernels reach the GPU through libcuda.so.1, which comes with the driver"};
  const bool is_wanted = needs.device == "cuda";
  if (!is_wanted && !HasGpu(gpu)) return AsNotApplicable(check, "no NVIDIA device");
  if (is_wanted && !gpu.build_has_cuda) {
    return AsProblem(check, "this build has no CUDA",
                     {"use a binary of the preset cuda-all, or --device cpu", ""});
  }
  if (gpu.program_is_static) {
    return AsNotApplicable(check, "this static program loads no library; ask a CUDA build");
  }
  const CheckFix install = {
      "install the NVIDIA driver 580 or newer; in a container, run it with the "
      "NVIDIA runtime and the capability compute",
      ""};
  if (!gpu.driver_error.empty()) {
    return is_wanted ? AsProblem(check, gpu.driver_error, install)
                     : AsWarning(check, gpu.driver_error, install);
  }
  if (gpu.cuda_version < kOldestCuda) {
    // The runtime that is built in refuses such a driver: nothing runs on the GPU.
    const std::string value =
        CudaVersionText(gpu.cuda_version) + ", older than 13.0: the GPU cannot be used";
    return is_wanted ? AsProblem(check, value, install) : AsWarning(check, value, install);
  }
  return AsOk(check, CudaVersionText(gpu.cuda_version));
}

HostCheck CheckDevices(const GpuFacts& gpu, const HostNeeds& needs) {
  HostCheck check{.id = "gpus", .why = "kernels are machine code for GPUs from sm_80 on, by build"};
  if (gpu.gpus.empty()) {
    const std::string value =
        fmt::format("{} device nodes, none that the driver names", gpu.num_device_nodes);
    if (needs.device == "cuda") {
      return AsProblem(check, value,
                       {"give this host a GPU from sm_80 on, or serve on the processor", ""});
    }
    return AsNotApplicable(check, value);
  }
  const GpuFact& first = gpu.gpus.front();
  const std::string value = fmt::format("{} x {}, {}, sm_{}{}", gpu.gpus.size(), first.name,
                                        FormatSize(first.memory_bytes), first.major, first.minor);
  const auto all_run = [&gpu](std::string_view code) {
    return std::all_of(gpu.gpus.begin(), gpu.gpus.end(), [code](const GpuFact& one) {
      return GpuCodeServes(code, {one.major, one.minor});
    });
  };
  if (!all_run(kMostGpuCode)) {
    return AsWarning(check, value,
                     {"use GPUs from sm_80 on; on others the processor computes", ""});
  }
  const CheckFix rebuild = {"use a binary of the preset cuda-all: scripts/build.sh cuda-all", ""};
  if (!gpu.build_has_cuda) return AsWarning(check, value + "; this build has no CUDA", rebuild);
  if (!all_run(gpu.build_code)) {
    return AsWarning(check, fmt::format("{}; this build is for {}", value, gpu.build_code),
                     rebuild);
  }
  return AsOk(check, value);
}

HostCheck CheckNccl(const GpuFacts& gpu) {
  HostCheck check{.id = "nccl", .why = "KV crosses between GPUs of several hosts by NCCL"};
  if (!HasGpu(gpu)) return AsNotApplicable(check, "no NVIDIA device");
  if (gpu.program_is_static) return AsNotApplicable(check, "this static program loads no library");
  if (gpu.nccl_error.empty()) return AsOk(check, NcclText(gpu.nccl_version));
  return AsWarning(check, gpu.nccl_error,
                   {"install libnccl2 2.28 or newer, or put its folder on LD_LIBRARY_PATH", ""});
}

HostCheck CheckTopology(const GpuFacts& gpu) {
  HostCheck check{.id = "gpu_topology",
                  .why = "KV between two GPUs goes by NVLink, or as far over PCIe as shown here"};
  if (gpu.gpus.size() < 2) return AsNotApplicable(check, "fewer than two GPUs");
  if (!gpu.nvml_error.empty()) return AsNotApplicable(check, gpu.nvml_error);
  std::set<std::string> paths;
  bool is_far = false;
  int num_nvlinks = gpu.gpus.front().num_nvlinks;
  for (const GpuFact& one : gpu.gpus) num_nvlinks = std::min(num_nvlinks, one.num_nvlinks);
  for (const GpuPair& pair : gpu.pairs) {
    paths.insert(std::string(GpuPathName(pair.path)));
    is_far = is_far || pair.path == GpuPath::kSystem;
  }
  const std::string value = fmt::format("{} NVLinks each; PCIe: {}", num_nvlinks,
                                        paths.empty() ? "not known" : absl::StrJoin(paths, ", "));
  if (num_nvlinks > 0 || !is_far) return AsOk(check, value);
  return AsWarning(check, value,
                   {"pair prefill and decode GPUs of one NUMA node (CUDA_VISIBLE_DEVICES)", ""});
}

}  // namespace

void CheckGpus(const HostFacts& facts, const HostNeeds& needs, std::vector<HostCheck>* out) {
  out->push_back(CheckDriver(facts.gpu, needs));
  out->push_back(CheckDevices(facts.gpu, needs));
  out->push_back(CheckNccl(facts.gpu));
  out->push_back(CheckTopology(facts.gpu));
}

}  // namespace baton::cli
