// RunReport: the numbers of one RunResult, and whether they may be believed. Pure; any thread.
#ifndef BATON_LOADGEN_RUN_REPORT_H_
#define BATON_LOADGEN_RUN_REPORT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/loadgen/load_loop.h"
#include "src/loadgen/slo.h"
#include "src/loadgen/statistics.h"

namespace baton::loadgen {

// A run is void when the client's lag p99 is above this share of the ttft p50.
inline constexpr double kMaxLagShare = 0.01;

// How records are judged.
struct ReportSpec {
  std::optional<Slo> slo;
  uint64_t warmup_sessions = 0;  // not counted
  bool exact_output = true;      // answers must have exactly the declared number of tokens
  bool wants_golden = false;     // golden prompts were given: one must have been checked
};

// The numbers of a run. Times in microseconds; samples are raw.
struct RunReport {
  uint64_t attempted = 0;
  std::array<uint64_t, kNumOutcomes> by_outcome{};
  uint64_t golden_asked = 0;    // and answered
  bool golden_missing = false;  // none was, although the spec wants them
  uint64_t golden_wrong = 0;
  uint64_t wrong_work = 0;         // answers whose token counts are not the declared ones
  std::string first_error;         // of the first request that failed; "" = none
  std::string first_golden_error;  // how the first wrong golden answer differs; "" = none
  std::string cut_short;           // why the run ended early; "" = it did not

  double wall_s = 0;  // from the first counted start to the last end
  double requests_per_s = 0;
  double output_tokens_per_s = 0;  // of requests that were answered
  double input_tokens_per_s = 0;   // as the server counts them
  Summary ttft, ttft_sent, ttft_server, second_token, itl, tpot, e2e;
  std::array<std::optional<double>, kNumStages> stage_mean_ms;
  std::optional<double> cached_share;  // of the prompt tokens, as the server counts them

  uint64_t num_met = 0;  // requests that met the objective
  double goodput_per_s = 0;
  double goodput_share = 0;  // of the attempted

  Summary start_lag, read_lag;
  double client_cores = 0;  // processors that the client's thread kept busy
  // Why the run must not be quoted; empty = it may.
  std::vector<std::string> void_reasons;

  uint64_t num_ok() const { return by_outcome[static_cast<size_t>(RequestOutcome::kOk)]; }
};

RunReport MakeReport(const RunResult& result, const ReportSpec& spec);

// "lag p99 ... is above 1 % of ttft p50 ...", or "" when it is not. The lag is the larger of the
// two p99s.
std::string LagComplaint(const Summary& start_lag, const Summary& read_lag, const Summary& ttft);

// The table for people; ends with a newline.
std::string ToTable(const RunReport& report, const ReportSpec& spec);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_RUN_REPORT_H_
