#include "tests/kernels/gpu_check/report.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "src/base/status.h"
#include "tests/kernels/gpu_check/differences.h"

namespace baton::gpu_check {
namespace {

const char* NameOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "pass";
    case Verdict::kFail:
      return "FAIL";
    case Verdict::kNotRun:
      return "not run";
  }
  return "unknown";
}

}  // namespace

Report::Report(std::string path, nlohmann::json head)
    : path_(std::move(path)), json_(std::move(head)) {
  json_["checks"] = nlohmann::json::array();
}

void Report::KeepEarlierChecks() {
  std::ifstream file(path_);
  if (!file) return;
  const auto earlier = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!earlier.is_object() || !earlier.contains("checks")) return;
  json_["checks"] = earlier["checks"];
  json_["stage"] = earlier.value("stage", "") + "+" + json_.value("stage", "");
}

void Report::Watch(std::string key, std::function<nlohmann::json()> ask) {
  watched_key_ = std::move(key);
  ask_ = std::move(ask);
}

absl::Status Report::Add(Finding finding) {
  std::printf("  %-7s %-24s %s\n", NameOf(finding.verdict), finding.name.c_str(),
              finding.detail.c_str());
  std::fflush(stdout);
  num_passed_ += finding.verdict == Verdict::kPass ? 1 : 0;
  num_failed_ += finding.verdict == Verdict::kFail ? 1 : 0;
  finding.data["name"] = finding.name;
  finding.data["verdict"] = NameOf(finding.verdict);
  finding.data["detail"] = finding.detail;
  json_["checks"].push_back(std::move(finding.data));
  return Write();
}

int Report::ExitCode() const {
  if (num_failed_ > 0) return 1;
  return num_passed_ > 0 ? 0 : kExitNotRun;
}

absl::Status Report::Write() {
  if (path_.empty()) return absl::OkStatus();
  if (ask_) json_[watched_key_] = ask_();
  const std::string text =
      json_.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const std::string part = path_ + ".part";
  std::FILE* file = std::fopen(part.c_str(), "w");
  if (file == nullptr) return Internal("{} cannot be written", part);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() &&
                       std::fflush(file) == 0 && fsync(fileno(file)) == 0;
  if (std::fclose(file) != 0 || !written || std::rename(part.c_str(), path_.c_str()) != 0) {
    return Internal("{} cannot be written", path_);
  }
  return absl::OkStatus();
}

Finding OutcomeOf(std::string name, const absl::Status& status, std::string detail) {
  Finding finding{.name = std::move(name), .detail = std::move(detail)};
  if (status.ok()) return finding;
  finding.verdict = Verdict::kFail;
  finding.detail = std::string(status.message());
  if (nlohmann::json carried = CarriedBy(status); !carried.is_null()) {
    finding.data["failed"] = std::move(carried);
  }
  return finding;
}

absl::Status AddOutcome(std::string name, const absl::StatusOr<std::string>& outcome,
                        Report& report) {
  return report.Add(
      OutcomeOf(std::move(name), outcome.status(), outcome.ok() ? *outcome : std::string()));
}

std::string HexOf(const std::vector<uint32_t>& words, size_t max_words) {
  std::string hex;
  for (size_t i = 0; i < std::min(words.size(), max_words); ++i) {
    fmt::format_to(std::back_inserter(hex), "{:08x}", words[i]);
  }
  return hex;
}

std::string DigestOf(const std::vector<uint32_t>& words) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const uint32_t word : words) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ (word >> shift & 0xFF)) * 0x100000001b3u;
    }
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace baton::gpu_check
