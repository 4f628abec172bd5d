#include "src/router/link_watch.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "src/base/log.h"
#include "src/router/workers_now.h"

namespace baton::router {

using kv::HandoffRequestState;
using kv::PlacementFault;
using kv::PlacementProgress;
using obs::RequestEvent;
using scheduler::IsWorthMoving;
using scheduler::kLeastGainS;
using scheduler::kMaxLinkRestUs;
using scheduler::KvOnItsWay;
using scheduler::LinkHealth;
using scheduler::Route;
using scheduler::SecondsLeft;

namespace {

// Moves for which another way is looked for at one time: some 20 us each.
constexpr size_t kMaxLooks = 32;

double SecondsBetween(int64_t from_us, int64_t to_us) {
  return static_cast<double>(std::max<int64_t>(to_us - from_us, 0)) * 1e-6;
}

// Bytes cross a network. Within a host a busy processor holds up every other way too.
bool CrossesNetwork(LinkKind kind) {
  return kind == LinkKind::kTcp || kind == LinkKind::kNccl || kind == LinkKind::kUnspecified;
}

bool IsOnItsWay(const RouterRequest& request, int64_t now_us) {
  const bool is_late = request.kv_received > 0 && now_us >= request.due_us;
  return request.IsPlaced() && request.life.state() != HandoffRequestState::kDecoding &&
         !request.is_local && !request.verified && (request.prompt_done || is_late) &&
         request.prefill.link_to.value() != 0 && CrossesNetwork(request.transport) &&
         !request.merge.complete();
}

// Some worker may have KV to send. Most of the time none has, and a thousand silent streams need no
// look.
bool MaySendKv(const WorkerRegistry& registry) {
  return std::ranges::any_of(registry.workers(), [](const auto& entry) {
    return !entry.second.links.empty() && entry.second.num_requests > 0;
  });
}

// Since when its KV is waited for.
int64_t WaitedSinceUs(const RouterRequest& request) {
  return request.prompt_done ? request.prompt_done_us : request.due_us;
}

LinkTurn TurnOf(const RouterRequest& request) {
  return {request.prefill.lease, request.prefill.link_to, WaitedSinceUs(request), request.uid};
}

// A probe whose KV would come so late that computing it at the decode worker is better.
bool IsSlowProbe(const RouterRequest& probe, const RegisteredWorker* decode, const KvOnItsWay& kv) {
  const double speed = decode == nullptr ? 0 : decode->load.prefill_tokens_per_s;
  return IsWorthMoving(SecondsLeft(kv), speed > 0 ? probe.NumTokens() / speed : 0);
}

// Its KV takes longer to cross than to compute.
bool IsSlow(const RegisteredWorker& prefill, const LinkHealth& link) {
  const double computed_bytes_per_s = static_cast<double>(prefill.load.prefill_tokens_per_s) *
                                      prefill.description.kv_bytes_per_token;
  return link.limit_bytes_per_s() > 0 && link.limit_bytes_per_s() < computed_bytes_per_s;
}

struct LateRequest {
  LinkTurn turn;
  KvOnItsWay kv;
};

}  // namespace

void LinkWatch::OnKvTotal(RouterRequest& request, uint64_t total_bytes) {
  RegisteredWorker* const prefill = state_->registry.Find(request.prefill.lease);
  if (total_bytes == 0 || prefill == nullptr) return;
  const auto link = prefill->links.find(request.prefill.link_to);
  if (link == prefill->links.end()) return;
  const WorkerDescription& worker = prefill->description;
  const uint64_t most_tokens = request.NumTokens() + worker.block_size + worker.state_tokens();
  total_bytes = std::min(total_bytes, most_tokens * worker.kv_bytes_per_token);
  link->second.EndHandOff(request.prefill.link_bytes);
  request.prefill.link_bytes = total_bytes;
  link->second.BeginHandOff(total_bytes);
}

void LinkWatch::OnKvProgress(RouterRequest& request, const WorkerRequestStatus& status,
                             int64_t now_us) {
  if (status.kv_bytes <= request.kv_received) return;
  const uint64_t num_new = status.kv_bytes - request.kv_received;
  request.kv_received = status.kv_bytes;
  RegisteredWorker* const prefill = state_->registry.Find(request.prefill.lease);
  if (prefill != nullptr) prefill->links[request.decode.lease].OnBytes(num_new, now_us);
}

void LinkWatch::OnVerified(RouterRequest& request, const WorkerRequestStatus& status,
                           int64_t now_us) {
  request.lifetime.Mark(RequestEvent::kVerified, now_us);
  OnKvProgress(request, status, now_us);
  request.verified = true;
  request.NoteCached(status.cached_tokens);
  request.life.OnProgress(request.attempt(), PlacementProgress::kAllKvAtDecode);
  request.kv_bytes += status.kv_bytes;
  if (status.transport != LinkKind::kUnspecified) request.transport = status.transport;
  RegisteredWorker* const prefill = state_->registry.Find(request.prefill.lease);
  const RegisteredWorker* const decode = state_->registry.Find(request.decode.lease);
  if (prefill == nullptr || decode == nullptr) return;
  LinkHealth& link = prefill->links[request.decode.lease];
  const double late_s = request.prompt_done ? SecondsBetween(request.prompt_done_us, now_us) : 0;
  const float speed = decode->load.prefill_tokens_per_s;
  const double local_s = speed > 0 ? request.NumTokens() / static_cast<double>(speed) : late_s;
  if (CrossesNetwork(request.transport) && IsWorthMoving(late_s, local_s)) {
    // It came, and another way would have been better: the link stays as bad as it was.
    OnSlowLink(*prefill, request.decode.lease, static_cast<double>(status.kv_bytes) / late_s,
               now_us);
    return;
  }
  if (link.IsLeftAlone(now_us) && !link.IsSuspected()) {
    BATON_LOG_INFO("the link from {} to {} is good again", request.prefill_worker_id,
                   request.decode_worker_id);
  }
  link.OnVerified(status.kv_bytes, status.transfer_seconds, late_s, now_us);
  if (request.spec.is_probe()) link.OnProbeVerified(now_us);
}

// KV that follows other KV on its link is predicted with it, so the requests of a link that stalls
// leave it at one time. Each look goes on after the last request that was looked at: requests that
// find no other way do not hide those of later links.
void LinkWatch::WatchTransfers(int64_t now_us) {
  if (now_us - watched_us_ < kWatchEveryUs) return;
  watched_us_ = now_us;
  if (!MaySendKv(state_->registry)) return;
  std::vector<const RouterRequest*> crossing;
  for (const auto& [uid, request] : table_->requests()) {
    if (IsOnItsWay(*request, now_us)) crossing.push_back(request.get());
  }
  std::sort(crossing.begin(), crossing.end(),
            [](const auto* a, const auto* b) { return TurnOf(*a) < TurnOf(*b); });
  std::vector<LateRequest> late;
  const RouterRequest* first = nullptr;  // of the link
  uint64_t bytes_left = 0;
  for (const RouterRequest* request : crossing) {
    const RegisteredWorker* const prefill = state_->registry.Find(request->prefill.lease);
    if (prefill == nullptr || !prefill->links.contains(request->prefill.link_to)) continue;
    const bool is_first = first == nullptr || first->prefill.lease != request->prefill.lease ||
                          first->prefill.link_to != request->prefill.link_to;
    if (is_first) {
      first = request;
      bytes_left = 0;
    }
    const uint64_t num_bytes = request->prefill.link_bytes;
    bytes_left += num_bytes - std::min(request->kv_received, num_bytes);
    const LinkHealth& link = prefill->links.at(request->prefill.link_to);
    const int64_t busy_us = WaitedSinceUs(*first);
    const KvOnItsWay kv = {
        .bytes_left = bytes_left,
        .bytes_per_s = link.RateSince(busy_us, now_us),
        .silent_s = SecondsBetween(std::max(busy_us, link.last_bytes_us()), now_us)};
    // A hand-off that has just begun says nothing yet.
    const bool is_young = SecondsBetween(busy_us, now_us) < kLeastGainS / 2;
    const bool is_late = !is_young && IsWorthMoving(SecondsLeft(kv), 0);
    if (is_late) late.push_back({TurnOf(*request), kv});
  }
  const auto next = std::find_if(
      late.begin(), late.end(), [this](const LateRequest& one) { return last_looked_ < one.turn; });
  std::rotate(late.begin(), next, late.end());
  late.resize(std::min(late.size(), kMaxLooks));
  for (const LateRequest& one : late) {
    last_looked_ = one.turn;
    RouterRequest* const request = table_->Find(std::get<RequestUid>(one.turn));
    if (request != nullptr) MoveIfSlow(*request, one.kv, now_us);
  }
}

// A worker whose network or host is slow has no fast link: when a good link of it becomes bad, the
// others are suspected. A link that stays bad says nothing new of them.
void LinkWatch::OnSlowLink(RegisteredWorker& prefill, LeaseId decode, double bytes_per_s,
                           int64_t now_us) {
  const bool was_good = !prefill.links[decode].IsLeftAlone(now_us);
  prefill.links[decode].OnStall(bytes_per_s, now_us);
  if (!was_good) return;
  for (const LinkView& link : prefill.load.links) {
    const RegisteredWorker* const other = state_->registry.FindByWorkerId(link.to);
    if (!link.up || !CrossesNetwork(link.kind) || other == nullptr) continue;
    if (other->lease != decode) prefill.links[other->lease].Suspect(now_us);
  }
}

void LinkWatch::MoveIfSlow(RouterRequest& request, const KvOnItsWay& kv, int64_t now_us) {
  RegisteredWorker& prefill = *state_->registry.Find(request.prefill.lease);
  if (request.spec.is_probe()) {
    if (!IsSlowProbe(request, state_->registry.Find(request.decode.lease), kv)) return;
    prefill.links[request.prefill.link_to].OnStall(kv.bytes_per_s, now_us);
    return table_->EndBad(request, ErrorCode::kCancelled);
  }
  const SlowSource slow{request.prefill.lease, now_us + kMaxLinkRestUs};
  const PlacementStart start{request.NumToReplay(/*moves=*/false), request.kept, slow};
  PlannedRoute planned = planner_->Plan(request, start, PlacementClaims{}, now_us);
  request.NotePrefixes(std::move(planned.new_links), std::move(planned.hits));
  const Route& route = planned.route;
  const bool is_way = route.path != Route::Path::kNone && route.has_room && !planned.must_wait;
  const double seconds_left = SecondsLeft(kv);
  if (!is_way || !IsWorthMoving(seconds_left, route.predicted_s)) return;
  const SlowSource before = std::exchange(request.slow, slow);
  // KV that cannot move is waited for all the same; other requests had better go another way.
  const bool can_move = request.MayBePlacedAgain();
  if (can_move || !before.Is(prefill.lease, now_us)) {
    OnSlowLink(prefill, request.prefill.link_to, kv.bytes_per_s, now_us);
  }
  if (!can_move) return;
  BATON_LOG_WARN(
      "request {}: its KV from {} to {} would come in {:.1f} s ({} bytes left, {:.0f} bytes a "
      "second), another way needs {:.1f} s",
      request.uid, request.prefill_worker_id, request.decode_worker_id, seconds_left, kv.bytes_left,
      kv.bytes_per_s, route.predicted_s);
  recovery_->Recover(request, PlacementFault::kLinkSlow, now_us);
}

// A link that was bad has rested, or the speed of a slow one was found long ago: a prompt of the
// router's own tries it, so that no client waits for it.
std::vector<ProbedLink> LinkWatch::TakeDueProbes(int64_t now_us) {
  std::vector<ProbedLink> due;
  if (state_->stage != RouterStage::kServes) return due;
  std::vector<std::pair<LeaseId, LeaseId>> asked;
  for (const auto& [lease, worker] : state_->registry.workers()) {
    for (const auto& [decode, link] : worker.links) {
      if (link.WantsProbe(IsSlow(worker, link), now_us)) asked.emplace_back(lease, decode);
    }
  }
  for (const auto& [lease, decode] : asked) {
    RegisteredWorker* const from = state_->registry.Find(lease);
    const RegisteredWorker* const to = state_->registry.Find(decode);
    const bool is_pair = from != nullptr && to != nullptr && from->IsPrefill();
    if (!is_pair || !from->Usable(now_us) || !to->Usable(now_us)) continue;
    if (!from->IsLinkedTo(to->description.name)) continue;
    from->links[decode].OnProbe(now_us);
    due.push_back({lease, decode});
  }
  return due;
}

}  // namespace baton::router
