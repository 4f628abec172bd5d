#include "src/router/recovery.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "src/base/log.h"
#include "src/base/quoted_text.h"

namespace baton::router {

using kv::HandoffRequestState;
using kv::IsOfLink;
using kv::PlacementFault;
using kv::RecoverDecision;
using obs::kResumeReasonNames;
using obs::ResumeReason;

namespace {

// A death is heard on several connections one after the other, of this worker and of others that
// died with it. Nothing is placed before all have been heard.
constexpr int64_t kSettleUs = 10'000;

// Deaths of workers that had not begun with a request, in its life, for which it is not blamed. A
// request that kills whoever takes it ends three workers: two more deaths are its fault. `serve`
// lets a worker wait only after more deaths in a row.
constexpr uint32_t kMaxEarlyDeaths = 1;

// Deaths of its workers that a request sees in its life, and known tokens that allow one more. Each
// new token begins the limits of faults anew, so a request that kills its worker after every token
// would end one worker per token. A long answer on workers that come and go is not cut: 64 tokens
// take seconds, in which few workers die by themselves.
constexpr uint32_t kMaxDeaths = 16;
constexpr uint32_t kTokensADeath = 64;

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

bool IsRefusalForLoad(StatusCode code) {
  return code == StatusCode::kResourceExhausted || code == StatusCode::kUnavailable ||
         code == StatusCode::kAborted;
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

ResumeReason ReasonOf(PlacementFault fault) {
  switch (fault) {
    case PlacementFault::kPrefillDied:
    case PlacementFault::kPrefillGone:
      return ResumeReason::kPrefillLost;
    case PlacementFault::kDecodeDied:
    case PlacementFault::kDecodeGone:
      return ResumeReason::kDecodeLost;
    case PlacementFault::kPrefillStalled:
    case PlacementFault::kDecodeStalled:
      return ResumeReason::kTimeout;
    case PlacementFault::kPrefillFailed:
    case PlacementFault::kDecodeFailed:
    case PlacementFault::kPrefillBroken:
    case PlacementFault::kDecodeBroken:
    case PlacementFault::kTransferStopped:
    case PlacementFault::kTokensMissing:
    case PlacementFault::kLinkSlow:
      return ResumeReason::kTransfer;
    case PlacementFault::kMoved:
    case PlacementFault::kPrefillLeft:
      return ResumeReason::kMoved;
  }
  return ResumeReason::kTransfer;
}

// The meaning of the end of a worker's process for a request that was placed on it.
PlacementFault DeathOf(RouterRequest& request, bool is_decode, bool drains) {
  if (drains) return is_decode ? PlacementFault::kMoved : PlacementFault::kPrefillLeft;
  const HandoffRequestState state = request.life.state();
  const bool prefill_began =
      state == HandoffRequestState::kPrefilling || state == HandoffRequestState::kTransferring;
  const bool decode_began = state == HandoffRequestState::kTransferring ||
                            state == HandoffRequestState::kDecoding ||
                            (request.is_local && prefill_began);
  const bool began = is_decode ? decode_began : prefill_began;
  // A worker that dies in its first moment with the request may not have told of it any more.
  if (began || request.resumes.num_early_deaths == kMaxEarlyDeaths) {
    return is_decode ? PlacementFault::kDecodeDied : PlacementFault::kPrefillDied;
  }
  ++request.resumes.num_early_deaths;
  return is_decode ? PlacementFault::kDecodeGone : PlacementFault::kPrefillGone;
}

// Counts a death of a worker under the request; true when it is one too many.
bool HasSeenTooManyDeaths(RouterRequest& request) {
  ++request.resumes.num_deaths;
  return request.resumes.num_deaths > kMaxDeaths + request.merge.num_known() / kTokensADeath;
}

// All that the request still needs of this worker are log-probabilities of its prompt: it has its
// KV, or all its tokens. No other placement would compute the prompt for them alone.
bool GivesLogAlone(const RouterRequest& request, bool is_prefill) {
  return request.AwaitsPromptLog() &&
         (request.merge.complete() || (is_prefill && request.verified));
}

}  // namespace

void Recovery::Recover(RouterRequest& request, PlacementFault fault, int64_t now_us,
                       ErrorCode code) {
  using Kind = RecoverDecision::Kind;
  if (delivery_->DeliverIfComplete(request)) return;
  const auto num_known = static_cast<uint32_t>(request.merge.num_known());
  const bool of_link = IsOfLink(fault) && !request.is_local && !request.verified;
  RegisteredWorker* const prefill = state_->registry.Find(request.prefill.lease);
  const bool is_failed_link = of_link && prefill != nullptr && fault != PlacementFault::kLinkSlow;
  if (request.spec.is_probe()) {
    if (is_failed_link) prefill->links[request.decode.lease].OnFault(now_us);
    return table_->EndBad(request, code);
  }
  const RecoverDecision decision = request.life.OnFault(request.attempt(), fault, num_known);
  if (decision.kind == Kind::kIgnored) return;
  if (is_failed_link) prefill->links[request.decode.lease].OnFault(now_us);
  if (decision.kind == Kind::kRecover) {
    // A slow link says nothing good of the others of its worker, and its queue is to be emptied.
    const bool keep =
        decision.retarget && request.prefill.live && fault != PlacementFault::kLinkSlow;
    return PlaceAgain(request, fault, now_us + kSettleUs,
                      keep ? KeptSource{request.prefill.lease, request.attempt()} : KeptSource{});
  }
  BATON_LOG_ERROR("request {} is given up at attempt {}: {} with {} tokens known", request.uid,
                  request.attempt(),
                  decision.kind == Kind::kPoisoned ? "a second worker died under it"
                                                   : "too many faults without a new token",
                  num_known);
  table_->TellFailed(request, PlainError(code), /*waits=*/false);
}

void Recovery::PlaceAgain(RouterRequest& request, PlacementFault why, int64_t not_before_us,
                          KeptSource keep) {
  const ResumeReason reason = ReasonOf(why);
  BATON_LOG_WARN("request {} attempt {} is placed again ({}), {} tokens are known", request.uid,
                 request.attempt(), kResumeReasonNames[static_cast<size_t>(reason)],
                 request.merge.num_known());
  ++request.resumes.num;
  ++request.notes.resumes[static_cast<size_t>(reason)];
  request.resumes.reason = reason;
  request.wait.begin_us = state_->now_us;
  queue_->Requeue(request, not_before_us, keep);
}

void Recovery::EndAfterDeaths(RouterRequest& request) {
  if (delivery_->DeliverIfComplete(request)) return;
  BATON_LOG_ERROR(
      "request {} is given up at attempt {}: {} workers died under it with {} tokens known",
      request.uid, request.attempt(), request.resumes.num_deaths, request.merge.num_known());
  table_->EndBad(request, ErrorCode::kWorkerLost);
}

void Recovery::RecoverRequestsOn(LeaseId lease, int64_t now_us) {
  std::vector<RouterRequest*> hit;
  for (const auto& [uid, request] : table_->requests()) {
    if (request->move.decode.Is(lease)) table_->GiveUpMove(*request);
    // A decode worker is needed until it has a place and its last token is here, a prefill worker
    // until the KV is at the decode worker.
    const bool has_all = request->accepted && request->merge.complete();
    const bool awaits_log = request->AwaitsPromptLog();
    const bool needs_decode =
        request->decode.Is(lease) && (!has_all || (awaits_log && request->is_local));
    const bool needs_prefill = request->prefill.Is(lease) && (!request->verified || awaits_log);
    if (needs_decode || needs_prefill) {
      hit.push_back(request.get());
    } else if (request->decode.Is(lease)) {
      table_->ReleaseHalf(*request, request->decode, false);
    } else if (request->prefill.Is(lease)) {
      table_->ReleaseHalf(*request, request->prefill, false);
    } else if (request->kept.lease == lease) {
      request->kept = KeptSource{};
    }
  }
  // Each goes to the front of the queue: the latest first.
  std::sort(hit.begin(), hit.end(), [](const RouterRequest* a, const RouterRequest* b) {
    return std::tie(a->spec.received_us, a->uid) > std::tie(b->spec.received_us, b->uid);
  });
  const RegisteredWorker* const worker = state_->registry.Find(lease);
  const bool drains = worker != nullptr && worker->load.draining;
  for (RouterRequest* request : hit) {
    const bool is_decode = request->decode.Is(lease);
    (is_decode ? request->decode : request->prefill).live = false;
    if (GivesLogAlone(*request, !is_decode)) {
      table_->EndBad(*request, ErrorCode::kWorkerLost);
      continue;
    }
    if (!drains && HasSeenTooManyDeaths(*request)) {
      EndAfterDeaths(*request);
      continue;
    }
    Recover(*request, DeathOf(*request, is_decode, drains), now_us);
  }
}

void Recovery::OnHalfEnded(RouterRequest& request, PlacementHalf& half,
                           const WorkerRequestStatus& status) {
  half.live = false;
  const bool is_prefill = &half == &request.prefill;
  // The worker that computes the prompt is needed until its log-probabilities are here, too.
  const bool awaits_log = request.AwaitsPromptLog() && (is_prefill || request.is_local);
  const bool has_all = request.accepted && request.merge.complete();
  const bool is_needed = awaits_log || (is_prefill ? !request.verified : !has_all);
  const bool is_good = (status.state == WorkerRequestState::kHandedOff && !awaits_log) ||
                       (status.state == WorkerRequestState::kFinished && !is_needed);
  if (is_good || !is_needed) return table_->ReleaseHalf(request, half, false);
  BATON_LOG_WARN("request {} attempt {} failed at {}: {}", request.uid, request.attempt(),
                 is_prefill ? request.prefill_worker_id : request.decode_worker_id, status.message);
  if (awaits_log && GivesLogAlone(request, is_prefill)) {
    return table_->EndBad(request, ErrorCode::kWorkerLost);
  }
  const bool too_late = status.code == StatusCode::kDeadlineExceeded &&
                        state_->now_us >= request.DeadlineUs() - kDeadlineSlackUs;
  if (too_late) return EndAtDeadline(request, state_->now_us);
  // A mask is the same at every worker: another one would find no token either.
  const bool by_grammar = request.spec.sampling.grammar &&
                          status.code == StatusCode::kFailedPrecondition &&
                          status.failed_part == FailedPart::kComputation;
  if (by_grammar) {
    return table_->EndBad(request,
                          FieldError(ErrorCode::kGrammarFailed, request.spec.fields.grammar,
                                     LineForMessage(status.message, kMaxGrammarReasonBytes)));
  }
  const bool by_prefill = is_prefill != (status.failed_part == FailedPart::kPeer);
  const bool drains = Drains(state_->registry, by_prefill ? request.prefill : request.decode);
  Recover(request, FaultOf(status, by_prefill, drains), state_->now_us, ErrorCodeOf(status));
}

void Recovery::OnRejected(RouterRequest& request, PlacementHalf& half,
                          const WorkerRequestStatus& status, int64_t now_us) {
  // It stays live: what ends the placement cancels there too. Refused before the engine saw it, the
  // older attempt that this one was to take over still runs.
  BATON_LOG_INFO("request {} attempt {} was refused by a worker: {}", request.uid,
                 request.attempt(), status.message);
  if (delivery_->DeliverIfComplete(request)) return;
  if (IsRefusalForLoad(status.code)) {
    const bool by_decode = &half == &request.decode;
    const RecoverDecision decision = request.life.OnRefused(request.attempt(), by_decode);
    if (decision.kind == RecoverDecision::Kind::kIgnored) {
      half.live = false;  // the request runs: not a refusal
      return;
    }
    if (request.spec.is_own())
      return table_->EndBad(request, ErrorCode::kQueueFull);  // it never waits
    // It is the worker that is waited for: another may have room at once.
    state_->registry.Find(half.lease)->CountRefusal(status.retry_after_ms, now_us);
    const bool keep = decision.retarget && request.prefill.live;
    return queue_->Requeue(
        request, now_us,
        keep ? KeptSource{request.prefill.lease, request.attempt()} : KeptSource{});
  }
  const bool too_large = status.code == StatusCode::kOutOfRange;
  if (too_large) return table_->EndBad(request, planner_->TooLargeError(request));
  const bool too_late = status.code == StatusCode::kDeadlineExceeded;
  table_->EndBad(request, too_late ? ErrorCode::kDeadlineExceeded : ErrorCode::kWorkerFailed);
}

void Recovery::EndAtDeadline(RouterRequest& request, int64_t now_us) {
  // A probe whose KV was computed and did not come says that its link is bad.
  if (request.spec.is_probe() && request.prompt_done) {
    return Recover(request, PlacementFault::kTransferStopped, now_us, ErrorCode::kDeadlineExceeded);
  }
  RegisteredWorker* const prefill = state_->registry.Find(request.prefill.lease);
  if (request.spec.is_probe() && prefill != nullptr) {
    prefill->links[request.decode.lease].OnProbeUnanswered(now_us);
  }
  table_->EndBad(request, request.PastDeadline());
}

void Recovery::OnStranded(RouterRequest& request, const WorkerRequestStatus& status,
                          int64_t now_us) {
  if (status.failed_part != FailedPart::kPeer) {
    return Recover(request, PlacementFault::kTransferStopped, now_us);
  }
  const bool drains = Drains(state_->registry, request.decode);
  Recover(request, FaultOf(status, /*is_prefill=*/false, drains), now_us);
}

}  // namespace baton::router
