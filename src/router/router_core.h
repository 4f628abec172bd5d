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
//
// The work is done by parts with one duty each, which know only parts above them in the list of
// members. RouterCore hands each event to them in the right order.
#ifndef BATON_ROUTER_ROUTER_CORE_H_
#define BATON_ROUTER_ROUTER_CORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/obs/baton_metrics.h"
#include "src/router/cluster_views.h"
#include "src/router/delivery.h"
#include "src/router/link_metrics.h"
#include "src/router/link_watch.h"
#include "src/router/placement_queue.h"
#include "src/router/placement_reports.h"
#include "src/router/placer.h"
#include "src/router/planned_moves.h"
#include "src/router/readiness.h"
#include "src/router/recovery.h"
#include "src/router/request_checks.h"
#include "src/router/request_table.h"
#include "src/router/route_planner.h"
#include "src/router/router_core_config.h"
#include "src/router/router_request.h"
#include "src/router/router_state.h"
#include "src/router/submit.h"
#include "src/router/topology.h"
#include "src/router/waiting_requests.h"
#include "src/router/worker_leases.h"
#include "src/router/worker_link.h"
#include "src/router/worker_registry.h"

namespace baton::router {

// Hands each event to the part that has the duty; see the file comment.
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
  void CountRefusals(obs::RefusalReason reason, uint64_t num_refused) {
    leases_.CountRefusals(reason, num_refused);
  }
  void OnWorkerLoad(LeaseId lease, WorkerLoadReport load, int64_t now_us);
  void OnPrefixEvents(LeaseId lease, const PrefixBatch& batch, int64_t now_us);
  void OnLeaseClosed(LeaseId lease) { leases_.OnLeaseClosed(lease); }
  // Asks a worker to leave. It gets no new request from now on. Its requests end there, or go on
  // elsewhere once `timeout_ms` have passed (0 = the worker's own limit). Returns the life that
  // leaves, or NotFound naming the workers that there are.
  StatusOr<Incarnation> DrainWorker(std::string_view worker_id, uint32_t timeout_ms) {
    return leases_.DrainWorker(worker_id, timeout_ms);
  }

  // Sessions with workers; events of a former session are ignored.
  void OnSessionUp(SessionRef session, int64_t now_us);
  void OnSessionDown(SessionRef session, std::string_view reason, int64_t now_us);
  void OnSessionTokens(SessionRef session, std::vector<WorkerToken> tokens, int64_t now_us);
  void OnSessionStatus(SessionRef session, const WorkerRequestStatus& status, int64_t now_us);

  // The caller stood still for `late_us`, up to now, and heard nobody: that time counts as silence
  // of no worker, placement or client. Call it before what has come meanwhile is told.
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
  void FailAll(ErrorCode code) { table_.FailAll(code); }
  // Ends every request with kDraining, now and at Submit, and every session and lease.
  void Shutdown();

  // A request would be served now (Readiness::Ready).
  bool Ready(int64_t now_us) const { return readiness_.Ready(now_us); }
  // As Ready, as of the last Tick or change of workers. Computed again only when a worker changed.
  bool CheckReady(int64_t now_us) { return readiness_.CheckReady(Times(), now_us); }
  size_t num_live() const { return table_.requests().size(); }
  size_t num_queued() const { return waiting_.num_queued(); }
  // A decode worker could run `shadow` now without delaying a client.
  bool HasIdleWorkerFor(const GenerateRequest& shadow, int64_t now_us) const {
    return planner_.HasIdleWorkerFor(shadow, now_us);
  }
  // The numerics of a live worker; none: it is not known.
  std::optional<uint64_t> NumericsOf(std::string_view worker_id) {
    return leases_.NumericsOf(worker_id);
  }
  std::vector<std::shared_ptr<const ModelInfo>> Models() const { return state_.registry.Models(); }
  // True once after each change of Models().
  bool TakeModelsChanged() { return leases_.TakeModelsChanged(); }
  // The topology of workers; the router's process adds its own row.
  Topology TopologyView(int64_t now_us) const {
    Topology topology = TopologyOf(state_.registry, state_.config.expected_models.size(), now_us);
    topology.objectives = ObjectivesOf(state_);
    return topology;
  }
  // Each pair of live workers whose data connection is up or was, in the order of the topology; one
  // row for each transport of a pair.
  std::vector<LinkRow> LinkRows() const { return LinkRowsOf(state_.registry); }
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
  void OnToken(LeaseId lease, WorkerToken token, int64_t now_us);
  void ProbeLinks(int64_t now_us);
  WatchedTimes Times() const;

  RouterState state_;
  WaitingRequests waiting_;
  RequestTable table_;
  RoutePlanner planner_;
  Placer placer_;
  PlacementQueue queue_;
  Delivery delivery_;
  Recovery recovery_;
  PlannedMoves moves_;
  LinkWatch links_;
  PlacementReports reports_;
  RequestChecks checks_;
  WorkerLeases leases_;
  Readiness readiness_;
  uint64_t probe_draw_;  // state of the draws for probes
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTER_CORE_H_
