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
#include "src/router/link_metrics.h"
#include "src/router/planned_route.h"
#include "src/router/queue_rate.h"
#include "src/router/request_timers.h"
#include "src/router/request_traces.h"
#include "src/router/router_core_config.h"
#include "src/router/router_prefix_index.h"
#include "src/router/router_request.h"
#include "src/router/submit.h"
#include "src/router/topology.h"
#include "src/router/worker_link.h"
#include "src/router/worker_registry.h"

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

  // The caller stood still for `late_us`, up to now, and heard nobody: that time counts as silence
  // of no worker, placement or client. Call it before what has come meanwhile is told.
  void ForgiveSilence(int64_t late_us);
  // Timers: deadlines, leases, slow clients, the queue. Call at least every TickIntervalUs().
  void Tick(int64_t now_us);
  int64_t TickIntervalUs() const;

  // Not ready any more, and no shadow runs: only clients are waited for.
  void BeginLeave();
  // Ends every request with `code`.
  void FailAll(ErrorCode code);
  // Ends every request with kDraining, now and at Submit, and every session and lease.
  void Shutdown();

  bool Ready(int64_t now_us) const;  // a request would be served now
  size_t num_live() const { return requests_.size(); }
  size_t num_queued() const { return num_queued_; }
  // A decode worker could run `shadow` now without delaying a client.
  bool HasIdleWorkerFor(const GenerateRequest& shadow, int64_t now_us) const;
  // The numerics of a live worker; none: it is not known.
  std::optional<uint64_t> NumericsOf(std::string_view worker_id);
  std::vector<std::shared_ptr<const ModelInfo>> Models() const { return registry_.Models(); }
  bool TakeModelsChanged();                     // true once after each change of Models()
  Topology TopologyView(int64_t now_us) const;  // of workers; its process adds the router's row
  // Each pair of live workers whose data connection is up or was, in the order of the topology; one
  // row for each transport of a pair.
  std::vector<LinkRow> LinkRows() const;
  std::vector<RequestView> RequestViews(int64_t now_us) const;
  // The last requests that ended, then those that live, each oldest first; no shadows.
  std::vector<std::shared_ptr<const RequestTrace>> Traces(int64_t now_us) const;
  const WorkerRegistry& registry() const { return registry_; }
  const RouterPrefixIndex& prefixes() const { return prefixes_; }

 private:
  // router_core.cc: life and end of requests.
  std::optional<uint32_t> OverloadRetryS(const RouterRequest& request, int64_t now_us) const;
  RequestError NoRoomError(const RouterRequest& request, ErrorCode code);
  void EnterQueue(RouterRequest& request);
  void LeaveQueue(RouterRequest& request);
  void EndGood(RouterRequest& request);
  void EndBad(RouterRequest& request, const RequestError& error);
  void EndBad(RouterRequest& request, ErrorCode code);
  void TellFailed(RouterRequest& request, const RequestError& error, bool waits);
  void Forget(RouterRequest& request, bool waits);
  void ReleaseHalf(RouterRequest& request, PlacementHalf& half, bool cancel);
  void ReleaseBacklog(PlacementHalf& half);
  RouterRequest* FindRequest(RequestUid uid);
  void CheckTimers(RouterRequest& request, int64_t now_us);
  RegisteredWorker* WorkerInTurn(const RouterRequest& request);
  void ReportTableSize();
  void EndShadows(LeaseId on);
  void EndOwn(const std::function<bool(const RouterRequest&)>& is_meant);

  // router_core_trace.cc: what is remembered of requests.
  std::shared_ptr<RequestTrace> TraceOf(const RouterRequest& request, int64_t end_us) const;
  void Remember(const RouterRequest& request, int http_status);
  void NotePlacement(RouterRequest& request, const RegisteredWorker* prefill,
                     const RegisteredWorker& decode, int64_t now_us);

  // router_core_placement.cc: the queue.
  bool BlocksRest(const PlacementClaim& claim) const;
  PlannedRoute RouteFor(RouterRequest& request, const PlacementClaims& claims, int64_t now_us);
  bool IsBound(const RouterRequest& request, int64_t now_us) const;
  uint32_t AnswerContextOf(const RouterRequest& request, int64_t now_us) const;
  bool CutFromNumerics(RouterRequest& request);
  bool MayBecomeReady(const ModelInfo& model, uint64_t numerics_id, uint32_t min_context) const;
  void SetWaiting(RouterRequest& request, bool waits_aside, bool is_apart);
  scheduler::Route RouteForShadow(const RouterRequest& request, const scheduler::RouteQuery& query,
                                  RouteTable& table);
  void PlaceQueued(int64_t now_us);
  void PlaceProbe(RouterRequest& probe, int64_t now_us);
  Placing TryPlace(RouterRequest& request, const PlacementClaims& claims, int64_t now_us,
                   uint32_t* plan_short_context);
  void FindPrefixes(RouterRequest& request, RouteTable& table);
  bool ShouldWaitForPair(scheduler::RouteReason reason, const ModelInfo& model,
                         int64_t now_us) const;
  void Start(RouterRequest& request, RegisteredWorker* prefill, RegisteredWorker& decode,
             int64_t now_us);
  void StartPrefill(RouterRequest& request, const PlacementSpec& spec, RegisteredWorker& prefill,
                    const RegisteredWorker& decode);
  void Requeue(RouterRequest& request, int64_t not_before_us, KeptSource keep);
  void CancelKept(RouterRequest& request);
  void CountSource(RouterRequest& request, const WorkerRequestStatus& status);
  RequestError TooLargeError(const RouterRequest& request) const;

  // router_core_workers.cc: leases and sessions.
  void DropWorker(LeaseId lease, std::string_view reason);
  void OpenSession(RegisteredWorker& worker);
  RegisteredWorker* FindSession(SessionRef session);
  void MembersChanged();
  void CheckWorkers(int64_t now_us);
  void TrackPrefixes(const RegisteredWorker& worker, int64_t now_us);
  void AskResyncs(int64_t now_us);
  void ReportDecodePool();

  // router_core_recovery.cc: placements that cannot go on.
  // `code` is what the client is told when it was one fault too many.
  void Recover(RouterRequest& request, kv::PlacementFault fault, int64_t now_us,
               ErrorCode code = ErrorCode::kWorkerLost);
  bool DeliverIfComplete(RouterRequest& request);
  void RecoverRequestsOn(LeaseId lease, int64_t now_us);
  void PlaceAgain(RouterRequest& request, kv::PlacementFault why, int64_t not_before_us,
                  KeptSource keep);
  void MoveAwayFrom(RegisteredWorker& worker, int64_t now_us);
  bool TryMove(RouterRequest& request, const RegisteredWorker& worker, int64_t now_us);
  void AskMove(RouterRequest& request, const PlannedRoute& planned, int64_t now_us);
  bool Move(RouterRequest& request, int64_t now_us);
  void GiveUpMove(RouterRequest& request);

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
  void Accept(RouterRequest& request, int64_t now_us);
  void OnToken(LeaseId lease, WorkerToken token, int64_t now_us);
  void OnPromptToken(RouterRequest& request, const WorkerToken& token, int64_t now_us);
  void OnHalfEnded(RouterRequest& request, PlacementHalf& half, const WorkerRequestStatus& status);
  void OnRejected(RouterRequest& request, PlacementHalf& half, const WorkerRequestStatus& status,
                  int64_t now_us);
  void OnMoveRefused(RouterRequest& request, RegisteredWorker& worker,
                     const WorkerRequestStatus& status, int64_t now_us);
  void OnMark(RouterRequest& request, bool is_prefill, const WorkerRequestStatus& status,
              int64_t now_us);
  void OnDelivery(RouterRequest& request);
  bool DeliverNext(RouterRequest& request, uint32_t choice);

  const RouterCoreConfig config_;
  WorkerConnector* const connector_;
  const obs::BatonMetrics* const metrics_;

  RequestTraces traces_;
  WorkerRegistry registry_;
  RouterPrefixIndex prefixes_;  // of the workers whose chain has our key
  std::unordered_map<RequestUid, std::unique_ptr<RouterRequest>> requests_;
  RequestTimers timers_;          // of requests_
  std::deque<RequestUid> queue_;  // arrival order; may name requests that have ended
  size_t num_queued_ = 0;         // of requests_, clients' only
  size_t num_aside_ = 0;          // of num_queued_, nobody waits behind them
  size_t num_own_ = 0;            // shadows and probes of requests_
  size_t num_shadows_ = 0;        // of num_own_
  // The requests that num_queued_ counts without those that wait apart, by model id.
  std::map<std::string, ModelQueue, std::less<>> model_queues_;
  std::map<std::string, RetryEstimate, std::less<>> retries_;  // by model id
  bool queue_changed_ = false;                                 // PlaceQueued has something to try
  enum class Stage : uint8_t { kServes, kLeaves, kStopped } stage_ = Stage::kServes;
  bool models_changed_ = false;
  uint64_t num_not_kept_ = 0;     // of the index, when it was last looked at
  bool warned_key_ = false;       // of workers with another chain key
  bool seen_prefill_ = false;     // a prefill worker has registered in this life
  int64_t first_decode_us_ = -1;  // when the first decode worker registered, -1 = none yet
  int64_t renewed_us_ = 0;
  int64_t watched_us_ = 0;  // when WatchTransfers last looked
  LinkTurn last_looked_;    // of the late requests, the last one that WatchTransfers looked at
  uint64_t probe_draw_;     // state of the draws for probes
  int64_t now_us_ = 0;      // the latest time told
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTER_CORE_H_
