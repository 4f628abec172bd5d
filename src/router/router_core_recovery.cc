// Recovery: a placed request whose placement cannot go on enters the queue again and is placed as
// its next attempt, from the tokens that are known. The client sees only a pause.
#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "src/base/log.h"
#include "src/router/router_core.h"

namespace baton::router {

using kv::HandoffRequestState;
using kv::IsOfLink;
using kv::PlacementFault;
using kv::RecoverDecision;
using obs::kResumeReasonNames;
using obs::ResumeReason;
using scheduler::Route;

namespace {

// A death is heard on several connections one after the other, of this worker and of others that
// died with it. Nothing is placed before all have been heard.
constexpr int64_t kSettleUs = 10'000;

// Streams that leave a draining worker within one tick, and those for which a place is looked for:
// some 20 us each.
constexpr size_t kMaxMovesPerTick = 4;
constexpr size_t kMaxMoveTriesPerTick = 32;

// How long streams of a draining worker wait for its connections to those that may take their KV,
// before they are computed again.
constexpr int64_t kMoveLinkWaitUs = 1'000'000;

// Deaths of workers that had not begun with a request, in its life, for which it is not blamed. A
// request that kills whoever takes it ends three workers: two more deaths are its fault. `serve`
// lets a worker wait only after more deaths in a row.
constexpr uint32_t kMaxEarlyDeaths = 1;

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
    case PlacementFault::kPreempted:
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
  if (began || request.num_early_deaths == kMaxEarlyDeaths) {
    return is_decode ? PlacementFault::kDecodeDied : PlacementFault::kPrefillDied;
  }
  ++request.num_early_deaths;
  return is_decode ? PlacementFault::kDecodeGone : PlacementFault::kPrefillGone;
}

}  // namespace

void RouterCore::Recover(RouterRequest& request, PlacementFault fault, int64_t now_us,
                         ErrorCode code) {
  using Kind = RecoverDecision::Kind;
  if (DeliverIfComplete(request)) return;
  const auto num_known = static_cast<uint32_t>(request.merge.num_known());
  const bool of_link = IsOfLink(fault) && !request.is_local && !request.verified;
  RegisteredWorker* const prefill = registry_.Find(request.prefill.lease);
  const bool is_failed_link = of_link && prefill != nullptr && fault != PlacementFault::kLinkSlow;
  if (request.spec.is_probe()) {
    if (is_failed_link) prefill->links[request.decode.lease].OnFault(now_us);
    return EndBad(request, code);
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
  TellFailed(request, PlainError(code), /*waits=*/false);
}

// When every token is known, delivers them and says so: what failed of the placement had nothing
// left to give.
bool RouterCore::DeliverIfComplete(RouterRequest& request) {
  if (!request.merge.complete() || request.AwaitsPromptLog()) return false;
  request.accepted = true;
  OnDelivery(request);
  return true;
}

void RouterCore::PlaceAgain(RouterRequest& request, PlacementFault why, int64_t not_before_us,
                            KeptSource keep) {
  const ResumeReason reason = ReasonOf(why);
  BATON_LOG_WARN("request {} attempt {} is placed again ({}), {} tokens are known", request.uid,
                 request.attempt(), kResumeReasonNames[static_cast<size_t>(reason)],
                 request.merge.num_known());
  ++request.num_resumes;
  ++request.notes.resumes[static_cast<size_t>(reason)];
  request.resume_reason = reason;
  request.queued_us = now_us_;
  Requeue(request, not_before_us, keep);
}

// A decode worker that drains keeps what no other has room for, or what would have to be computed
// from its beginning; for the rest others are asked, for a few at a time, so that those who take it
// over are not flooded.
void RouterCore::MoveAwayFrom(RegisteredWorker& worker, int64_t now_us) {
  EndOwn([&worker](const RouterRequest& request) { return request.decode.Is(worker.lease); });
  std::vector<RequestUid> movable;
  for (const auto& [uid, request] : requests_) {
    const bool can_move = request->decode.Is(worker.lease) && !request->merge.complete() &&
                          request->spec.num_choices == 1 && !request->pause.on() &&
                          !request->move.on();
    if (can_move) movable.push_back(uid);
  }
  std::sort(movable.begin(), movable.end());
  // Behind the last one that was tried: what fits nowhere keeps no other here.
  const auto next = std::upper_bound(movable.begin(), movable.end(), worker.last_move_tried);
  std::rotate(movable.begin(), next, movable.end());
  movable.resize(std::min(movable.size(), kMaxMoveTriesPerTick));
  size_t num_moved = 0;
  for (const RequestUid& uid : movable) {
    if (num_moved == kMaxMovesPerTick) return;
    worker.last_move_tried = uid;
    RouterRequest* const request = FindRequest(uid);
    if (request != nullptr && TryMove(*request, worker, now_us)) ++num_moved;
  }
}

// False when there is no room for it elsewhere, or only workers of other numerics are there. False
// when its KV cannot go with it and computing it again may give other tokens (Repeats). False too
// when the links that its KV could take are not up yet, or this placement gave no token so far.
bool RouterCore::TryMove(RouterRequest& request, const RegisteredWorker& worker, int64_t now_us) {
  const bool has_kv = (request.verified || request.is_local) && request.merge.num_known() > 0;
  // A hand-over repeats a token that is known: one that only its worker knows would cross without
  // its log-probability.
  if (has_kv && request.merge.num_known() <= request.num_replayed) return false;
  const bool prefill_holds = !request.verified && request.prefill.live;
  if (has_kv) {
    request.kept = {worker.lease, request.attempt()};
  } else if (prefill_holds) {
    request.kept = {request.prefill.lease, request.attempt()};
  }
  const uint32_t num_replayed = request.num_replayed;
  request.num_replayed = request.NumToReplay(has_kv);
  const PlannedRoute planned = RouteFor(request, PlacementClaims{}, now_us);
  const Route& route = planned.route;
  const bool has_room = route.path != Route::Path::kNone && route.has_room;
  // A better way than this one may be about to open.
  const bool waits_for_link = has_kv && now_us - worker.draining_since_us < kMoveLinkWaitUs;
  const bool waits_for_pair = route.path == Route::Path::kLocal &&
                              ShouldWaitForPair(route.reason, *request.spec.model, now_us);
  const bool takes_kv = planned.source.value() != 0;
  // Tokens that were seen would be computed again, and more tokens come before a move that was
  // asked for.
  const bool may_differ = request.MayDifferFrom(0);
  bool may_move = has_room && (takes_kv || !(waits_for_link || waits_for_pair || may_differ));
  if (may_move && request.exact) {  // else it had better end where it is
    const LeaseId decode = planned.table.decode_leases[route.decode_idx];
    may_move = request.ExactBy(route, registry_.Find(decode)->description);
  }
  if (may_move) AskMove(request, planned, now_us);
  request.kept = KeptSource{};
  request.num_replayed = num_replayed;
  return may_move;
}

// The worker that was asked has reserved: what it takes over ends here, and its source is told.
// False when that one has gone meanwhile, or tokens came that the other could not go on from; the
// stream then stays.
bool RouterCore::Move(RouterRequest& request, int64_t now_us) {
  RegisteredWorker* const source = registry_.Find(request.move.source);
  RegisteredWorker* const dest = registry_.Find(request.move.decode.lease);
  const bool needs_source = request.move.source.value() != 0;
  const bool prefill_holds = request.prefill.Is(request.move.source) && request.prefill.live;
  const bool is_kept = request.decode.Is(request.move.source) || prefill_holds;
  const bool is_gone = needs_source && (source == nullptr || !source->session_up);
  const bool leaves = request.LeavesNumerics(dest->description) && (request.exact || !is_kept);
  const bool may_differ = !is_kept && request.MayDifferFrom(request.move.num_replayed);
  if (is_gone || leaves || may_differ) {
    GiveUpMove(request);
    return false;
  }
  const auto num_known = static_cast<uint32_t>(request.merge.num_known());
  request.life.OnFault(request.attempt(), PlacementFault::kMoved, num_known);
  const AskedMove move = std::exchange(request.move, AskedMove{});
  PlaceAgain(request, PlacementFault::kMoved, now_us,
             is_kept ? KeptSource{move.source, request.attempt()} : KeptSource{});
  request.num_replayed = move.num_replayed;
  request.exact = move.exact;
  request.move = move;
  Start(request, source, *dest, now_us);
  return true;
}

void RouterCore::RecoverRequestsOn(LeaseId lease, int64_t now_us) {
  std::vector<RouterRequest*> hit;
  for (const auto& [uid, request] : requests_) {
    if (request->move.decode.Is(lease)) GiveUpMove(*request);
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
  const RegisteredWorker* const worker = registry_.Find(lease);
  const bool drains = worker != nullptr && worker->load.draining;
  for (RouterRequest* request : hit) {
    const bool is_decode = request->decode.Is(lease);
    (is_decode ? request->decode : request->prefill).live = false;
    // The KV is where it is needed, and the prompt would have to be computed for its log alone.
    const bool gives_log_alone = request->merge.complete() || (!is_decode && request->verified);
    if (request->AwaitsPromptLog() && gives_log_alone) {
      EndBad(*request, ErrorCode::kWorkerLost);
      continue;
    }
    Recover(*request, DeathOf(*request, is_decode, drains), now_us);
  }
}

}  // namespace baton::router
