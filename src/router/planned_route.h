// PlannedRoute: where a request would be placed, with what was known of the cluster then; and what
// requests before it in the queue claim. Plain values; the router's thread.
#ifndef BATON_ROUTER_PLANNED_ROUTE_H_
#define BATON_ROUTER_PLANNED_ROUTE_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "src/router/router_prefix_index.h"
#include "src/router/router_request.h"
#include "src/router/worker_registry.h"

namespace baton::router {

// The beginning of a request's placement.
struct PlacementStart {
  uint32_t num_replayed = 0;  // output tokens
  KeptSource kept;            // the worker that holds KV of the attempt before
  SlowSource slow;
};
// The next placement of a request that waits.
inline PlacementStart NextStartOf(const RouterRequest& request) {
  return {request.num_replayed, request.kept, request.slow};
}

// See the file comment.
struct PlannedRoute {
  scheduler::Route route;
  RouteTable table;            // that the route's indices refer to
  LeaseId source;              // the decode worker whose KV moves to the route's; 0 = none
  bool is_bound = false;       // to its numerics, and workers of others are there
  uint32_t short_context = 0;  // the largest of those that would cut it short; 0 = none would
  bool must_wait = false;      // bound, and one of its numerics may become ready
  uint32_t num_replayed = 0;   // of PlacementStart
  // For RouterRequest::NotePrefixes: the prompt's blocks where nobody had hashed them yet,
  // and who holds how many.
  std::vector<kv::ChainLink> new_links;
  std::vector<RouterPrefixIndex::Hit> hits;
  LeaseId PrefillLease() const;  // where KV comes from to the route's decode worker; 0 = none
};

// The result of trying to place a request. kWaitAside: the request waits for a worker of its own
// numerics while there are others. No other request has to wait for it.
enum class Placing : uint8_t { kPlaced, kWait, kWaitAside, kEnded };

// Workers that later requests of the queue leave to one before them.
struct PlacementClaim {
  std::string_view model;
  // Decode workers, by the two below; false: none.
  bool decode = true;
  std::optional<uint64_t> numerics_id;  // none: all of the model
  uint32_t min_context = 0;             // of them, those of at least so many tokens
  // Prefill workers: those that pair with one of these decode workers; without any, those that give
  // vectors.
  bool prefill = false;
};
using PlacementClaims = std::vector<PlacementClaim>;
// Whether decode workers of those numerics (none: all) and that context are claimed.
bool HasClaim(const PlacementClaims& claims, std::string_view model,
              std::optional<uint64_t> numerics_id, uint32_t context);
// Whether a vector claims the prefill workers that give vectors.
bool HasVectorClaim(const PlacementClaims& claims, std::string_view model);

// The reasons why a request that was not placed waits, beside room at a decode worker.
struct PlacementLack {
  uint32_t short_context = 0;  // PlannedRoute::short_context
  bool prefill = false;        // room at a prefill worker
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PLANNED_ROUTE_H_
