// RoutePlanner: where a request would be placed, as the workers are now. Pure: it changes neither
// the request nor a worker, so that a placement that is only thought of leaves no trace. The
// router's thread.
#ifndef BATON_ROUTER_ROUTE_PLANNER_H_
#define BATON_ROUTER_ROUTE_PLANNER_H_

#include <cstdint>
#include <optional>

#include "src/router/planned_route.h"
#include "src/router/request_error.h"
#include "src/router/router_request.h"
#include "src/router/router_state.h"

namespace baton::router {

// See the file comment.
class RoutePlanner {
 public:
  // `state` outlives the planner.
  explicit RoutePlanner(const RouterState* state) : state_(state) {}

  // Why no decode worker of the model can serve it: all are of a release that does not know what it
  // asks for. None: one can, or there are none at all, and the request waits.
  std::optional<RequestError> UnableError(const RouterRequest& request) const;

  // The workers that may take it: for a vector the prefill workers, where the model has one that
  // gives vectors and does not drain, and the mode is not aggregated; else the decode workers.
  // Where all that give vectors drain, the prefill workers among them come first.
  WorkerRole RoleFor(const RouterRequest& request) const;
  // One of those is alive and not about to leave.
  bool IsServed(const RouterRequest& request) const;
  // The session with such a one is up. One that registers and cannot be called has none.
  bool IsCallable(const RouterRequest& request) const;

  // For a placement that begins with `start`; `claims`: workers that requests before it wait for.
  PlannedRoute Plan(const RouterRequest& request, const PlacementStart& start,
                    const PlacementClaims& claims, int64_t now_us) const;

  // Its client has seen tokens of one numerics, and a worker of others could go on with other ones.
  // In the end that is better than none, but not for several choices: they are computed again from
  // their beginning, and what was seen would not fit what follows.
  bool IsBound(const RouterRequest& request, int64_t now_us) const;
  // The least context of a worker that holds all tokens that the client was promised.
  uint32_t AnswerContextOf(const RouterRequest& request, int64_t now_us) const;
  // A route without a pair, for this reason, may be worth waiting for: a pair is about to stand.
  bool ShouldWaitForPair(scheduler::RouteReason reason, const ModelInfo& model,
                         int64_t now_us) const;
  // A decode worker could run `shadow` now without delaying a client.
  bool HasIdleWorkerFor(const GenerateRequest& shadow, int64_t now_us) const;
  // A request for some model would be served now, and not wait for a pair.
  bool HasSomeRoute(int64_t now_us) const;
  // As above for each expected model (RouterCoreConfig).
  bool HasAllRoutes(int64_t now_us) const;
  // Names the first of prompt, answer and number of choices that no pool holds, with the largest
  // value that one does. The rules are those of PickRoute and of the worker's scheduler.
  RequestError TooLargeError(const RouterRequest& request) const;

 private:
  // For a vector: one worker alone, named as the route's decode worker.
  void PlanEmbedding(const RouterRequest& request, PlannedRoute& planned) const;
  bool HasRoute(const ModelInfo& model, int64_t now_us) const;
  bool MayBecomeReady(const ModelInfo& model, uint64_t numerics_id, uint32_t min_context) const;
  scheduler::Route RouteForShadow(const RouterRequest& request, const scheduler::RouteQuery& query,
                                  RouteTable& table) const;

  const RouterState* const state_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTE_PLANNER_H_
