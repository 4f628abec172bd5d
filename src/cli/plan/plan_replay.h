// A plan put to the test: the load replayed on simulated workers of the plan's step times
// (src/sim's replay.h), as the plan splits it and as other policies would have it.
//
// A steady load is simulated with the plan's own pools. For a trace, whose lengths and rate vary,
// the arithmetic only gives a first guess. The pool that misses its objective grows by a quarter at
// a time. It grows until 99 % of the requests are served in time that any number of workers could
// serve in time.
#ifndef BATON_CLI_PLAN_PLAN_REPLAY_H_
#define BATON_CLI_PLAN_PLAN_REPLAY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

#include "src/base/status.h"
#include "src/cli/plan/plan_report.h"
#include "src/loadgen/trace_reader.h"
#include "src/sim/replay.h"

namespace baton::cli {

// One simulated run.
struct PlanRun {
  std::string policy;  // "split", "no split", ...
  std::string end;     // of the band, whose step times it has
  uint32_t num_prefill = 0;
  uint32_t num_decode = 0;
  sim::ReplayReport report;
  double elapsed_s = 0;  // that the simulation took here
};

// Everything that was simulated.
struct PlanReplays {
  std::string load;  // in words
  plan::PlanObjective objective;
  uint64_t num_rows = 0;      // that were replayed
  double alone_share = 1;     // of them, whose prompt alone takes no longer than the TTFT
  uint32_t num_sizing = 0;    // runs that the pools were searched with
  bool sized = false;         // the pools of the first run meet what can be met
  std::vector<PlanRun> runs;  // the split at both ends first
};

// The settings of the simulation.
struct ReplayAsk {
  std::string load;                                      // in words, for the report
  const std::vector<loadgen::TraceRow>* rows = nullptr;  // outlives the call
  bool search = false;                                   // pools by simulation, as for a trace
  uint32_t num_prefill = 0;                              // 0 = the plan's or the search's
  uint32_t num_decode = 0;
  std::function<void(const PlanRun&)> on_run;  // hears of each run; may be empty
};

// The requests of at most this many tokens stay where they decode in the run "adaptive".
inline constexpr uint32_t kReplayLocalTokens = 512;
// Runs of a search at most.
inline constexpr uint32_t kMaxSizingRuns = 16;

// Replays the cautious end where it has a plan, else the best end. FailedPrecondition when the
// links' speed is not known; otherwise as Replay.
StatusOr<PlanReplays> ReplayPlan(const PlanReport& report, const ReplayAsk& ask);

// As a table for a terminal, and with the same numbers for programs.
std::string ReplayText(const PlanReplays& replays);
nlohmann::ordered_json ReplayJson(const PlanReplays& replays);
// One run in a line, for who waits.
std::string RunLine(const PlanRun& run);

// The mean of a trace as a load. InvalidArgument for one of a single moment.
StatusOr<plan::PlanLoad> LoadOfTrace(const std::vector<loadgen::TraceRow>& rows);

}  // namespace baton::cli

#endif  // BATON_CLI_PLAN_PLAN_REPLAY_H_
