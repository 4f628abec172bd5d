#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "tests/kernels/gpu_check/program.h"
#include "tests/kernels/gpu_check/stages.h"

namespace baton::kernels::gpu_check {
namespace {

constexpr double kEndSeconds = 3;  // of the stage, to end what is stopped

// A line of product_check.py; whatever else a line says is no finding.
absl::Status AddLine(std::string_view line, Report& report, bool* is_finding) {
  const auto said = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto text_of = [&said](const char* name) {
    const auto found = said.find(name);
    return found != said.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  *is_finding = said.is_object() && !text_of("name").empty() && !text_of("verdict").empty();
  if (!*is_finding) return absl::OkStatus();
  Finding finding{.name = text_of("name"), .verdict = Verdict::kFail, .detail = text_of("detail")};
  if (const auto data = said.find("data"); data != said.end() && data->is_object()) {
    finding.data = *data;
  }
  const std::string verdict = text_of("verdict");
  if (verdict == "pass") finding.verdict = Verdict::kPass;
  if (verdict == "not run") finding.verdict = Verdict::kNotRun;
  return report.Add(std::move(finding));
}

}  // namespace

absl::Status CheckProduct(const StageInput& input, Report& report) {
  const ForeignTools& tools = input.tools;
  if (tools.baton.empty() || tools.product_script.empty() || tools.models.empty()) {
    return report.Add({"product", Verdict::kNotRun,
                       "there is no baton to serve (--baton), no script or no models"});
  }
  const double seconds = input.seconds > 0 ? std::max(input.seconds - kEndSeconds, 1.0) : 0;
  std::vector<std::string> words =
      WithinSeconds(seconds, {tools.python.empty() ? "python3" : tools.python, "-B",
                              tools.product_script, "--baton", tools.baton, "--models",
                              tools.models, "--device", input.body.is_gpu ? "cuda" : "simt"});
  if (input.is_tiny) words.push_back("--tiny");
  std::string last;
  const absl::StatusOr<int> code = RunProgram(words, [&](std::string_view line) {
    bool is_finding = false;
    const absl::Status status = AddLine(line, report, &is_finding);
    if (!is_finding) last = std::string(line);
    return status;
  });
  if (!code.ok() || *code == kExitNoProgram) {
    return report.Add(
        {"product", Verdict::kNotRun, code.ok() ? last : std::string(code.status().message())});
  }
  if (*code == 0) return absl::OkStatus();
  if (*code == kExitStopped || *code == kExitStoppedByForce) {
    return report.Add({"product", Verdict::kFail, fmt::format("stopped after {:.0f} s", seconds)});
  }
  return report.Add({"product", Verdict::kFail, fmt::format("exit status {}, {}", *code, last)});
}

}  // namespace baton::kernels::gpu_check
