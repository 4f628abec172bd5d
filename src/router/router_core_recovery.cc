// Recovery: a placed request whose placement cannot go on enters the queue again and is placed as
// its next attempt, from the tokens that are known. The client sees only a pause.
#include <algorithm>
#include <tuple>
#include <vector>

#include "src/base/log.h"
#include "src/router/router_core.h"

namespace baton {
namespace {

// A death is heard on several connections one after the other, of this worker and of others that
// died with it. Nothing is placed before all have been heard.
constexpr int64_t kSettleUs = 10'000;

// Streams that leave a draining worker within one tick.
constexpr size_t kMaxMovesPerTick = 4;

// How long streams of a draining worker wait for its connections to those that may take their KV,
// before they are computed again.
constexpr int64_t kMoveLinkWaitUs = 1'000'000;

// The prefill worker that may send what it holds to the next decode worker.
KeptSource HoldingPrefill(const RouterRequest& request) {
  if (request.verified || !request.prefill.live) return {};
  return {request.prefill.lease, request.attempt};
}

}  // namespace

void RouterCore::Recover(RouterRequest& request, const Fault& fault, int64_t now_us) {
  const size_t num_known = request.merge.num_known();
  if (num_known > request.num_known_at_fault) request.num_faults = request.num_deaths = 0;
  request.num_known_at_fault = num_known;
  ++request.num_faults;
  if (fault.worker_died) ++request.num_deaths;
  if (fault.reason == ResumeReason::kTransfer && !request.is_local && !request.verified) {
    RegisteredWorker* prefill = registry_.Find(request.prefill.lease);
    if (prefill != nullptr) prefill->CountLinkFault(request.decode.lease, now_us);
  }
  if (request.num_faults > kMaxFaults || request.num_deaths >= kMaxDeaths) {
    BATON_LOG_ERROR(
        "request {}: given up after {} faults, {} of them deaths of workers, without a "
        "new token",
        request.uid, request.num_faults, request.num_deaths);
    return EndBad(request, fault.code);
  }
  PlaceAgain(request, fault.reason, now_us + kSettleUs, HoldingPrefill(request));
}

void RouterCore::PlaceAgain(RouterRequest& request, ResumeReason reason, int64_t not_before_us,
                            KeptSource keep) {
  BATON_LOG_WARN("request {} attempt {} is placed again ({}), {} tokens are known", request.uid,
                 request.attempt, kResumeReasonNames[static_cast<size_t>(reason)],
                 request.merge.num_known());
  ++request.num_resumes;
  request.resume_reason = reason;
  request.queued_us = now_us_;
  Requeue(request, not_before_us, keep);
}

// A decode worker that drains keeps what no other has room for, or what would have to be computed
// from its beginning; the rest moves, a few at a time, so that those who take it over are not
// flooded.
void RouterCore::MoveAwayFrom(const RegisteredWorker& worker, int64_t now_us) {
  std::vector<RequestUid> movable;
  for (const auto& [uid, request] : requests_) {
    const bool can_move = request->decode.Is(worker.lease) && !request->merge.complete() &&
                          request->spec.num_choices == 1 && !request->paused;
    if (can_move) movable.push_back(uid);
  }
  std::sort(movable.begin(), movable.end());
  movable.resize(std::min(movable.size(), kMaxMovesPerTick));
  for (const RequestUid& uid : movable) {
    RouterRequest* const request = FindRequest(uid);
    if (request != nullptr && !TryMove(*request, worker, now_us)) return;
  }
}

// False when there is no room for it elsewhere, or the links that its KV could take are not up yet.
bool RouterCore::TryMove(RouterRequest& request, const RegisteredWorker& worker, int64_t now_us) {
  const bool has_kv = (request.verified || request.is_local) && request.merge.num_known() > 0;
  const KeptSource keep =
      has_kv ? KeptSource{worker.lease, request.attempt} : HoldingPrefill(request);
  request.kept = keep;
  const PlannedRoute planned = RouteFor(request, now_us);
  request.kept = KeptSource{};
  const Route& route = planned.route;
  if (route.path == Route::Path::kNone || !route.has_room) return false;
  if (planned.source.value() == 0) {
    const bool links_may_come = now_us - worker.draining_since_us < kMoveLinkWaitUs;
    if (has_kv && links_may_come) return false;
    const bool is_local = route.path == Route::Path::kLocal;
    if (is_local && ShouldWaitForPair(route.reason, *request.spec.model, now_us)) return false;
  }
  PlaceAgain(request, ResumeReason::kMoved, now_us, keep);
  PlaceQueued(now_us);
  return true;
}

void RouterCore::RecoverRequestsOn(LeaseId lease, int64_t now_us) {
  std::vector<RouterRequest*> hit;
  for (const auto& [uid, request] : requests_) {
    // A decode worker is needed until its last token is here, a prefill worker until the KV is at
    // the decode worker.
    const bool needs_decode = request->decode.Is(lease) && !request->merge.complete();
    const bool needs_prefill = request->prefill.Is(lease) && !request->verified;
    if (needs_decode || needs_prefill) {
      hit.push_back(request.get());
    } else if (request->decode.Is(lease)) {
      ReleaseHalf(*request, request->decode, false);
    } else if (request->prefill.Is(lease)) {
      ReleaseHalf(*request, request->prefill, false);
    } else if (request->kept.lease == lease) {
      request->kept = KeptSource{};
    }
  }
  // Each goes to the front of the queue: the latest first.
  std::sort(hit.begin(), hit.end(), [](const RouterRequest* a, const RouterRequest* b) {
    return std::tie(a->spec.received_us, a->uid) > std::tie(b->spec.received_us, b->uid);
  });
  for (RouterRequest* request : hit) {
    const bool is_decode = request->decode.Is(lease);
    (is_decode ? request->decode : request->prefill).live = false;
    Recover(*request,
            {.reason = is_decode ? ResumeReason::kDecodeLost : ResumeReason::kPrefillLost,
             .worker_died = true},
            now_us);
  }
}

}  // namespace baton
