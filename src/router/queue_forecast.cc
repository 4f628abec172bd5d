#include "src/router/queue_forecast.h"

#include <string>

#include "fmt/format.h"

#include "src/router/service_objective.h"

namespace baton::router {
namespace {

double Seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

RequestError TooLongError(int64_t wait_us, int64_t limit_us, std::string limit) {
  RequestError error = PlainError(ErrorCode::kQueueFull);
  error.expected = fmt::format("{:.1f} s for its turn, and {}", Seconds(wait_us), limit);
  error.retry_after_s = RetrySeconds(wait_us - limit_us);
  return error;
}

}  // namespace

std::optional<int64_t> ForecastWaitUs(size_t num_ahead, const QueueRate& rate,
                                      RetryEstimate& estimate, const RunningAnswers& running,
                                      int64_t now_us) {
  if (const std::optional<int64_t> us = rate.PredictUs(num_ahead, now_us)) return us;
  if (!estimate.KnowsAnswers()) return std::nullopt;
  if (estimate.IsStale(now_us)) estimate.Look(running(), now_us);
  return estimate.AfterUs(num_ahead);
}

std::optional<RequestError> RefusalForWait(int64_t wait_us, const WaitLimits& limits) {
  const int64_t cautious_us = CautiousWaitUs(wait_us);
  if (limits.ExceedsDeadline(wait_us)) {
    return TooLongError(
        wait_us, limits.left_us,
        fmt::format("'{}' leaves it {:.1f} s", limits.deadline_field, Seconds(limits.left_us)));
  }
  // One that is let in and misses by little is worth more than one that is refused by mistake.
  if (limits.MissesFirstToken(wait_us)) {
    return TooLongError(wait_us, limits.ttft_us, FirstTokenLimitText(limits.ttft_us));
  }
  if (cautious_us <= limits.queue_wait_us) return std::nullopt;
  return TooLongError(
      cautious_us, limits.queue_wait_us,
      fmt::format("the server's --queue-wait-ms is {}", limits.queue_wait_us / 1000));
}

bool IsTooLateToStart(int64_t left_us, const AnswerTime& time) {
  return left_us != INT64_MAX && time.TotalUs() / 2 > left_us;
}

}  // namespace baton::router
