#include "tests/kernels/gpu_check/report.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "src/base/status.h"
#include "tests/kernels/gpu_check/differences.h"

namespace baton::kernels::gpu_check {
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

Report::~Report() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  clock_.Join();
}

void Report::KeepEarlierChecks() {
  const std::lock_guard lock(mutex_);
  const nlohmann::json earlier = ReadResults(path_);
  if (!earlier.is_object() || !earlier.contains("checks")) return;
  earlier_ = earlier["checks"].get<std::vector<nlohmann::json>>();
  head_["stage"] = earlier.value("stage", "") + "+" + stage_;
}

absl::Status Report::Resume() {
  const std::lock_guard lock(mutex_);
  const nlohmann::json earlier = ReadResults(path_);
  if (!earlier.is_object() || !earlier.contains("checks")) return absl::OkStatus();
  earlier_ = earlier["checks"].get<std::vector<nlohmann::json>>();
  head_["stage"] = earlier.value("stage", "");
  for (const auto& [key, value] : earlier.items()) {
    const bool is_own = key == "checks" || key == "under_way" || key == "cut" || key == "clocks";
    if (!is_own && !head_.contains(key)) tail_[key] = value;
  }
  if (earlier.contains("clocks")) tail_["clocks_before"].push_back(earlier["clocks"]);
  for (const nlohmann::json& check : earlier_) {
    if (check.value("stage", "") != stage_) continue;
    const bool has_passed = check.value("verdict", "") == NameOf(Verdict::kPass);
    done_[check.value("name", "")] = has_passed;
    num_passed_ += has_passed ? 1 : 0;
    num_failed_ += check.value("verdict", "") == NameOf(Verdict::kFail) ? 1 : 0;
  }
  const std::string name = earlier.value("under_way", "");
  if (name.empty() || done_.contains(name)) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(AddLocked({name, Verdict::kFail, "the process ended in it"}));
  done_[name] = false;
  return absl::OkStatus();
}

void Report::GuardBy(CheckGuard guard) {
  guard_ = std::move(guard);
  if (guard_.patience.count() > 0) clock_ = Thread("checks' clock", [this] { WatchTheClock(); });
}

void Report::Watch(std::string key, std::function<nlohmann::json()> ask) {
  const std::lock_guard lock(mutex_);
  watched_key_ = std::move(key);
  ask_ = std::move(ask);
}

bool Report::Begin(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return !done_.contains(name) && BeginLocked(name);
}

bool Report::BeginNeeded(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = done_.find(name);
  return (found == done_.end() || found->second) && BeginLocked(name);
}

bool Report::BeginLocked(const std::string& name) {
  under_way_ = name;
  is_written_ = false;
  begun_ = std::chrono::steady_clock::now();
  changed_.notify_all();
  tail_["under_way"] = name;
  // The next Add reports an error of this writing.
  (void)Write(nullptr);
  return true;
}

absl::Status Report::Add(Finding finding) {
  const bool has_failed = finding.verdict == Verdict::kFail;
  {
    const std::lock_guard lock(mutex_);
    BATON_RETURN_IF_ERROR(AddLocked(std::move(finding)));
    is_written_ = true;
  }
  // It may wait for what never ends, so the clock goes on.
  const absl::Status device =
      has_failed && guard_.ask_device ? guard_.ask_device() : absl::OkStatus();
  const std::lock_guard lock(mutex_);
  if (!device.ok()) Leave(std::string(device.message()));
  under_way_.clear();
  return absl::OkStatus();
}

absl::Status Report::Flush() {
  const std::lock_guard lock(mutex_);
  under_way_.clear();
  tail_.erase("under_way");
  return Write(nullptr);
}

void Report::Leave(const std::string& why) {
  std::printf("  lost    %s\n", why.c_str());
  std::fflush(stdout);
  tail_["lost"].push_back(why);
  (void)Write(nullptr);
  // Nothing is given back: what a destructor asks of the device may never return.
  std::_Exit(kExitLost);
}

void Report::WatchTheClock() {
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    if (under_way_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto end = begun_ + guard_.patience;
    if (std::chrono::steady_clock::now() < end) {
      changed_.wait_until(lock, end);
      continue;
    }
    const std::string why =
        fmt::format("stopped after {:.1f} s", static_cast<double>(guard_.patience.count()) / 1e3);
    if (!is_written_) (void)AddLocked({under_way_, Verdict::kFail, why});
    Leave(fmt::format("\"{}\" was {}", under_way_, why));
  }
}

absl::Status Report::AddLocked(Finding finding) {
  if (done_.contains(finding.name)) return absl::OkStatus();
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
  tail_.erase("under_way");
  return Write(finding.data);
}

void Report::Describe(const std::string& key, nlohmann::json value) {
  const std::lock_guard lock(mutex_);
  (file_.is_open() ? tail_ : head_)[key] = std::move(value);
}

nlohmann::json Report::Described(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  return tail_.value(key, nlohmann::json());
}

int Report::ExitCode() const {
  const std::lock_guard lock(mutex_);
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

}  // namespace baton::kernels::gpu_check
