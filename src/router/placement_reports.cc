#include "src/router/placement_reports.h"

#include <utility>

namespace baton::router {

using kv::PlacementProgress;
using obs::RequestEvent;
using obs::ResumeSource;

namespace {

void Raise(RouterRequest& request, PlacementProgress progress) {
  request.life.OnProgress(request.attempt(), progress);
}

}  // namespace

void PlacementReports::OnReport(RouterRequest& request, bool is_prefill,
                                const WorkerRequestStatus& status, int64_t now_us) {
  if (!is_prefill) delivery_->Accept(request, now_us);
  switch (status.state) {
    case WorkerRequestState::kReserved:
      if (!is_prefill) links_->OnKvTotal(request, status.kv_total_bytes);
      links_->OnKvProgress(request, status, now_us);
      Raise(request, PlacementProgress::kReserved);
      break;
    case WorkerRequestState::kPrefillStarted:
      request.lifetime.Mark(RequestEvent::kPrefillStarted, now_us);
      if (RegisteredWorker* prefill = state_->registry.Find(request.prefill.lease);
          prefill != nullptr && !request.spec.is_own()) {
        prefill->refusals.num_refusals = 0;
      }
      CountSource(request, status);
      Raise(request, PlacementProgress::kPrefilling);
      break;
    case WorkerRequestState::kPrefillDone:
      request.prompt_done = true;
      request.prompt_done_us = now_us;
      table_->ReleaseBacklog(is_prefill ? request.prefill : request.decode);
      table_->CountStreams(request.decode);
      break;
    case WorkerRequestState::kGranted:
      request.lifetime.Mark(RequestEvent::kGranted, now_us);
      Raise(request, PlacementProgress::kTransferring);
      break;
    case WorkerRequestState::kVerified:
      links_->OnVerified(request, status, now_us);
      break;
    case WorkerRequestState::kStranded:
      if (request.verified) break;  // nothing is missing
      return recovery_->OnStranded(request, status, now_us);
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
  delivery_->Deliver(request);
}

// Where the KV of this placement comes from is known.
void PlacementReports::CountSource(RouterRequest& request, const WorkerRequestStatus& status) {
  const bool begins_anew = request.num_replayed == 0 && !request.moves_kv;
  if (begins_anew) request.cached_tokens = 0;  // of an attempt before
  request.NoteCached(status.cached_tokens);
  if (!request.resumes.reason) return;
  ResumeSource source = status.cached_tokens > 0 ? ResumeSource::kPrefix : ResumeSource::kRecompute;
  if (status.retargeted) source = ResumeSource::kRetarget;
  request.metrics->CountResume(*std::exchange(request.resumes.reason, std::nullopt), source);
}

}  // namespace baton::router
