#include "src/router/readiness.h"

namespace baton::router {

namespace {

// Readiness is computed again after so long, though no worker has changed: the reason for a local
// path may be another when another worker has the least load.
constexpr int64_t kReadyTrustedUs = 1'000'000;

}  // namespace

void Readiness::Look(const WatchedTimes& times, int64_t now_us) {
  workers_ = LookAtWorkers(state_->registry, times, now_us);
  state_->workers_changed = false;
}

bool Readiness::Ready(int64_t now_us) const {
  if (state_->stage != RouterStage::kServes) return false;
  was_complete_ = was_complete_ || planner_->HasAllRoutes(now_us);
  return was_complete_ && planner_->HasSomeRoute(now_us);
}

bool Readiness::CheckReady(const WatchedTimes& times, int64_t now_us) {
  if (state_->workers_changed) Look(times, now_us);
  const bool is_known = workers_.state == ready_state_ && now_us - ready_us_ < kReadyTrustedUs;
  if (is_known && state_->stage == RouterStage::kServes) return ready_;
  ready_ = Ready(now_us);
  ready_us_ = now_us;
  ready_state_ = workers_.state;
  return ready_;
}

}  // namespace baton::router
