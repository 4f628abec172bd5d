#include "src/router/request_checks.h"

#include <algorithm>
#include <optional>

#include "src/base/limits.h"
#include "src/base/log.h"

namespace baton::router {

using kv::PlacementFault;

namespace {

// Longest time between two looks at a request's timers. A timer that begins between two looks (of a
// placement, of a move) runs for a second or more, so that the second look finds it in time, also
// where it waits for a tick.
constexpr int64_t kLongestLookUs = 500'000;

int64_t LastProgressUs(const RouterRequest& request, const RegisteredWorker& worker) {
  return std::max(worker.progress_us, request.moved_us);
}

// The first of the request's times for RequestChecks::Check, as far as they have begun. `in_turn`:
// RequestChecks::WorkerInTurn.
int64_t DueUs(const RouterRequest& request, const RegisteredWorker* in_turn,
              const RouterCoreConfig& config, int64_t now_us) {
  // A client that reads again, or waits to be told that it has a worker, does not wait for long.
  const bool awaits_telling = request.IsPlaced() && !request.is_told_taken;
  if (request.pause.on() || awaits_telling) return now_us;
  int64_t due_us = request.DeadlineUs();
  if (!request.merge.complete()) {
    due_us = std::min(due_us, request.heard_us + config.request_timeout_us);
  }
  if (!request.IsPlaced()) {
    const bool resumes = request.resumes.num > 0;
    const int64_t queue_wait_us = config.QueueWaitUs(request.spec.embeds);
    return std::min(due_us,
                    request.wait.begin_us + (resumes ? config.resume_wait_us : queue_wait_us));
  }
  if (!request.accepted) due_us = std::min(due_us, request.placed_us + config.reserve_timeout_us);
  if (request.move.on()) {
    due_us = std::min(due_us, request.move.asked_us + config.reserve_timeout_us);
  }
  if (in_turn == nullptr) return due_us;
  return std::min(due_us, LastProgressUs(request, *in_turn) + config.worker_stall_us);
}

// Counts a silence as a refusal for load. Without this the worker looks least loaded and is asked
// again at once, and three silences end a request for which another worker has room.
void LetRest(LeaseId lease, RouterState* state) {
  RegisteredWorker* const worker = state->registry.Find(lease);
  if (worker != nullptr) worker->CountRefusal(limits::kRetryHintMs, state->now_us);
}

}  // namespace

void RequestChecks::Run(int64_t now_us) {
  table_->timers().Run(now_us, [&](RequestUid uid) -> std::optional<NextLook> {
    if (RouterRequest* request = table_->Find(uid)) Check(*request, now_us);
    const RouterRequest* const left = table_->Find(uid);
    if (left == nullptr) return std::nullopt;
    const int64_t due_us = DueUs(*left, WorkerInTurn(*left), state_->config, now_us);
    return NextLook{due_us, std::min(due_us, now_us + kLongestLookUs)};
  });
}

void RequestChecks::Check(RouterRequest& request, int64_t now_us) {
  if (now_us >= request.DeadlineUs()) return recovery_->EndAtDeadline(request, now_us);
  // Once all tokens are known, or the client reads too slowly, no worker is waited for.
  const bool waits_for_token = !request.merge.complete() && !request.pause.on();
  if (waits_for_token && now_us - request.heard_us >= state_->config.request_timeout_us) {
    return table_->EndBad(request, SilenceError(state_->config.request_timeout_us));
  }
  if (!request.IsPlaced()) {
    const bool resumes = request.resumes.num > 0;
    const int64_t queue_wait_us = state_->config.QueueWaitUs(request.spec.embeds);
    if (now_us - request.wait.begin_us <
        (resumes ? state_->config.resume_wait_us : queue_wait_us)) {
      return;
    }
    // A request that only faults of links hold up waits for room until its deadline.
    const bool is_callable = planner_->IsCallable(request);
    if (request.life.num_link_faults() > 0 && is_callable) return;
    if (resumes) return table_->EndBad(request, ErrorCode::kWorkerLost);
    if (request.wait.for_share && is_callable) {
      RequestError error = PlainError(ErrorCode::kRateLimited);
      error.expected = KvLimitOf(*request.spec.kv, state_->registry, request.spec.model->id).Text();
      return table_->EndBad(request, error);
    }
    // Where nobody can be called, more capacity is not the cure.
    if (!is_callable) return table_->EndBad(request, ErrorCode::kNoWorkers);
    return table_->EndBad(request, table_->NoRoomError(request, ErrorCode::kQueueTimeout));
  }
  if (!request.accepted && now_us - request.placed_us >= state_->config.reserve_timeout_us) {
    BATON_LOG_WARN("request {}: {} did not answer a reservation within {} ms", request.uid,
                   request.decode_worker_id, state_->config.reserve_timeout_us / 1000);
    LetRest(request.decode.lease, state_);
    return recovery_->Recover(request, PlacementFault::kDecodeStalled, now_us);
  }
  if (request.move.on() && now_us - request.move.asked_us >= state_->config.reserve_timeout_us) {
    LetRest(request.move.decode.lease, state_);
    table_->GiveUpMove(request);
  }
  RegisteredWorker* const worker = WorkerInTurn(request);
  if (worker != nullptr &&
      now_us - LastProgressUs(request, *worker) >= state_->config.worker_stall_us) {
    BATON_LOG_ERROR("request {}: {} made no progress for {} ms", request.uid,
                    worker->description.name.worker_id,
                    (now_us - LastProgressUs(request, *worker)) / 1000);
    worker->avoided_until_us = now_us + state_->config.worker_stall_us;
    const bool is_prefill = request.prefill.Is(worker->lease);
    return recovery_->Recover(
        request, is_prefill ? PlacementFault::kPrefillStalled : PlacementFault::kDecodeStalled,
        now_us);
  }
  request.TellTaken(now_us);
  if (!request.pause.on()) return;
  if (!request.pause.Look(request.sink->buffered_bytes(), now_us, state_->config.slow_client_us)) {
    return table_->EndBad(request, ErrorCode::kSlowClient);
  }
  // The client gets tokens only now: its silence begins again.
  if (!request.pause.on()) request.heard_us = now_us;
  delivery_->Deliver(request);
}

// The worker that is to make progress with the request; null: none is waited for, or it is gone.
RegisteredWorker* RequestChecks::WorkerInTurn(const RouterRequest& request) {
  if (request.merge.complete()) return nullptr;
  const bool decode_turn = request.is_local || request.verified;
  // Between token 0 and the verified KV both workers may rest: the transfer has its own deadlines.
  if (!decode_turn && request.prompt_done) return nullptr;
  return state_->registry.Find(decode_turn ? request.decode.lease : request.prefill.lease);
}

}  // namespace baton::router
