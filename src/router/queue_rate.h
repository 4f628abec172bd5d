// QueueRate: how fast the router's queue moves, and so how long a new request would wait in it.
// Pure; owned by the router's thread.
//
// The rate is that of the present busy period (from the first request that had to wait until none
// does): what an earlier one was like says nothing about this one.
#ifndef BATON_ROUTER_QUEUE_RATE_H_
#define BATON_ROUTER_QUEUE_RATE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace baton {

// See the file comment.
class QueueRate {
 public:
  // Placements from which a rate is taken.
  static constexpr uint32_t kWindow = 16;

  // Nothing waits any more: the busy period is over.
  void OnEmpty() { *this = QueueRate(); }
  // A request left the queue for its workers while others waited.
  void OnPlaced(int64_t now_us) {
    if (start_us_ < 0) {
      start_us_ = now_us;
      return;
    }
    if (++num_placed_ < kWindow) return;
    gap_us_ = std::max<int64_t>((now_us - start_us_) / kWindow, 1);
    start_us_ = now_us;
    num_placed_ = 0;
  }
  // How long a request waits behind `num_ahead` others, as far as is known; nothing before a
  // window is full. A queue that has slowed down since is believed at once.
  std::optional<int64_t> PredictUs(size_t num_ahead, int64_t now_us) const {
    if (gap_us_ == 0) return std::nullopt;
    const int64_t latest_us = (now_us - start_us_) / (num_placed_ + 1);
    return static_cast<int64_t>(num_ahead) * std::max(gap_us_, latest_us);
  }

 private:
  int64_t start_us_ = -1;    // of the present window
  uint32_t num_placed_ = 0;  // in it
  int64_t gap_us_ = 0;       // between placements in the last full window, 0 = none yet
};

}  // namespace baton

#endif  // BATON_ROUTER_QUEUE_RATE_H_
