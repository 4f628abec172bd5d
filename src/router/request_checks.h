// RequestChecks: looks at requests whose timer has run out: deadlines, waits, workers that hang and
// clients that read slowly. The router's thread.
#ifndef BATON_ROUTER_REQUEST_CHECKS_H_
#define BATON_ROUTER_REQUEST_CHECKS_H_

#include <cstdint>

#include "src/router/delivery.h"
#include "src/router/recovery.h"
#include "src/router/request_table.h"
#include "src/router/router_state.h"

namespace baton::router {

// See the file comment.
class RequestChecks {
 public:
  // All outlive the checks.
  RequestChecks(RouterState* state, RequestTable* table, const RoutePlanner* planner,
                Delivery* delivery, Recovery* recovery)
      : state_(state), table_(table), planner_(planner), delivery_(delivery), recovery_(recovery) {}

  // Looks at each request whose time has come, and may end it. Each tick of the router calls it.
  void Run(int64_t now_us);

 private:
  void Check(RouterRequest& request, int64_t now_us);
  RegisteredWorker* WorkerInTurn(const RouterRequest& request);

  RouterState* const state_;
  RequestTable* const table_;
  const RoutePlanner* const planner_;
  Delivery* const delivery_;
  Recovery* const recovery_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_CHECKS_H_
