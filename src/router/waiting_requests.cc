#include "src/router/waiting_requests.h"

#include <algorithm>
#include <utility>

#include "src/router/service_objective.h"

namespace baton::router {

using obs::EarlyRefusal;

void WaitingRequests::Enter(RouterRequest& request) {
  if (request.spec.is_own()) return;
  ++num_queued_;
  request.metrics->requests_waiting->Add(1);
  request.metrics->requests_running->Add(-1);
  ++lines_[LineOf(request)][request.spec.model->id].num_waiting;
}

void WaitingRequests::Leave(RouterRequest& request) {
  if (request.spec.is_own()) return;
  SetApart(request, false, false);
  --num_queued_;
  request.metrics->requests_waiting->Add(-1);
  request.metrics->requests_running->Add(1);
  ModelQueues& queues = lines_[LineOf(request)];
  const auto it = queues.find(request.spec.model->id);
  if (--it->second.num_waiting == 0) queues.erase(it);
}

void WaitingRequests::SetApart(RouterRequest& request, bool waits_aside, bool is_apart) {
  if (request.spec.is_own()) return;
  if (std::exchange(request.wait.is_aside, waits_aside) != waits_aside) {
    num_aside_ += waits_aside ? 1 : -1;
    metrics_->requests_waiting_numerics->Set(static_cast<double>(num_aside_));
  }
  if (std::exchange(request.wait.is_apart, is_apart) == is_apart) return;
  ModelQueues& queues = lines_[LineOf(request)];
  const auto it = queues.try_emplace(request.spec.model->id).first;
  it->second.num_waiting += is_apart ? -1 : 1;
  if (it->second.num_waiting == 0) queues.erase(it);
}

std::optional<RequestError> WaitingRequests::WaitsInVain(const RouterRequest& request,
                                                         size_t num_before,
                                                         const RunningAnswers& running,
                                                         int64_t now_us) {
  // Its own requests never wait, and no forecast refuses a vector.
  const bool skips = request.spec.embeds || request.spec.skips_forecast;
  if (request.spec.is_own() || skips) return std::nullopt;
  const ModelQueue& queue = lines_[LineOf(request)].find(request.spec.model->id)->second;
  const size_t num_ahead = std::min(queue.num_waiting - 1, num_before);
  if (num_ahead == 0) return std::nullopt;  // there may be room now
  const std::optional<int64_t> wait_us =
      ForecastWaitUs(num_ahead, queue.rate, retries_[request.spec.model->id], running, now_us);
  if (!wait_us) return std::nullopt;
  const bool has_deadline = request.DeadlineUs() != INT64_MAX;
  WaitLimits limits = limits_;
  limits.left_us = has_deadline ? request.DeadlineUs() - now_us : INT64_MAX;
  limits.deadline_field = request.spec.fields.timeout;
  std::optional<RequestError> refusal = RefusalForWait(*wait_us, limits);
  if (!refusal) return std::nullopt;
  EarlyRefusal reason = EarlyRefusal::kQueueWait;
  if (limits.MissesFirstToken(*wait_us)) reason = EarlyRefusal::kFirstToken;
  if (limits.ExceedsDeadline(*wait_us)) reason = EarlyRefusal::kQueueDeadline;
  metrics_->CountEarlyRefusal(reason);
  return refusal;
}

void WaitingRequests::ReportWait(int64_t now_us) {
  int64_t longest_us = 0;
  for (size_t line = 0; line < kNumLines; ++line) {
    for (const auto& [model, queue] : lines_[line]) {
      std::optional<int64_t> wait_us = queue.rate.PredictUs(queue.num_waiting, now_us);
      const auto estimate = retries_.find(model);
      if (!wait_us && line == kAnswersLine && estimate != retries_.end()) {
        wait_us = estimate->second.AfterUs(queue.num_waiting);
      }
      longest_us = std::max(longest_us, wait_us.value_or(0));
    }
  }
  metrics_->predicted_wait_seconds->Set(static_cast<double>(longest_us) * 1e-6);
}

// A refusal for want of room, with the time after which there may be some: as fast as the line
// moves now, or, before that is known, as the running answers end.
RequestError WaitingRequests::NoRoomError(const RouterRequest& request, ErrorCode code,
                                          const RunningAnswers& running, int64_t now_us) {
  RequestError error = PlainError(code);
  if (request.spec.is_own()) return error;
  const bool is_bounded = limits_.ttft_us > 0 && limits_.ttft_us < limits_.queue_wait_us;
  if (code == ErrorCode::kQueueTimeout && is_bounded && !request.spec.embeds) {
    error.expected = FirstTokenLimitText(limits_.ttft_us);
  }
  const std::string& model = request.spec.model->id;
  const ModelQueues& queues = lines_[LineOf(request)];
  const auto queue = queues.find(model);  // none: those that wait apart are not counted
  size_t num_ahead = 0;
  if (queue != queues.end()) {
    num_ahead = queue->second.num_waiting - 1;
    // The next place goes to the first of the others, if there are any.
    if (const auto wait_us = queue->second.rate.PredictUs(num_ahead + 1, now_us)) {
      error.retry_after_s = RetrySeconds(*wait_us);
      return error;
    }
  }
  RetryEstimate& estimate = retries_[model];
  if (estimate.IsStale(now_us)) estimate.Look(running(), now_us);
  error.retry_after_s = estimate.AfterS(num_ahead);
  return error;
}

void WaitingRequests::OnTaken(const RouterRequest& request, int64_t now_us) {
  ModelQueues& queues = lines_[LineOf(request)];
  const auto queue = queues.find(request.spec.model->id);
  if (queue != queues.end()) queue->second.rate.OnPlaced(now_us);
}

void WaitingRequests::OnServed(const RouterRequest& request, int64_t now_us) {
  if (request.spec.embeds) return;
  retries_[request.spec.model->id].OnServed(now_us - request.placed_us, request.num_delivered);
}

bool WaitingRequests::IsOnlyModel(std::string_view model) const {
  size_t num_waiting = 0;
  for (const ModelQueues& queues : lines_) {
    const auto queue = queues.find(model);
    if (queue != queues.end()) num_waiting += queue->second.num_waiting;
  }
  return num_waiting > 0 && num_waiting == num_queued_;
}

}  // namespace baton::router
