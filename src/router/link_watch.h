// LinkWatch: measures how fast KV crosses each link. It finds the requests whose KV would come too
// late, and the bad links that should be probed again. The router's thread.
#ifndef BATON_ROUTER_LINK_WATCH_H_
#define BATON_ROUTER_LINK_WATCH_H_

#include <cstdint>
#include <vector>

#include "scheduler/link_health.h"
#include "src/router/recovery.h"
#include "src/router/request_table.h"
#include "src/router/route_planner.h"
#include "src/router/worker_messages.h"

namespace baton::router {

// See the file comment.
class LinkWatch {
 public:
  // All outlive the watch.
  LinkWatch(RouterState* state, RequestTable* table, const RoutePlanner* planner,
            Recovery* recovery)
      : state_(state), table_(table), planner_(planner), recovery_(recovery) {}

  // Corrects the bytes of KV that the request needs. The router guessed them when it placed the
  // request; the decode worker knows them. The router believes at most the whole prompt's blocks.
  void OnKvTotal(RouterRequest& request, uint64_t total_bytes);
  void OnKvProgress(RouterRequest& request, const WorkerRequestStatus& status, int64_t now_us);
  void OnVerified(RouterRequest& request, const WorkerRequestStatus& status, int64_t now_us);

  // Places requests again whose KV would come too late. Looks every kWatchEveryUs.
  void WatchTransfers(int64_t now_us);
  // Returns the links that should be probed now, and counts them as probed.
  std::vector<ProbedLink> TakeDueProbes(int64_t now_us);

  int64_t watched_us() const { return watched_us_; }  // when WatchTransfers last looked
  void ForgiveSilence(int64_t late_us) { watched_us_ += late_us; }

 private:
  void OnSlowLink(RegisteredWorker& prefill, LeaseId decode, double bytes_per_s, int64_t now_us);
  void MoveIfSlow(RouterRequest& request, const scheduler::KvOnItsWay& kv, int64_t now_us);

  RouterState* const state_;
  RequestTable* const table_;
  const RoutePlanner* const planner_;
  Recovery* const recovery_;
  int64_t watched_us_ = 0;
  LinkTurn last_looked_;  // of the late requests, the last one that was looked at
};

}  // namespace baton::router

#endif  // BATON_ROUTER_LINK_WATCH_H_
