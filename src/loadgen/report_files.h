// Results on disk. Any thread.
#ifndef BATON_LOADGEN_REPORT_FILES_H_
#define BATON_LOADGEN_REPORT_FILES_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "src/loadgen/load_loop.h"
#include "src/loadgen/run_report.h"

namespace baton::loadgen {

// Where a run was made: two runs are compared only when this is equal.
struct Environment {
  std::string cpu;
  uint32_t cores = 0;  // that this process may use
  std::string clocks;  // the scaling governor of processor 0, or "portable"
  std::string kernel;
  std::string version;  // of this program

  bool operator==(const Environment&) const = default;
};
Environment ReadEnvironment(std::string_view version);
// "cpu, 2 cores, portable, Linux 6.1".
std::string ToString(const Environment& environment);

// The settings that were asked for: name and value, in the order of the head of the file.
using Settings = std::vector<std::pair<std::string, std::string>>;

// One run of a file.
struct ReportedRun {
  std::string label;  // of the server and the load, e.g. "rate 4"
  double rate = 0;    // intended starts a second; 0 = closed loop or a trace
  const RunResult* result = nullptr;
  RunReport report;
};

// The JSON object of a run: the report's numbers and every raw sample.
std::string RunToJson(const ReportedRun& run);

// The whole file: benchmark, environment, settings, runs, and `extra`, a JSON object's text that is
// kept under the name of its key ("" = none).
struct JsonFile {
  Environment environment;
  Settings settings;
  std::vector<ReportedRun> runs;
  std::string extra_key;
  std::string extra_json;
};
std::string ToJson(const JsonFile& file);

// Writes all of `text` to `path` and makes it durable. Unavailable with the system's reason (no
// space left, no such folder); the file is then incomplete.
Status WriteWholeFile(const std::string& path, std::string_view text);
// Fails now when WriteWholeFile could not even open the path later. Leaves the folder as it was.
Status CheckWritable(const std::string& path);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_REPORT_FILES_H_
