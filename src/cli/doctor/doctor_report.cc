#include "src/cli/doctor/doctor_report.h"

#include <algorithm>

#include "absl/strings/str_replace.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace baton::cli {
namespace {

bool IsBad(const HostCheck& check) {
  return check.verdict == Verdict::kWarning || check.verdict == Verdict::kProblem;
}

std::string CountsText(const std::vector<HostCheck>& checks) {
  const std::array<size_t, kNumVerdicts> counts = CountVerdicts(checks);
  std::string text;
  for (size_t i = 0; i < kNumVerdicts; ++i) {
    text +=
        fmt::format("{}{} {}", i == 0 ? "" : ", ", counts[i], VerdictName(static_cast<Verdict>(i)));
  }
  return text;
}

// The worst one.
Verdict VerdictOfAll(const std::vector<HostCheck>& checks) {
  const std::array<size_t, kNumVerdicts> counts = CountVerdicts(checks);
  if (counts[static_cast<size_t>(Verdict::kProblem)] > 0) return Verdict::kProblem;
  if (counts[static_cast<size_t>(Verdict::kWarning)] > 0) return Verdict::kWarning;
  return Verdict::kOk;
}

// A text of the machine must not end the comment that it stands in.
std::string OneLine(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\n", " "}, {"\r", " "}});
}

}  // namespace

std::array<size_t, kNumVerdicts> CountVerdicts(const std::vector<HostCheck>& checks) {
  std::array<size_t, kNumVerdicts> counts{};
  for (const HostCheck& check : checks) ++counts[static_cast<size_t>(check.verdict)];
  return counts;
}

std::string DoctorText(const std::vector<HostCheck>& checks, int64_t elapsed_ms) {
  std::string text;
  for (const HostCheck& check : checks) {
    text += fmt::format("{:<15} {:<23} {}\n", VerdictName(check.verdict), check.id, check.value);
    if (!IsBad(check)) continue;
    text += fmt::format("{:16}why: {}\n", "", check.why);
    text += fmt::format("{:16}fix: {}\n", "", check.fix.text);
  }
  return text +
         fmt::format("\n{} checks in {} ms: {}\n", checks.size(), elapsed_ms, CountsText(checks));
}

std::string DoctorJson(const std::vector<HostCheck>& checks, int64_t elapsed_ms) {
  nlohmann::ordered_json root;
  root["verdict"] = VerdictName(VerdictOfAll(checks));
  root["elapsed_ms"] = elapsed_ms;
  const std::array<size_t, kNumVerdicts> counts = CountVerdicts(checks);
  for (size_t i = 0; i < kNumVerdicts; ++i) {
    root["counts"][std::string(VerdictName(static_cast<Verdict>(i)))] = counts[i];
  }
  root["checks"] = nlohmann::ordered_json::array();
  for (const HostCheck& check : checks) {
    nlohmann::ordered_json row = {{"id", check.id},
                                  {"verdict", VerdictName(check.verdict)},
                                  {"value", check.value},
                                  {"why", check.why}};
    if (!check.fix.text.empty()) row["fix"] = check.fix.text;
    if (!check.fix.command.empty()) row["command"] = check.fix.command;
    root["checks"].push_back(std::move(row));
  }
  return root.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string DoctorFixPlan(const std::vector<HostCheck>& checks) {
  std::string script =
      "#!/bin/sh\n"
      "# What `baton doctor` would change on this host. Nothing has been changed yet: read it, "
      "take\n"
      "# out what you do not want, and run it as root. Settings of the kernel last until the next\n"
      "# boot; put them into /etc/sysctl.d to keep them.\n"
      "set -eu\n";
  for (const HostCheck& check : checks) {
    if (!IsBad(check)) continue;
    script +=
        fmt::format("\n# {} ({}): {}\n# why: {}\n# fix: {}\n", check.id, VerdictName(check.verdict),
                    OneLine(check.value), check.why, OneLine(check.fix.text));
    script += check.fix.command.empty() ? "# (by hand: no command on this host does it)\n"
                                        : check.fix.command + "\n";
  }
  const bool is_clean = std::none_of(checks.begin(), checks.end(), &IsBad);
  if (is_clean) script += "\n# Everything is in order.\n";
  return script;
}

}  // namespace baton::cli
