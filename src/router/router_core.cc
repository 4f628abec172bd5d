#include "src/router/router_core.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"

#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/random.h"
#include "src/router/request_spans.h"

namespace baton::router {

using kv::PlacementFault;
using limits::kRenewEveryUs;
using obs::BatonMetrics;

namespace {

// While requests live, timers are checked this often; otherwise only heartbeats matter, and without
// workers nothing does.
constexpr int64_t kBusyTickUs = 20'000;
constexpr int64_t kIdleTickUs = 100'000;
constexpr int64_t kAloneTickUs = 1'000'000;
// Longest time between two ticks while there is anybody to serve. A router that is stopped for less
// than this and 0.5 s is not forgiven that silence (router.cc). With the 250 ms between two
// heartbeats that is less than the second after which a worker gets nothing new.
constexpr int64_t kLongestTickUs = 200'000;

// Longest time between two looks at a request's timers. A timer that begins between two looks (of a
// placement, of a move) runs for a second or more, so that the second look finds it in time, also
// where it waits for a tick.
constexpr int64_t kLongestLookUs = 500'000;
static_assert(kLongestLookUs + kLongestTickUs < 1'000'000);

// Readiness is computed again after so long, though no worker has changed: the reason for a local
// path may be another when another worker has the least load.
constexpr int64_t kReadyTrustedUs = 1'000'000;

int64_t LastProgressUs(const RouterRequest& request, const RegisteredWorker& worker) {
  return std::max(worker.progress_us, request.moved_us);
}

// The first of the request's times for CheckTimers, as far as they have begun. `in_turn`:
// RouterCore::WorkerInTurn.
int64_t DueUs(const RouterRequest& request, const RegisteredWorker* in_turn,
              const RouterCoreConfig& config, int64_t now_us) {
  // A client that reads again, or waits to be told that it has a worker, does not wait for long.
  const bool awaits_telling = request.IsPlaced() && !request.is_told_taken;
  if (request.pause.on() || awaits_telling) return now_us;
  int64_t due_us = request.DeadlineUs();
  if (!request.merge.complete()) {
    due_us = std::min(due_us, request.heard_us + config.request_timeout_us);
  }
  if (!request.IsPlaced()) {
    const bool resumes = request.num_resumes > 0;
    return std::min(due_us,
                    request.queued_us + (resumes ? config.resume_wait_us : config.queue_wait_us));
  }
  if (!request.accepted) due_us = std::min(due_us, request.placed_us + config.reserve_timeout_us);
  if (request.move.on()) {
    due_us = std::min(due_us, request.move.asked_us + config.reserve_timeout_us);
  }
  if (in_turn == nullptr) return due_us;
  return std::min(due_us, LastProgressUs(request, *in_turn) + config.worker_stall_us);
}

}  // namespace

RouterCore::RouterCore(const RouterCoreConfig& config, WorkerConnector* connector,
                       const BatonMetrics* metrics)
    : connector_(connector),
      state_(config, metrics),
      waiting_(config.queue_wait_us, metrics),
      table_(&state_, &waiting_),
      planner_(&state_),
      placer_(&state_, &waiting_, &table_, &planner_),
      queue_(&state_, &waiting_, &table_, &planner_, &placer_),
      delivery_(&state_, &waiting_, &table_),
      recovery_(&state_, &table_, &planner_, &queue_, &delivery_),
      moves_(&state_, &table_, &planner_, &placer_, &recovery_),
      probe_draw_(config.probe_seed != 0 ? config.probe_seed : RandomU64()) {}

RouterCore::~RouterCore() { Shutdown(); }

void RouterCore::Cancel(RequestUid uid, CancelCause cause, int64_t now_us) {
  state_.Advance(now_us);
  table_.Cancel(uid, cause);
}

void RouterCore::FailAll(ErrorCode code) { table_.FailAll(code); }

void RouterCore::Submit(RequestUid uid, GenerateRequest request, std::shared_ptr<ResponseSink> sink,
                        int64_t now_us) {
  state_.Advance(now_us);
  if (table_.Find(uid) != nullptr) {
    // 128 random bits do not meet twice; a caller that reuses a uid must not end the first request.
    return sink->OnFailed(RequestError{ErrorCode::kInternal});
  }
  auto owned = std::make_unique<RouterRequest>(uid, std::move(request), std::move(sink));
  owned->queued_us = now_us;
  if (state_.config.spans != nullptr && !owned->spec.is_own()) {
    owned->span = SpanIdsOfRequest(owned->spec.trace, uid, state_.config.spans->sampler());
  }
  RouterRequest& record = table_.Add(std::move(owned));
  const RouterStage last = record.spec.is_own() ? RouterStage::kServes : RouterStage::kLeaves;
  if (state_.stage > last) return table_.EndBad(record, ErrorCode::kDraining);
  if (!state_.registry.Serves(record.spec.model->id))
    return table_.EndBad(record, ErrorCode::kNoWorkers);
  const bool is_full = waiting_.num_queued() - waiting_.num_aside() > state_.config.max_queued ||
                       table_.requests().size() > state_.config.max_live;
  if (is_full && !record.spec.is_probe()) {
    return table_.EndBad(record, table_.NoRoomError(record, ErrorCode::kQueueFull));
  }
  if (const std::optional<uint32_t> retry_s = waiting_.OverloadRetryS(record, now_us)) {
    RequestError error;
    error.code = ErrorCode::kQueueFull;
    error.retry_after_s = *retry_s;
    return table_.EndBad(record, error);
  }
  table_.timers().Add(uid);  // not before: a flood of refused requests has no timers
  record.life.OnValidated();
  if (record.spec.is_probe()) return placer_.PlaceProbe(record, now_us);
  queue_.Add(uid);
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
  for (auto& [lease, worker] : state_.registry.workers()) {
    worker.heard_us += late_us;
    worker.progress_us += late_us;
    for (auto& [decode, link] : worker.links) link.ForgiveSilence(late_us);
  }
  watched_us_ += late_us;
  for (auto& [uid, request] : table_.requests()) {
    request->placed_us += late_us;
    request->moved_us += late_us;
    request->prompt_done_us += late_us;
    request->due_us += late_us;
    request->move.asked_us += late_us;
    request->heard_us += late_us;
    request->pause.Forgive(late_us);
  }
}

void RouterCore::Tick(int64_t now_us) {
  state_.Advance(now_us);
  CheckWorkers(now_us);
  WatchTransfers(now_us);
  ProbeLinks(now_us);
  table_.timers().Run(now_us, [&](RequestUid uid) -> std::optional<NextLook> {
    if (RouterRequest* request = table_.Find(uid)) CheckTimers(*request, now_us);
    const RouterRequest* const left = table_.Find(uid);
    if (left == nullptr) return std::nullopt;
    const int64_t due_us = DueUs(*left, WorkerInTurn(*left), state_.config, now_us);
    return NextLook{due_us, std::min(due_us, now_us + kLongestLookUs)};
  });
  // Time alone can make a placement possible (a wait for a pair ends), so the queue is tried
  // always.
  if (waiting_.num_queued() > 0) queue_.TryAgain();
  queue_.PlaceQueued(now_us);
  LookAtWorkersAgain(now_us);
}

void RouterCore::LookAtWorkersAgain(int64_t now_us) {
  const bool had_decode = state_.first_decode_us >= 0;
  const WatchedTimes times = {
      .link_wait_us = state_.config.link_wait_us,
      .watched_us = watched_us_,
      .renew_us = renewed_us_ + kRenewEveryUs,
      .first_prefill_by_us =
          had_decode ? state_.first_decode_us + state_.config.first_prefill_wait_us : 0};
  workers_now_ = LookAtWorkers(state_.registry, times, now_us);
}

int64_t RouterCore::NextTickUs(int64_t now_us) const {
  const bool is_alone = table_.requests().empty() && state_.registry.workers().empty();
  // Time alone can make a placement possible, and a dropped worker's prefixes are taken out bit by
  // bit.
  const bool is_busy = waiting_.num_queued() > 0 || state_.prefixes.num_stale() > 0;
  const int64_t due_us = is_busy ? now_us : std::min(workers_now_.due_us, table_.timers().due_us());
  const int64_t latest_us = now_us + (is_alone ? kAloneTickUs : kLongestTickUs);
  return std::clamp(due_us, now_us + kBusyTickUs, latest_us);
}

void RouterCore::CheckTimers(RouterRequest& request, int64_t now_us) {
  if (now_us >= request.DeadlineUs()) return table_.EndBad(request, request.PastDeadline());
  // Once all tokens are known, or the client reads too slowly, no worker is waited for.
  const bool waits_for_token = !request.merge.complete() && !request.pause.on();
  if (waits_for_token && now_us - request.heard_us >= state_.config.request_timeout_us) {
    return table_.EndBad(request, SilenceError(state_.config.request_timeout_us));
  }
  if (!request.IsPlaced()) {
    const bool resumes = request.num_resumes > 0;
    if (now_us - request.queued_us <
        (resumes ? state_.config.resume_wait_us : state_.config.queue_wait_us)) {
      return;
    }
    // A request that only faults of links hold up waits for room until its deadline.
    if (request.life.num_link_faults() > 0 && state_.registry.Serves(request.spec.model->id))
      return;
    if (resumes) return table_.EndBad(request, ErrorCode::kWorkerLost);
    const bool served = state_.registry.Serves(request.spec.model->id);
    return table_.EndBad(request, served ? table_.NoRoomError(request, ErrorCode::kQueueTimeout)
                                         : PlainError(ErrorCode::kNoWorkers));
  }
  if (!request.accepted && now_us - request.placed_us >= state_.config.reserve_timeout_us) {
    BATON_LOG_WARN("request {}: {} did not answer a reservation within {} ms", request.uid,
                   request.decode_worker_id, state_.config.reserve_timeout_us / 1000);
    return recovery_.Recover(request, PlacementFault::kDecodeStalled, now_us);
  }
  if (request.move.on() && now_us - request.move.asked_us >= state_.config.reserve_timeout_us)
    table_.GiveUpMove(request);
  RegisteredWorker* const worker = WorkerInTurn(request);
  if (worker != nullptr &&
      now_us - LastProgressUs(request, *worker) >= state_.config.worker_stall_us) {
    BATON_LOG_ERROR("request {}: {} made no progress for {} ms", request.uid,
                    worker->description.name.worker_id,
                    (now_us - LastProgressUs(request, *worker)) / 1000);
    worker->avoided_until_us = now_us + state_.config.worker_stall_us;
    const bool is_prefill = request.prefill.Is(worker->lease);
    return recovery_.Recover(
        request, is_prefill ? PlacementFault::kPrefillStalled : PlacementFault::kDecodeStalled,
        now_us);
  }
  request.TellTaken(now_us);
  if (!request.pause.on()) return;
  if (!request.pause.Look(request.sink->buffered_bytes(), now_us, state_.config.slow_client_us)) {
    return table_.EndBad(request, ErrorCode::kSlowClient);
  }
  // The client gets tokens only now: its silence begins again.
  if (!request.pause.on()) request.heard_us = now_us;
  delivery_.Deliver(request);
}

// The worker that is to make progress with the request; null: none is waited for, or it is gone.
RegisteredWorker* RouterCore::WorkerInTurn(const RouterRequest& request) {
  if (request.merge.complete()) return nullptr;
  const bool decode_turn = request.is_local || request.verified;
  // Between token 0 and the verified KV both workers may rest: the transfer has its own deadlines.
  if (!decode_turn && request.prompt_done) return nullptr;
  return state_.registry.Find(decode_turn ? request.decode.lease : request.prefill.lease);
}

int64_t RouterCore::TickIntervalUs() const {
  if (!table_.requests().empty()) return kBusyTickUs;
  return state_.registry.workers().empty() ? kAloneTickUs : kIdleTickUs;
}

bool RouterCore::TakeModelsChanged() { return std::exchange(models_changed_, false); }

bool RouterCore::CheckReady(int64_t now_us) {
  if (workers_now_.state == 0) LookAtWorkersAgain(now_us);
  const bool is_known = workers_now_.state == ready_state_ && now_us - ready_us_ < kReadyTrustedUs;
  if (is_known && state_.stage == RouterStage::kServes) return ready_;
  ready_ = Ready(now_us);
  ready_us_ = now_us;
  ready_state_ = workers_now_.state;
  return ready_;
}

bool RouterCore::Ready(int64_t now_us) const {
  return state_.stage == RouterStage::kServes && planner_.AnyRoute(now_us);
}

std::optional<uint64_t> RouterCore::NumericsOf(std::string_view worker_id) {
  const RegisteredWorker* worker = state_.registry.FindByWorkerId(worker_id);
  if (worker == nullptr) return std::nullopt;
  return worker->description.fingerprint.numerics_id;
}

Topology RouterCore::TopologyView(int64_t now_us) const {
  Topology topology;
  for (const auto& model : state_.registry.Models()) {
    if (!topology.model.empty()) topology.model += ',';
    topology.model += model->id;
  }
  for (const auto& [lease, worker] : state_.registry.workers()) {
    const WorkerDescription& description = worker.description;
    ProcessView view;
    view.role = PoolRoleName(description.role);
    view.worker_id = description.name.worker_id;
    view.incarnation = fmt::format("{:016x}", description.name.incarnation.value());
    view.model = description.model->id;
    view.pid = description.pid;
    view.grpc = description.grpc_address;
    view.admin = description.admin_address;
    view.kv = description.kv_address;
    view.ready = worker.Usable(now_us);
    for (size_t i = 0; i < kBlockStateNames.size(); ++i) {
      view.kv_blocks.emplace_back(kBlockStateNames[i], worker.load.blocks[i]);
    }
    view.running = worker.load.running;
    view.waiting = worker.load.waiting;
    view.not_paired = worker.not_paired;
    view.links = worker.load.links;
    for (LinkView& link : view.links) ShowHealth(worker, link, now_us);
    topology.processes.push_back(std::move(view));
  }
  return topology;
}

}  // namespace baton::router
