// What a stage of gpu_check found, as JSON on disk (results_file.h): a line more after each check,
// so that a stage that is stopped leaves what it had. One thread.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_REPORT_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_REPORT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

#include "tests/kernels/gpu_check/results_file.h"

namespace baton::gpu_check {

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

// The file of a stage, or of several that share one.
class Report {
 public:
  // `path` empty: nothing is written. `head` has the stage's name, "stage".
  Report(std::string path, nlohmann::json head);

  // The checks of an earlier stage in the same file stay; call before the first Add. Of a file that
  // was cut those that are whole; one that is missing holds none.
  void KeepEarlierChecks();
  // `ask` is called before each writing, and what it says is kept under `key`.
  void Watch(std::string key, std::function<nlohmann::json()> ask);

  // Prints the line and writes the check; Internal when it cannot be written. One that carries more
  // than the file has room for fails, and its words alone are written.
  absl::Status Add(Finding finding);
  // Writes what stands beside the checks once more, with what is watched as it is now.
  absl::Status Flush() { return Write(nullptr); }
  // Stands beside the checks from the next writing on.
  void Describe(const std::string& key, nlohmann::json value);

  // 0 all passed, 1 one failed, 77 none could run to its end.
  int ExitCode() const;

 private:
  absl::Status Write(const nlohmann::json& check);

  std::string path_;
  std::string stage_;
  nlohmann::json head_;
  nlohmann::json tail_ = nlohmann::json::object();
  std::vector<nlohmann::json> earlier_;  // until the file is begun
  ResultsFile file_;
  std::string watched_key_;
  std::function<nlohmann::json()> ask_;
  int num_passed_ = 0;
  int num_failed_ = 0;
};

// Pass with `detail`, or FAIL with the error's words, and under "failed" what it carries
// (differences.h).
Finding OutcomeOf(std::string name, const absl::Status& status, std::string detail);
// The same, of what it says itself.
absl::Status AddOutcome(std::string name, const absl::StatusOr<std::string>& outcome,
                        Report& report);

inline constexpr int kExitNotRun = 77;

// Words as hexadecimal, eight digits each; at most `max_words` of them.
std::string HexOf(const std::vector<uint32_t>& words, size_t max_words);
// FNV-1a of the words' bytes: equal runs have equal digests.
std::string DigestOf(const std::vector<uint32_t>& words);

}  // namespace baton::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_REPORT_H_
