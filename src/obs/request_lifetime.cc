#include "src/obs/request_lifetime.h"

#include <algorithm>
#include <limits>

namespace baton {
namespace {

constexpr int64_t kUnmarked = std::numeric_limits<int64_t>::min();

constexpr size_t Index(RequestEvent event) { return static_cast<size_t>(event); }

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
  if (time_us == kUnmarked || event == RequestEvent::kLastToken) time_us = now_us;
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

std::array<int64_t, kNumRequestStages> RequestLifetime::StagesUs() const {
  // boundary i = the latest mark up to event i, never beyond the end: a request whose answer is one
  // token ends while its KV is still crossing, and that time is nobody's wait.
  const int64_t end_us = EndUs();
  std::array<int64_t, kNumRequestStages> stages_us{};
  int64_t before_us = times_us_[Index(RequestEvent::kAccepted)];
  for (size_t i = 0; i < kNumRequestStages; ++i) {
    const int64_t now_us = std::min(end_us, std::max(before_us, times_us_[i + 1]));
    stages_us[i] = now_us - before_us;
    before_us = now_us;
  }
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
  int64_t before_us = times_us_[Index(RequestEvent::kAccepted)];
  end_us = std::max(end_us, before_us);
  const size_t open = OpenStage();
  for (size_t i = 0; i < open; ++i) {
    const int64_t now_us = std::min(end_us, std::max(before_us, times_us_[i + 1]));
    stages_us[i] = now_us - before_us;
    before_us = now_us;
  }
  stages_us[open] = end_us - before_us;
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

}  // namespace baton
