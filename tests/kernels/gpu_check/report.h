// The findings of a stage of gpu_check, as JSON on disk (results_file.h). The file grows by a line
// after each check, so a stage that is stopped leaves what it had.
//
// A fault on a GPU stays: whatever the process asks of it from then on fails. So the process ends
// with the check in which that happened, or that took too long. The next process goes on after that
// check:
//
//   report.Begin("gemm")        false where an earlier process of this call had it: leave it out
//   report.Add({"gemm", ..})
//
// Between the two calls "under_way" in the file has the name. If the process dies in the check, the
// next one knows what it died in. One thread; a thread of the report's own stops a check that takes
// too long.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_REPORT_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_REPORT_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

#include "src/base/thread.h"
#include "tests/kernels/gpu_check/results_file.h"

namespace baton::kernels::gpu_check {

// Neither a pass nor a failure are: stopped, at its limit, with nothing wrong so far; tool failed,
// a program that was to look at it ended by itself.
enum class Verdict : uint8_t { kPass, kFail, kNotRun, kStopped, kToolFailed };

// One line of the page, and what else is worth keeping of it.
struct Finding {
  std::string name;
  Verdict verdict = Verdict::kPass;
  std::string detail;
  nlohmann::json data = nlohmann::json::object();
};

// The conditions that make a process end with a check.
struct CheckGuard {
  // After one that failed: an error when the device will not do anything more in this process.
  std::function<absl::Status()> ask_device = nullptr;
  // The longest time of one check, from its Begin; 0 = none.
  std::chrono::milliseconds patience{0};
};

// How a process ends that has to be followed by another one (Report::Resume).
inline constexpr int kExitLost = 76;

// The file of a stage, or of several that share one.
class Report {
 public:
  // `path` empty: nothing is written. `head` has the stage's name, "stage".
  Report(std::string path, nlohmann::json head);
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // The checks of an earlier stage in the same file stay; call before the first Add. A file that
  // was cut keeps its whole checks; a file that is missing holds none.
  void KeepEarlierChecks();
  // Also keeps the checks of an earlier process of this stage. A check that it had is not begun
  // again, its descriptions stay and its verdicts count. The check that it died in fails. Internal
  // when that cannot be written.
  absl::Status Resume();
  // From now on; once. The process may end in any Add, and at any time between Begin and Add.
  void GuardBy(CheckGuard guard);
  // `ask` is called before each writing, and what it says is kept under `key`.
  void Watch(std::string key, std::function<nlohmann::json()> ask);

  // See the file comment. A check that is begun and never added is over with the next Begin or Add.
  bool Begin(const std::string& name);
  // As Begin, for a check that others are compared with. It also returns true where an earlier
  // process had the check and it passed.
  bool BeginNeeded(const std::string& name);
  // Prints the line and writes the check; Internal when it cannot be written. One that carries more
  // than the file has room for fails, and its words alone are written; one that an earlier process
  // had is left out.
  absl::Status Add(Finding finding);
  // Writes what stands beside the checks once more, with what is watched as it is now.
  absl::Status Flush();
  // Stands beside the checks from the next writing on.
  void Describe(const std::string& key, nlohmann::json value);
  // The description that an earlier process of this stage gave; null where there was none.
  nlohmann::json Described(const std::string& key) const;

  // 0 all passed, 1 one failed, 77 none could run to its end.
  int ExitCode() const;

 private:
  // All with mutex_ held.
  bool BeginLocked(const std::string& name);
  absl::Status AddLocked(Finding finding);
  absl::Status Write(const nlohmann::json& check);
  [[noreturn]] void Leave(const std::string& why);
  void WatchTheClock();

  const std::string path_;
  const std::string stage_;
  CheckGuard guard_;
  mutable std::mutex mutex_;  // guards all below but clock_
  nlohmann::json head_;
  nlohmann::json tail_ = nlohmann::json::object();
  std::vector<nlohmann::json> earlier_;  // until the file is begun
  std::map<std::string, bool> done_;     // by an earlier process of this stage: it passed
  ResultsFile file_;
  std::string watched_key_;
  std::function<nlohmann::json()> ask_;
  int num_passed_ = 0;
  int num_failed_ = 0;
  std::string under_way_;    // empty: no check is
  bool is_written_ = false;  // the check that is under way; what is left of it asks the device
  std::chrono::steady_clock::time_point begun_;
  bool is_over_ = false;
  std::condition_variable changed_;
  Thread clock_;
};

// Pass with `detail`, or FAIL with the error's words, and under "failed" what it carries
// (differences.h).
Finding OutcomeOf(std::string name, const absl::Status& status, std::string detail);
// The outcome as above; an outcome that is OK brings its own detail.
absl::Status AddOutcome(std::string name, const absl::StatusOr<std::string>& outcome,
                        Report& report);

// A check as it is begun and added, unless an earlier process had it.
template <typename Check>
absl::Status AddChecked(const std::string& name, Report& report, const Check& check) {
  return report.Begin(name) ? AddOutcome(name, check(), report) : absl::OkStatus();
}

inline constexpr int kExitNotRun = 77;

// Words as hexadecimal, eight digits each; at most `max_words` of them.
std::string HexOf(const std::vector<uint32_t>& words, size_t max_words);
// FNV-1a of the words' bytes: equal runs have equal digests.
std::string DigestOf(const std::vector<uint32_t>& words);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_REPORT_H_
