// QueueRate: the speed of a queue. It predicts how long a new request would wait. Pure; owned by
// the router's thread.
#ifndef BATON_ROUTER_QUEUE_RATE_H_
#define BATON_ROUTER_QUEUE_RATE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace baton::router {

// The rate of the last placements of one busy period.
class QueueRate {
 public:
  // The rate is a mean of at least kWindow and at most kMaxWindow gaps between placements. Answers
  // that began together end together, so 16 gaps may be one burst. A batch of 16 streams makes four
  // bursts in 64 gaps.
  static constexpr uint32_t kWindow = 16;
  static constexpr uint32_t kMaxWindow = 64;

  // A worker took a request of the queue while others waited. One that it refuses is no progress.
  void OnPlaced(int64_t now_us) { times_us_[num_placed_++ % times_us_.size()] = now_us; }
  // The wait of a request that has `num_ahead` others before it; nothing before there were kWindow
  // gaps. The time since the last placement counts as one more gap where it makes the mean longer.
  // So one long pause changes the mean a little, and a queue that stands still changes it soon.
  std::optional<int64_t> PredictUs(size_t num_ahead, int64_t now_us) const {
    if (num_placed_ <= kWindow) return std::nullopt;
    const auto num_gaps = static_cast<int64_t>(std::min<uint64_t>(num_placed_ - 1, kMaxWindow));
    const auto oldest = num_placed_ - 1 - static_cast<uint64_t>(num_gaps);
    const int64_t oldest_us = times_us_[oldest % times_us_.size()];
    const int64_t latest_us = times_us_[(num_placed_ - 1) % times_us_.size()];
    const int64_t mean_us = (latest_us - oldest_us) / num_gaps;
    const int64_t mean_with_present_us = (now_us - oldest_us) / (num_gaps + 1);
    return static_cast<int64_t>(num_ahead) * std::max({mean_us, mean_with_present_us, int64_t{1}});
  }

 private:
  std::array<int64_t, kMaxWindow + 1> times_us_ = {};  // of the last placements, in a ring
  uint64_t num_placed_ = 0;
};

// The waiting requests of one model. A ModelQueue exists while there are any (one busy period): the
// rate of an earlier period, or of another model, says nothing about this one.
struct ModelQueue {
  size_t num_waiting = 0;
  QueueRate rate;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_QUEUE_RATE_H_
