// baton_gpu_check: one stage of scripts/gpu_check.sh in one process. Exit status:
//   0   all that was looked at passed
//   1   something failed
//   2   usage
//   76  the GPU is lost to this process, or a check on it took more than a third of --seconds and
//       10 s; another process is to --resume
//   77  nothing could run (no GPU, or a build without CUDA)
// Options:
//   --stage N         0 machine, 1 primitives, 2 kernels, 3 bandwidth, 4 timings, 5 model,
//                     6 transport, 7 sanitizer, 8 peers, 9 product
//   --simt            on the runner; implies --tiny
//   --tiny            a few values of each kind
//   --json FILE       what was found; a line more after each check
//   --append          what FILE holds already stays
//   --resume          FILE stays as with --append; only what it lacks of this stage is looked at
//   --commit TEXT     for the file
//   --limits FILE     of stage 3, for shares of what the device can do
//   --timings FILE    of stage 4, for stage 8 to compare with
//   --seconds N       that the stage may take; stage 7 divides them
//   --kernels WHICH   stage 2: asynchronous or others, instead of all
//   --cublaslt FILE, --nccl FILE, --sanitizer FILE, --python FILE, --peers FILE
//                     programs and libraries of others (stages.h)
//   --baton FILE, --product-script FILE, --models DIR
//                     what stage 9 runs
//   --float-mma       with --simt: the runner's quick arithmetic, whose bits must be noticed (a
//                     test of the comparison)
//   --ampere          with --simt: tensor cores as Ampere's and Ada's shared memory
//   --newer           with --simt: a GPU that came after Hopper, whose tensor cores no model knows
//   --other-bytes     stage 6: the sender's blocks hold other bytes than they should (likewise)
// Stage 6 starts this program once more with an argument of its own (hand_off_child.h). Two more
// ways to call it, which ask no device:
//   --starts               says that it can be started here
//   --results FILE NAME    one line about the checks of the stage NAME, and FILE is made whole
//                          where it was cut; exit status 1 where nothing can be read
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/simt/run_options.h"
#include "src/base/log.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/clock_log.h"
#include "tests/kernels/gpu_check/device_body.h"
#include "tests/kernels/gpu_check/hand_off_child.h"
#include "tests/kernels/gpu_check/report.h"
#include "tests/kernels/gpu_check/results_file.h"
#include "tests/kernels/gpu_check/stages.h"

namespace baton::kernels::gpu_check {
namespace {

constexpr int kExitUsage = 2;

// The stages by their numbers.
struct Stage {
  const char* name;
  absl::Status (*run)(const StageInput& input, Report& report);
};
constexpr Stage kStages[] = {{"machine", CheckMachine},     {"primitives", CheckPrimitives},
                             {"kernels", CheckKernels},     {"bandwidth", CheckBandwidth},
                             {"timings", CheckTimings},     {"model", CheckModel},
                             {"transport", CheckTransport}, {"sanitizer", CheckSanitizer},
                             {"peers", CheckPeers},         {"product", CheckProduct}};
constexpr int kNumStages = sizeof(kStages) / sizeof(kStages[0]);

// The command line.
struct Options {
  int stage = -1;
  bool on_runner = false;
  bool is_tiny = false;
  bool append = false;
  bool resume = false;
  bool float_mma = false;
  bool is_ampere = false;
  bool is_newer = false;
  bool other_bytes = false;
  std::string json;
  std::string commit;
  std::string limits;
  std::string timings;
  std::string seconds;
  std::string kernels;
  ForeignTools tools;
};

// Where the value of an option goes; null for an unknown one.
std::string* TextOf(Options& options, std::string_view name) {
  const std::pair<std::string_view, std::string*> texts[] = {
      {"--json", &options.json},
      {"--commit", &options.commit},
      {"--limits", &options.limits},
      {"--timings", &options.timings},
      {"--seconds", &options.seconds},
      {"--kernels", &options.kernels},
      {"--cublaslt", &options.tools.cublaslt},
      {"--nccl", &options.tools.nccl},
      {"--sanitizer", &options.tools.sanitizer},
      {"--python", &options.tools.python},
      {"--peers", &options.tools.peers},
      {"--baton", &options.tools.baton},
      {"--product-script", &options.tools.product_script},
      {"--models", &options.tools.models}};
  for (const auto& [known, text] : texts) {
    if (known == name) return text;
  }
  return nullptr;
}

bool* SwitchOf(Options& options, std::string_view name) {
  if (name == "--simt") return &options.on_runner;
  if (name == "--tiny") return &options.is_tiny;
  if (name == "--append") return &options.append;
  if (name == "--resume") return &options.resume;
  if (name == "--float-mma") return &options.float_mma;
  if (name == "--ampere") return &options.is_ampere;
  if (name == "--newer") return &options.is_newer;
  if (name == "--other-bytes") return &options.other_bytes;
  return nullptr;
}

// False when an argument is unknown or lacks its value.
bool Parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (bool* const on = SwitchOf(options, name); on != nullptr) {
      *on = true;
      continue;
    }
    if (++i == argc) return false;
    if (name == "--stage") {
      char* end = nullptr;
      options.stage = static_cast<int>(std::strtol(argv[i], &end, 10));
      if (*end != '\0') return false;
    } else if (std::string* const text = TextOf(options, name); text != nullptr) {
      *text = argv[i];
    } else {
      return false;
    }
  }
  const bool is_list = options.kernels.empty() || options.kernels == kAsynchronousKernels ||
                       options.kernels == kOtherKernels;
  return options.stage >= 0 && options.stage < kNumStages && is_list;
}

KernelList ListOf(const Options& options) {
  if (options.kernels.empty()) return KernelList::kAll;
  return options.kernels == kOtherKernels ? KernelList::kOthers : KernelList::kAsynchronous;
}

// The longest time of one check: a third of the stage's limit. It is not less than 10 s, because a
// check may load a library.
std::chrono::milliseconds PatienceOf(uint32_t seconds) {
  constexpr uint32_t kLeastMs = 10'000;
  return std::chrono::milliseconds(seconds > 0 ? std::max(seconds * 1000 / 3, kLeastMs) : 0);
}

absl::Status Check(const Options& options, Report& report) {
  const DeviceBody* body = options.on_runner ? &SimtBody() : GpuBody();
  if (body == nullptr) {
    return report.Add({"device", Verdict::kNotRun, "this build has no CUDA (preset cuda)"});
  }
  DeviceInfo info;
  const absl::Status opened = body->open(&info);
  report.Describe("device", info.description);
  report.Describe("product", info.product);
  if (options.resume) BATON_RETURN_IF_ERROR(report.Resume());
  // Stage 0 says more of what is missing.
  if (!opened.ok() && options.stage != 0) {
    return report.Add({"device", Verdict::kNotRun, std::string(opened.message())});
  }
  const auto seconds = static_cast<uint32_t>(std::atoi(options.seconds.c_str()));
  if (body->is_gpu && opened.ok()) report.GuardBy({body->ask, PatienceOf(seconds)});
  ClockLog clocks;
  if (body->is_gpu && !options.json.empty()) clocks.Start();  // nowhere else is it to be seen
  report.Watch("clocks", [&clocks] { return clocks.Json(); });
  const StageInput input = {.body = *body,
                            .major = info.major,
                            .is_tiny = options.is_tiny || options.on_runner,
                            .limits = ReadLimits(options.limits, info.description),
                            .tools = options.tools,
                            .other_bytes = options.other_bytes,
                            .product = info.product,
                            .seconds = seconds,
                            .kernels = ListOf(options),
                            .bandwidth_file = options.limits,
                            .timings_file = options.timings};
  absl::Status status = kStages[options.stage].run(input, report);
  if (status.ok()) status = report.Flush();
  report.Watch("", nullptr);
  return status;
}

// See the file comment.
int ShowResults(const std::string& path, const std::string& stage) {
  nlohmann::json results;
  const absl::Status mended = MendResults(path, &results);
  if (!mended.ok() || results.is_null()) {
    std::fprintf(
        stderr, "baton_gpu_check: %s\n",
        mended.ok() ? (path + " cannot be read").c_str() : std::string(mended.message()).c_str());
    return 1;
  }
  std::printf("%s\n", PageLineOf(results, stage).c_str());
  return 0;
}

int Main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--starts") {
    std::printf("starts\n");
    return 0;
  }
  if (argc == 4 && std::string_view(argv[1]) == "--results") return ShowResults(argv[2], argv[3]);
  if (argc == 3 && std::string_view(argv[1]) == kHandOffChildFlag) return RunHandOffChild(argv[2]);
  (void)InitLog({.role = "gpu_check", .level = LogLevel::kWarn});
  Options options;
  if (!Parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: baton_gpu_check --stage 0..9 [--simt [--float-mma | --ampere | --newer]] "
                 "[--tiny] [--json FILE [--append | --resume]] [--commit TEXT] [--limits FILE] "
                 "[--timings FILE] [--seconds N] [--kernels asynchronous|others] [--cublaslt FILE] "
                 "[--nccl FILE] [--sanitizer FILE] [--python FILE] [--peers FILE] [--baton FILE] "
                 "[--product-script FILE] [--models DIR] [--other-bytes]\n");
    return kExitUsage;
  }
  simt::RunOptions run = simt::CurrentRunOptions();
  if (options.float_mma) run.tensor_math = simt::TensorMath::kFloat;
  if (options.is_ampere || options.is_newer) {
    run.tensor_math = options.is_ampere ? simt::TensorMath::kAmpereBits : simt::TensorMath::kFloat;
    run.max_shared_bytes = simt::kLeastSharedBytes;
  }
  simt::ScopedRunOptions scope(run);
  Report report(options.json, {{"benchmark", "gpu_check"},
                               {"commit", options.commit},
                               {"stage", kStages[options.stage].name},
                               {"body", options.on_runner ? "simt" : "gpu"}});
  if (options.append) report.KeepEarlierChecks();
  const absl::Status status = Check(options, report);
  if (!status.ok()) {
    std::fprintf(stderr, "baton_gpu_check: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return report.ExitCode();
}

}  // namespace
}  // namespace baton::kernels::gpu_check

int main(int argc, char** argv) { return baton::kernels::gpu_check::Main(argc, argv); }
