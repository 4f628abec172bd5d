// Recovery: a placed request whose placement cannot go on enters the queue again and is placed as
// its next attempt, from the tokens that are known. The client sees only a pause. The limits of
// faults are those of kvcache/handoff_request.h. The router's thread.
#ifndef BATON_ROUTER_RECOVERY_H_
#define BATON_ROUTER_RECOVERY_H_

#include <cstdint>

#include "kvcache/handoff_request.h"
#include "src/router/delivery.h"
#include "src/router/placement_queue.h"

namespace baton::router {

// See the file comment. Every function may end the requests that it is about.
class Recovery {
 public:
  // All outlive the recovery.
  Recovery(RouterState* state, RequestTable* table, const RoutePlanner* planner,
           PlacementQueue* queue, Delivery* delivery)
      : state_(state), table_(table), planner_(planner), queue_(queue), delivery_(delivery) {}

  // `code` is what the client is told when it was one fault too many.
  void Recover(RouterRequest& request, kv::PlacementFault fault, int64_t now_us,
               ErrorCode code = ErrorCode::kWorkerLost);
  // The session with a worker, or the worker, is lost.
  void RecoverRequestsOn(LeaseId lease, int64_t now_us);
  // A worker of the placement is done with it, for good or bad.
  void OnHalfEnded(RouterRequest& request, PlacementHalf& half, const WorkerRequestStatus& status);
  // A worker of the placement did not take it.
  void OnRejected(RouterRequest& request, PlacementHalf& half, const WorkerRequestStatus& status,
                  int64_t now_us);
  // Its time is over.
  void EndAtDeadline(RouterRequest& request, int64_t now_us);
  // The decode worker gets no more of the KV that it still needs.
  void OnStranded(RouterRequest& request, const WorkerRequestStatus& status, int64_t now_us);
  // Ends the placement for `why`, whose limit is not exceeded.
  void PlaceAgain(RouterRequest& request, kv::PlacementFault why, int64_t not_before_us,
                  KeptSource keep);

 private:
  // One worker too many has died under it.
  void EndAfterDeaths(RouterRequest& request);

  RouterState* const state_;
  RequestTable* const table_;
  const RoutePlanner* const planner_;
  PlacementQueue* const queue_;
  Delivery* const delivery_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_RECOVERY_H_
