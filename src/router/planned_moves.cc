#include "src/router/planned_moves.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/log.h"

namespace baton::router {

using kv::PlacementFault;
using scheduler::Route;

namespace {

// Streams that leave a draining worker within one tick, and those for which a place is looked for:
// some 20 us each.
constexpr size_t kMaxMovesPerTick = 4;
constexpr size_t kMaxMoveTriesPerTick = 32;

// How long streams of a draining worker wait for its connections to those that may take their KV,
// before they are computed again.
constexpr int64_t kMoveLinkWaitUs = 1'000'000;

}  // namespace

// A decode worker that drains keeps what no other has room for, or what would have to be computed
// from its beginning; for the rest others are asked, for a few at a time, so that those who take it
// over are not flooded.
void PlannedMoves::MoveAwayFrom(RegisteredWorker& worker, int64_t now_us) {
  table_->EndOwn(
      [&worker](const RouterRequest& request) { return request.decode.Is(worker.lease); });
  std::vector<RequestUid> movable;
  for (const auto& [uid, request] : table_->requests()) {
    const bool can_move = request->decode.Is(worker.lease) && !request->merge.complete() &&
                          request->spec.num_choices == 1 && !request->spec.embeds &&
                          !request->pause.on() && !request->move.on();
    if (can_move) movable.push_back(uid);
  }
  std::sort(movable.begin(), movable.end());
  // After the last one that was tried: what fits nowhere keeps no other here.
  const auto next = std::upper_bound(movable.begin(), movable.end(), worker.last_move_tried);
  std::rotate(movable.begin(), next, movable.end());
  movable.resize(std::min(movable.size(), kMaxMoveTriesPerTick));
  size_t num_moved = 0;
  for (const RequestUid& uid : movable) {
    if (num_moved == kMaxMovesPerTick) return;
    worker.last_move_tried = uid;
    RouterRequest* const request = table_->Find(uid);
    if (request != nullptr && TryMove(*request, worker, now_us)) ++num_moved;
  }
}

// False when there is no room for it elsewhere, or only workers of other numerics are there. False
// when its KV cannot go with it and computing it again may give other tokens (Repeats). False too
// when the links that its KV could take are not up yet, or this placement gave no token so far.
bool PlannedMoves::TryMove(RouterRequest& request, const RegisteredWorker& worker, int64_t now_us) {
  const bool has_kv = (request.verified || request.is_local) && request.merge.num_known() > 0;
  // A hand-over repeats a token that is known: one that only its worker knows would cross without
  // its log-probability.
  if (has_kv && request.merge.num_known() <= request.num_replayed) return false;
  const bool prefill_holds = !request.verified && request.prefill.live;
  PlacementStart start{request.NumToReplay(has_kv), KeptSource{}, request.slow};
  if (has_kv) {
    start.kept = {worker.lease, request.attempt()};
  } else if (prefill_holds) {
    start.kept = {request.prefill.lease, request.attempt()};
  }
  PlannedRoute planned = planner_->Plan(request, start, PlacementClaims{}, now_us);
  request.NotePrefixes(std::move(planned.new_links), std::move(planned.hits));
  const Route& route = planned.route;
  const bool has_room = route.path != Route::Path::kNone && route.has_room;
  // A better way than this one may be about to open.
  const bool waits_for_link = has_kv && now_us - worker.draining_since_us < kMoveLinkWaitUs;
  const bool waits_for_pair =
      route.path == Route::Path::kLocal &&
      planner_->ShouldWaitForPair(route.reason, *request.spec.model, now_us);
  const bool takes_kv = planned.source.value() != 0;
  // Tokens that were seen would be computed again, and more tokens come before a move that was
  // asked for.
  const bool may_differ = request.MayDifferFrom(0);
  bool may_move = has_room && (takes_kv || !(waits_for_link || waits_for_pair || may_differ));
  if (may_move && request.exact) {  // else it had better end where it is
    const LeaseId decode = planned.table.decode_leases[route.decode_idx];
    may_move = request.ExactBy(route, state_->registry.Find(decode)->description);
  }
  if (may_move) placer_->AskMove(request, planned, now_us);
  return may_move;
}

bool PlannedMoves::Move(RouterRequest& request, int64_t now_us) {
  RegisteredWorker* const source = state_->registry.Find(request.move.source);
  RegisteredWorker* const dest = state_->registry.Find(request.move.decode.lease);
  const bool needs_source = request.move.source.value() != 0;
  const bool prefill_holds = request.prefill.Is(request.move.source) && request.prefill.live;
  const bool is_kept = request.decode.Is(request.move.source) || prefill_holds;
  const bool is_gone = needs_source && (source == nullptr || !source->session_up);
  const bool leaves = request.LeavesNumerics(dest->description) && (request.exact || !is_kept);
  const bool may_differ = !is_kept && request.MayDifferFrom(request.move.num_replayed);
  if (is_gone || leaves || may_differ) {
    table_->GiveUpMove(request);
    return false;
  }
  const auto num_known = static_cast<uint32_t>(request.merge.num_known());
  request.life.OnFault(request.attempt(), PlacementFault::kMoved, num_known);
  const AskedMove move = std::exchange(request.move, AskedMove{});
  recovery_->PlaceAgain(request, PlacementFault::kMoved, now_us,
                        is_kept ? KeptSource{move.source, request.attempt()} : KeptSource{});
  request.num_replayed = move.num_replayed;
  request.exact = move.exact;
  request.move = move;
  placer_->Start(request, source, *dest, now_us);
  return true;
}

void PlannedMoves::OnMoveRefused(RouterRequest& request, RegisteredWorker& worker,
                                 const WorkerRequestStatus& status, int64_t now_us) {
  BATON_LOG_INFO("request {} does not move to {}: {}", request.uid,
                 worker.description.name.worker_id, status.message);
  worker.CountRefusal(status.retry_after_ms, now_us);
  table_->GiveUpMove(request);
}

}  // namespace baton::router
