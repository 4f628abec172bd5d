#include "tests/kernels/gpu_check/clock_log.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "src/base/status.h"

namespace baton::kernels::gpu_check {
namespace {

constexpr const char* kPeriodMs = "250";
// The reasons have a new name since driver 535; older ones know the old name only.
constexpr const char* kColumns[] = {
    "timestamp,name,driver_version,pstate,clocks.sm,clocks.mem,temperature.gpu,power.draw,"
    "clocks_event_reasons.active",
    "timestamp,name,driver_version,pstate,clocks.sm,clocks.mem,temperature.gpu,power.draw,"
    "clocks_throttle_reasons.active"};

std::vector<std::string> Split(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line);
  for (std::string cell; std::getline(in, cell, ',');) {
    cells.push_back(cell.substr(std::min(cell.find_first_not_of(' '), cell.size())));
  }
  return cells;
}

}  // namespace

void ClockLog::Start() {
  const std::string tool = FindProgram("nvidia-smi");
  if (tool.empty()) {
    why_not_ = "there is no nvidia-smi";
    return;
  }
  for (const char* columns : kColumns) {
    const std::vector<std::string> words = {tool, "--id=0", std::string("--query-gpu=") + columns,
                                            "--format=csv,noheader,nounits"};
    std::string said;
    const auto code = RunProgram(words, [&said](std::string_view line) {
      said += std::string(line) + "\n";
      return absl::OkStatus();
    });
    if (!code.ok() || *code != 0) {
      why_not_ = code.ok() ? fmt::format("nvidia-smi: exit status {}, {}", *code, said)
                           : std::string(code.status().message());
      continue;
    }
    text_ = said;  // before
    columns_ = columns;
    std::vector<std::string> repeated = words;
    repeated.push_back(std::string("--loop-ms=") + kPeriodMs);
    const absl::Status started = program_.Start(repeated);
    why_not_ = started.ok() ? "" : std::string(started.message());
    return;
  }
}

nlohmann::json ClockLog::Json() {
  if (!why_not_.empty()) return {{"not_run", why_not_}};
  program_.Read(/*wait=*/false, &text_);
  auto lines = nlohmann::json::array();
  std::istringstream in(text_.substr(0, text_.rfind('\n') + 1));
  for (std::string line; std::getline(in, line);) lines.push_back(Split(line));
  return {{"columns", Split(columns_)}, {"period_ms", kPeriodMs}, {"lines", lines}};
}

}  // namespace baton::kernels::gpu_check
