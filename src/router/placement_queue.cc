#include "src/router/placement_queue.h"

#include <algorithm>
#include <utility>

#include "src/base/priority.h"

namespace baton::router {

std::deque<PlacementQueue::Entry>::const_iterator PlacementQueue::PlaceOf(int64_t aged_us) const {
  const auto comes_before = [](int64_t us, const Entry& entry) { return us < entry.aged_us; };
  return std::upper_bound(queue_.begin(), queue_.end(), aged_us, comes_before);
}

void PlacementQueue::Add(const RouterRequest& request) {
  const int64_t aged_us = AgedArrivalUs(state_->now_us, request.spec.priority);
  queue_.insert(PlaceOf(aged_us), {request.uid, aged_us});
  changed_ = true;
}

size_t PlacementQueue::NumBefore(int32_t priority) const {
  const int64_t aged_us = AgedArrivalUs(state_->now_us, priority);
  return static_cast<size_t>(PlaceOf(aged_us) - queue_.begin());
}

// In the queue's order within a model: a request that finds no room claims what comes free, so
// that a large one is not starved by small ones: all workers of its model, or those of its numerics
// or of a context that holds its answer where only they will do (decode workers). So does one whose
// fault settles, for its 10 ms: what else was lost then is not known yet.
void PlacementQueue::PlaceQueued(int64_t now_us) {
  if (table_->TakeRoomFreed()) changed_ = true;
  if (!changed_) return;
  changed_ = false;
  PlacementClaims claims;
  std::deque<Entry> waiting;
  while (!queue_.empty()) {
    const Entry entry = queue_.front();
    queue_.pop_front();
    RouterRequest* request = table_->Find(entry.uid);
    if (request == nullptr || request->IsPlaced()) continue;
    if (now_us >= request->DeadlineUs()) {
      table_->EndBad(*request, request->PastDeadline());
      continue;
    }
    if (const std::optional<Placing> placing = CheckShare(*request)) {
      if (*placing == Placing::kEnded) continue;
      waiting_->SetApart(*request, /*waits_aside=*/true, /*is_apart=*/true);
      waiting.push_back(entry);
      continue;
    }
    const std::string_view model = request->spec.model->id;
    const uint64_t numerics_id = request->numerics_id;
    const uint32_t context = planner_->AnswerContextOf(*request, now_us);
    const bool embeds = request->spec.embeds;
    const bool blocked = HasClaim(claims, model, std::nullopt, context, embeds);
    const bool is_behind =
        planner_->IsBound(*request, now_us) && HasClaim(claims, model, numerics_id, context);
    Placing placing = is_behind ? Placing::kWaitAside : Placing::kWait;
    uint32_t short_context = 0;
    if (!blocked && !is_behind && now_us >= request->not_before_us) {
      placing = placer_->TryPlace(*request, claims, now_us, &short_context);
      const bool waits = placing == Placing::kWait || placing == Placing::kWaitAside;
      const bool frees_room = waits && table_->num_shadows() > 0 && !request->spec.is_shadow();
      if (frees_room) table_->EndShadows(LeaseId{});
      if (frees_room) placing = placer_->TryPlace(*request, claims, now_us, &short_context);
      if (placing == Placing::kPlaced || placing == Placing::kEnded) continue;
    }
    if (request->spec.is_shadow()) {  // it never waits, and never before a client
      const bool was_placed = request->num_resumes > 0;
      table_->EndBad(*request, was_placed ? ErrorCode::kWorkerLost : ErrorCode::kQueueFull);
      continue;
    }
    if (!blocked) {
      const bool is_aside = placing == Placing::kWaitAside;
      waiting_->SetApart(*request, is_aside, is_aside || short_context > 0);
      PlacementClaim claim{model, std::nullopt, short_context + 1, embeds};
      if (is_aside) claim.numerics_id = numerics_id;
      if (!is_behind) claims.push_back(claim);
    } else if (!HasClaim(claims, model, std::nullopt, 1, embeds)) {
      waiting_->SetApart(*request, request->waits_aside, true);
    }
    waiting.push_back(entry);
    if (!claims.empty() && BlocksRest(claims.back())) break;
  }
  queue_.insert(queue_.begin(), waiting.begin(), waiting.end());
}

// Nobody else waits for what a tenant may not hold. A stream that a fault ended goes on all the
// same.
std::optional<Placing> PlacementQueue::CheckShare(RouterRequest& request) {
  request.awaits_share = false;
  TenantKv* const kv = request.spec.kv.get();
  const bool is_free = kv == nullptr || kv->share() == 0 || request.spec.is_own();
  if (is_free || request.num_resumes > 0) return std::nullopt;
  const std::string_view model = request.spec.model->id;
  const KvLimit limit = KvLimitOf(*kv, state_->registry, model);
  // A block to grow into is not counted: small shares of small pools would hold nothing.
  const uint64_t needed = request.spec.prompt.size() + request.spec.num_choices;
  if (limit.pool_tokens > 0 && needed > limit.tokens()) {
    table_->EndBad(request, PoolLimitError(request.spec.fields.prompt,
                                           static_cast<uint32_t>(request.spec.prompt.size()),
                                           request.spec.model->max_context,
                                           "within its tenant's " + limit.Text()));
    return Placing::kEnded;
  }
  request.awaits_share = kv->HeldOf(model) + needed > limit.tokens();
  return request.awaits_share ? std::optional(Placing::kWaitAside) : std::nullopt;
}

// All that the queue names besides waits for what is claimed: clients of the same model that any of
// its workers could serve. A queue of a thousand is then not walked in every tick. One that names
// too many requests that have ended is walked, which takes those out.
bool PlacementQueue::BlocksRest(const PlacementClaim& claim) const {
  const bool is_all = !claim.numerics_id && claim.min_context <= 1 && !claim.embeds;
  if (!is_all || table_->num_shadows() > 0) return false;
  return waiting_->IsOnlyModel(claim.model) && queue_.size() <= 2 * waiting_->num_queued();
}

void PlacementQueue::Requeue(RouterRequest& request, int64_t not_before_us, KeptSource keep) {
  table_->GiveUpMove(request);
  request.kv_hold.Release();
  request.notes.unplaced_us = state_->now_us;
  request.kept = keep;
  const bool moves = keep.lease.value() != 0 && request.decode.Is(keep.lease);
  const bool retargets = keep.lease.value() != 0 && request.prefill.Is(keep.lease);
  table_->ReleaseHalf(request, request.prefill, !retargets);
  table_->ReleaseHalf(request, request.decode, !moves);
  request.num_replayed = request.NumToReplay(moves);
  request.accepted = false;
  request.not_before_us = not_before_us;
  table_->timers().LookAtAll();
  waiting_->Enter(request);
  queue_.push_front({request.uid, INT64_MIN});  // it came before everything that still waits
  changed_ = true;
}

}  // namespace baton::router
