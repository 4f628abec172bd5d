#include "src/router/router_core.h"

#include <algorithm>
#include <array>
#include <utility>

#include "fmt/format.h"

#include "src/base/check.h"
#include "src/base/log.h"
#include "src/base/random.h"
#include "src/router/request_spans.h"

namespace baton::router {

using kv::HandoffRequestState;
using kv::kNumHandoffRequestStates;
using kv::PlacementFault;
using kv::RequestOrders;
using obs::BatonMetrics;
using obs::RequestFinish;
using obs::RequestStage;
using scheduler::FinishReason;
using scheduler::PickRoute;
using scheduler::Route;
using scheduler::RouteQuery;

namespace {

// A client that waits for its deadline itself may be heard so long before it passes here.
constexpr int64_t kCancelSlackUs = 100'000;

// While requests live, timers are checked this often; otherwise only heartbeats matter, and without
// workers nothing does.
constexpr int64_t kBusyTickUs = 20'000;
constexpr int64_t kIdleTickUs = 100'000;
constexpr int64_t kAloneTickUs = 1'000'000;

// Longest time between two looks at a request's timers. A timer that begins between two looks (of a
// placement, of a move) runs for a second or more, so that the second look finds it in time.
constexpr int64_t kLongestLookUs = 500'000;

// Finish of a request whose choices have all ended: kLength as soon as one choice was cut.
RequestFinish FinishOf(const RouterRequest& request) {
  const bool is_cut = std::ranges::count(request.finished, FinishReason::kLength) > 0;
  return is_cut ? RequestFinish::kLength : RequestFinish::kStop;
}

// Finish of a request that ended by `code`.
RequestFinish FinishOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kCancelled:
    case ErrorCode::kSlowClient:
      return RequestFinish::kCancelled;
    case ErrorCode::kDeadlineExceeded:
      return RequestFinish::kDeadline;
    default:
      return RequestFinish::kError;
  }
}

// A worker that has seen the request's natural end stops without being told; a Cancel would only
// race with its own last message.
bool StopsByItself(const RouterRequest& request, const PlacementHalf& half) {
  const bool is_prefill = &half == &request.prefill;
  if (is_prefill && request.verified) return true;
  const bool kv_is_there = request.verified || request.is_local;
  return kv_is_there && request.num_finished == request.spec.num_choices &&
         request.merge.ended_by_workers();
}

int64_t LastProgressUs(const RouterRequest& request, const RegisteredWorker& worker) {
  return std::max(worker.progress_us, request.moved_us);
}

// When CheckTimers is to look at the request again: at the first of its times, as far as they have
// begun, and soon enough for one that begins until then. `in_turn`: RouterCore::WorkerInTurn.
int64_t NextLookUs(const RouterRequest& request, const RegisteredWorker* in_turn,
                   const RouterCoreConfig& config, int64_t now_us) {
  // A client that reads again, or waits to be told that it has a worker, does not wait for long.
  const bool awaits_telling = request.IsPlaced() && !request.is_told_taken;
  if (request.pause.on() || awaits_telling) return now_us;
  int64_t due_us = std::min(now_us + kLongestLookUs, request.DeadlineUs());
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

std::string_view RouterStateName(HandoffRequestState state) {
  constexpr std::array<std::string_view, kNumHandoffRequestStates> kNames = {
      "RECEIVED", "QUEUED",  "PLACING", "RESERVED", "PREFILLING", "TRANSFERRING",
      "DECODING", "RECOVER", "DONE",    "FAILED",   "CANCELLED"};
  return kNames[static_cast<size_t>(state)];
}

RouterRequest::RouterRequest(RequestUid uid_in, GenerateRequest spec_in,
                             std::shared_ptr<ResponseSink> sink_in)
    : uid(uid_in),
      spec(std::move(spec_in)),
      sink(std::move(sink_in)),
      merge(spec.num_choices, spec.sampling.max_tokens),
      finished(spec.num_choices, FinishReason::kNone),
      last_token_us(spec.num_choices, 0),
      heard_us(spec.received_us),
      lifetime(spec.received_us) {
  texts.reserve(spec.num_choices);
  for (uint32_t i = 0; i < spec.num_choices; ++i) {
    texts.emplace_back(*spec.model->tokenizer, spec.stop, spec.sampling.min_tokens);
    if (!spec.shown_tokens.empty()) texts.back().ShowSpecial(spec.shown_tokens);
  }
}

RequestTimings RouterRequest::Timings() const {
  const auto stage_ms = [&](RequestStage stage) {
    return static_cast<double>(lifetime.StageUs(stage)) / 1000.0;
  };
  RequestTimings timings;
  timings.disaggregated = !is_local;
  timings.decode_worker = decode_worker_id;
  timings.prefill_worker = is_local ? decode_worker_id : prefill_worker_id;
  timings.transport = LinkKindName(transport);
  timings.kv_bytes = kv_bytes;
  timings.cached_tokens = cached_tokens;
  timings.resumes = num_resumes;
  timings.queue_ms = stage_ms(RequestStage::kAdmit) + stage_ms(RequestStage::kQueuePrefill);
  timings.prefill_ms = stage_ms(RequestStage::kPrefill);
  timings.kv_wait_ms = stage_ms(RequestStage::kKvWait) + stage_ms(RequestStage::kKvTransfer) +
                       stage_ms(RequestStage::kQueueDecode);
  timings.first_step_ms = stage_ms(RequestStage::kFirstStep);
  timings.decode_ms = stage_ms(RequestStage::kDecode);
  timings.exact = Repeats();
  return timings;
}

RouterCore::RouterCore(const RouterCoreConfig& config, WorkerConnector* connector,
                       const BatonMetrics* metrics)
    : config_(config),
      connector_(connector),
      metrics_(metrics),
      prefixes_(config.max_prefix_entries),
      probe_draw_(config.probe_seed != 0 ? config.probe_seed : RandomU64()) {}

RouterCore::~RouterCore() { Shutdown(); }

void RouterCore::Submit(RequestUid uid, GenerateRequest request, std::shared_ptr<ResponseSink> sink,
                        int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  auto owned = std::make_unique<RouterRequest>(uid, std::move(request), std::move(sink));
  RouterRequest& record = *owned;
  record.queued_us = now_us;
  if (config_.spans != nullptr && !record.spec.is_own()) {
    record.span = SpanIdsOfRequest(record.spec.trace, uid, config_.spans->sampler());
  }
  record.notes.num_running = static_cast<uint32_t>(requests_.size() - num_queued_ - num_own_);
  record.notes.num_waiting = static_cast<uint32_t>(num_queued_);
  if (!requests_.emplace(uid, std::move(owned)).second) {
    // 128 random bits do not meet twice; a caller that reuses a uid must not end the first request.
    record.sink->OnFailed(RequestError{ErrorCode::kInternal});
    return;
  }
  EnterQueue(record);
  num_own_ += record.spec.is_own() ? 1 : 0;
  num_shadows_ += record.spec.is_shadow() ? 1 : 0;
  ReportTableSize();
  const Stage last = record.spec.is_own() ? Stage::kServes : Stage::kLeaves;
  if (stage_ > last) return EndBad(record, ErrorCode::kDraining);
  if (!registry_.Serves(record.spec.model->id)) return EndBad(record, ErrorCode::kNoWorkers);
  const bool is_full =
      num_queued_ - num_aside_ > config_.max_queued || requests_.size() > config_.max_live;
  if (is_full && !record.spec.is_probe()) {
    return EndBad(record, NoRoomError(record, ErrorCode::kQueueFull));
  }
  if (const std::optional<uint32_t> retry_s = OverloadRetryS(record, now_us)) {
    RequestError error;
    error.code = ErrorCode::kQueueFull;
    error.retry_after_s = *retry_s;
    return EndBad(record, error);
  }
  timers_.Add(uid);  // not before: a flood of refused requests has no timers
  record.life.OnValidated();
  if (record.spec.is_probe()) return PlaceProbe(record, now_us);
  queue_.push_back(uid);
  queue_changed_ = true;
  PlaceQueued(now_us);
}

// Shadows and probes count in nothing that clients can notice.
void RouterCore::EnterQueue(RouterRequest& request) {
  if (request.spec.is_own()) return;
  ++num_queued_;
  ++model_queues_[request.spec.model->id].num_waiting;
}

void RouterCore::LeaveQueue(RouterRequest& request) {
  if (request.spec.is_own()) return;
  SetWaiting(request, false, false);
  --num_queued_;
  const auto it = model_queues_.find(request.spec.model->id);
  if (--it->second.num_waiting == 0) model_queues_.erase(it);
}

// `is_apart`: others get on at workers that it cannot take, so that it says nothing about how fast.
void RouterCore::SetWaiting(RouterRequest& request, bool waits_aside, bool is_apart) {
  if (request.spec.is_own()) return;
  if (std::exchange(request.waits_aside, waits_aside) != waits_aside) {
    num_aside_ += waits_aside ? 1 : -1;
    metrics_->requests_waiting_numerics->Set(static_cast<double>(num_aside_));
  }
  if (std::exchange(request.waits_apart, is_apart) == is_apart) return;
  const auto it = model_queues_.try_emplace(request.spec.model->id).first;
  it->second.num_waiting += is_apart ? -1 : 1;
  if (it->second.num_waiting == 0) model_queues_.erase(it);
}

void RouterCore::Cancel(RequestUid uid, CancelCause cause, int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  RouterRequest* const request = FindRequest(uid);
  if (request == nullptr) return;
  if (cause == CancelCause::kSlowClient) return EndBad(*request, ErrorCode::kSlowClient);
  // A client that waits no longer than its deadline leaves as it passes.
  const int64_t slack_us = std::min(kCancelSlackUs, request->spec.timeout_us / 4);
  const bool too_late = now_us_ >= request->DeadlineUs() - slack_us;
  EndBad(*request, too_late ? request->PastDeadline() : PlainError(ErrorCode::kCancelled));
}

RouterRequest* RouterCore::FindRequest(RequestUid uid) {
  const auto it = requests_.find(uid);
  return it == requests_.end() ? nullptr : it->second.get();
}

void RouterCore::EndGood(RouterRequest& request) {
  const RequestOrders orders = request.life.OnDone();
  BATON_CHECK(orders.tell_client, "request {} is done in a state without tokens", request.uid);
  GenerateResult result;
  result.num_prompt_tokens = static_cast<uint32_t>(request.spec.prompt.size());
  result.num_completion_tokens = request.num_delivered;
  result.timings = request.Timings();
  const RequestError* const refused = request.sink->own_failure();
  const int status = refused == nullptr ? 200 : HttpStatusOf(refused->code);
  if (!request.spec.is_own()) {
    metrics_->CountRequest(status);
    if (!request.exact) metrics_->inexact_answers_total->Add();
    for (const FinishReason reason : request.finished) {
      metrics_->choices_finished_total[reason == FinishReason::kLength ? 1 : 0]->Add();
    }
    metrics_->ObserveLifetime(request.lifetime, FinishOf(request));
    retries_[request.spec.model->id].OnServed(now_us_ - request.placed_us, request.num_delivered);
  }
  BATON_LOG_DEBUG("request {} ({}) attempt {} is done: {} prompt tokens, {} tokens, {} us",
                  request.uid, request.spec.request_id, request.attempt(), result.num_prompt_tokens,
                  result.num_completion_tokens, request.lifetime.EndToEndUs());
  Remember(request, status);
  const std::shared_ptr<ResponseSink> sink = request.sink;
  Forget(request, /*waits=*/false);
  // Last: a client that has its answer finds the request in the metrics, and not running.
  sink->OnFinished(result);
}

void RouterCore::EndBad(RouterRequest& request, ErrorCode code) {
  EndBad(request, PlainError(code));
}

void RouterCore::EndBad(RouterRequest& request, const RequestError& error) {
  const bool waits = !request.IsPlaced();
  const HandoffRequestState before = request.life.state();
  const RequestOrders orders =
      error.code == ErrorCode::kCancelled ? request.life.OnCancelled() : request.life.OnFailed();
  BATON_CHECK(orders.tell_client, "request {} ends twice", request.uid);
  if (!request.spec.is_own()) {
    BATON_LOG_INFO("request {} ({}) attempt {} ends in {} with {} tokens delivered: {}",
                   request.uid, request.spec.request_id, request.attempt(), RouterStateName(before),
                   request.num_delivered, ErrorNameOf(error.code));
  }
  TellFailed(request, error, waits);
}

void RouterCore::TellFailed(RouterRequest& request, const RequestError& error, bool waits) {
  const RequestError* const own = request.sink->own_failure();
  const bool is_own = own != nullptr && error.code == ErrorCode::kCancelled;
  const ErrorCode told = is_own ? own->code : error.code;  // as the client sees it
  if (!request.spec.is_own()) {
    metrics_->CountRequest(HttpStatusOf(told));
    const bool had_token = request.num_delivered > 0;
    if (had_token) metrics_->ObserveLifetime(request.lifetime, FinishOf(told), now_us_);
  }
  Remember(request, HttpStatusOf(told));
  const std::shared_ptr<ResponseSink> sink = request.sink;
  Forget(request, waits);
  sink->OnFailed(error);  // last, as in EndGood
}

void RouterCore::Forget(RouterRequest& request, bool waits) {
  if (waits) LeaveQueue(request);
  num_own_ -= request.spec.is_own() ? 1 : 0;
  num_shadows_ -= request.spec.is_shadow() ? 1 : 0;
  CancelKept(request);
  GiveUpMove(request);
  ReleaseHalf(request, request.prefill, !StopsByItself(request, request.prefill));
  ReleaseHalf(request, request.decode, !StopsByItself(request, request.decode));
  requests_.erase(request.uid);  // `request` is gone
  queue_changed_ = true;
  ReportTableSize();
}

void RouterCore::ReleaseHalf(RouterRequest& request, PlacementHalf& half, bool cancel) {
  if (half.lease.value() == 0) return;
  if (RegisteredWorker* worker = registry_.Find(half.lease)) {
    worker->placed.num_blocks -= half.cost.num_blocks;
    if (half.shares) worker->placed.num_blocks -= worker->shared.Remove(request.links);
    worker->placed.num_tokens -= half.cost.num_tokens;
    worker->placed.num_prompts -= half.cost.num_prompts;
    worker->placed.num_sequences -= half.cost.num_sequences;
    --worker->num_requests;
    const auto link = worker->links.find(half.link_to);
    if (link != worker->links.end()) link->second.EndHandOff(half.link_bytes);
    if (cancel && half.live && worker->session_up) {
      worker->session->Cancel(request.uid, half.attempt);
    }
  }
  half = PlacementHalf{};
}

void RouterCore::CancelKept(RouterRequest& request) {
  const KeptSource kept = std::exchange(request.kept, KeptSource{});
  const RegisteredWorker* worker = registry_.Find(kept.lease);
  if (worker != nullptr && worker->session_up) worker->session->Cancel(request.uid, kept.attempt);
}

// The prompt is computed: it is no backlog of that worker any more.
void RouterCore::ReleaseBacklog(PlacementHalf& half) {
  if (RegisteredWorker* worker = registry_.Find(half.lease)) {
    worker->placed.num_tokens -= half.cost.num_tokens;
    worker->placed.num_prompts -= half.cost.num_prompts;
    half.cost.num_tokens = 0;
    half.cost.num_prompts = 0;
  }
}

void RouterCore::ReportTableSize() {
  const size_t num_running = requests_.size() - num_queued_ - num_own_;
  metrics_->requests_running->Set(static_cast<double>(num_running));
  metrics_->requests_waiting->Set(static_cast<double>(num_queued_));
}

void RouterCore::BeginLeave() {
  stage_ = std::max(stage_, Stage::kLeaves);
  EndOwn([](const RouterRequest&) { return true; });
}

// Gives the worker `on` back to clients; 0 = every worker.
void RouterCore::EndShadows(LeaseId on) {
  if (num_shadows_ == 0) return;
  EndOwn([on](const RouterRequest& request) {
    return request.spec.is_shadow() && (on.value() == 0 || request.decode.Is(on));
  });
}

void RouterCore::EndOwn(const std::function<bool(const RouterRequest&)>& is_meant) {
  if (num_own_ == 0) return;
  std::vector<RequestUid> uids;
  for (const auto& [uid, request] : requests_) {
    if (request->spec.is_own() && is_meant(*request)) uids.push_back(uid);
  }
  for (const RequestUid uid : uids) Cancel(uid);
}

void RouterCore::FailAll(ErrorCode code) {
  while (!requests_.empty()) EndBad(*requests_.begin()->second, code);
}

void RouterCore::Shutdown() {
  stage_ = Stage::kStopped;
  FailAll(ErrorCode::kDraining);
  registry_.workers().clear();
}

void RouterCore::ForgiveSilence(int64_t late_us) {
  BATON_LOG_WARN("the router stood still for {} ms; no silence of that time counts",
                 late_us / 1000);
  for (auto& [lease, worker] : registry_.workers()) {
    worker.heard_us += late_us;
    worker.progress_us += late_us;
    for (auto& [decode, link] : worker.links) link.ForgiveSilence(late_us);
  }
  watched_us_ += late_us;
  for (auto& [uid, request] : requests_) {
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
  now_us_ = std::max(now_us_, now_us);
  CheckWorkers(now_us);
  WatchTransfers(now_us);
  ProbeLinks(now_us);
  timers_.Run(now_us, [&](RequestUid uid) -> std::optional<int64_t> {
    if (RouterRequest* request = FindRequest(uid)) CheckTimers(*request, now_us);
    const RouterRequest* const left = FindRequest(uid);
    if (left == nullptr) return std::nullopt;
    return NextLookUs(*left, WorkerInTurn(*left), config_, now_us);
  });
  // Time alone can make a placement possible (a wait for a pair ends), so the queue is tried
  // always.
  queue_changed_ = queue_changed_ || num_queued_ > 0;
  PlaceQueued(now_us);
}

void RouterCore::CheckTimers(RouterRequest& request, int64_t now_us) {
  if (now_us >= request.DeadlineUs()) return EndBad(request, request.PastDeadline());
  // Once all tokens are known, or the client reads too slowly, no worker is waited for.
  const bool waits_for_token = !request.merge.complete() && !request.pause.on();
  if (waits_for_token && now_us - request.heard_us >= config_.request_timeout_us) {
    return EndBad(request, SilenceError(config_.request_timeout_us));
  }
  if (!request.IsPlaced()) {
    const bool resumes = request.num_resumes > 0;
    if (now_us - request.queued_us < (resumes ? config_.resume_wait_us : config_.queue_wait_us)) {
      return;
    }
    // A request that only faults of links hold up waits for room until its deadline.
    if (request.life.num_link_faults() > 0 && registry_.Serves(request.spec.model->id)) return;
    if (resumes) return EndBad(request, ErrorCode::kWorkerLost);
    const bool served = registry_.Serves(request.spec.model->id);
    return EndBad(request, served ? NoRoomError(request, ErrorCode::kQueueTimeout)
                                  : PlainError(ErrorCode::kNoWorkers));
  }
  if (!request.accepted && now_us - request.placed_us >= config_.reserve_timeout_us) {
    BATON_LOG_WARN("request {}: {} did not answer a reservation within {} ms", request.uid,
                   request.decode_worker_id, config_.reserve_timeout_us / 1000);
    return Recover(request, PlacementFault::kDecodeStalled, now_us);
  }
  if (request.move.on() && now_us - request.move.asked_us >= config_.reserve_timeout_us)
    GiveUpMove(request);
  RegisteredWorker* const worker = WorkerInTurn(request);
  if (worker != nullptr && now_us - LastProgressUs(request, *worker) >= config_.worker_stall_us) {
    BATON_LOG_ERROR("request {}: {} made no progress for {} ms", request.uid,
                    worker->description.name.worker_id,
                    (now_us - LastProgressUs(request, *worker)) / 1000);
    worker->avoided_until_us = now_us + config_.worker_stall_us;
    const bool is_prefill = request.prefill.Is(worker->lease);
    return Recover(request,
                   is_prefill ? PlacementFault::kPrefillStalled : PlacementFault::kDecodeStalled,
                   now_us);
  }
  request.TellTaken(now_us);
  if (!request.pause.on()) return;
  if (!request.pause.Look(request.sink->buffered_bytes(), now_us, config_.slow_client_us)) {
    return EndBad(request, ErrorCode::kSlowClient);
  }
  // The client gets tokens only now: its silence begins again.
  if (!request.pause.on()) request.heard_us = now_us;
  OnDelivery(request);
}

// The worker that is to make progress with the request; null: none is waited for, or it is gone.
RegisteredWorker* RouterCore::WorkerInTurn(const RouterRequest& request) {
  if (request.merge.complete()) return nullptr;
  const bool decode_turn = request.is_local || request.verified;
  // Between token 0 and the verified KV both workers may rest: the transfer has its own deadlines.
  if (!decode_turn && request.prompt_done) return nullptr;
  return registry_.Find(decode_turn ? request.decode.lease : request.prefill.lease);
}

int64_t RouterCore::TickIntervalUs() const {
  if (!requests_.empty()) return kBusyTickUs;
  return registry_.workers().empty() ? kAloneTickUs : kIdleTickUs;
}

bool RouterCore::TakeModelsChanged() { return std::exchange(models_changed_, false); }

bool RouterCore::Ready(int64_t now_us) const {
  if (stage_ != Stage::kServes) return false;
  for (const auto& model : registry_.Models()) {
    const RouteTable table = registry_.TableFor(model->id, now_us);
    RouteQuery query;
    query.disaggregate = config_.mode != ServeMode::kAggregated;
    const Route route = PickRoute(table.Load(), query);
    if (route.path == Route::Path::kDisagg) return true;
    if (route.path == Route::Path::kLocal && !ShouldWaitForPair(route.reason, *model, now_us)) {
      return true;
    }
  }
  return false;
}

Topology RouterCore::TopologyView(int64_t now_us) const {
  Topology topology;
  for (const auto& model : registry_.Models()) {
    if (!topology.model.empty()) topology.model += ',';
    topology.model += model->id;
  }
  for (const auto& [lease, worker] : registry_.workers()) {
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

std::vector<RequestView> RouterCore::RequestViews(int64_t now_us) const {
  std::vector<RequestView> views;
  for (const auto& [uid, request] : requests_) {
    for (uint32_t choice = 0; choice < request->spec.num_choices; ++choice) {
      RequestView view;
      view.uid = uid;
      view.request_id = request->spec.request_id;
      view.choice = choice;
      view.attempt = request->attempt();
      view.state = RouterStateName(request->life.state());
      view.age_ms = (now_us - request->spec.received_us) / 1000;
      view.prefill_worker = request->prefill_worker_id;
      view.decode_worker = request->decode_worker_id;
      view.num_tokens = static_cast<uint32_t>(request->merge.tokens(choice).size());
      views.push_back(std::move(view));
    }
  }
  return views;
}

}  // namespace baton::router
