// Handles what workers say of requests: tokens on their way to the client, and changes of state.
#include <algorithm>
#include <utility>

#include "src/router/router_core.h"

namespace baton::router {

using kv::PlacementProgress;
using obs::RequestEvent;
using obs::ResumeSource;

namespace {

void Raise(RouterRequest& request, PlacementProgress progress) {
  request.life.OnProgress(request.attempt(), progress);
}

}  // namespace

void RouterCore::OnSessionTokens(SessionRef session, std::vector<WorkerToken> tokens,
                                 int64_t now_us) {
  state_.Advance(now_us);
  RegisteredWorker* worker = FindSession(session);
  if (worker == nullptr) return;
  worker->progress_us = now_us;
  for (WorkerToken& token : tokens) OnToken(session.lease, std::move(token), now_us);
}

void RouterCore::OnToken(LeaseId lease, WorkerToken token, int64_t now_us) {
  RouterRequest* request = table_.Find(token.uid);
  if (request == nullptr) return;  // it has ended; the worker has not heard of it yet
  if (request->move.Is(lease, token.attempt) && !moves_.Move(*request, now_us)) return;
  const bool is_decode = request->decode.Is(lease);
  if (token.attempt != request->attempt() || !(is_decode || request->prefill.Is(lease))) {
    state_.metrics->stale_events_total->Add();
    return;
  }
  if (is_decode) {
    delivery_.Accept(*request, now_us);
    Raise(*request, PlacementProgress::kAllKvAtDecode);
  }
  delivery_.TakeToken(*request, std::move(token), now_us);
}

void RouterCore::OnSessionStatus(SessionRef session, const WorkerRequestStatus& status,
                                 int64_t now_us) {
  state_.Advance(now_us);
  RegisteredWorker* worker = FindSession(session);
  if (worker == nullptr) return;
  worker->progress_us = now_us;
  RouterRequest* request = table_.Find(status.uid);
  if (request == nullptr) return;
  if (request->move.Is(session.lease, status.attempt)) {
    if (IsTerminal(status.state)) return moves_.OnMoveRefused(*request, *worker, status, now_us);
    if (!moves_.Move(*request, now_us)) return;
  }
  const bool is_prefill = request->prefill.Is(session.lease);
  const bool is_current =
      status.attempt == request->attempt() && (is_prefill || request->decode.Is(session.lease));
  if (!is_current) {
    // The answer to our own Cancel is expected; anything else is a late event.
    if (status.state != WorkerRequestState::kCancelled) state_.metrics->stale_events_total->Add();
    return;
  }
  request->moved_us = now_us;
  if (!IsTerminal(status.state)) {
    OnMark(*request, is_prefill, status, now_us);
  } else if (status.state == WorkerRequestState::kRejected) {
    recovery_.OnRejected(*request, is_prefill ? request->prefill : request->decode, status, now_us);
  } else {
    recovery_.OnHalfEnded(*request, is_prefill ? request->prefill : request->decode, status);
  }
  queue_.PlaceQueued(now_us);
}

void RouterCore::OnMark(RouterRequest& request, bool is_prefill, const WorkerRequestStatus& status,
                        int64_t now_us) {
  if (!is_prefill) delivery_.Accept(request, now_us);
  switch (status.state) {
    case WorkerRequestState::kReserved:
      if (!is_prefill) OnKvTotal(request, status.kv_total_bytes);
      OnKvProgress(request, status, now_us);
      Raise(request, PlacementProgress::kReserved);
      break;
    case WorkerRequestState::kPrefillStarted:
      request.lifetime.Mark(RequestEvent::kPrefillStarted, now_us);
      if (RegisteredWorker* prefill = state_.registry.Find(request.prefill.lease);
          prefill != nullptr && !request.spec.is_own()) {
        prefill->refusals.num_refusals = 0;
      }
      CountSource(request, status);
      Raise(request, PlacementProgress::kPrefilling);
      break;
    case WorkerRequestState::kPrefillDone:
      request.prompt_done = true;
      request.prompt_done_us = now_us;
      table_.ReleaseBacklog(is_prefill ? request.prefill : request.decode);
      break;
    case WorkerRequestState::kGranted:
      request.lifetime.Mark(RequestEvent::kGranted, now_us);
      Raise(request, PlacementProgress::kTransferring);
      break;
    case WorkerRequestState::kVerified:
      OnVerified(request, status, now_us);
      break;
    case WorkerRequestState::kStranded:
      if (request.verified) break;  // nothing is missing
      return recovery_.OnStranded(request, status, now_us);
    case WorkerRequestState::kDecodeStarted:
      request.lifetime.Mark(RequestEvent::kFirstStepStarted, now_us);
      Raise(request, PlacementProgress::kAllKvAtDecode);
      break;
    case WorkerRequestState::kFirstStepDone:
      request.lifetime.Mark(RequestEvent::kFirstStepEnded, now_us);
      break;
    default:
      break;
  }
  request.TellTaken(now_us);
  delivery_.Deliver(request);
}

// Where the KV of this placement comes from is known.
void RouterCore::CountSource(RouterRequest& request, const WorkerRequestStatus& status) {
  const bool begins_anew = request.num_replayed == 0 && !request.moves_kv;
  if (begins_anew) request.cached_tokens = 0;  // of an attempt before
  request.NoteCached(status.cached_tokens);
  if (!request.resume_reason) return;
  ResumeSource source = status.cached_tokens > 0 ? ResumeSource::kPrefix : ResumeSource::kRecompute;
  if (status.retargeted) source = ResumeSource::kRetarget;
  state_.metrics->CountResume(*std::exchange(request.resume_reason, std::nullopt), source);
}

}  // namespace baton::router
