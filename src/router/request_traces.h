// RequestTraces: what a router remembers of the last requests, for whoever asks why one was slow:
// when each stage ended, by whom it was served, and what else was going on. No text and no token of
// prompt or answer is in it.
//
// The router's thread adds; what it hands out is constant and may be read by any thread.
//
// Invariants
//  1. At most kMaxServed requests that a worker had, and kMaxRefused others, the last of each: a
//     storm of refusals does not wash out the slow ones.
//  2. Adding allocates in TraceOf, for the record and its few texts, and copies nothing older.
#ifndef BATON_ROUTER_REQUEST_TRACES_H_
#define BATON_ROUTER_REQUEST_TRACES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/route_policy.h"
#include "src/base/ids.h"
#include "src/obs/baton_metrics.h"
#include "src/obs/request_lifetime.h"
#include "src/router/submit.h"

namespace baton::router {

// The load that a worker last reported when a request was placed on it.
struct WorkerBeside {
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint32_t free_blocks = 0;
  uint32_t num_blocks = 0;
};

// Why a placement took its path, and what its decode worker was taken to hold.
struct RouteNote {
  std::optional<scheduler::RouteReason> reason;  // a vector has none
  uint32_t held_tokens = 0;                      // of the prompt
  bool for_prefix = false;                       // a less loaded decode worker held less
};

// Notes that are taken while a request lives, beside its lifetime.
struct TraceNotes {
  uint32_t num_running = 0;  // other requests of the router when this one came
  uint32_t num_waiting = 0;
  WorkerBeside prefill;  // at its last placement; zeros when local
  WorkerBeside decode;
  RouteNote route;  // of its last placement
  std::array<uint32_t, obs::kResumeReasonNames.size()> resumes =
      {};                        // placed again, by ResumeReason
  int64_t unplaced_us = -1;      // when a placement ended, while it waits for the next one
  int64_t again_us = 0;          // waited for placements after the first, in all
  int64_t longest_gap_us = 0;    // between two tokens of a choice
  uint32_t longest_gap_idx = 0;  // the output index of the token that it was before

  // "pair", "decode_hit", ..; "" = it has none.
  std::string_view RouteText() const {
    return route.reason ? scheduler::RouteReasonName(*route.reason) : "";
  }
  void CountGap(int64_t gap_us, uint32_t output_idx) {
    if (gap_us <= longest_gap_us) return;
    longest_gap_us = gap_us;
    longest_gap_idx = output_idx;
  }
};

// One request; times are microseconds of the router's steady clock.
struct RequestTrace {
  RequestUid uid;
  std::string request_id;
  std::string answer_id;
  std::string model;
  std::string state;    // the router's, "DECODING"; as it was when the request ended
  int http_status = 0;  // of the answer; 0 = it lives
  std::string error;    // the sentence of a bad end: a fixed one with numbers; "" = there is none
  uint32_t attempt = 0;
  uint32_t num_choices = 1;
  uint32_t num_prompt_tokens = 0;
  uint32_t num_output_tokens = 0;  // given to the client
  RequestTimings timings;
  obs::RequestLifetime lifetime{0};
  std::array<int64_t, obs::kNumRequestStages> stages_us = {};  // sum to end_us less accepted
  int64_t end_us = 0;    // of the last token, of the failure, or of this look
  int64_t queue_us = 0;  // without a place so far: waited in the queue; a refusal at once is 0
  TraceNotes notes;
};

// See the file comment.
class RequestTraces {
 public:
  using Trace = std::shared_ptr<const RequestTrace>;
  static constexpr size_t kMaxServed = 512;  // about 1 KiB each
  static constexpr size_t kMaxRefused = 64;

  void AddServed(Trace trace) { Add(std::move(trace), kMaxServed, &served_); }
  void AddRefused(Trace trace) { Add(std::move(trace), kMaxRefused, &refused_); }
  // Refused ones first, each kind oldest first.
  std::vector<Trace> All() const;

 private:
  static void Add(Trace trace, size_t limit, std::deque<Trace>* traces);

  std::deque<Trace> served_;
  std::deque<Trace> refused_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_TRACES_H_
