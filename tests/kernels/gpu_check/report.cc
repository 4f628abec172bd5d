#include "tests/kernels/gpu_check/report.h"

#include <algorithm>
#include <cstdio>
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
    case Verdict::kStopped:
      return "stopped";
    case Verdict::kToolFailed:
      return "tool failed";
  }
  return "unknown";
}

}  // namespace

Report::Report(std::string path, nlohmann::json head)
    : path_(std::move(path)), stage_(head.value("stage", "")), head_(std::move(head)) {}

void Report::KeepEarlierChecks() {
  const nlohmann::json earlier = ReadResults(path_);
  if (!earlier.is_object() || !earlier.contains("checks")) return;
  earlier_ = earlier["checks"].get<std::vector<nlohmann::json>>();
  head_["stage"] = earlier.value("stage", "") + "+" + stage_;
}

void Report::Watch(std::string key, std::function<nlohmann::json()> ask) {
  watched_key_ = std::move(key);
  ask_ = std::move(ask);
}

absl::Status Report::Add(Finding finding) {
  constexpr size_t kSmall = 4096;  // there is room for every one
  const size_t data_bytes = LineOf(finding.data).size();
  if (!path_.empty() && data_bytes > kSmall && !file_.HasRoomFor(data_bytes)) {
    finding.verdict = Verdict::kFail;
    finding.detail =
        fmt::format("{} bytes of data left out: the file has {} and may have {} MiB; it was: {}",
                    data_bytes, file_.size_bytes(), kMaxFileBytes >> 20, finding.detail);
    finding.data = nlohmann::json::object();
  }
  std::printf("  %-7s %-24s %s\n", NameOf(finding.verdict), finding.name.c_str(),
              finding.detail.c_str());
  std::fflush(stdout);
  num_passed_ += finding.verdict == Verdict::kPass ? 1 : 0;
  num_failed_ += finding.verdict == Verdict::kFail ? 1 : 0;
  finding.data["name"] = finding.name;
  finding.data["stage"] = stage_;
  finding.data["verdict"] = NameOf(finding.verdict);
  finding.data["detail"] = finding.detail;
  return Write(finding.data);
}

void Report::Describe(const std::string& key, nlohmann::json value) {
  (file_.is_open() ? tail_ : head_)[key] = std::move(value);
}

int Report::ExitCode() const {
  if (num_failed_ > 0) return 1;
  return num_passed_ > 0 ? 0 : kExitNotRun;
}

absl::Status Report::Write(const nlohmann::json& check) {
  if (path_.empty()) return absl::OkStatus();
  if (!file_.is_open()) {
    // Earlier checks are in one file or the other.
    const std::string part = path_ + ".part";
    BATON_RETURN_IF_ERROR(file_.Open(part, head_));
    for (const nlohmann::json& earlier : std::exchange(earlier_, {})) {
      BATON_RETURN_IF_ERROR(file_.Write(earlier, tail_));
    }
    if (std::rename(part.c_str(), path_.c_str()) != 0) {
      return Internal("{} cannot be written", path_);
    }
  }
  if (ask_) tail_[watched_key_] = ask_();
  return file_.Write(check, tail_);
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
