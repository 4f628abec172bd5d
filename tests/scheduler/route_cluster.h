// A snapshot of a cluster for tests of the route policy.
#ifndef BATON_TESTS_SCHEDULER_ROUTE_CLUSTER_H_
#define BATON_TESTS_SCHEDULER_ROUTE_CLUSTER_H_

#include <vector>

#include "scheduler/route_policy.h"

namespace baton::scheduler {

// Equal idle workers with pools of `num_blocks` and all links up, to be changed by each test.
struct RouteCluster {
  std::vector<PrefillLoad> prefill;
  std::vector<DecodeLoad> decode;
  std::vector<LinkUp> links;

  RouteCluster(uint32_t num_blocks, uint32_t num_prefill, uint32_t num_decode)
      : prefill(num_prefill,
                {.ready = true, .num_free_blocks = num_blocks, .num_blocks = num_blocks}),
        decode(num_decode,
               {.ready = true, .num_free_blocks = num_blocks, .num_blocks = num_blocks}) {
    for (uint32_t p = 0; p < num_prefill; ++p) {
      for (uint32_t d = 0; d < num_decode; ++d) links.push_back({p, d});
    }
  }
  Route Pick(const RouteQuery& query) const { return PickRoute({prefill, decode, links}, query); }
};

}  // namespace baton::scheduler

#endif  // BATON_TESTS_SCHEDULER_ROUTE_CLUSTER_H_
