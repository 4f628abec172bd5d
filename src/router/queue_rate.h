// QueueRate: how fast a queue moves, and so how long a new request would wait in it. Pure; owned by
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
  // Gaps between placements from which the rate is taken at least, and at most. Answers that began
  // together end together, and 16 gaps may be one such burst: a batch of 16 streams has four of
  // them in 64 gaps.
  static constexpr uint32_t kWindow = 16;
  static constexpr uint32_t kMaxWindow = 64;

  // A worker took a request of the queue while others waited. One that it refuses is no progress.
  void OnPlaced(int64_t now_us) { times_us_[num_placed_++ % times_us_.size()] = now_us; }
  // How long a request waits after `num_ahead` others, as far as is known; nothing before there
  // were kWindow gaps. The time since the last placement counts as one gap more when it makes the
  // mean longer: a pause of one large request is believed for its share, a queue that stands soon.
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

// The requests of one model that wait in one line. It exists while there are any, the busy period:
// what an earlier one was like says nothing about this one, and another model's workers are others.
struct ModelQueue {
  size_t num_waiting = 0;
  QueueRate rate;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_QUEUE_RATE_H_
