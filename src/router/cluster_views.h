// Views of the router's workers and their links, for topologies and metrics. Pure; the router's
// thread.
#ifndef BATON_ROUTER_CLUSTER_VIEWS_H_
#define BATON_ROUTER_CLUSTER_VIEWS_H_

#include <cstdint>
#include <vector>

#include "src/router/link_metrics.h"
#include "src/router/router_state.h"
#include "src/router/topology.h"
#include "src/router/worker_registry.h"

namespace baton::router {

// The topology of workers; the router's process adds its own row. `num_expected_models`: models
// that the router was started for.
Topology TopologyOf(const WorkerRegistry& registry, size_t num_expected_models, int64_t now_us);
// The objectives of the router, with what its metrics count.
std::vector<ObjectiveView> ObjectivesOf(const RouterState& state);
// Each pair of live workers whose data connection is up or was, in the order of the topology; one
// row for each transport of a pair.
std::vector<LinkRow> LinkRowsOf(const WorkerRegistry& registry);

}  // namespace baton::router

#endif  // BATON_ROUTER_CLUSTER_VIEWS_H_
