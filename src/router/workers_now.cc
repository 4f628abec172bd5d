#include "src/router/workers_now.h"

#include <algorithm>

#include "src/base/limits.h"
#include "src/base/split_mix.h"

namespace baton::router {

using limits::kDeadUs;
using limits::kSuspectUs;

namespace {

// A link that waits for a probe, or that may be slow, is looked at this often.
constexpr int64_t kLinkTickUs = 100'000;

// The first of the times that lie ahead, and whether each of them has passed.
class Times {
 public:
  explicit Times(int64_t now_us) : now_us_(now_us) {}

  // Something is to do at `us`, also when that has passed.
  void Need(int64_t us) { due_us_ = std::min(due_us_, us); }
  // Something is different from `us` on.
  void Change(int64_t us) {
    const bool is_ahead = us > now_us_;
    if (is_ahead) Need(us);
    Mix(is_ahead ? 1 : 2);
  }
  void Mix(uint64_t value) { state_ = SplitMix(state_ ^ SplitMix(value)); }
  WorkersNow result() const { return {due_us_, std::max<uint64_t>(state_, 1)}; }

 private:
  const int64_t now_us_;
  int64_t due_us_ = INT64_MAX;
  uint64_t state_ = 1;
};

void AddLinks(const RegisteredWorker& worker, const WatchedTimes& times, int64_t now_us,
              Times& seen) {
  for (const LinkView& link : worker.load.links) {
    if (link.up) seen.Mix(link.to_incarnation.value());
  }
  for (const auto& [decode, link] : worker.links) {
    const bool is_left_alone = link.IsLeftAlone(now_us);
    if (is_left_alone) seen.Mix(decode.value());
    if (is_left_alone || link.limit_bytes_per_s() > 0) seen.Need(now_us + kLinkTickUs);
  }
  const bool may_send_kv = !worker.links.empty() && worker.num_requests > 0;
  if (may_send_kv) seen.Need(times.watched_us + kWatchEveryUs);
}

}  // namespace

WorkersNow LookAtWorkers(const WorkerRegistry& registry, const WatchedTimes& times,
                         int64_t now_us) {
  Times seen(now_us);
  seen.Change(times.first_prefill_by_us);
  for (const auto& [lease, worker] : registry.workers()) {
    seen.Mix(lease.value());
    seen.Mix(worker.Usable(now_us) ? 1 : 2);
    seen.Mix(worker.load.draining ? 1 : 2);
    seen.Need(worker.heard_us + kDeadUs);
    seen.Change(worker.heard_us + kSuspectUs);
    seen.Change(worker.avoided_until_us);
    seen.Change(worker.registered_us + times.link_wait_us);
    if (worker.session == nullptr) seen.Need(worker.reconnect_us);
    if (worker.session_up && worker.num_requests > 0) seen.Need(times.renew_us);
    const bool has_streams_to_move =
        worker.load.draining && !worker.IsPrefill() && worker.num_requests > 0;
    if (has_streams_to_move) seen.Need(now_us);
    AddLinks(worker, times, now_us, seen);
  }
  return seen.result();
}

}  // namespace baton::router
