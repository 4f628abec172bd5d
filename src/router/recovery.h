// Recovery: puts a request into the queue again when its placement cannot go on. The next attempt
// starts from the tokens that are known, so the client sees only a pause. kvcache/handoff_request.h
// has the limits of faults. The router's thread.
#ifndef BATON_ROUTER_RECOVERY_H_
#define BATON_ROUTER_RECOVERY_H_

#include <cstdint>

#include "kvcache/handoff_request.h"
#include "src/router/delivery.h"
#include "src/router/placement_queue.h"

namespace baton::router {

// See the file comment. Every function may end the requests that it gets.
class Recovery {
 public:
  // All outlive the recovery.
  Recovery(RouterState* state, RequestTable* table, const RoutePlanner* planner,
           PlacementQueue* queue, Delivery* delivery)
      : state_(state), table_(table), planner_(planner), queue_(queue), delivery_(delivery) {}

  // `code`: the client's error when the request has had one fault too many.
  void Recover(RouterRequest& request, kv::PlacementFault fault, int64_t now_us,
               ErrorCode code = ErrorCode::kWorkerLost);
  // The session with a worker, or the worker, is lost.
  void RecoverRequestsOn(LeaseId lease, int64_t now_us);
  // A worker of the placement ended its half, well or badly.
  void OnHalfEnded(RouterRequest& request, PlacementHalf& half, const WorkerRequestStatus& status);
  // A worker of the placement refused its half.
  void OnRejected(RouterRequest& request, PlacementHalf& half, const WorkerRequestStatus& status,
                  int64_t now_us);
  // The request's deadline has passed.
  void EndAtDeadline(RouterRequest& request, int64_t now_us);
  // The decode worker gets no more of the KV that it still needs.
  void OnStranded(RouterRequest& request, const WorkerRequestStatus& status, int64_t now_us);
  // Ends the placement for `why`, whose limit is not exceeded.
  void PlaceAgain(RouterRequest& request, kv::PlacementFault why, int64_t not_before_us,
                  KeptSource keep);

 private:
  // Too many workers have died while they worked for the request.
  void EndAfterDeaths(RouterRequest& request);

  RouterState* const state_;
  RequestTable* const table_;
  const RoutePlanner* const planner_;
  PlacementQueue* const queue_;
  Delivery* const delivery_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_RECOVERY_H_
