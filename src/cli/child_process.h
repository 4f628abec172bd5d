// One process of `serve`: how it is started, what it reports about itself, how it ends.
#ifndef BATON_CLI_CHILD_PROCESS_H_
#define BATON_CLI_CHILD_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/base/unique_fd.h"

namespace baton::cli {

// Name of the variable that holds the number of the pipe on which a child reports: for each role
// that it plays one JSON object on a line, {"role","worker_id","incarnation","pid","grpc","http",
// "admin","kv"} with string values (pid too).
inline constexpr char kReportFdVariable[] = "BATON_REPORT_FD";

// Name of the variable that a worker of `serve` has when MODEL is one file: "FD ID", a descriptor
// of that file, which stays what it is when another file gets its name, and the model's id.
inline constexpr char kModelFdVariable[] = "BATON_MODEL_FD";

// Name of the variable that the router of `serve` has when a MODEL is one file: descriptors of such
// files, with blanks between. It builds their tokenizers while the workers start.
inline constexpr char kTokenizerFdsVariable[] = "BATON_TOKENIZER_FDS";

// Name of the variable that a worker of `serve` has when it shares cores with others: "FD MEMBER",
// the core budget (src/device/core_budget.h) and its place in it. A process of two workers has the
// place after it too.
inline constexpr char kCoresFdVariable[] = "BATON_CORES_FD";

// Name of the variable that a worker of `serve` has when it packs its model's weights together with
// others: "FD huge" or "FD any", the memory file (src/device/shared_slots.h), and whether it must
// be on huge pages.
inline constexpr char kWeightsFdVariable[] = "BATON_WEIGHTS_FD";

// A report of a child about itself, or about one of its workers.
using ChildReport = std::map<std::string, std::string>;

// Writes a report to the parent when this process has one; otherwise does nothing.
void SendReportToParent(const ChildReport& report);

// The child to start. The executable is always this one.
struct ChildSpec {
  std::string role;               // subcommand
  std::string name;               // "prefill-0", or "prefill-0+decode-0" for two workers
  size_t num_reports = 1;         // that it sends once it serves: one for each worker
  std::vector<std::string> args;  // after the subcommand
  std::string log_file;           // stdout and stderr are appended here
  int model_fd = -1;              // the model's file, which the child inherits; -1 = none
  std::string model_id;           // with model_fd
  int cores_fd = -1;              // the core budget, which the child inherits; -1 = none
  uint32_t core_member = 0;       // with cores_fd: of its first worker
  int weights_fd = -1;            // memory for packed weights, which the child inherits; -1 = none
  bool weights_need_huge_pages = true;  // with weights_fd
  // Files of models whose tokenizers it builds, which the child inherits.
  std::vector<int> tokenizer_fds;
  // Where that file cannot be opened they are this process's stderr.
  bool starts_without_log = false;
};

// A running child. Its own process group (a terminal's Ctrl-C reaches only the parent, which
// decides); it is killed when the parent dies. One thread.
class ChildProcess {
 public:
  // Unavailable when the log file or the fork fails.
  static StatusOr<ChildProcess> Start(const ChildSpec& spec);

  pid_t pid() const { return pid_; }
  // Readable when a report (or end of file) can be read.
  int report_fd() const { return report_.get(); }
  // Reads what has arrived; the next report once its line is complete. DataLoss when the pipe
  // ended, after the reports that came before.
  StatusOr<std::optional<ChildReport>> ReadReport();
  void Signal(int number) const;
  // The last line with text that this process logged, or "": shown when it died at its start.
  std::string LastLogLine() const;

 private:
  ChildProcess(pid_t pid, UniqueFd report) : pid_(pid), report_(std::move(report)) {}

  pid_t pid_;
  std::string log_file_;
  off_t log_begin_ = 0;  // what stands before it is of an earlier process
  UniqueFd report_;
  std::string buffer_;
};

// The last line with text of a file at or after the byte `begin`, or "". A file that ends before
// `begin` was truncated since, as logrotate's copytruncate does: all of it counts.
std::string LastLogLine(const std::string& path, off_t begin);

}  // namespace baton::cli

#endif  // BATON_CLI_CHILD_PROCESS_H_
