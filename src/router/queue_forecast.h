// Queue forecast: how long a new request would wait for its place, and whether it can still meet
// its client's deadline. A client that is refused at once can go elsewhere; after the whole wait it
// has lost that time. A request that is not started in vain takes no place from others. Pure; owned
// by the router's thread.
#ifndef BATON_ROUTER_QUEUE_FORECAST_H_
#define BATON_ROUTER_QUEUE_FORECAST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "src/router/queue_rate.h"
#include "src/router/request_error.h"
#include "src/router/retry_estimate.h"

namespace baton::router {

// The running answers of the model that is asked for; called only when they are needed.
using RunningAnswers = std::function<std::vector<RunningAnswer>()>;

// Microseconds until a request gets its place after `num_ahead` others that wait: at the rate of
// the queue's last placements; before there were enough of them, as the running answers end by the
// tokens that others had, once RetryEstimate::kMinAnswers of others were served. Nothing before.
// `estimate` looks at the running answers where its last look is too old.
std::optional<int64_t> ForecastWaitUs(size_t num_ahead, const QueueRate& rate,
                                      RetryEstimate& estimate, const RunningAnswers& running,
                                      int64_t now_us);

// A wait that the request will hardly exceed: rates differ by a fifth from one window to the next.
// A request that is let in and then refused after the whole queue wait is worse than one that is
// refused at once, and others wait before it: no place stays empty.
inline int64_t CautiousWaitUs(int64_t wait_us) { return wait_us + wait_us / 4; }

// The server's and the client's limits of a request that is about to wait, microseconds.
struct WaitLimits {
  int64_t queue_wait_us = 0;        // --queue-wait-ms
  int64_t ttft_us = 0;              // --slo ttft; 0 = none
  int64_t left_us = INT64_MAX;      // until the client's deadline
  std::string_view deadline_field;  // the client's name for it

  bool ExceedsDeadline(int64_t wait_us) const {
    return left_us < queue_wait_us && wait_us >= left_us;
  }
  bool MissesFirstToken(int64_t wait_us) const { return ttft_us > 0 && wait_us > ttft_us; }
};
// Why a request that would wait for `wait_us` is refused at once, with Retry-After. Nothing: it may
// wait.
std::optional<RequestError> RefusalForWait(int64_t wait_us, const WaitLimits& limits);

// The time that a request needs from its placement on, as measured at its workers; 0 = not known.
struct AnswerTime {
  int64_t prompt_us = 0;    // until its first token
  int64_t token_us = 0;     // between two tokens
  uint32_t num_tokens = 1;  // the fewest that the answer has

  int64_t TotalUs() const { return prompt_us + (num_tokens > 1 ? (num_tokens - 1) * token_us : 0); }
};
// True when a request that has `left_us` until its deadline is not worth starting: even half of the
// measured time is too long. Measurements are of other prompts and of another load, and one that is
// refused in vain is an answer lost.
bool IsTooLateToStart(int64_t left_us, const AnswerTime& time);

}  // namespace baton::router

#endif  // BATON_ROUTER_QUEUE_FORECAST_H_
