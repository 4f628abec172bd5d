#include "src/router/router_core.h"

#include <algorithm>
#include <utility>

#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/random.h"
#include "src/router/request_spans.h"

namespace baton::router {

using kv::PlacementProgress;
using limits::kRenewEveryUs;
using limits::kRouterTickUs;
using obs::BatonMetrics;

namespace {

// While no request lives only heartbeats matter, and without workers nothing does.
constexpr int64_t kIdleTickUs = 100'000;
constexpr int64_t kAloneTickUs = 1'000'000;
// Longest time between two ticks while there is anybody to serve. A router that is stopped for less
// than this and 0.5 s is not forgiven that silence (router.cc). With the 250 ms between two
// heartbeats that is less than the second after which a worker gets nothing new.
constexpr int64_t kLongestTickUs = 200'000;

}  // namespace

RouterCore::RouterCore(const RouterCoreConfig& config, WorkerConnector* connector,
                       const BatonMetrics* metrics)
    : state_(config, metrics),
      waiting_({.queue_wait_us = config.queue_wait_us, .ttft_us = config.objective.ttft_us},
               metrics),
      table_(&state_, &waiting_),
      planner_(&state_),
      placer_(&state_, &waiting_, &table_, &planner_),
      queue_(&state_, &waiting_, &table_, &planner_, &placer_),
      delivery_(&state_, &waiting_, &table_),
      recovery_(&state_, &table_, &planner_, &queue_, &delivery_),
      moves_(&state_, &table_, &planner_, &placer_, &recovery_),
      links_(&state_, &table_, &planner_, &recovery_),
      reports_(&state_, &table_, &links_, &delivery_, &recovery_),
      checks_(&state_, &table_, &planner_, &delivery_, &recovery_),
      leases_(&state_, connector, &queue_, &recovery_, &moves_),
      readiness_(&state_, &planner_),
      probe_draw_(config.probe_seed != 0 ? config.probe_seed : RandomU64()) {
  metrics->ShowObjective(obs::Objective::kTtft, config.objective.ttft_us);
  metrics->ShowObjective(obs::Objective::kItl, config.objective.itl_us);
}

RouterCore::~RouterCore() { Shutdown(); }

void RouterCore::Cancel(RequestUid uid, CancelCause cause, int64_t now_us) {
  state_.Advance(now_us);
  table_.Cancel(uid, cause);
}

void RouterCore::Submit(RequestUid uid, GenerateRequest request, std::shared_ptr<ResponseSink> sink,
                        int64_t now_us) {
  state_.Advance(now_us);
  if (table_.Find(uid) != nullptr) {
    // 128 random bits do not meet twice; a caller that reuses a uid must not end the first request.
    return sink->OnFailed(RequestError{ErrorCode::kInternal});
  }
  auto owned = std::make_unique<RouterRequest>(uid, std::move(request), std::move(sink));
  owned->wait.begin_us = now_us;
  if (state_.config.spans != nullptr && !owned->spec.is_own()) {
    owned->span = SpanIdsOfRequest(owned->spec.trace, uid, state_.config.spans->sampler());
  }
  RouterRequest& record = table_.Add(std::move(owned));
  const RouterStage last = record.spec.is_own() ? RouterStage::kServes : RouterStage::kLeaves;
  if (state_.stage > last) return table_.EndBad(record, ErrorCode::kDraining);
  if (!planner_.IsServed(record)) return table_.EndBad(record, ErrorCode::kNoWorkers);
  const bool is_full = waiting_.num_queued() - waiting_.num_aside() > state_.config.max_queued ||
                       table_.requests().size() > state_.config.max_live;
  const bool is_callable = planner_.IsCallable(record);
  if (is_full && !record.spec.is_probe()) {
    if (!is_callable) return table_.EndBad(record, ErrorCode::kNoWorkers);
    return table_.EndBad(record, table_.NoRoomError(record, ErrorCode::kQueueFull));
  }
  // The rate of a queue whose workers cannot be called is that of another time.
  std::optional<RequestError> error;
  if (is_callable) error = table_.WaitsInVain(record, queue_.NumBefore(record));
  if (error) return table_.EndBad(record, *error);
  table_.timers().Add(uid);  // not before: a flood of refused requests has no timers
  record.life.OnValidated();
  if (record.spec.is_probe()) return placer_.PlaceProbe(record, now_us);
  queue_.Add(record);
  queue_.PlaceQueued(now_us);
}

void RouterCore::OnWorkerHello(LeaseId lease, WorkerDescription worker,
                               std::unique_ptr<LeaseStream> stream, int64_t now_us) {
  leases_.OnWorkerHello(lease, std::move(worker), std::move(stream), now_us);
}

void RouterCore::OnWorkerLoad(LeaseId lease, WorkerLoadReport load, int64_t now_us) {
  leases_.OnWorkerLoad(lease, std::move(load), now_us);
}

void RouterCore::OnPrefixEvents(LeaseId lease, const PrefixBatch& batch, int64_t now_us) {
  leases_.OnPrefixEvents(lease, batch, now_us);
}

void RouterCore::OnSessionUp(SessionRef session, int64_t now_us) {
  leases_.OnSessionUp(session, now_us);
}

void RouterCore::OnSessionDown(SessionRef session, std::string_view reason, int64_t now_us) {
  leases_.OnSessionDown(session, reason, now_us);
}

void RouterCore::OnSessionTokens(SessionRef session, std::vector<WorkerToken> tokens,
                                 int64_t now_us) {
  state_.Advance(now_us);
  RegisteredWorker* worker = leases_.FindSession(session);
  if (worker == nullptr) return;
  worker->progress_us = now_us;
  for (WorkerToken& token : tokens) OnToken(session.lease, std::move(token), now_us);
  // An answer that has ended leaves its place to the next request at once.
  queue_.PlaceQueued(now_us);
}

void RouterCore::OnToken(LeaseId lease, WorkerToken token, int64_t now_us) {
  RouterRequest* request = table_.Find(token.uid);
  if (request == nullptr) return;  // it has ended; the worker has not heard of it yet
  if (token.prompt_pos > 0) return delivery_.TakePromptToken(*request, token, now_us);
  if (request->move.Is(lease, token.attempt) && !moves_.Move(*request, now_us)) return;
  const bool is_decode = request->decode.Is(lease);
  if (token.attempt != request->attempt() || !(is_decode || request->prefill.Is(lease))) {
    state_.metrics->stale_events_total->Add();
    return;
  }
  if (token.progress.num_tokens > 0) return delivery_.TakeProgress(*request, token, now_us);
  if (is_decode) {
    delivery_.Accept(*request, now_us);
    request->life.OnProgress(request->attempt(), PlacementProgress::kAllKvAtDecode);
  }
  delivery_.TakeToken(*request, std::move(token), now_us);
}

void RouterCore::OnSessionStatus(SessionRef session, const WorkerRequestStatus& status,
                                 int64_t now_us) {
  state_.Advance(now_us);
  RegisteredWorker* worker = leases_.FindSession(session);
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
    reports_.OnReport(*request, is_prefill, status, now_us);
  } else if (status.state == WorkerRequestState::kRejected) {
    recovery_.OnRejected(*request, is_prefill ? request->prefill : request->decode, status, now_us);
  } else {
    recovery_.OnHalfEnded(*request, is_prefill ? request->prefill : request->decode, status);
  }
  queue_.PlaceQueued(now_us);
}

void RouterCore::BeginLeave() {
  state_.stage = std::max(state_.stage, RouterStage::kLeaves);
  table_.EndOwn([](const RouterRequest&) { return true; });
}

void RouterCore::Shutdown() {
  state_.stage = RouterStage::kStopped;
  FailAll(ErrorCode::kDraining);
  state_.registry.workers().clear();
}

void RouterCore::ForgiveSilence(int64_t late_us) {
  BATON_LOG_WARN("the router stood still for {} ms; no silence of that time counts",
                 late_us / 1000);
  leases_.ForgiveSilence(late_us);
  links_.ForgiveSilence(late_us);
  table_.ForgiveSilence(late_us);
}

void RouterCore::Tick(int64_t now_us) {
  state_.Advance(now_us);
  leases_.CheckWorkers(now_us);
  links_.WatchTransfers(now_us);
  ProbeLinks(now_us);
  checks_.Run(now_us);
  // Time alone can make a placement possible (a wait for a pair ends), so the queue is tried
  // always.
  if (waiting_.num_queued() > 0) queue_.TryAgain();
  queue_.PlaceQueued(now_us);
  waiting_.ReportWait(now_us);
  readiness_.Look(Times(), now_us);
}

WatchedTimes RouterCore::Times() const {
  int64_t first_prefill_by_us = 0;  // the next time at which a model stops waiting for one
  for (const auto& [model, first] : state_.first_workers) {
    const int64_t by_us = first.first_decode_us + state_.config.first_prefill_wait_us;
    if (first.first_decode_us < 0 || by_us <= state_.now_us) continue;
    first_prefill_by_us = first_prefill_by_us == 0 ? by_us : std::min(first_prefill_by_us, by_us);
  }
  return {.link_wait_us = state_.config.link_wait_us,
          .watched_us = links_.watched_us(),
          .renew_us = leases_.renewed_us() + kRenewEveryUs,
          .first_prefill_by_us = first_prefill_by_us};
}

int64_t RouterCore::NextTickUs(int64_t now_us) const {
  const bool is_alone = table_.requests().empty() && state_.registry.workers().empty();
  // Time alone can make a placement possible, and a dropped worker's prefixes are taken out bit by
  // bit.
  const bool is_busy = waiting_.num_queued() > 0 || state_.prefixes.num_stale() > 0;
  const int64_t due_us = is_busy ? now_us : std::min(readiness_.due_us(), table_.timers().due_us());
  const int64_t latest_us = now_us + (is_alone ? kAloneTickUs : kLongestTickUs);
  return std::clamp(due_us, now_us + kRouterTickUs, latest_us);
}

int64_t RouterCore::TickIntervalUs() const {
  if (!table_.requests().empty()) return kRouterTickUs;
  return state_.registry.workers().empty() ? kAloneTickUs : kIdleTickUs;
}

}  // namespace baton::router
