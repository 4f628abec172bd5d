#include "src/router/retry_estimate.h"

#include <algorithm>

#include "src/base/limits.h"

namespace baton::router {

using limits::kMaxRetryAfterS;
using limits::kMinRetryAfterS;

namespace {

constexpr int64_t kUsPerS = 1'000'000;
constexpr int64_t kStaleUs = 100'000;
// An answer's time is taken for at most a day, so that the sum of all fits its type.
constexpr double kLongestUs = 86'400.0 * kUsPerS;
// The last served request's part of the averages.
constexpr double kShareOfLast = 1.0 / 8;

// The mean time between two tokens of an answer that has at least two.
double TokenUs(const RunningAnswer& answer) {
  return static_cast<double>(answer.decode_us) / (answer.num_tokens - 1);
}

}  // namespace

uint32_t RetrySeconds(int64_t us) {
  const int64_t seconds = us / kUsPerS + (us % kUsPerS > 0 ? 1 : 0);
  return static_cast<uint32_t>(std::clamp<int64_t>(seconds, kMinRetryAfterS, kMaxRetryAfterS));
}

void RetryEstimate::OnServed(int64_t us, uint32_t num_tokens) {
  ++num_served_;
  const double last_us = static_cast<double>(us);
  served_tokens_ += (num_tokens - served_tokens_) * (served_us_ ? kShareOfLast : 1.0);
  served_us_ = served_us_ ? *served_us_ + (last_us - *served_us_) * kShareOfLast : last_us;
}

bool RetryEstimate::IsStale(int64_t now_us) const {
  return looked_us_ == INT64_MIN || now_us - looked_us_ >= kStaleUs;
}

void RetryEstimate::Look(const std::vector<RunningAnswer>& running, int64_t now_us) {
  looked_us_ = now_us;
  left_us_.clear();
  const Pace common = PaceOf(running);
  int64_t sum_us = 0;
  for (const RunningAnswer& answer : running) {
    left_us_.push_back(LeftUs(answer, common));
    sum_us += answer.age_us + left_us_.back();
  }
  std::sort(left_us_.begin(), left_us_.end());
  whole_us_ = running.empty() ? 0 : sum_us / static_cast<int64_t>(running.size());
}

std::optional<int64_t> RetryEstimate::AfterUs(size_t num_ahead) const {
  if (left_us_.empty()) return std::nullopt;
  const size_t num_rounds = std::min<size_t>(num_ahead / left_us_.size(), kMaxRetryAfterS);
  return left_us_[num_ahead % left_us_.size()] + static_cast<int64_t>(num_rounds) * whole_us_;
}

uint32_t RetryEstimate::AfterS(size_t num_ahead) const {
  return RetrySeconds(AfterUs(num_ahead).value_or(0));
}

RetryEstimate::Pace RetryEstimate::PaceOf(const std::vector<RunningAnswer>& running) {
  Pace pace;
  int num_decoding = 0;
  for (const RunningAnswer& answer : running) {
    if (answer.num_tokens < 2) continue;
    ++num_decoding;
    pace.token_us += TokenUs(answer);
    pace.prompt_us += static_cast<double>(answer.age_us - answer.decode_us);
  }
  if (num_decoding == 0) return pace;
  pace.token_us /= num_decoding;
  pace.prompt_us /= num_decoding;
  return pace;
}

// The tokens that the answer may still have, at its own pace, before its second token at that of
// the others, which then have its prompt too. Where nothing decodes: the time that other answers
// took, or as long again as this one has taken. An answer that is longer than most ends soon.
int64_t RetryEstimate::LeftUs(const RunningAnswer& answer, const Pace& common) const {
  const double age_us = static_cast<double>(answer.age_us);
  if (common.token_us == 0) {
    if (!served_us_) return std::max(answer.age_us, kUsPerS);
    return static_cast<int64_t>(std::max(*served_us_ - age_us, *served_us_ * kShareOfLast));
  }
  double num_left = std::max(0.0, static_cast<double>(answer.max_tokens) - answer.num_tokens);
  if (served_us_) {
    const double usual =
        std::max(served_tokens_ - answer.num_tokens, served_tokens_ * kShareOfLast);
    num_left = std::min(num_left, usual);
  }
  const double token_us = answer.num_tokens > 1 ? TokenUs(answer) : common.token_us;
  const double prompt_us = answer.num_tokens > 0 ? 0.0 : std::max(0.0, common.prompt_us - age_us);
  return static_cast<int64_t>(std::min(num_left * token_us + prompt_us, kLongestUs));
}

}  // namespace baton::router
