// A page of /debug/trace: what a router remembers of requests, or a worker of steps. Plain data;
// any thread. Times are microseconds since the Unix epoch, so that pages of several hosts fit
// together as well as their clocks do.
#ifndef BATON_CLI_TRACE_TRACE_PAGE_H_
#define BATON_CLI_TRACE_TRACE_PAGE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace baton::cli {

// A stage of baton_stage_seconds.
struct StageSpan {
  std::string name;
  int64_t elapsed_us = 0;
};

// The load that a worker reported when the request was placed on it.
struct BesideLoad {
  uint64_t running = 0;
  uint64_t waiting = 0;
  uint64_t free_blocks = 0;
  uint64_t num_blocks = 0;
};

// One request as its router saw it.
struct TracedRequest {
  std::string request_uid;
  std::string request_id;
  std::string answer_id;
  std::string model;
  std::string state;
  uint64_t status = 0;  // of HTTP; 0 = it lives
  std::string error;    // the sentence that its client was told; "" = it ended well, or lives
  uint64_t num_attempts = 0;
  int64_t accepted_us = 0;
  int64_t end_us = 0;
  std::vector<StageSpan> stages;  // one after the other from accepted_us to end_us
  int64_t queue_us = 0;           // never placed: waited in the queue; 0 = refused at once
  uint64_t num_prompt_tokens = 0;
  uint64_t num_cached_tokens = 0;
  uint64_t num_output_tokens = 0;
  bool disaggregated = false;
  std::string route;  // why it was, or was not: a name of scheduler::RouteReason; "" = not told
  uint64_t num_held_tokens = 0;  // of the prompt, that the decode worker was taken to hold
  bool for_prefix = false;       // a less loaded decode worker held less
  std::string prefill_worker;
  std::string decode_worker;
  std::string transport;
  uint64_t kv_bytes = 0;
  int64_t longest_gap_us = 0;  // between two tokens
  uint64_t longest_gap_idx = 0;
  uint64_t num_running = 0;  // others at the router when it came
  uint64_t num_waiting = 0;
  BesideLoad prefill_load;
  BesideLoad decode_load;
  int64_t placed_again_us = 0;              // waited for placements after the first
  std::map<std::string, uint64_t> resumes;  // by reason

  int64_t elapsed_us() const { return end_us - accepted_us; }
};

// One step of a worker's engine.
struct TracedStep {
  int64_t end_us = 0;
  int64_t elapsed_us = 0;
  uint64_t num_prefill_tokens = 0;
  uint64_t num_decode_rows = 0;
};

// See the file comment.
struct TracePage {
  std::string role;
  std::string worker_id;
  std::vector<TracedRequest> requests;  // of a router
  std::vector<TracedStep> steps;        // of a worker
};

// DataLoss for another JSON.
StatusOr<TracePage> ReadTracePage(std::string_view json);

// The last request with that name: uid, X-Request-Id, or the id of its answer. Without a name, the
// one that took longest. Null: there is none.
const TracedRequest* FindRequest(const TracePage& page, std::string_view name);

// The pages of a router and of the workers that answer; `errors` gets a line for each that does
// not.
StatusOr<std::vector<TracePage>> FetchTracePages(const std::string& admin,
                                                 std::vector<std::string>* errors);

}  // namespace baton::cli

#endif  // BATON_CLI_TRACE_TRACE_PAGE_H_
