// RouterCore: the router's decisions. One thread calls it; time is an argument; workers, clients
// and metrics are interfaces. So tests and simulations run the whole router without threads.
//
//   Submit -> QUEUED -> PLACING -> RESERVED / PREFILLING / TRANSFERRING -> DECODING -> end
//               ^-------- refused for load, or a fault: the next attempt ------'
//
// Invariants
//  1. The sink of each request gets exactly one OnFinished or OnFailed.
//  2. A request that ends for any reason is cancelled at each worker that may still hold something
//     of it, in the same call.
//  3. Nothing of an older attempt reaches a sink; such events are counted.
//  4. No token of a first placement reaches a sink before the decode worker has reserved blocks or
//     all tokens are known, so that a refusal gets a proper status. No token reaches a client
//     twice: a later placement starts from the known tokens.
//  5. The queue holds at most max_queued requests, the table max_live, one request at most
//     limits::kMaxPendingTokens undelivered tokens.
//  6. No request outlives its deadline by more than one tick.
//  7. States, attempts and the limits of faults are those of kvcache/handoff_request.h.
#ifndef BATON_ROUTER_ROUTER_CORE_H_
#define BATON_ROUTER_ROUTER_CORE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/obs/baton_metrics.h"
#include "src/router/delivery.h"
#include "src/router/link_metrics.h"
#include "src/router/placement_queue.h"
#include "src/router/placer.h"
#include "src/router/planned_moves.h"
#include "src/router/planned_route.h"
#include "src/router/recovery.h"
#include "src/router/request_table.h"
#include "src/router/route_planner.h"
#include "src/router/router_core_config.h"
#include "src/router/router_request.h"
#include "src/router/router_state.h"
#include "src/router/submit.h"
#include "src/router/topology.h"
#include "src/router/waiting_requests.h"
#include "src/router/worker_link.h"
#include "src/router/worker_registry.h"
#include "src/router/workers_now.h"

namespace baton::router {

// The request table and its life cycle; see the file comment.
class RouterCore {
 public:
  // Both outlive the core.
  RouterCore(const RouterCoreConfig& config, WorkerConnector* connector,
             const obs::BatonMetrics* metrics);
  ~RouterCore();

  // Clients.
  void Submit(RequestUid uid, GenerateRequest request, std::shared_ptr<ResponseSink> sink,
              int64_t now_us);
  void Cancel(RequestUid uid, CancelCause cause = CancelCause::kClientLeft, int64_t now_us = 0);

  // Leases of workers.
  void OnWorkerHello(LeaseId lease, WorkerDescription worker, std::unique_ptr<LeaseStream> stream,
                     int64_t now_us);
  // Registrations that did not get as far as OnWorkerHello.
  void CountRefusals(obs::RefusalReason reason, uint64_t num_refused);
  void OnWorkerLoad(LeaseId lease, WorkerLoadReport load, int64_t now_us);
  void OnPrefixEvents(LeaseId lease, const PrefixBatch& batch, int64_t now_us);
  void OnLeaseClosed(LeaseId lease);
  // Asks a worker to leave: it gets no new request from now on; what runs there ends, or goes on
  // elsewhere once `timeout_ms` have passed (0 = the worker's own limit). The life that leaves, or
  // NotFound naming the workers that there are.
  StatusOr<Incarnation> DrainWorker(std::string_view worker_id, uint32_t timeout_ms);

  // Sessions with workers; events of a former session are ignored.
  void OnSessionUp(SessionRef session, int64_t now_us);
  void OnSessionDown(SessionRef session, std::string_view reason, int64_t now_us);
  void OnSessionTokens(SessionRef session, std::vector<WorkerToken> tokens, int64_t now_us);
  void OnSessionStatus(SessionRef session, const WorkerRequestStatus& status, int64_t now_us);

  // The caller stood still for `late_us`, up to now (its process was stopped, or its machine), and
  // heard nobody: that time counts as silence of no worker, placement or client. Before what has
  // come meanwhile is told.
  void ForgiveSilence(int64_t late_us);
  // Timers: deadlines, leases, slow clients, the queue. Call it at NextTickUs(), asked again after
  // each other call, or every TickIntervalUs().
  void Tick(int64_t now_us);
  // At most 0.2 s ahead while there are workers or requests, so that the caller notices soon that
  // it stood still. O(1).
  int64_t NextTickUs(int64_t now_us) const;
  int64_t TickIntervalUs() const;

  // Not ready any more, and no shadow runs: only clients are waited for.
  void BeginLeave();
  // Ends every request with `code`.
  void FailAll(ErrorCode code);
  // Ends every request with kDraining, now and at Submit, and every session and lease.
  void Shutdown();

  bool Ready(int64_t now_us) const;  // a request would be served now
  // As Ready, as of the last Tick or change of workers. Computed again only when a worker changed.
  bool CheckReady(int64_t now_us);
  size_t num_live() const { return table_.requests().size(); }
  size_t num_queued() const { return waiting_.num_queued(); }
  // A decode worker could run `shadow` now without delaying a client.
  bool HasIdleWorkerFor(const GenerateRequest& shadow, int64_t now_us) const {
    return planner_.HasIdleWorkerFor(shadow, now_us);
  }
  // The numerics of a live worker; none: it is not known.
  std::optional<uint64_t> NumericsOf(std::string_view worker_id);
  std::vector<std::shared_ptr<const ModelInfo>> Models() const { return state_.registry.Models(); }
  bool TakeModelsChanged();                     // true once after each change of Models()
  Topology TopologyView(int64_t now_us) const;  // of workers; its process adds the router's row
  // Each pair of live workers whose data connection is up or was, in the order of the topology; one
  // row for each transport of a pair.
  std::vector<LinkRow> LinkRows() const;
  std::vector<RequestView> RequestViews(int64_t now_us) const {
    return table_.RequestViews(now_us);
  }
  // The last requests that ended, then those that live, each oldest first; no shadows.
  std::vector<std::shared_ptr<const RequestTrace>> Traces(int64_t now_us) const {
    return table_.Traces(now_us);
  }
  const WorkerRegistry& registry() const { return state_.registry; }
  const RouterPrefixIndex& prefixes() const { return state_.prefixes; }

 private:
  // router_core.cc: life and end of requests.
  void LookAtWorkersAgain(int64_t now_us);
  void CheckTimers(RouterRequest& request, int64_t now_us);
  RegisteredWorker* WorkerInTurn(const RouterRequest& request);

  // router_core_workers.cc: leases and sessions.
  void DropWorker(LeaseId lease, std::string_view reason);
  void OpenSession(RegisteredWorker& worker);
  RegisteredWorker* FindSession(SessionRef session);
  void MembersChanged();
  void CheckWorkers(int64_t now_us);
  void TrackPrefixes(const RegisteredWorker& worker, int64_t now_us);
  void AskResyncs(int64_t now_us);
  void ReportDecodePool();

  // router_core_links.cc: KV on its way.
  void ProbeLinks(int64_t now_us);
  void OnKvTotal(RouterRequest& request, uint64_t total_bytes);
  void OnKvProgress(RouterRequest& request, const WorkerRequestStatus& status, int64_t now_us);
  void OnVerified(RouterRequest& request, const WorkerRequestStatus& status, int64_t now_us);
  void WatchTransfers(int64_t now_us);
  // Null: nothing was handed off there.
  const scheduler::LinkHealth* HealthOf(const RegisteredWorker& prefill,
                                        std::string_view decode_id) const;
  void ShowHealth(const RegisteredWorker& prefill, LinkView& link, int64_t now_us) const;
  void OnSlowLink(RegisteredWorker& prefill, LeaseId decode, double bytes_per_s, int64_t now_us);
  void MoveIfSlow(RouterRequest& request, const scheduler::KvOnItsWay& kv, int64_t now_us);

  // router_core_stream.cc: what workers say of requests.
  void OnToken(LeaseId lease, WorkerToken token, int64_t now_us);
  void OnMark(RouterRequest& request, bool is_prefill, const WorkerRequestStatus& status,
              int64_t now_us);
  void CountSource(RouterRequest& request, const WorkerRequestStatus& status);

  WorkerConnector* const connector_;
  RouterState state_;
  WaitingRequests waiting_;
  RequestTable table_;
  RoutePlanner planner_;
  Placer placer_;
  PlacementQueue queue_;
  Delivery delivery_;
  Recovery recovery_;
  PlannedMoves moves_;
  bool models_changed_ = false;
  uint64_t num_not_kept_ = 0;  // of the index, when it was last looked at
  bool warned_key_ = false;    // of workers with another chain key
  int64_t renewed_us_ = 0;
  int64_t watched_us_ = 0;  // when WatchTransfers last looked
  LinkTurn last_looked_;    // of the late requests, the last one that WatchTransfers looked at
  uint64_t probe_draw_;     // state of the draws for probes
  WorkersNow workers_now_;  // as of the last tick; the default: a worker has changed since
  bool ready_ = false;      // Ready at ready_us_, when the workers' state was ready_state_
  uint64_t ready_state_ = 0;
  int64_t ready_us_ = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTER_CORE_H_
