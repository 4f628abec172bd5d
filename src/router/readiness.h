// Readiness: whether a request would be served now, and when the workers need the next look. Both
// are computed when a worker has changed, and not otherwise. The router's thread.
#ifndef BATON_ROUTER_READINESS_H_
#define BATON_ROUTER_READINESS_H_

#include <cstdint>

#include "src/router/route_planner.h"
#include "src/router/router_state.h"
#include "src/router/workers_now.h"

namespace baton::router {

// See the file comment.
class Readiness {
 public:
  // Both outlive it.
  Readiness(RouterState* state, const RoutePlanner* planner) : state_(state), planner_(planner) {}

  // Requests would be served now. At first those of each expected model; from then on of some
  // model, since the others must not suffer when one model loses its workers.
  bool Ready(int64_t now_us) const;
  // As Ready, as of the last Look or change of workers.
  bool CheckReady(const WatchedTimes& times, int64_t now_us);
  // At the end of each tick.
  void Look(const WatchedTimes& times, int64_t now_us);
  // The first time at which a tick has something to do for a worker.
  int64_t due_us() const { return state_->workers_changed ? 0 : workers_.due_us; }

 private:
  RouterState* const state_;
  const RoutePlanner* const planner_;
  WorkersNow workers_;                 // as of the last look
  mutable bool was_complete_ = false;  // each expected model had a route once
  bool ready_ = false;                 // at ready_us_, when the workers' state was ready_state_
  uint64_t ready_state_ = 0;
  int64_t ready_us_ = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_READINESS_H_
