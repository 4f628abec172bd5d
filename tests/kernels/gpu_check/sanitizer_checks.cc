#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "tests/kernels/gpu_check/program.h"
#include "tests/kernels/gpu_check/sanitizer_words.h"
#include "tests/kernels/gpu_check/stages.h"

namespace baton::kernels::gpu_check {
namespace {

// One run of the sanitizer: a tool, the kernels it watches, and its share of the stage's time.
// Later runs get the time that a run leaves.
struct SanitizerRun {
  const char* name;
  const char* tool;
  const char* kernels;
  double share;
};
// The kernels in which a race or a wild copy could hide come first. They run on few cases, which
// end within the share.
constexpr SanitizerRun kSanitizerRuns[] = {
    {"memcheck", "memcheck", kAsynchronousKernels, 30},
    {"racecheck", "racecheck", kAsynchronousKernels, 30},
    {"synccheck", "synccheck", kAsynchronousKernels, 15},
    {"initcheck", "initcheck", kAsynchronousKernels, 10},
    {"memcheck, other kernels", "memcheck", kOtherKernels, 15}};
// The exit status that the sanitizer is told to use when it found something.
constexpr int kSanitizerFound = 9;
constexpr size_t kKeptLines = 200;
constexpr double kEndSeconds = 3;  // of the stage, for a tool that takes long to die

// How far a run of stage 2 came, line by line.
struct SanitizerOutput {
  nlohmann::json lines = nlohmann::json::array();
  std::string last;
  std::string complaint;  // the first
  std::string failure;    // the first of the tool
  uint32_t num_checks = 0;
  uint32_t num_failed = 0;

  void Read(std::string_view line) {
    if (lines.size() < kKeptLines) lines.push_back(std::string(line));
    if (!line.empty()) last = std::string(line);
    const SanitizerWord word = SanitizerWordOf(line);
    if (complaint.empty() && word == SanitizerWord::kFound) complaint = std::string(line);
    if (failure.empty() && word == SanitizerWord::kToolFailed) failure = std::string(line);
    num_failed += line.starts_with("  FAIL ") ? 1 : 0;
    num_checks += line.starts_with("  pass ") || line.starts_with("  FAIL ") ? 1 : 0;
  }
};

Finding OutcomeOfRun(const std::string& name, const absl::StatusOr<int>& code, double seconds,
                     const SanitizerOutput& output) {
  Finding finding{.name = name, .detail = output.last};
  finding.data["lines"] = output.lines;
  finding.data["seconds"] = seconds;
  const bool is_stopped = code.ok() && (*code == kExitStopped || *code == kExitStoppedByForce);
  if (!code.ok()) {
    finding.verdict = Verdict::kFail;
    finding.detail = std::string(code.status().message());
  } else if (*code == kSanitizerFound || !output.complaint.empty()) {
    finding.verdict = Verdict::kFail;
    finding.detail = fmt::format("found something, {}",
                                 output.complaint.empty() ? output.last : output.complaint);
  } else if (is_stopped) {
    finding.verdict = Verdict::kStopped;
    finding.detail = fmt::format("after {:.0f} s and {} checks with nothing found, {}", seconds,
                                 output.num_checks, output.last);
  } else if (!output.failure.empty() && output.num_failed == 0) {
    finding.verdict = Verdict::kToolFailed;
    finding.detail =
        fmt::format("after {} checks with nothing found, {}", output.num_checks, output.failure);
  } else if (*code != 0) {
    finding.verdict = Verdict::kFail;
    finding.detail = fmt::format("exit status {}, {}", *code, output.last);
  }
  return finding;
}

// `seconds` 0: as long as it takes.
absl::Status RunUnderSanitizer(const StageInput& input, const std::string& sanitizer,
                               const SanitizerRun& run, double seconds, Report& report) {
  // Under a tool every kernel that is loaded is rewritten, so only those that run are.
  std::vector<std::string> words = WithinSeconds(
      seconds, {sanitizer, "--tool", run.tool, "--target-processes", "application-only",
                "--error-exitcode", std::to_string(kSanitizerFound), OwnPath(), "--stage", "2",
                "--tiny", "--kernels", run.kernels});
  if (!input.body.is_gpu) words.push_back("--simt");
  SanitizerOutput output;
  const absl::StatusOr<int> code = RunProgram(words, [&output](std::string_view line) {
    output.Read(line);
    return absl::OkStatus();
  });
  return report.Add(OutcomeOfRun(fmt::format("sanitizer {}", run.name), code, seconds, output));
}

}  // namespace

absl::Status CheckSanitizer(const StageInput& input, Report& report) {
  std::string sanitizer = input.tools.sanitizer;
  if (sanitizer.empty() && !input.body.is_gpu) {
    return report.Add({"sanitizer", Verdict::kNotRun,
                       "the runner looks for races and bounds itself, in stages 1 and 2"});
  }
  if (sanitizer.empty()) sanitizer = FindProgram("compute-sanitizer", {"/usr/local/cuda/bin"});
  if (sanitizer.empty()) {
    return report.Add({"sanitizer", Verdict::kNotRun, "there is no compute-sanitizer"});
  }
  const auto begin = std::chrono::steady_clock::now();
  double shares = 0;
  for (const SanitizerRun& run : kSanitizerRuns) shares += run.share;
  for (const SanitizerRun& run : kSanitizerRuns) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    const double left = std::max(input.seconds - kEndSeconds - elapsed.count(), 1.0);
    const double seconds = input.seconds > 0 ? left * run.share / shares : 0;
    shares -= run.share;
    BATON_RETURN_IF_ERROR(RunUnderSanitizer(input, sanitizer, run, seconds, report));
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::gpu_check
