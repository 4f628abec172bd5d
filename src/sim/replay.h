// Replay: how long the requests of a load wait on a cluster that does not exist: the shipped
// router, scheduler, prefix cache and hand-off on a simulated clock, with steps that take the time
// that a StepModel says and links of a given speed. Nothing fails; sim_world.h is for that. Equal
// options give equal numbers.
//
// A replay leaves out the router's own time, the sampler's, and how workers of one host slow each
// other. Lengths and shared prefixes are a trace's; texts are not known to anybody.
#ifndef BATON_SIM_REPLAY_H_
#define BATON_SIM_REPLAY_H_

#include <cstdint>
#include <vector>

#include "src/base/status.h"
#include "src/loadgen/statistics.h"
#include "src/loadgen/trace_reader.h"
#include "src/plan/step_model.h"
#include "src/router/router_core_config.h"

namespace baton::sim {

// The properties of every worker of a replay.
struct ReplayWorker {
  plan::StepModel steps;
  scheduler::StepWeights first_cost;  // what its scheduler expects before it has measured
  uint32_t block_tokens = 64;
  uint32_t num_blocks = 0;
  uint32_t max_context = 0;   // tokens of a sequence
  uint32_t state_blocks = 0;  // of each sequence, for its fixed state
  uint32_t window = 0;        // of all layers; 0 = some layer sees all
  uint64_t kv_bytes_per_token = 0;
  double link_bytes_per_s = 0;  // from one prefill to one decode worker; > 0
  bool prefix_cache = true;
};

// One run; constant.
struct ReplayOptions {
  uint32_t num_prefill = 1;  // 0 with ServeMode::kAggregated
  uint32_t num_decode = 1;
  ReplayWorker worker;
  router::ServeMode mode = router::ServeMode::kDisagg;
  uint32_t local_max_tokens = 0;  // with ServeMode::kAdaptive
  // Ascending starts; outlives the run. Rows that are longer than max_context are left out.
  const std::vector<loadgen::TraceRow>* rows = nullptr;
  int64_t ttft_us = 0;  // what a request must meet to count as met,
  int64_t itl_us = 0;   // in 99 % of its gaps; below 100 gaps in all
  uint64_t seed = 1;    // of what the trace does not say: the tokens
};

// The results of a replay.
struct ReplayReport {
  uint64_t num_requests = 0;  // that were made
  uint64_t num_finished = 0;
  uint64_t num_refused = 0;    // 429 and 503, not asked again
  uint64_t num_failed = 0;     // anything else
  uint64_t num_left_out = 0;   // too long
  uint64_t num_met = 0;        // finished within both objectives
  loadgen::Summary ttft_ms;    // from the start to the first token
  loadgen::Summary second_ms;  // from the first token to the second
  loadgen::Summary itl_ms;     // all later gaps
  loadgen::Summary e2e_ms;
  loadgen::Summary refused_ms;     // from the start to the refusal, of what was refused
  std::vector<int64_t> ends_us;    // of what finished, since the first start; ascending
  uint64_t num_prompt_tokens = 0;  // of what finished
  uint64_t num_output_tokens = 0;
  uint64_t num_cached_tokens = 0;  // of the prompts, found in a prefix cache
  double prefill_busy = 0;         // share of the time from the first start to the last end
  double decode_busy = 0;
  double simulated_s = 0;  // that time
  uint64_t num_events = 0;

  double MetShare() const {
    return num_requests == 0 ? 0 : static_cast<double>(num_met) / static_cast<double>(num_requests);
  }
};

// Bytes of memory that the pools of a replay take here: a page a block.
uint64_t ReplayPoolBytes(const ReplayOptions& options);

// InvalidArgument for a number outside its range; ResourceExhausted for more than kMaxReplayBytes;
// Internal when a request never ends or a block is lost, which is a bug.
inline constexpr uint64_t kMaxReplayBytes = uint64_t{4} << 30;
StatusOr<ReplayReport> Replay(const ReplayOptions& options);

// Poisson arrivals of requests of one length, as rows; `num_requests` of them, 1..kMaxArrivals.
std::vector<loadgen::TraceRow> PoissonRows(uint64_t num_requests, double rate_per_s,
                                           uint32_t input_tokens, uint32_t output_tokens,
                                           uint64_t seed);

}  // namespace baton::sim

#endif  // BATON_SIM_REPLAY_H_
