// RequestTable: the requests that live, what each of them holds at workers, and a record of the
// last ones that ended. The router's thread.
//
// Invariants
//  1. The sink of each request gets exactly one OnFinished or OnFailed, as the last act of its end.
//  2. A request that ends for any reason is cancelled at each worker that may still hold something
//     of it, in the same call.
#ifndef BATON_ROUTER_REQUEST_TABLE_H_
#define BATON_ROUTER_REQUEST_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/router/request_timers.h"
#include "src/router/request_traces.h"
#include "src/router/router_request.h"
#include "src/router/router_state.h"
#include "src/router/submit.h"
#include "src/router/topology.h"
#include "src/router/waiting_requests.h"

namespace baton::router {

// See the file comment.
class RequestTable {
 public:
  using Requests = std::unordered_map<RequestUid, std::unique_ptr<RouterRequest>>;

  // Both outlive the table.
  RequestTable(RouterState* state, WaitingRequests* waiting) : state_(state), waiting_(waiting) {}

  // A request that enters the queue; its uid is new.
  RouterRequest& Add(std::unique_ptr<RouterRequest> owned);
  // Null: it has ended.
  RouterRequest* Find(RequestUid uid);

  // The ends; `request` is gone afterwards.
  void EndGood(RouterRequest& request);
  void EndBad(RouterRequest& request, const RequestError& error);
  void EndBad(RouterRequest& request, ErrorCode code);
  // Tells the client of a bad end, and counts it; the caller has ended the request's life already.
  // `waits`: the request counts as waiting.
  void TellFailed(RouterRequest& request, const RequestError& error, bool waits);
  void Cancel(RequestUid uid, CancelCause cause);
  // Ends every request with `code`.
  void FailAll(ErrorCode code);
  // Ends the shadows on the worker `on`; 0 = on all.
  void EndShadows(LeaseId on);
  // Ends shadows and probes.
  void EndOwn(const std::function<bool(const RouterRequest&)>& is_meant);
  RequestError NoRoomError(const RouterRequest& request, ErrorCode code);
  // Why a request that has just entered is refused at once (WaitingRequests::WaitsInVain).
  std::optional<RequestError> WaitsInVain(const RouterRequest& request, size_t num_before);

  // Gives back what a request holds at one worker. `cancel`: the worker is told.
  void ReleaseHalf(RouterRequest& request, PlacementHalf& half, bool cancel);
  // Takes a computed prompt out of the backlog of its worker.
  void ReleaseBacklog(PlacementHalf& half);
  // The prompt is computed: its choices are streams of the decode worker, or will be at once.
  void CountStreams(PlacementHalf& decode);
  void CancelKept(RouterRequest& request);
  void GiveUpMove(RouterRequest& request);

  // Moves all times by `late_us`, for which the router itself stood still.
  void ForgiveSilence(int64_t late_us);

  // True once after requests ended: others may find room.
  bool TakeRoomFreed() { return std::exchange(room_freed_, false); }
  const Requests& requests() const { return requests_; }
  RequestTimers& timers() { return timers_; }
  const RequestTimers& timers() const { return timers_; }
  size_t num_running() const { return requests_.size() - waiting_->num_queued() - num_own_; }
  size_t num_shadows() const { return num_shadows_; }
  std::vector<RequestView> RequestViews(int64_t now_us) const;
  // The last requests that ended, then the live ones, oldest first in each part. No shadows.
  std::vector<std::shared_ptr<const RequestTrace>> Traces(int64_t now_us) const;

 private:
  void Forget(RouterRequest& request, bool waits);
  // Clients' answers of the request's model that run now.
  std::vector<RunningAnswer> RunningBeside(const RouterRequest& request) const;
  std::shared_ptr<RequestTrace> TraceOf(const RouterRequest& request, int64_t end_us) const;
  void Remember(const RouterRequest& request, int http_status, std::string error);
  // Counts whether a request that ended met the server's objectives. `code`: its bad end.
  void CountObjectives(const RouterRequest& request, std::optional<ErrorCode> code) const;

  RouterState* const state_;
  WaitingRequests* const waiting_;
  Requests requests_;
  RequestTimers timers_;  // of requests_
  RequestTraces traces_;
  size_t num_own_ = 0;      // shadows and probes of requests_
  size_t num_shadows_ = 0;  // of num_own_
  bool room_freed_ = false;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_TABLE_H_
