// Runs a subcommand of this executable and takes what it prints, within limits. One thread.
#ifndef BATON_CLI_MCP_CAPTURED_RUN_H_
#define BATON_CLI_MCP_CAPTURED_RUN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace baton::cli {

// How long a run may take, and how much it may print on each stream.
struct CaptureLimits {
  int64_t timeout_ms = 0;
  size_t max_bytes = size_t{1} << 20;
};

// A run leaves its exit code and what it printed.
struct CapturedRun {
  int exit_code = 0;
  std::string out;
  std::string error;
};

// Runs `baton ARGS...` with an empty input. A run that reaches a limit is killed:
// DeadlineExceeded or ResourceExhausted. Unavailable = it could not be started or was killed.
StatusOr<CapturedRun> RunCaptured(const std::vector<std::string>& args,
                                  const CaptureLimits& limits);

}  // namespace baton::cli

#endif  // BATON_CLI_MCP_CAPTURED_RUN_H_
