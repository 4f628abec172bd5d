// WorkersNow: what one look at all workers says: when the router has to look again, and whether the
// router's readiness can have changed. Pure; the router's thread.
#ifndef BATON_ROUTER_WORKERS_NOW_H_
#define BATON_ROUTER_WORKERS_NOW_H_

#include <cstdint>

#include "src/router/worker_registry.h"

namespace baton::router {

// KV on its way is looked at this often.
inline constexpr int64_t kWatchEveryUs = 50'000;

// Times that the look needs and no worker knows.
struct WatchedTimes {
  int64_t link_wait_us = 0;  // RouterCoreConfig::link_wait_us
  int64_t watched_us = 0;    // when KV on its way was last looked at
  int64_t renew_us = 0;      // when the leases of requests are renewed next
  // Prompts take the local path from then on, if no prefill worker has joined.
  int64_t first_prefill_by_us = 0;
};

// See the file comment. The default says that nobody has looked yet.
struct WorkersNow {
  int64_t due_us = 0;  // the first time at which a tick has something to do for a worker
  uint64_t state = 0;  // equal values: RouterCore::Ready says the same; 0 = not known
};
// O(workers + links). Times that have passed do not count, except of work that is still to do.
WorkersNow LookAtWorkers(const WorkerRegistry& registry, const WatchedTimes& times, int64_t now_us);

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKERS_NOW_H_
