// baton_gpu_check: one stage of scripts/gpu_check.sh in one process. Exit status: 0 all that was
// looked at passed, 1 something failed, 77 nothing could run (no GPU, or a build without CUDA), 2
// usage. Options:
//   --stage N       0 machine, 1 primitives, 2 kernels
//   --simt          on the runner, a few values of each kind
//   --json FILE     what was found; written again after each check
//   --commit TEXT   for the file
//   --float-mma     with --simt: the runner's quick arithmetic, whose bits must be noticed (a test
//                   of the comparison)
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/simt/run_options.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_body.h"
#include "tests/kernels/gpu_check/report.h"
#include "tests/kernels/gpu_check/stages.h"

namespace baton::gpu_check {
namespace {

constexpr int kExitUsage = 2;
constexpr const char* kStageNames[] = {"machine", "primitives", "kernels"};
constexpr int kNumStages = 3;

// The command line.
struct Options {
  int stage = -1;
  bool on_runner = false;
  bool float_mma = false;
  std::string json;
  std::string commit;
};

// False when an argument is unknown or lacks its value.
bool Parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (name == "--simt") {
      options.on_runner = true;
    } else if (name == "--float-mma") {
      options.float_mma = true;
    } else if (value == nullptr) {
      return false;
    } else if (name == "--stage") {
      char* end = nullptr;
      options.stage = static_cast<int>(std::strtol(value, &end, 10));
      if (*end != '\0') return false;
      ++i;
    } else if (name == "--json" || name == "--commit") {
      (name == "--json" ? options.json : options.commit) = value;
      ++i;
    } else {
      return false;
    }
  }
  return options.stage >= 0 && options.stage < kNumStages;
}

absl::Status RunStage(int stage, const StageInput& input, Report& report) {
  switch (stage) {
    case 0:
      return CheckMachine(input, report);
    case 1:
      return CheckPrimitives(input, report);
    default:
      return CheckKernels(input, report);
  }
}

absl::Status Check(const Options& options, Report& report) {
  const DeviceBody* body = options.on_runner ? &SimtBody() : GpuBody();
  if (body == nullptr) {
    return report.Add({"device", Verdict::kNotRun, "this build has no CUDA (preset cuda)"});
  }
  std::string device;
  int major = 0;
  const absl::Status opened = body->open(&device, &major);
  report.Describe("device", device);
  // Stage 0 says more of what is missing.
  if (!opened.ok() && options.stage != 0) {
    return report.Add({"device", Verdict::kNotRun, std::string(opened.message())});
  }
  return RunStage(options.stage, {*body, major, options.on_runner}, report);
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: baton_gpu_check --stage 0|1|2 [--simt [--float-mma]] [--json FILE] "
                 "[--commit TEXT]\n");
    return kExitUsage;
  }
  simt::RunOptions run = simt::CurrentRunOptions();
  if (options.float_mma) run.tensor_math = simt::TensorMath::kFloat;
  simt::ScopedRunOptions scope(run);
  Report report(options.json, {{"benchmark", "gpu_check"},
                               {"commit", options.commit},
                               {"stage", kStageNames[options.stage]},
                               {"body", options.on_runner ? "simt" : "gpu"}});
  const absl::Status status = Check(options, report);
  if (!status.ok()) {
    std::fprintf(stderr, "baton_gpu_check: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return report.ExitCode();
}

}  // namespace
}  // namespace baton::gpu_check

int main(int argc, char** argv) { return baton::gpu_check::Main(argc, argv); }
