#include "src/router/retry_estimate.h"

#include <algorithm>

#include "src/router/request_error.h"

namespace baton {
namespace {

constexpr int64_t kUsPerS = 1'000'000;
constexpr int64_t kStaleUs = 100'000;
// The last served request counts one part in so many of the average.
constexpr int64_t kShareOfLast = 8;

}  // namespace

uint32_t RetrySeconds(int64_t us) {
  const int64_t seconds = us / kUsPerS + (us % kUsPerS > 0 ? 1 : 0);
  return static_cast<uint32_t>(std::clamp<int64_t>(seconds, kRetryAfterS, kMaxRetryAfterS));
}

void RetryEstimate::OnServed(int64_t us) {
  served_us_ = served_us_ ? *served_us_ + (us - *served_us_) / kShareOfLast : us;
}

bool RetryEstimate::IsStale(int64_t now_us) const {
  return looked_us_ == INT64_MIN || now_us - looked_us_ >= kStaleUs;
}

void RetryEstimate::Look(const std::vector<RunningAnswer>& running, int64_t now_us) {
  looked_us_ = now_us;
  left_us_.clear();
  int64_t sum_us = 0;
  for (const RunningAnswer& answer : running) {
    left_us_.push_back(LeftUs(answer));
    sum_us += answer.age_us + left_us_.back();
  }
  std::sort(left_us_.begin(), left_us_.end());
  const auto num_running = static_cast<int64_t>(running.size());
  whole_us_ = served_us_.value_or(num_running > 0 ? sum_us / num_running : 0);
}

uint32_t RetryEstimate::AfterS(size_t num_ahead) const {
  if (left_us_.empty()) return kRetryAfterS;
  const size_t num_rounds = std::min<size_t>(num_ahead / left_us_.size(), kMaxRetryAfterS);
  const int64_t us =
      left_us_[num_ahead % left_us_.size()] + static_cast<int64_t>(num_rounds) * whole_us_;
  return RetrySeconds(us);
}

// The smaller of two predictions: the tokens that the answer may still have, at its pace; and the
// time that other answers took. Without either: as long again as the answer has taken.
int64_t RetryEstimate::LeftUs(const RunningAnswer& answer) const {
  std::optional<int64_t> left_us;
  if (answer.num_tokens > 1) {
    const int64_t num_left = int64_t{answer.max_tokens} - answer.num_tokens;
    left_us = std::max<int64_t>(num_left, 0) * (answer.decode_us / (answer.num_tokens - 1));
  }
  if (served_us_) {
    const int64_t usual_us = std::max(*served_us_ - answer.age_us, *served_us_ / kShareOfLast);
    left_us = std::min(left_us.value_or(usual_us), usual_us);
  }
  return left_us.value_or(std::max(answer.age_us, kUsPerS));
}

}  // namespace baton
