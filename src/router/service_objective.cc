#include "src/router/service_objective.h"

#include <algorithm>

#include "fmt/format.h"

#include "src/router/retry_estimate.h"

namespace baton::router {

std::string FirstTokenLimitText(int64_t ttft_us) {
  return fmt::format("the server's --slo ttft is {:g} ms", static_cast<double>(ttft_us) * 1e-3);
}

std::optional<RequestError> RefusalForFirstToken(const FirstTokenForecast& forecast,
                                                 int64_t ttft_us) {
  const int64_t allowed_us = std::max(ttft_us - forecast.own_us, ttft_us / kLeastWaitShare);
  if (forecast.wait_us <= allowed_us) return std::nullopt;
  RequestError error = PlainError(ErrorCode::kQueueFull);
  const double first_s = static_cast<double>(forecast.wait_us + forecast.own_us) * 1e-6;
  error.expected =
      fmt::format("{:.1f} s for its first token, and {}", first_s, FirstTokenLimitText(ttft_us));
  error.retry_after_s = RetrySeconds(forecast.wait_us - allowed_us);
  return error;
}

bool MissedFirstToken(ErrorCode code, int64_t age_us, int64_t ttft_us) {
  switch (code) {
    case ErrorCode::kQueueTimeout:
    case ErrorCode::kInternal:
    case ErrorCode::kWorkerFailed:
    case ErrorCode::kChainMismatch:
    case ErrorCode::kWorkerLost:
      return true;
    case ErrorCode::kCancelled:
    case ErrorCode::kDeadlineExceeded:
      return age_us > ttft_us;
    default:
      return false;
  }
}

}  // namespace baton::router
