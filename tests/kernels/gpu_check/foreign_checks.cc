#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "tests/kernels/gpu_check/gemm_timing.h"
#include "tests/kernels/gpu_check/program.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/gpu_check/timing.h"

namespace baton::gpu_check {
namespace {

// One line of torch_peers.py: {"name", "samples_us", "bytes", "flops"} or {"not_run"}.
absl::Status AddPeer(const StageInput& input, std::string_view line, Report& report) {
  const auto peer = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!peer.is_object()) return absl::OkStatus();  // what a library prints
  if (peer.contains("not_run")) {
    return report.Add({"torch", Verdict::kNotRun, peer["not_run"].get<std::string>()});
  }
  if (!peer.contains("name") || !peer.contains("samples_us")) {
    return report.Add({"torch", Verdict::kFail, std::string(line)});
  }
  const TimedCase timed = {.name = peer["name"].get<std::string>(),
                           .bytes = peer.value("bytes", 0.0),
                           .flops = peer.value("flops", 0.0)};
  return AddSamples(input, timed, peer["samples_us"].get<std::vector<double>>(),
                    {.name = timed.name}, report);
}

absl::Status AddTorch(const StageInput& input, Report& report) {
  if (input.tools.peers.empty()) {
    return report.Add({"torch", Verdict::kNotRun, "no script was given (--peers)"});
  }
  std::vector<std::string> words = {input.tools.python.empty() ? "python3" : input.tools.python,
                                    "-B", input.tools.peers};
  if (input.is_tiny) words.push_back("--tiny");
  std::string last;
  const absl::StatusOr<int> code = RunProgram(words, [&](std::string_view line) {
    last = std::string(line);
    return AddPeer(input, line, report);
  });
  if (!code.ok()) {
    return report.Add({"torch", Verdict::kNotRun, std::string(code.status().message())});
  }
  if (*code == 0 || *code == kExitNotRun) return absl::OkStatus();
  return report.Add({"torch", Verdict::kFail, fmt::format("exit status {}, {}", *code, last)});
}

// A kernel of GemmBf16 and its name.
struct GemmKernel {
  const char* name;
  cuda::GemmPath path;
  bool takes_few_rows;  // and no more
};

absl::Status AddTileSweep(const StageInput& input, Report& report) {
  constexpr GemmKernel kKernels[] = {{"rows8", cuda::GemmPath::kRows8, true},
                                     {"rows32", cuda::GemmPath::kRows32, true},
                                     {"tile64", cuda::GemmPath::kTile64, false},
                                     {"tile128", cuda::GemmPath::kTile128, false},
                                     {"wgmma128", cuda::GemmPath::kWgmma128, false},
                                     {"wgmma192", cuda::GemmPath::kWgmma192, false}};
  const std::vector<uint32_t> counts =
      input.is_tiny ? std::vector<uint32_t>{9}
                    : std::vector<uint32_t>{1, 4, 8, 16, 32, 48, 64, 128, 256, 512};
  for (const ProductShape& shape : ProductsOf(ShapeFor(input.is_tiny))) {
    if (shape.is_output) continue;
    GemmTiming timing(input, shape, counts.back());
    if (!timing.status().ok()) {
      BATON_RETURN_IF_ERROR(report.Add({fmt::format("sweep {}", shape.name), Verdict::kFail,
                                        std::string(timing.status().message())}));
      continue;
    }
    for (const uint32_t m : counts) {
      for (const GemmKernel& kernel : kKernels) {
        if (kernel.takes_few_rows && m > cuda::kGemmMaxSpreadRows) continue;
        const bool needs_wgmma = std::string_view(kernel.name).starts_with("wgmma");
        if (needs_wgmma && input.major != 9) continue;
        const TimedCase named = {.name =
                                     fmt::format("sweep {} m {} {}", shape.name, m, kernel.name)};
        BATON_RETURN_IF_ERROR(timing.Add(named, m, kernel.path, report).status());
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPeers(const StageInput& input, Report& report) {
  BATON_RETURN_IF_ERROR(AddTorch(input, report));
  return AddTileSweep(input, report);
}

}  // namespace baton::gpu_check
