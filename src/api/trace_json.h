// The object of a router's /debug/trace. Pure; any thread.
#ifndef BATON_API_TRACE_JSON_H_
#define BATON_API_TRACE_JSON_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/router/request_traces.h"

namespace baton::api {

// One moment on both clocks of a process, by which times of several hosts are laid side by side.
struct ClockPair {
  int64_t steady_us = 0;
  int64_t wall_unix_us = 0;
};

// {"role", "worker_id", "steady_us", "unix_us", "requests": [..]}. Each request has: names, status
// (0 = it lives), tokens, the workers, and
//   accepted_us, end_us   of the steady clock
//   events_us             microseconds from accepted_us, those that happened
//   stages_us             in their order; they sum to end_us - accepted_us
//   load, resumes         what was going on beside it, and why it was placed again
std::string TraceJson(const std::vector<std::shared_ptr<const router::RequestTrace>>& traces,
                      const ClockPair& now);

}  // namespace baton::api

#endif  // BATON_API_TRACE_JSON_H_
