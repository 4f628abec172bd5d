#include "src/router/placement_queue.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/priority.h"

namespace baton::router {

PlacementQueue::Line::const_iterator PlacementQueue::PlaceOf(const Line& line, int64_t aged_us) {
  const auto comes_before = [](int64_t us, const Entry& entry) { return us < entry.aged_us; };
  return std::upper_bound(line.begin(), line.end(), aged_us, comes_before);
}

void PlacementQueue::Add(const RouterRequest& request) {
  const int64_t aged_us = AgedArrivalUs(state_->now_us, request.spec.priority);
  Line& line = lines_[LineOf(request)];
  line.insert(PlaceOf(line, aged_us), {request.uid, aged_us, ++num_added_});
  changed_ = true;
}

size_t PlacementQueue::NumBefore(const RouterRequest& request) const {
  const Line& line = lines_[LineOf(request)];
  const int64_t aged_us = AgedArrivalUs(state_->now_us, request.spec.priority);
  return static_cast<size_t>(PlaceOf(line, aged_us) - line.begin());
}

size_t PlacementQueue::NextLine(const std::array<bool, kNumLines>& done) const {
  size_t next = kNumLines;
  for (size_t i = 0; i < kNumLines; ++i) {
    if (done[i] || lines_[i].empty()) continue;
    const auto key = [&](size_t line) {
      return std::pair(lines_[line].front().aged_us, lines_[line].front().number);
    };
    if (next == kNumLines || key(i) < key(next)) next = i;
  }
  return next;
}

void PlacementQueue::PlaceQueued(int64_t now_us) {
  if (table_->TakeRoomFreed()) changed_ = true;
  if (!changed_) return;
  changed_ = false;
  PlacementClaims claims;
  std::array<std::vector<Entry>, kNumLines> waiting;
  std::array<bool, kNumLines> done{};
  for (size_t line = NextLine(done); line < kNumLines; line = NextLine(done)) {
    const Entry entry = lines_[line].front();
    lines_[line].pop_front();
    const Look look = Try(entry, now_us, &claims);
    if (look != Look::kGone) waiting[line].push_back(entry);
    done[line] = look == Look::kWaits && BlocksRest(line, claims.back());
  }
  for (size_t i = 0; i < kNumLines; ++i) {
    lines_[i].insert(lines_[i].begin(), waiting[i].begin(), waiting[i].end());
  }
}

// In the order of arrival within a model: a request that finds no room claims what comes free, so
// that a large one is not starved by small ones: all decode workers of its model, or those of its
// numerics or of a context that holds its answer where only they will do; and the prefill workers
// that it could use, where it lacks room there, or waits for a vector of theirs. So does one whose
// fault settles, for its 10 ms: what else was lost then is not known yet.
PlacementQueue::Look PlacementQueue::Try(const Entry& entry, int64_t now_us,
                                         PlacementClaims* claims) {
  RouterRequest* const request = table_->Find(entry.uid);
  if (request == nullptr || request->IsPlaced()) return Look::kGone;
  if (now_us >= request->DeadlineUs()) {
    table_->EndBad(*request, request->PastDeadline());
    return Look::kGone;
  }
  if (const std::optional<Placing> placing = CheckShare(*request)) {
    if (*placing == Placing::kEnded) return Look::kGone;
    waiting_->SetApart(*request, /*waits_aside=*/true, /*is_apart=*/true);
    return Look::kWaitsBy;
  }
  const std::string_view model = request->spec.model->id;
  const uint64_t numerics_id = request->numerics_id;
  const uint32_t context = planner_->AnswerContextOf(*request, now_us);
  const bool is_of_prefill =
      request->spec.embeds && planner_->RoleFor(*request) == WorkerRole::kPrefill;
  const bool blocked = is_of_prefill ? HasVectorClaim(*claims, model)
                                     : HasClaim(*claims, model, std::nullopt, context);
  const bool is_behind =
      planner_->IsBound(*request, now_us) && HasClaim(*claims, model, numerics_id, context);
  Placing placing = is_behind ? Placing::kWaitAside : Placing::kWait;
  PlacementLack lack;
  if (!blocked && !is_behind && now_us >= request->wait.not_before_us) {
    placing = placer_->TryPlace(*request, *claims, now_us, &lack);
    const bool waits = placing == Placing::kWait || placing == Placing::kWaitAside;
    const bool frees_room = waits && table_->num_shadows() > 0 && !request->spec.is_shadow();
    if (frees_room) table_->EndShadows(LeaseId{});
    if (frees_room) placing = placer_->TryPlace(*request, *claims, now_us, &lack);
    if (placing == Placing::kPlaced || placing == Placing::kEnded) return Look::kGone;
  }
  if (request->spec.is_shadow()) {  // it never waits, and never before a client
    const bool was_placed = request->resumes.num > 0;
    table_->EndBad(*request, was_placed ? ErrorCode::kWorkerLost : ErrorCode::kQueueFull);
    return Look::kGone;
  }
  if (blocked) {
    const bool all_wait = is_of_prefill || HasClaim(*claims, model, std::nullopt, 1);
    if (!all_wait) waiting_->SetApart(*request, request->wait.is_aside, true);
    return all_wait ? Look::kWaits : Look::kWaitsBy;
  }
  const bool is_aside = placing == Placing::kWaitAside;
  waiting_->SetApart(*request, is_aside, is_aside || lack.short_context > 0);
  if (is_behind) return Look::kWaitsBy;
  PlacementClaim claim{.model = model, .decode = !is_of_prefill};
  if (is_aside) claim.numerics_id = numerics_id;
  claim.min_context = is_of_prefill ? 0 : lack.short_context + 1;
  claim.prefill = is_of_prefill || lack.prefill;
  claims->push_back(claim);
  return Look::kWaits;
}

// Nobody else waits for what a tenant may not hold. A stream that a fault ended goes on all the
// same.
std::optional<Placing> PlacementQueue::CheckShare(RouterRequest& request) {
  request.wait.for_share = false;
  TenantKv* const kv = request.spec.kv.get();
  const bool is_free = kv == nullptr || kv->share() == 0 || request.spec.is_own();
  if (is_free || request.resumes.num > 0) return std::nullopt;
  const std::string_view model = request.spec.model->id;
  const KvLimit limit = KvLimitOf(*kv, state_->registry, model);
  // A block to grow into is not counted: small shares of small pools would hold nothing.
  const uint64_t needed =
      request.spec.prompt.size() + request.spec.num_choices * (1 + limit.state_tokens);
  if (limit.pool_tokens > 0 && needed > limit.tokens()) {
    table_->EndBad(request, PoolLimitError(request.spec.fields.prompt,
                                           static_cast<uint32_t>(request.spec.prompt.size()),
                                           request.spec.model->max_context,
                                           "within its tenant's " + limit.Text()));
    return Placing::kEnded;
  }
  request.wait.for_share = kv->HeldOf(model) + needed > limit.tokens();
  return request.wait.for_share ? std::optional(Placing::kWaitAside) : std::nullopt;
}

// All that the line names besides waits for what is claimed: clients of the same model that any of
// its workers could serve. A line of a thousand is then not walked in every tick. One that names
// too many requests that have ended is walked, which takes those out.
bool PlacementQueue::BlocksRest(size_t line, const PlacementClaim& claim) const {
  const bool is_all = !claim.numerics_id && claim.min_context <= 1;
  if (!is_all || table_->num_shadows() > 0) return false;
  return waiting_->IsOnlyModel(claim.model) && lines_[line].size() <= 2 * waiting_->num_queued();
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
  request.wait.not_before_us = not_before_us;
  table_->timers().LookAtAll();
  waiting_->Enter(request);
  // It came before everything that still waits.
  lines_[LineOf(request)].push_front({request.uid, INT64_MIN, ++num_added_});
  changed_ = true;
}

}  // namespace baton::router
