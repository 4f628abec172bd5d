// A stage's file: JSON that grows by a line a check. It is a whole document after every writing; if
// it was cut in the middle of one, at any byte, its lines are still there to be read.
//
//   {"commit":"..", .. ,"checks":[
//   {"name":"..","verdict":"pass", .. }
//   ,{"name":"..", .. }
//   ],
//   "clocks":{ .. }
//   }
//
// A new check is written over the data after the last check, and then that data is written again
// after it: no byte of a check is written twice.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_RESULTS_FILE_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_RESULTS_FILE_H_

#include <cstddef>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

#include "src/base/unique_fd.h"

namespace baton::kernels::gpu_check {

// The most bytes of a file that comes back from a machine that is lent: eight files
// (scripts/gpu_check.sh) of this size may come back.
inline constexpr size_t kMaxFileBytes = 16 << 20;
// Checks that carry much leave this part of the size free. It is for the words of other checks and
// for the data after the checks.
inline constexpr size_t kReservedBytes = 1 << 20;

// JSON in one line; bytes that are no text are replaced.
std::string LineOf(const nlohmann::json& json);

// See the file comment. One thread.
class ResultsFile {
 public:
  // True when a check of so many bytes still has room.
  bool HasRoomFor(size_t check_bytes) const {
    return size_bytes_ + check_bytes <= kMaxFileBytes - kReservedBytes;
  }
  bool is_open() const { return fd_.valid(); }
  size_t size_bytes() const { return size_bytes_; }  // up to the last check

  // Begins the file, in place of one that was there. Internal when it cannot be written.
  absl::Status Open(const std::string& path, const nlohmann::json& head);
  // Writes a check and the data after all checks, and syncs. Null: writes only that data, which is
  // not worth a sync. Internal when it cannot be written or would be larger than kMaxFileBytes; the
  // file is then as before.
  absl::Status Write(const nlohmann::json& check, const nlohmann::json& tail);

 private:
  std::string path_;
  UniqueFd fd_;
  size_t size_bytes_ = 0;
  bool has_checks_ = false;
};

// The content of a file, which may have been cut. A cut file gives all checks that are whole, and
// "cut". Null when there is no such file or not even its head.
nlohmann::json ReadResults(const std::string& path);
// Reads the content as ReadResults does, and repairs a file that was cut. Internal when it cannot
// be written.
absl::Status MendResults(const std::string& path, nlohmann::json* results);

// One line about the checks of a stage, for the page: "17 pass, 1 FAIL, 2 not run; targets: 3 met,
// 1 missed, 2 not judged"; the check that a process died in; and where the file was cut the last
// one's name. Empty without checks.
std::string PageLineOf(const nlohmann::json& results, const std::string& stage);
// The medians in microseconds of what a file's checks timed, by name.
std::map<std::string, double> MediansOf(const nlohmann::json& results);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_RESULTS_FILE_H_
