// Answers to clients about room: a worker has taken the request, or when one may take it.
#include <algorithm>
#include <utility>
#include <vector>

#include "src/router/router_core.h"

namespace baton::router {

using obs::RequestEvent;

namespace {

// A worker refuses a request within a step, 100 ms at most; a loaded host takes longer.
constexpr int64_t kTakenUs = 1'000'000;

}  // namespace

void RouterRequest::TellTaken(int64_t now_us) {
  if (is_told_taken) return;
  const bool is_taken = accepted && (HasBegunPrompt() || now_us - placed_us >= kTakenUs);
  is_told_taken = is_taken || num_delivered > 0;  // a token has told it
  if (is_taken && num_delivered == 0) sink->OnTaken();
}

RunningAnswer RouterRequest::Progress(int64_t now_us) const {
  const std::optional<int64_t> first_us = lifetime.TimeOf(RequestEvent::kFirstToken);
  return {.age_us = now_us - placed_us,
          .decode_us = first_us ? now_us - *first_us : 0,
          .num_tokens = static_cast<uint32_t>(merge.num_known()),
          .max_tokens = spec.sampling.max_tokens * spec.num_choices};
}

// When the request that was just counted would not be placed within the queue wait, as fast as its
// model's queue moves now: after how many seconds it would. Better told now than after that wait.
std::optional<uint32_t> RouterCore::OverloadRetryS(const RouterRequest& request,
                                                   int64_t now_us) const {
  if (request.spec.is_own()) return std::nullopt;  // it never waits
  const ModelQueue& queue = model_queues_.find(request.spec.model->id)->second;
  const std::optional<int64_t> wait_us = queue.rate.PredictUs(queue.num_waiting - 1, now_us);
  if (!wait_us || *wait_us <= config_.queue_wait_us) return std::nullopt;
  return RetrySeconds(*wait_us - config_.queue_wait_us);
}

// A refusal for want of room, with the time after which there may be some: as fast as the queue
// moves now, or, before that is known, as the running answers end.
RequestError RouterCore::NoRoomError(const RouterRequest& request, ErrorCode code) {
  RequestError error = PlainError(code);
  if (request.spec.is_own()) return error;
  const std::string& model = request.spec.model->id;
  const auto queue = model_queues_.find(model);  // none: those that wait apart are not counted
  size_t num_ahead = 0;
  if (queue != model_queues_.end()) {
    num_ahead = queue->second.num_waiting - 1;
    // The next place goes to the first of the others, if there are any.
    if (const auto wait_us = queue->second.rate.PredictUs(num_ahead + 1, now_us_)) {
      error.retry_after_s = RetrySeconds(*wait_us);
      return error;
    }
  }
  RetryEstimate& estimate = retries_[model];
  if (estimate.IsStale(now_us_)) {
    std::vector<RunningAnswer> running;
    for (const auto& [uid, other] : requests_) {
      const bool counts = other->IsPlaced() && !other->spec.is_own();
      if (counts && other->spec.model->id == model) running.push_back(other->Progress(now_us_));
    }
    estimate.Look(running, now_us_);
  }
  error.retry_after_s = estimate.AfterS(num_ahead);
  return error;
}

}  // namespace baton::router
