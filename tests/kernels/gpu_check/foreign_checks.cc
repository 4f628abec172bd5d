#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "tests/kernels/gpu_check/gemm_timing.h"
#include "tests/kernels/gpu_check/program.h"
#include "tests/kernels/gpu_check/results_file.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/gpu_check/targets.h"
#include "tests/kernels/gpu_check/timing.h"

namespace baton::kernels::gpu_check {
namespace {

using Medians = std::map<std::string, double>;

// A program and what it took; its names begin with its own.
struct Peer {
  std::string name;
  Medians medians;
};

// Our names for what another program did under `rest`: all our ways to do it.
std::vector<std::string> OursOf(const std::string& peer, const std::string& rest) {
  if (peer == "cublaslt") return {"gemm " + rest};
  constexpr std::string_view kAttention = "attention ";
  if (!rest.starts_with(std::string(kAttention) + "prefill")) return {rest};
  return {rest, "attention wgmma " + rest.substr(kAttention.size())};
}

// Rows that decode: at most 64 of a product, or attention that is not of a prompt.
bool IsDecode(const std::string& name) {
  const size_t rows = name.rfind(" m ");
  if (rows == std::string::npos) return name.find("prefill") == std::string::npos;
  return std::atoi(name.c_str() + rows + 3) <= 64;
}

// "ours / torch: gemm qkv m 8" for each thing that both did; then how often we were ahead where it
// counts most, in decode. Nothing where there is nothing to compare.
absl::Status AddComparisons(const StageInput& input, const Medians& ours, const Peer& peer,
                            Report& report) {
  uint32_t num_decode = 0;
  uint32_t num_ahead = 0;
  for (const auto& [name, theirs_us] : peer.medians) {
    if (!name.starts_with(peer.name + " ")) continue;
    for (const std::string& own : OursOf(peer.name, name.substr(peer.name.size() + 1))) {
      const auto found = ours.find(own);
      if (found == ours.end()) continue;
      const Comparison comparison = CompareTimes(found->second, theirs_us);
      Finding finding{.name = fmt::format("ours / {}: {}", peer.name, own)};
      finding.detail = fmt::format("{:.1f} / {:.1f} us, {}", found->second, theirs_us,
                                   input.body.is_gpu ? comparison.words : "not of a GPU");
      finding.data["ratio"] = comparison.ratio;
      finding.data["is_decode"] = IsDecode(own);
      num_decode += IsDecode(own) ? 1 : 0;
      num_ahead += IsDecode(own) && comparison.is_ahead ? 1 : 0;
      BATON_RETURN_IF_ERROR(report.Add(std::move(finding)));
    }
  }
  if (num_decode == 0) return absl::OkStatus();
  Finding all{.name = fmt::format("ours / {}, decode", peer.name), .detail = "not of a GPU"};
  if (input.body.is_gpu) {
    all.detail = fmt::format("ahead at {} of {} shapes", num_ahead, num_decode);
  }
  all.data["num_decode"] = num_decode;
  all.data["num_ahead"] = num_ahead;
  return report.Add(std::move(all));
}

// One line of torch_peers.py: {"name", "samples_us", "bytes", "flops"} or {"not_run"}.
absl::Status AddPeer(const StageInput& input, std::string_view line, Report& report,
                     Medians& medians) {
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
  const auto samples_us = peer["samples_us"].get<std::vector<double>>();
  medians[timed.name] = MedianOf(samples_us);
  return AddSamples(input, timed, samples_us, {.name = timed.name}, report);
}

// `seconds` 0: as long as it takes.
absl::Status AddTorch(const StageInput& input, double seconds, Report& report, Medians& medians) {
  if (input.tools.peers.empty()) {
    return report.Add({"torch", Verdict::kNotRun, "no script was given (--peers)"});
  }
  std::vector<std::string> words = WithinSeconds(
      seconds,
      {input.tools.python.empty() ? "python3" : input.tools.python, "-B", input.tools.peers});
  if (input.is_tiny) words.push_back("--tiny");
  std::string last;
  const absl::StatusOr<int> code = RunProgram(words, [&](std::string_view line) {
    last = std::string(line);
    return AddPeer(input, line, report, medians);
  });
  if (!code.ok() || *code == kExitNoProgram) {
    return report.Add(
        {"torch", Verdict::kNotRun, code.ok() ? last : std::string(code.status().message())});
  }
  if (*code == kExitStopped || *code == kExitStoppedByForce) {
    return report.Add({"torch", Verdict::kStopped, fmt::format("after {:.0f} s", seconds)});
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
  constexpr GemmKernel kKernels[] = {
      {"rows8", cuda::GemmPath::kRows8, true},       {"rows32", cuda::GemmPath::kRows32, true},
      {"narrow", cuda::GemmPath::kNarrow, true},     {"tile64", cuda::GemmPath::kTile64, false},
      {"tile128", cuda::GemmPath::kTile128, false},  {"wgmma128", cuda::GemmPath::kWgmma128, false},
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
        const bool needs_wgmma = std::string_view(kernel.name).starts_with("wgmma") ||
                                 kernel.path == cuda::GemmPath::kNarrow;
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
  const auto begin = std::chrono::steady_clock::now();
  const Medians ours = MediansOf(ReadResults(input.timings_file));
  BATON_RETURN_IF_ERROR(AddComparisons(
      input, ours, {"cublaslt", MediansOf(ReadResults(input.bandwidth_file))}, report));
  // Before torch, which may take what is left.
  BATON_RETURN_IF_ERROR(AddTileSweep(input, report));
  constexpr double kEndSeconds = 2;  // of the stage, for the comparisons
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const double left = std::max(input.seconds - kEndSeconds - elapsed.count(), 1.0);
  Medians torch;
  BATON_RETURN_IF_ERROR(AddTorch(input, input.seconds > 0 ? left : 0, report, torch));
  return AddComparisons(input, ours, {"torch", torch}, report);
}

}  // namespace baton::kernels::gpu_check
