#include "src/router/waiting_requests.h"

#include <utility>

namespace baton::router {

void WaitingRequests::Enter(RouterRequest& request) {
  if (request.spec.is_own()) return;
  ++num_queued_;
  request.metrics->requests_waiting->Add(1);
  request.metrics->requests_running->Add(-1);
  ++model_queues_[request.spec.model->id].num_waiting;
}

void WaitingRequests::Leave(RouterRequest& request) {
  if (request.spec.is_own()) return;
  SetApart(request, false, false);
  --num_queued_;
  request.metrics->requests_waiting->Add(-1);
  request.metrics->requests_running->Add(1);
  const auto it = model_queues_.find(request.spec.model->id);
  if (--it->second.num_waiting == 0) model_queues_.erase(it);
}

void WaitingRequests::SetApart(RouterRequest& request, bool waits_aside, bool is_apart) {
  if (request.spec.is_own()) return;
  if (std::exchange(request.waits_aside, waits_aside) != waits_aside) {
    num_aside_ += waits_aside ? 1 : -1;
    metrics_->requests_waiting_numerics->Set(static_cast<double>(num_aside_));
  }
  if (std::exchange(request.waits_apart, is_apart) == is_apart) return;
  const auto it = model_queues_.try_emplace(request.spec.model->id).first;
  it->second.num_waiting += is_apart ? -1 : 1;
  if (it->second.num_waiting == 0) model_queues_.erase(it);
}

// When the request that was just counted would not be placed within the queue wait, as fast as its
// model's queue moves now: after how many seconds it would. Better told now than after that wait.
std::optional<uint32_t> WaitingRequests::OverloadRetryS(const RouterRequest& request,
                                                        int64_t now_us) const {
  if (request.spec.is_own()) return std::nullopt;  // it never waits
  const ModelQueue& queue = model_queues_.find(request.spec.model->id)->second;
  const std::optional<int64_t> wait_us = queue.rate.PredictUs(queue.num_waiting - 1, now_us);
  if (!wait_us || *wait_us <= queue_wait_us_) return std::nullopt;
  return RetrySeconds(*wait_us - queue_wait_us_);
}

// A refusal for want of room, with the time after which there may be some: as fast as the queue
// moves now, or, before that is known, as the running answers end.
RequestError WaitingRequests::NoRoomError(const RouterRequest& request, ErrorCode code,
                                          const RunningAnswers& running, int64_t now_us) {
  RequestError error = PlainError(code);
  if (request.spec.is_own()) return error;
  const std::string& model = request.spec.model->id;
  const auto queue = model_queues_.find(model);  // none: those that wait apart are not counted
  size_t num_ahead = 0;
  if (queue != model_queues_.end()) {
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
  const auto queue = model_queues_.find(request.spec.model->id);
  if (queue != model_queues_.end()) queue->second.rate.OnPlaced(now_us);
}

void WaitingRequests::OnServed(const RouterRequest& request, int64_t now_us) {
  retries_[request.spec.model->id].OnServed(now_us - request.placed_us, request.num_delivered);
}

bool WaitingRequests::IsOnlyModel(std::string_view model) const {
  const auto queue = model_queues_.find(model);
  return queue != model_queues_.end() && queue->second.num_waiting == num_queued_;
}

}  // namespace baton::router
