// Placer: places one request, when its plan has room: counts it at its workers and sends their
// orders. The router's thread.
#ifndef BATON_ROUTER_PLACER_H_
#define BATON_ROUTER_PLACER_H_

#include <cstdint>

#include "src/router/planned_route.h"
#include "src/router/request_table.h"
#include "src/router/route_planner.h"
#include "src/router/router_state.h"
#include "src/router/waiting_requests.h"

namespace baton::router {

// See the file comment.
class Placer {
 public:
  // All outlive the placer.
  Placer(RouterState* state, WaitingRequests* waiting, RequestTable* table,
         const RoutePlanner* planner)
      : state_(state), waiting_(waiting), table_(table), planner_(planner) {}

  // `claims`: workers that requests before it wait for. `lack`: what it waits for. May end the
  // request.
  Placing TryPlace(RouterRequest& request, const PlacementClaims& claims, int64_t now_us,
                   PlacementLack* lack);
  // A probe does not go through the queue: clients that wait for room do not hold it up. It takes a
  // few blocks, and it ends soon.
  void PlaceProbe(RouterRequest& probe, int64_t now_us);
  // The next attempt of a request that waits. Null `prefill`: `decode` computes the prompt itself.
  void Start(RouterRequest& request, RegisteredWorker* prefill, RegisteredWorker& decode,
             int64_t now_us);
  // Asks the plan's decode worker for room; the current placement goes on.
  void AskMove(RouterRequest& request, const PlannedRoute& planned, int64_t now_us);

 private:
  // A place is there, but the answer would come after its deadline, or its first token after the
  // server's objective: the request has ended.
  bool RefusedAsTooLate(RouterRequest& request, const PlannedRoute& planned, int64_t now_us);
  bool RefusedByObjective(RouterRequest& request, const PlannedRoute& planned, int64_t now_us);
  bool CutFromNumerics(RouterRequest& request);
  // Tells the traces and the metrics why a client's answer is placed so.
  void TakeNote(RouterRequest& request, const RouteNote& note);
  void StartPrefill(RouterRequest& request, const PlacementSpec& spec, RegisteredWorker& prefill,
                    const RegisteredWorker& decode);

  RouterState* const state_;
  WaitingRequests* const waiting_;
  RequestTable* const table_;
  const RoutePlanner* const planner_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PLACER_H_
