// Handles what workers say of requests: tokens on their way to the client, and changes of state.
#include <algorithm>
#include <utility>

#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/quoted_text.h"
#include "src/router/router_core.h"

namespace baton::router {

using kv::PlacementFault;
using kv::PlacementProgress;
using kv::RecoverDecision;
using limits::kMaxPendingTokens;
using obs::RequestEvent;
using obs::ResumeSource;
using scheduler::FinishReason;

namespace {

bool IsRefusalForLoad(StatusCode code) {
  return code == StatusCode::kResourceExhausted || code == StatusCode::kUnavailable ||
         code == StatusCode::kAborted;
}

// A client is told at most so much of why a grammar ended its answer.
constexpr size_t kMaxGrammarReasonBytes = 512;

// A worker may find a request's deadline passed so much before the router does.
constexpr int64_t kDeadlineSlackUs = 100'000;

ErrorCode ErrorCodeOf(const WorkerRequestStatus& status) {
  if (status.state == WorkerRequestState::kCancelled) return ErrorCode::kWorkerLost;
  const bool is_peer = status.failed_part == FailedPart::kPeer;
  if (status.code == StatusCode::kUnavailable && !is_peer) return ErrorCode::kWorkerLost;
  return ErrorCode::kWorkerFailed;
}

// `is_prefill`: the prefill worker failed, which the decode worker may have been the first to say;
// `drains`: of the worker that failed. A worker that gave the request up by itself has not heard of
// us for a request lease; one that drains has waited for it as long as it may.
PlacementFault FaultOf(const WorkerRequestStatus& status, bool is_prefill, bool drains) {
  if (status.state == WorkerRequestState::kFinished) return PlacementFault::kTokensMissing;
  if (drains) return is_prefill ? PlacementFault::kPrefillLeft : PlacementFault::kMoved;
  if (status.state == WorkerRequestState::kCancelled) {
    return is_prefill ? PlacementFault::kPrefillStalled : PlacementFault::kDecodeStalled;
  }
  if (status.failed_part == FailedPart::kComputation || status.failed_part == FailedPart::kPeer) {
    return is_prefill ? PlacementFault::kPrefillBroken : PlacementFault::kDecodeBroken;
  }
  return is_prefill ? PlacementFault::kPrefillFailed : PlacementFault::kDecodeFailed;
}

bool Drains(const WorkerRegistry& registry, const PlacementHalf& half) {
  const RegisteredWorker* const worker = registry.Find(half.lease);
  return worker != nullptr && worker->load.draining;
}

void Raise(RouterRequest& request, PlacementProgress progress) {
  request.life.OnProgress(request.attempt(), progress);
}

}  // namespace

void RouterCore::OnSessionTokens(SessionRef session, std::vector<WorkerToken> tokens,
                                 int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  RegisteredWorker* worker = FindSession(session);
  if (worker == nullptr) return;
  worker->progress_us = now_us;
  for (WorkerToken& token : tokens) OnToken(session.lease, std::move(token), now_us);
}

void RouterCore::OnToken(LeaseId lease, WorkerToken token, int64_t now_us) {
  RouterRequest* request = FindRequest(token.uid);
  if (request == nullptr) return;  // it has ended; the worker has not heard of it yet
  if (request->move.Is(lease, token.attempt) && !Move(*request, now_us)) return;
  const bool is_decode = request->decode.Is(lease);
  if (token.attempt != request->attempt() || !(is_decode || request->prefill.Is(lease))) {
    metrics_->stale_events_total->Add();
    return;
  }
  if (is_decode) {
    Accept(*request, now_us);
    Raise(*request, PlacementProgress::kAllKvAtDecode);
  }
  const uint32_t vocab_size = request->spec.model->vocab_size;
  if (token.token < 0 || static_cast<uint32_t>(token.token) >= vocab_size) {
    BATON_LOG_ERROR("request {}: token {} is outside the vocabulary of {}", request->uid,
                    token.token, vocab_size);
    return EndBad(*request, ErrorCode::kWorkerFailed);
  }
  if (token.index == 0) request->lifetime.Mark(RequestEvent::kFirstToken, now_us);
  // This is before the worker's own word of it, which comes after the token, maybe the last one.
  if (token.index == 1) request->lifetime.Mark(RequestEvent::kFirstStepEnded, now_us);
  request->moved_us = now_us;
  switch (request->merge.Add(std::move(token), now_us)) {
    case TokenMerge::Outcome::kDuplicate:
      return;
    case TokenMerge::Outcome::kAhead:
      request->heard_us = now_us;
      return;
    case TokenMerge::Outcome::kMismatch:
      BATON_LOG_ERROR("request {}: two workers sent unequal tokens", request->uid);
      metrics_->kv_chain_mismatch_total->Add();
      return EndBad(*request, ErrorCode::kChainMismatch);
    case TokenMerge::Outcome::kOverflow:
    case TokenMerge::Outcome::kInvalid:
      BATON_LOG_ERROR("request {}: a worker sent a token outside the request", request->uid);
      return EndBad(*request, ErrorCode::kWorkerFailed);
    case TokenMerge::Outcome::kReady:
      request->heard_us = now_us;
      break;
  }
  if (request->merge.num_pending() > kMaxPendingTokens) {
    return EndBad(*request, ErrorCode::kSlowClient);
  }
  OnDelivery(*request);
}

// The decode worker has room for it: a step of its model's queue.
void RouterCore::Accept(RouterRequest& request, int64_t now_us) {
  request.accepted = true;
  if (std::exchange(request.is_counted, true)) return;
  if (request.spec.is_own()) return;
  registry_.Find(request.decode.lease)->refusals.num_refusals = 0;
  const auto queue = model_queues_.find(request.spec.model->id);
  if (queue == model_queues_.end()) return;
  queue->second.rate.OnPlaced(now_us);
}

// Gives the client what is in order. May end the request.
void RouterCore::OnDelivery(RouterRequest& request) {
  if (!request.accepted || request.pause.on()) return;
  for (uint32_t choice = 0; choice < request.spec.num_choices; ++choice) {
    while (DeliverNext(request, choice)) {
    }
  }
  if (request.num_finished == request.spec.num_choices) EndGood(request);
}

bool RouterCore::DeliverNext(RouterRequest& request, uint32_t choice) {
  if (request.pause.BeginIfSlow(request.sink->buffered_bytes(), now_us_)) {
    timers_.LookAtAll();
    return false;
  }
  TokenMerge::Entry entry;
  if (!request.merge.TakeNext(choice, &entry)) return false;
  // A token that came before the one that it follows is seen with that one.
  int64_t& last_us = request.last_token_us[choice];
  entry.arrived_us = std::max(entry.arrived_us, last_us);
  const WorkerToken& token = entry.token;
  ChoiceText& text = request.texts[choice];

  TokenOutput output;
  output.choice = choice;
  output.index = token.index;
  output.token = token.token;
  // A token that ends the choice is not part of its text.
  output.text = text.Push(token.token, token.finish == FinishReason::kStop,
                          token.finish != FinishReason::kNone);
  output.finish = text.stopped() ? FinishReason::kStop : token.finish;
  output.stop_idx = text.stop_idx();
  output.has_logprob = token.has_logprob;
  output.logprob = token.logprob;
  output.top_logprobs = &token.top_logprobs;
  output.arrived_us = entry.arrived_us;
  if (output.finish != FinishReason::kNone) {
    request.finished[choice] = output.finish;
    ++request.num_finished;
    output.is_last = request.num_finished == request.spec.num_choices;
    request.merge.CloseChoice(choice);
  }

  if (!request.spec.is_own()) {
    if (last_us != 0) {
      const int64_t gap_us = entry.arrived_us - last_us;
      request.notes.CountGap(gap_us, token.index);
      metrics_->inter_token_latency_seconds->Observe(static_cast<double>(gap_us) * 1e-6);
    }
    // The prompt counts with the first token, so that both counters are of the same requests.
    if (request.num_delivered == 0) metrics_->prompt_tokens_total->Add(request.spec.prompt.size());
    metrics_->generation_tokens_total->Add();
  }
  last_us = entry.arrived_us;
  request.lifetime.Mark(RequestEvent::kLastToken, entry.arrived_us);
  request.lifetime.CountStep(token.index, token.step_us);
  ++request.num_delivered;
  request.sink->OnToken(output);
  return true;
}

void RouterCore::OnSessionStatus(SessionRef session, const WorkerRequestStatus& status,
                                 int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  RegisteredWorker* worker = FindSession(session);
  if (worker == nullptr) return;
  worker->progress_us = now_us;
  RouterRequest* request = FindRequest(status.uid);
  if (request == nullptr) return;
  if (request->move.Is(session.lease, status.attempt)) {
    if (IsTerminal(status.state)) return OnMoveRefused(*request, *worker, status, now_us);
    if (!Move(*request, now_us)) return;
  }
  const bool is_prefill = request->prefill.Is(session.lease);
  const bool is_current =
      status.attempt == request->attempt() && (is_prefill || request->decode.Is(session.lease));
  if (!is_current) {
    // The answer to our own Cancel is expected; anything else is a late event.
    if (status.state != WorkerRequestState::kCancelled) metrics_->stale_events_total->Add();
    return;
  }
  request->moved_us = now_us;
  if (!IsTerminal(status.state)) {
    OnMark(*request, is_prefill, status, now_us);
  } else if (status.state == WorkerRequestState::kRejected) {
    OnRejected(*request, is_prefill ? request->prefill : request->decode, status, now_us);
  } else {
    OnHalfEnded(*request, is_prefill ? request->prefill : request->decode, status);
  }
  PlaceQueued(now_us);
}

// The stream goes on where it is, and the worker counts as full for a while.
void RouterCore::OnMoveRefused(RouterRequest& request, RegisteredWorker& worker,
                               const WorkerRequestStatus& status, int64_t now_us) {
  BATON_LOG_INFO("request {} does not move to {}: {}", request.uid,
                 worker.description.name.worker_id, status.message);
  worker.CountRefusal(status.retry_after_ms, now_us);
  GiveUpMove(request);
}

void RouterCore::OnMark(RouterRequest& request, bool is_prefill, const WorkerRequestStatus& status,
                        int64_t now_us) {
  if (!is_prefill) Accept(request, now_us);
  switch (status.state) {
    case WorkerRequestState::kReserved:
      if (!is_prefill) OnKvTotal(request, status.kv_total_bytes);
      OnKvProgress(request, status, now_us);
      Raise(request, PlacementProgress::kReserved);
      break;
    case WorkerRequestState::kPrefillStarted:
      request.lifetime.Mark(RequestEvent::kPrefillStarted, now_us);
      if (RegisteredWorker* prefill = registry_.Find(request.prefill.lease);
          prefill != nullptr && !request.spec.is_own()) {
        prefill->refusals.num_refusals = 0;
      }
      CountSource(request, status);
      Raise(request, PlacementProgress::kPrefilling);
      break;
    case WorkerRequestState::kPrefillDone:
      request.prompt_done = true;
      request.prompt_done_us = now_us;
      ReleaseBacklog(is_prefill ? request.prefill : request.decode);
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
      if (status.failed_part == FailedPart::kPeer) {
        const bool drains = Drains(registry_, request.decode);
        return Recover(request, FaultOf(status, /*is_prefill=*/false, drains), now_us);
      }
      return Recover(request, PlacementFault::kTransferStopped, now_us);
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
  OnDelivery(request);
}

// Where the KV of this placement comes from is known.
void RouterCore::CountSource(RouterRequest& request, const WorkerRequestStatus& status) {
  const bool begins_anew = request.num_replayed == 0 && !request.moves_kv;
  if (begins_anew) request.cached_tokens = 0;  // of an attempt before
  request.NoteCached(status.cached_tokens);
  if (!request.resume_reason) return;
  ResumeSource source = status.cached_tokens > 0 ? ResumeSource::kPrefix : ResumeSource::kRecompute;
  if (status.retargeted) source = ResumeSource::kRetarget;
  metrics_->CountResume(*std::exchange(request.resume_reason, std::nullopt), source);
}

void RouterCore::OnHalfEnded(RouterRequest& request, PlacementHalf& half,
                             const WorkerRequestStatus& status) {
  half.live = false;
  const bool is_prefill = &half == &request.prefill;
  const bool has_all = request.accepted && request.merge.complete();
  const bool is_needed = is_prefill ? !request.verified : !has_all;
  const bool is_good = status.state == WorkerRequestState::kHandedOff ||
                       (status.state == WorkerRequestState::kFinished && !is_needed);
  if (is_good || !is_needed) return ReleaseHalf(request, half, false);
  BATON_LOG_WARN("request {} attempt {} failed at {}: {}", request.uid, request.attempt(),
                 is_prefill ? request.prefill_worker_id : request.decode_worker_id, status.message);
  const bool too_late = status.code == StatusCode::kDeadlineExceeded &&
                        now_us_ >= request.DeadlineUs() - kDeadlineSlackUs;
  if (too_late) return EndBad(request, request.PastDeadline());
  // A mask is the same at every worker: another one would find no token either.
  const bool by_grammar = request.spec.sampling.grammar &&
                          status.code == StatusCode::kFailedPrecondition &&
                          status.failed_part == FailedPart::kComputation;
  if (by_grammar) {
    return EndBad(request, FieldError(ErrorCode::kGrammarFailed, request.spec.fields.grammar,
                                      LineForMessage(status.message, kMaxGrammarReasonBytes)));
  }
  const bool by_prefill = is_prefill != (status.failed_part == FailedPart::kPeer);
  const bool drains = Drains(registry_, by_prefill ? request.prefill : request.decode);
  Recover(request, FaultOf(status, by_prefill, drains), now_us_, ErrorCodeOf(status));
}

void RouterCore::OnRejected(RouterRequest& request, PlacementHalf& half,
                            const WorkerRequestStatus& status, int64_t now_us) {
  // It stays live: what ends the placement cancels there too. Refused before the engine saw it, the
  // older attempt that this one was to take over still runs.
  BATON_LOG_INFO("request {} attempt {} was refused by a worker: {}", request.uid,
                 request.attempt(), status.message);
  if (DeliverIfComplete(request)) return;
  if (IsRefusalForLoad(status.code)) {
    const bool by_decode = &half == &request.decode;
    const RecoverDecision decision = request.life.OnRefused(request.attempt(), by_decode);
    if (decision.kind == RecoverDecision::Kind::kIgnored) {
      half.live = false;  // the request runs: not a refusal
      return;
    }
    if (request.spec.is_own()) return EndBad(request, ErrorCode::kQueueFull);  // it never waits
    // It is the worker that is waited for: another may have room at once.
    registry_.Find(half.lease)->CountRefusal(status.retry_after_ms, now_us);
    const bool keep = decision.retarget && request.prefill.live;
    return Requeue(request, now_us,
                   keep ? KeptSource{request.prefill.lease, request.attempt()} : KeptSource{});
  }
  const bool too_large = status.code == StatusCode::kOutOfRange;
  if (too_large) return EndBad(request, TooLargeError(request));
  const bool too_late = status.code == StatusCode::kDeadlineExceeded;
  EndBad(request, too_late ? ErrorCode::kDeadlineExceeded : ErrorCode::kWorkerFailed);
}

}  // namespace baton::router
