// PlacementReports: what workers say of a placement that goes on: how far it is, and where its KV
// comes from. The router's thread.
#ifndef BATON_ROUTER_PLACEMENT_REPORTS_H_
#define BATON_ROUTER_PLACEMENT_REPORTS_H_

#include <cstdint>

#include "src/router/delivery.h"
#include "src/router/link_watch.h"
#include "src/router/recovery.h"
#include "src/router/request_table.h"
#include "src/router/worker_messages.h"

namespace baton::router {

// See the file comment.
class PlacementReports {
 public:
  // All outlive it.
  PlacementReports(RouterState* state, RequestTable* table, LinkWatch* links, Delivery* delivery,
                   Recovery* recovery)
      : state_(state), table_(table), links_(links), delivery_(delivery), recovery_(recovery) {}

  // A report about the current placement, with a state that ends neither half. May end the request.
  void OnReport(RouterRequest& request, bool is_prefill, const WorkerRequestStatus& status,
                int64_t now_us);

 private:
  void CountSource(RouterRequest& request, const WorkerRequestStatus& status);

  RouterState* const state_;
  RequestTable* const table_;
  LinkWatch* const links_;
  Delivery* const delivery_;
  Recovery* const recovery_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PLACEMENT_REPORTS_H_
