#include "src/router/router.h"

#include <algorithm>
#include <utility>

#include "src/base/limits.h"
#include "src/base/loop_turn.h"
#include "src/base/random.h"

namespace baton::router {

using obs::MetricsRegistry;
using obs::RegisterBatonMetrics;
using obs::RequestFinish;

namespace {

constexpr int64_t kLinksEveryUs = 1'000'000;
// While readers of remembered answers wait (kReplayPerTick).
constexpr int64_t kReplayTickUs = limits::kRouterTickUs;
// While shadows wait for an idle worker.
constexpr int64_t kShadowTickUs = 100'000;
// A turn this late is no busy machine's: the process was stopped, or what it runs on.
constexpr int64_t kStoodStillUs = 500'000;

// A request that runs always finds room here. A client is called slow after the same time with a
// key or without.
KeyedAnswersLimits KeyedLimits(const RouterCoreConfig& config) {
  KeyedAnswersLimits limits;
  limits.slow_client_us = config.slow_client_us;
  limits.max_entries = config.max_live;
  limits.max_readers = config.max_live;
  return limits;
}

RouterCoreConfig WithModelMetrics(RouterCoreConfig config, ModelMetrics* metrics) {
  config.model_metrics = metrics;
  return config;
}

}  // namespace

Router::Router(const RouterCoreConfig& config, std::shared_ptr<RouterInbox> inbox,
               WorkerConnector* connector, MetricsRegistry* registry)
    : inbox_(std::move(inbox)),
      metrics_(RegisterBatonMetrics(registry)),
      known_models_(config.expected_models, config.served_names),
      model_metrics_(&metrics_, config.metric_aliases, registry),
      keyed_(KeyedLimits(config), this, &metrics_),
      shadows_(config.shadow_share, &core_, &metrics_),
      core_(WithModelMetrics(config, &model_metrics_), connector, &metrics_) {
  PublishModels(clock_.NowUs());
  last_turn_us_.store(clock_.NowUs(), std::memory_order_release);
  thread_ = Thread("router", [this] { Loop(); });
}

Router::~Router() { Stop(); }

void Router::Stop() {
  inbox_->Close();
  thread_.Join();
  // The thread is gone: nobody else touches the core now. Tasks that were posted after its last
  // turn were accepted too; then sinks that still wait get their end.
  core_.Shutdown();
  std::vector<RouterTask> tasks;
  inbox_->Take(clock_.NowUs(), &tasks);
  for (RouterTask& task : tasks) task(core_, clock_.NowUs());
  core_.Shutdown();
  keyed_.Shutdown();
  num_live_.store(0, std::memory_order_release);
}

RequestUid Router::Submit(GenerateRequest request, std::shared_ptr<ResponseSink> sink) {
  const RequestUid uid = RandomRequestUid();
  // The sink is kept here too: a refused task takes its copy with it.
  RouterTask task = [this, uid, request = std::move(request), sink](RouterCore& /*core*/,
                                                                    int64_t now_us) mutable {
    if (request.key != nullptr) {
      return keyed_.Submit(uid, std::move(request), std::move(sink), now_us);
    }
    StartGeneration(uid, std::move(request), std::move(sink), now_us);
  };
  if (inbox_->TryPostRequest(std::move(task))) return uid;
  RequestError error;
  error.code = inbox_->closed() ? ErrorCode::kDraining : ErrorCode::kQueueFull;
  error.retry_after_s = 1;
  if (!sink->TriesAgain(error)) CountAnswered(HttpStatusOf(error.code));
  sink->OnFailed(error);
  return uid;
}

void Router::Cancel(RequestUid uid, CancelCause cause) {
  inbox_->Post([this, uid, cause](RouterCore& core, int64_t now_us) {
    if (!keyed_.Leave(uid, now_us)) core.Cancel(uid, cause, now_us);
  });
}

void Router::StartGeneration(RequestUid uid, GenerateRequest request,
                             std::shared_ptr<ResponseSink> sink, int64_t now_us) {
  sink = shadows_.Wrap(uid, request, std::move(sink));
  core_.Submit(uid, std::move(request), std::move(sink), now_us);
}

void Router::CountAnswered(int http_status) { metrics_.CountRequest(http_status); }

void Router::CountEcho(uint32_t num_choices) {
  metrics_.CountRequest(200);
  metrics_.choices_finished_total[static_cast<size_t>(RequestFinish::kLength)]->Add(num_choices);
}

void Router::CountPutBack() { metrics_.prompts_put_back_total->Add(); }

std::shared_ptr<const ModelDirectory> Router::models() const {
  MutexLock lock(models_mutex_);
  return models_;
}

void Router::GetTopology(absl::AnyInvocable<void(const Topology&)> done) {
  inbox_->Post([done = std::move(done)](RouterCore& core, int64_t now_us) mutable {
    done(core.TopologyView(now_us));
  });
}

void Router::GetRequests(absl::AnyInvocable<void(const std::vector<RequestView>&)> done) {
  inbox_->Post([done = std::move(done)](RouterCore& core, int64_t now_us) mutable {
    done(core.RequestViews(now_us));
  });
}

void Router::GetTraces(
    absl::AnyInvocable<void(std::vector<std::shared_ptr<const RequestTrace>>)> done) {
  inbox_->Post([done = std::move(done)](RouterCore& core, int64_t now_us) mutable {
    done(core.Traces(now_us));
  });
}

std::vector<LinkRow> Router::Links() const {
  MutexLock lock(links_mutex_);
  return links_;
}

void Router::PublishLinks(int64_t now_us) {
  if (now_us - links_us_ < kLinksEveryUs) return;
  links_us_ = now_us;
  std::vector<LinkRow> links = core_.LinkRows();
  MutexLock lock(links_mutex_);
  links_ = std::move(links);
}

void Router::SetNotReady() {
  never_ready_.store(true, std::memory_order_release);
  SetReady(false);
  inbox_->Post([](RouterCore& core, int64_t /*now_us*/) { core.BeginLeave(); });
}

void Router::DrainWorker(std::string worker_id, uint32_t timeout_ms,
                         absl::AnyInvocable<void(StatusOr<Incarnation>)> done) {
  inbox_->Post([worker_id = std::move(worker_id), timeout_ms, done = std::move(done)](
                   RouterCore& core, int64_t /*now_us*/) mutable {
    done(core.DrainWorker(worker_id, timeout_ms));
  });
}

void Router::FailAll(ErrorCode code) {
  inbox_->Post([code](RouterCore& core, int64_t /*now_us*/) { core.FailAll(code); });
}

void Router::Loop() {
  std::vector<RouterTask> tasks;
  int64_t next_tick_us = clock_.NowUs();
  while (!inbox_->closed()) {
    inbox_->Take(next_tick_us, &tasks);
    const int64_t now_us = clock_.NowUs();
    LoopTurn::Begin(now_us);
    if (const int64_t late_us = now_us - next_tick_us; late_us >= kStoodStillUs) {
      core_.ForgiveSilence(late_us);
      keyed_.ForgiveSilence(late_us);
    }
    for (RouterTask& task : tasks) task(core_, now_us);
    const bool ticks = now_us >= next_tick_us;
    if (ticks) {
      core_.Tick(now_us);
      keyed_.Tick(now_us);
      shadows_.Tick(now_us);
    }
    last_turn_us_.store(now_us, std::memory_order_release);
    num_live_.store(core_.num_live() + keyed_.num_readers(), std::memory_order_release);
    const bool models_changed = core_.TakeModelsChanged();
    if (models_changed || now_us >= known_models_.forget_us()) PublishModels(now_us);
    // The change that makes the router ready counts at once: the clients of a start wait for it. A
    // ready one looks once a tick, since each load of a busy link is a change.
    if (models_changed || ticks || !ready()) PublishReadiness(now_us);
    if (ticks) PublishLinks(now_us);
    // A request that has just come shortens the wait of an idle loop.
    const int64_t latest_us = NextTickUs(now_us);
    next_tick_us = ticks ? latest_us : std::min(next_tick_us, latest_us);
  }
}

int64_t Router::NextTickUs(int64_t now_us) const {
  int64_t next_us = core_.NextTickUs(now_us);
  if (keyed_.num_readers() > 0) next_us = std::min(next_us, now_us + kReplayTickUs);
  if (shadows_.num_pending() > 0) next_us = std::min(next_us, now_us + kShadowTickUs);
  return next_us;
}

void Router::PublishModels(int64_t now_us) {
  std::shared_ptr<const ModelDirectory> known = known_models_.Take(core_.Models(), now_us);
  model_metrics_.Know(*known);
  MutexLock lock(models_mutex_);
  models_ = std::move(known);
}

void Router::PublishReadiness(int64_t now_us) { SetReady(core_.CheckReady(now_us)); }

void Router::SetReady(bool ready) {
  MutexLock lock(listener_mutex_);
  ready = ready && !never_ready_.load(std::memory_order_acquire);
  ready_.store(ready, std::memory_order_release);
  TellListenerLocked();
}

// Calls the listener without the lock until it knows the latest state. One thread does so at a
// time, so that the listener hears of changes in their order. A change that another thread makes
// meanwhile is not lost: the loop looks at the state again after each call.
void Router::TellListenerLocked() {
  if (is_telling_) return;
  is_telling_ = true;
  while (ready_listener_ && told_ready_ != ready()) {
    const std::function<void(bool)> listener = ready_listener_;
    const bool is_ready = ready();
    told_ready_ = is_ready;
    listener_mutex_.Unlock();
    listener(is_ready);
    listener_mutex_.Lock();
  }
  is_telling_ = false;
  listener_told_.NotifyAll();
}

void Router::SetReadyListener(std::function<void(bool)> listener) {
  MutexLock lock(listener_mutex_);
  // A call that is under way knows an older state: the old listener still hears of the latest one.
  while (is_telling_) listener_told_.Wait(listener_mutex_);
  ready_listener_ = std::move(listener);
  told_ready_.reset();
  TellListenerLocked();
}

}  // namespace baton::router
