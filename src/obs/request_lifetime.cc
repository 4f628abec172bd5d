#include "src/obs/request_lifetime.h"

#include <algorithm>
#include <limits>

namespace baton::obs {
namespace {

constexpr int64_t kUnmarked = std::numeric_limits<int64_t>::min();

constexpr size_t Index(RequestEvent event) { return static_cast<size_t>(event); }

// Whether `later` can only happen after `earlier`, of two events in their order. All do, but the
// hand-off's grant and verified KV on the one side and the prompt's start and first token on the
// other: the KV crosses while the prompt is computed.
constexpr bool FollowsFrom(size_t later, size_t earlier) {
  const bool is_crossing =
      later == Index(RequestEvent::kGranted) || later == Index(RequestEvent::kVerified);
  const bool is_prompt = earlier == Index(RequestEvent::kPrefillStarted) ||
                         earlier == Index(RequestEvent::kFirstToken);
  return !(is_crossing && is_prompt);
}

}  // namespace

std::string_view StageName(RequestStage stage) {
  constexpr std::array<std::string_view, kNumRequestStages> kNames = {
      "admit",       "queue_prefill", "prefill",    "kv_wait",
      "kv_transfer", "queue_decode",  "first_step", "decode"};
  return kNames[static_cast<size_t>(stage)];
}

std::string_view EventName(RequestEvent event) {
  constexpr std::array<std::string_view, kNumRequestEvents> kNames = {
      "accepted", "admitted",           "prefill_started",  "first_token", "granted",
      "verified", "first_step_started", "first_step_ended", "last_token"};
  return kNames[static_cast<size_t>(event)];
}

RequestLifetime::RequestLifetime(int64_t accepted_us) {
  times_us_.fill(kUnmarked);
  times_us_[Index(RequestEvent::kAccepted)] = accepted_us;
}

void RequestLifetime::Mark(RequestEvent event, int64_t now_us) {
  int64_t& time_us = times_us_[Index(event)];
  if (event == RequestEvent::kLastToken) time_us = now_us;
  if (time_us != kUnmarked) return;
  time_us = now_us;
  // Two workers report over streams of their own: what was heard late had happened before what
  // follows from it.
  for (size_t later = Index(event) + 1; later < Index(RequestEvent::kLastToken); ++later) {
    const bool follows = times_us_[later] != kUnmarked && FollowsFrom(later, Index(event));
    if (follows) time_us = std::min(time_us, times_us_[later]);
  }
}

std::optional<int64_t> RequestLifetime::TimeOf(RequestEvent event) const {
  const int64_t time_us = times_us_[Index(event)];
  if (time_us == kUnmarked) return std::nullopt;
  return time_us;
}

int64_t RequestLifetime::EndUs() const {
  const int64_t last_token_us = times_us_[Index(RequestEvent::kLastToken)];
  if (last_token_us != kUnmarked) return std::max(last_token_us, times_us_[0]);
  return *std::max_element(times_us_.begin(), times_us_.end());
}

void RequestLifetime::CountStep(uint32_t index, uint32_t step_us) {
  if (index <= last_step_idx_) return;
  last_step_idx_ = index;
  (index == 1 ? first_step_us_ : decode_steps_us_) += step_us;
}

std::array<int64_t, kNumRequestEvents> RequestLifetime::BoundariesUs(int64_t end_us) const {
  // boundary i = the latest mark up to event i, never beyond the end: a request whose answer is one
  // token ends while its KV is still crossing, and that time is nobody's wait.
  std::array<int64_t, kNumRequestEvents> at_us{};
  at_us[0] = times_us_[0];
  for (size_t i = 1; i < kNumRequestEvents; ++i) {
    at_us[i] = std::min(end_us, std::max(at_us[i - 1], times_us_[i]));
  }
  constexpr size_t kFirstStepEnd = Index(RequestEvent::kFirstStepEnded);
  if (times_us_[kFirstStepEnd] == kUnmarked) return at_us;
  // The router may hear of an event late. The steps took their time, so the event lies before them.
  const auto no_later = [&](size_t i, int64_t limit_us) {
    at_us[i] = std::min(at_us[i], std::max(at_us[0], limit_us));
  };
  no_later(kFirstStepEnd, end_us - decode_steps_us_);
  for (size_t i = 1; i < kFirstStepEnd; ++i) no_later(i, at_us[kFirstStepEnd] - first_step_us_);
  return at_us;
}

std::array<int64_t, kNumRequestStages> RequestLifetime::StagesUs() const {
  const auto at_us = BoundariesUs(EndUs());
  std::array<int64_t, kNumRequestStages> stages_us{};
  for (size_t i = 0; i < kNumRequestStages; ++i) stages_us[i] = at_us[i + 1] - at_us[i];
  return stages_us;
}

// The stage that has begun and not ended. Each path goes by the first token; the steps of a
// hand-off before it may have passed already, and a local path has none. The last token's mark
// moves with each token and so ends no stage here.
size_t RequestLifetime::OpenStage() const {
  constexpr size_t kFirstToken = Index(RequestEvent::kFirstToken);
  for (size_t event = 1; event <= kFirstToken; ++event) {
    if (times_us_[event] == kUnmarked) return event - 1;
  }
  size_t open = kFirstToken;
  for (size_t event = kFirstToken; event < Index(RequestEvent::kLastToken); ++event) {
    if (times_us_[event] != kUnmarked) open = event;
  }
  return open;
}

std::array<int64_t, kNumRequestStages> RequestLifetime::StagesUntilUs(int64_t end_us) const {
  std::array<int64_t, kNumRequestStages> stages_us{};
  end_us = std::max(end_us, times_us_[0]);
  const auto at_us = BoundariesUs(end_us);
  const size_t open = OpenStage();
  for (size_t i = 0; i < open; ++i) stages_us[i] = at_us[i + 1] - at_us[i];
  stages_us[open] = end_us - at_us[open];
  return stages_us;
}

int64_t RequestLifetime::EndToEndUs() const {
  return EndUs() - times_us_[Index(RequestEvent::kAccepted)];
}

std::optional<int64_t> RequestLifetime::TimeToFirstTokenUs() const {
  const std::optional<int64_t> first_us = TimeOf(RequestEvent::kFirstToken);
  if (!first_us.has_value()) return std::nullopt;
  return *first_us - times_us_[Index(RequestEvent::kAccepted)];
}

}  // namespace baton::obs
