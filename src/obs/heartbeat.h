// Heartbeat: proof that a loop makes progress, for /livez. Lock-free; any thread.
#ifndef BATON_OBS_HEARTBEAT_H_
#define BATON_OBS_HEARTBEAT_H_

#include <atomic>
#include <cstdint>

#include "src/base/status.h"

namespace baton::obs {

// The time of a loop's latest turn. A loop with nothing to do still turns at least once a second.
class Heartbeat {
 public:
  explicit Heartbeat(int64_t now_us) : last_us_(now_us) {}

  // Once per turn of the loop, by its thread.
  void Beat(int64_t now_us) { last_us_.store(now_us, std::memory_order_relaxed); }

  // Unavailable, with the age, when the last turn is more than `limit_us` ago.
  Status Check(int64_t now_us, int64_t limit_us) const {
    const int64_t age_us = now_us - last_us_.load(std::memory_order_relaxed);
    if (age_us <= limit_us) return OkStatus();
    return Unavailable("the loop has not turned for {} ms, more than {} ms", age_us / 1000,
                       limit_us / 1000);
  }

 private:
  std::atomic<int64_t> last_us_;
};

}  // namespace baton::obs

#endif  // BATON_OBS_HEARTBEAT_H_
