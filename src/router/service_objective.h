// ServiceObjective: the latencies that a router keeps for its clients (--slo), and how a request
// fares by them. Pure values; any thread.
//
// The objective of the first token bounds waiting: a request that would have its first token later
// for what waits before it is refused at once, so that the others keep theirs. A prompt that takes
// longer alone is served while next to nothing waits before it, and misses.
#ifndef BATON_ROUTER_SERVICE_OBJECTIVE_H_
#define BATON_ROUTER_SERVICE_OBJECTIVE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "src/router/request_error.h"

namespace baton::router {

// Limits in microseconds; 0 = none.
struct ServiceObjective {
  int64_t ttft_us = 0;  // a request's arrival to its first token
  int64_t itl_us = 0;   // 99 of 100 gaps of an answer; of fewer than 100, all

  friend bool operator==(const ServiceObjective&, const ServiceObjective&) = default;
};

// "the server's --slo ttft is 500 ms": the clause of a refusal.
std::string FirstTokenLimitText(int64_t ttft_us);

// The predicted time until a request that is placed now has its first token; microseconds.
struct FirstTokenForecast {
  int64_t wait_us = 0;  // in the queue, and for the prompts before it
  int64_t own_us = 0;   // it was read, and its prompt is computed
};
// A request may wait for what it leaves of the objective, and for this part of it in any case.
inline constexpr int64_t kLeastWaitShare = 10;
// Why a request with this forecast is refused, with Retry-After. Nothing: it may begin. `ttft_us`
// is not 0.
std::optional<RequestError> RefusalForFirstToken(const FirstTokenForecast& forecast,
                                                 int64_t ttft_us);

// Whether a request that ended by `code` after `age_us`, without a token, has missed the objective
// of the first token. One that was refused at the door, was at fault itself, or whose client left
// in time has neither met nor missed it.
bool MissedFirstToken(ErrorCode code, int64_t age_us, int64_t ttft_us);

// The gaps between the tokens of one request.
struct GapCount {
  uint32_t num_gaps = 0;
  uint32_t num_late = 0;  // longer than the objective

  void Count(int64_t gap_us, int64_t itl_us) {
    ++num_gaps;
    num_late += gap_us > itl_us ? 1 : 0;
  }
  bool IsMet() const { return num_late <= num_gaps / 100; }
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SERVICE_OBJECTIVE_H_
