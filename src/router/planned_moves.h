// PlannedMoves: streams leave a decode worker that drains. Another one is asked first; the stream
// goes on where it is until that one has reserved. A move is no fault. The router's thread.
#ifndef BATON_ROUTER_PLANNED_MOVES_H_
#define BATON_ROUTER_PLANNED_MOVES_H_

#include <cstdint>

#include "src/router/placer.h"
#include "src/router/recovery.h"
#include "src/router/worker_messages.h"

namespace baton::router {

// See the file comment.
class PlannedMoves {
 public:
  // All outlive the moves.
  PlannedMoves(RouterState* state, RequestTable* table, const RoutePlanner* planner, Placer* placer,
               Recovery* recovery)
      : state_(state), table_(table), planner_(planner), placer_(placer), recovery_(recovery) {}

  // Asks for other places for a few of the streams of `worker`, which drains.
  void MoveAwayFrom(RegisteredWorker& worker, int64_t now_us);
  // The worker that was asked has reserved: what it takes over ends here, and its source is told.
  // False when that one has gone meanwhile, or tokens came that the other could not go on from; the
  // stream then stays.
  bool Move(RouterRequest& request, int64_t now_us);
  // The stream goes on where it is, and the worker counts as full for a while.
  void OnMoveRefused(RouterRequest& request, RegisteredWorker& worker,
                     const WorkerRequestStatus& status, int64_t now_us);

 private:
  bool TryMove(RouterRequest& request, const RegisteredWorker& worker, int64_t now_us);

  RouterState* const state_;
  RequestTable* const table_;
  const RoutePlanner* const planner_;
  Placer* const placer_;
  Recovery* const recovery_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PLANNED_MOVES_H_
