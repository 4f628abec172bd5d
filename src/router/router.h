// Router: RouterCore on its one thread ("router"), and the Submitter that the APIs use.
//
// Any thread may call the Submitter's functions; none waits for the router's thread. Sinks are
// called on that thread.
#ifndef BATON_ROUTER_ROUTER_H_
#define BATON_ROUTER_ROUTER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/clock.h"
#include "src/base/mutex.h"
#include "src/base/thread.h"
#include "src/router/keyed_answers.h"
#include "src/router/known_models.h"
#include "src/router/model_directory.h"
#include "src/router/model_metrics.h"
#include "src/router/router_core.h"
#include "src/router/router_inbox.h"
#include "src/router/shadow_runs.h"
#include "src/router/submit.h"
#include "src/router/worker_link.h"

namespace baton::router {

// See the file comment.
class Router final : public Submitter, private Generations {
 public:
  // Everything outlives the router; `inbox` is the one that `connector` posts to. `registry` gets
  // the known models as its label `model` (model_metrics.h).
  Router(const RouterCoreConfig& config, std::shared_ptr<RouterInbox> inbox,
         WorkerConnector* connector, obs::MetricsRegistry* registry);
  // Stops.
  ~Router() override;

  // Submitter.
  RequestUid Submit(GenerateRequest request, std::shared_ptr<ResponseSink> sink) override;
  void Cancel(RequestUid uid, CancelCause cause) override;
  void CountAnswered(int http_status) override;
  void CountEcho(uint32_t num_choices) override;
  void CountPutBack() override;
  std::shared_ptr<const ModelDirectory> models() const override;
  bool ready() const override { return ready_.load(std::memory_order_acquire); }
  bool draining() const override { return never_ready_.load(std::memory_order_acquire); }
  void GetTopology(absl::AnyInvocable<void(const Topology&)> done) override;
  void GetRequests(absl::AnyInvocable<void(const std::vector<RequestView>&)> done) override;

  // Calls `listener` on the router's thread whenever ready() changes, and once now; null ends that.
  // Returns when no call of an earlier listener runs any more: the earlier one has then heard of
  // the latest state. Not from the listener.
  void SetReadyListener(std::function<void(bool)> listener);

  // A shutdown begins: ready() is false for good and no shadow runs. Requests are still served.
  void SetNotReady();
  // Ends every request with `code`.
  void FailAll(ErrorCode code);
  // The handles of what it counts.
  const obs::BatonMetrics& metrics() const { return metrics_; }
  // RouterCore::Traces; `done` is called on the router's thread, or never once it has stopped.
  void GetTraces(absl::AnyInvocable<void(std::vector<std::shared_ptr<const RequestTrace>>)> done);
  // RouterCore::LinkRows as of at most a second ago while the loop turns, else the last known. Does
  // not wait for the loop.
  std::vector<LinkRow> Links() const;
  // RouterCore::DrainWorker; `done` is called on the router's thread, or never once it has stopped.
  void DrainWorker(std::string worker_id, uint32_t timeout_ms,
                   absl::AnyInvocable<void(StatusOr<Incarnation>)> done);
  // Requests that had not ended at the loop's last turn; those with a key may count twice.
  size_t num_live() const { return num_live_.load(std::memory_order_acquire); }
  // Steady-clock time of the loop's last turn: a loop that lives turns at least once a second.
  int64_t last_turn_us() const { return last_turn_us_.load(std::memory_order_acquire); }
  // Ends every request with kDraining and joins the thread. Idempotent.
  void Stop();

 private:
  void StartGeneration(RequestUid uid, GenerateRequest request, std::shared_ptr<ResponseSink> sink,
                       int64_t now_us) override;
  void StopGeneration(RequestUid uid) override { core_.Cancel(uid); }

  void Loop();
  int64_t NextTickUs(int64_t now_us) const;
  void PublishModels(int64_t now_us);
  void PublishLinks(int64_t now_us);
  void PublishReadiness(int64_t now_us);
  void SetReady(bool ready);
  void TellListenerLocked() BATON_REQUIRES(listener_mutex_);

  const std::shared_ptr<RouterInbox> inbox_;
  const obs::BatonMetrics metrics_;
  const Clock& clock_ = SystemClock();

  std::atomic<bool> ready_{false};
  std::atomic<bool> never_ready_{false};
  std::atomic<size_t> num_live_{0};
  std::atomic<int64_t> last_turn_us_{0};

  Mutex listener_mutex_;
  CondVar listener_told_;
  std::function<void(bool)> ready_listener_ BATON_GUARDED_BY(listener_mutex_);
  std::optional<bool> told_ready_ BATON_GUARDED_BY(listener_mutex_);  // to this listener
  bool is_telling_ BATON_GUARDED_BY(listener_mutex_) = false;

  mutable Mutex models_mutex_;
  std::shared_ptr<const ModelDirectory> models_ BATON_GUARDED_BY(models_mutex_);

  mutable Mutex links_mutex_;
  std::vector<LinkRow> links_ BATON_GUARDED_BY(links_mutex_);
  int64_t links_us_ = 0;  // when links_ was set; the thread's

  // Owned by the thread once it runs.
  KnownModels known_models_;
  ModelMetrics model_metrics_;
  // The core's sinks may be those of the tables before it, which outlive it.
  KeyedAnswers keyed_;
  ShadowRuns shadows_;
  RouterCore core_;
  Thread thread_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTER_H_
