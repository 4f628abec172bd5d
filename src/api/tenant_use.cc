#include "src/api/tenant_use.h"

#include <algorithm>
#include <cmath>

#include "fmt/format.h"

namespace baton::api {

namespace {
constexpr double kMinuteUs = 60e6;
constexpr double kRounding = 1e-6;  // of sums of small gains: a full bucket is full
}  // namespace

std::string_view NameOf(TenantLimit limit) {
  switch (limit) {
    case TenantLimit::kRequests:
      return "requests";
    case TenantLimit::kTokens:
      return "tokens";
    case TenantLimit::kConcurrency:
      return "concurrency";
    case TenantLimit::kKvShare:
      return "kv_share";
    case TenantLimit::kNone:
      break;
  }
  return "";
}

double TenantUse::Bucket::LevelAt(int64_t now_us) const {
  const double gained = static_cast<double>(std::max<int64_t>(0, now_us - at_us)) *
                        static_cast<double>(per_minute) / kMinuteUs;
  return std::min(static_cast<double>(per_minute), level + gained);
}

void TenantUse::Bucket::FillTo(int64_t now_us) {
  level = LevelAt(now_us);
  at_us = std::max(at_us, now_us);  // threads read the clock before they have the mutex
}

uint32_t TenantUse::Bucket::SecondsTo(double wanted) const {
  const double seconds = (wanted - level) * 60 / static_cast<double>(per_minute);
  return static_cast<uint32_t>(std::clamp(std::ceil(seconds - kRounding), 1.0, 86'400.0));
}

void TenantUse::Bucket::SetLimit(uint64_t limit, int64_t now_us) {
  FillTo(now_us);
  // A limit where there was none begins with all of it.
  const bool is_new = per_minute == 0;
  per_minute = limit;
  level = is_new ? static_cast<double>(limit) : std::min(level, static_cast<double>(limit));
}

TenantUse::TenantUse(std::string name, const TenantLimits& limits, int64_t now_us)
    : name_(std::move(name)) {
  SetLimits(limits, now_us);
}

void TenantUse::SetLimits(const TenantLimits& limits, int64_t now_us) {
  MutexLock lock(mutex_);
  requests_.SetLimit(limits.requests_per_minute, now_us);
  tokens_.SetLimit(limits.tokens_per_minute, now_us);
  concurrency_ = limits.concurrency;
  kv_->SetShare(limits.kv_share);
}

TenantVerdict TenantUse::Refuse(TenantLimit limit, uint64_t allowed, uint32_t retry_after_s) {
  ++num_refused_[static_cast<size_t>(limit)];
  return {limit, allowed, retry_after_s};
}

TenantVerdict TenantUse::TakeRequest(int64_t now_us) {
  MutexLock lock(mutex_);
  requests_.FillTo(now_us);
  tokens_.FillTo(now_us);
  if (requests_.per_minute > 0 && requests_.level + kRounding < 1) {
    return Refuse(TenantLimit::kRequests, requests_.per_minute, requests_.SecondsTo(1));
  }
  if (tokens_.per_minute > 0 && tokens_.level + kRounding < 1) {
    return Refuse(TenantLimit::kTokens, tokens_.per_minute, tokens_.SecondsTo(1));
  }
  if (IsFull()) return Refuse(TenantLimit::kConcurrency, concurrency_, 1);
  if (requests_.per_minute > 0) requests_.level -= 1;
  return {};
}

TenantVerdict TenantUse::Begin(uint64_t num_prompt_tokens, int64_t now_us) {
  MutexLock lock(mutex_);
  if (IsFull()) return Refuse(TenantLimit::kConcurrency, concurrency_, 1);
  if (tokens_.per_minute > 0) {
    tokens_.FillTo(now_us);
    const auto needed = static_cast<double>(std::min(num_prompt_tokens, tokens_.per_minute));
    if (tokens_.level + kRounding < needed) {
      return Refuse(TenantLimit::kTokens, tokens_.per_minute, tokens_.SecondsTo(needed));
    }
    tokens_.level -= static_cast<double>(num_prompt_tokens);
  }
  ++num_running_;
  return {};
}

void TenantUse::End(uint64_t num_answer_tokens, int64_t now_us) {
  MutexLock lock(mutex_);
  --num_running_;
  if (tokens_.per_minute == 0) return;
  tokens_.FillTo(now_us);
  tokens_.level -= static_cast<double>(num_answer_tokens);
}

std::vector<std::pair<std::string, std::string>> TenantUse::Fields(int64_t now_us) const {
  std::vector<std::pair<std::string, std::string>> fields;
  MutexLock lock(mutex_);
  for (const auto& [name, bucket] :
       {std::pair("requests", &requests_), std::pair("tokens", &tokens_)}) {
    if (bucket->per_minute == 0) continue;
    const double level = bucket->LevelAt(now_us);
    const auto limit = static_cast<double>(bucket->per_minute);
    fields.emplace_back(fmt::format("x-ratelimit-limit-{}", name),
                        std::to_string(bucket->per_minute));
    fields.emplace_back(fmt::format("x-ratelimit-remaining-{}", name),
                        std::to_string(static_cast<uint64_t>(std::max(0.0, level + kRounding))));
    fields.emplace_back(fmt::format("x-ratelimit-reset-{}", name),
                        fmt::format("{:.3f}s", (limit - level) * 60 / limit));
  }
  return fields;
}

uint64_t TenantUse::num_refused(TenantLimit limit) const {
  MutexLock lock(mutex_);
  return num_refused_[static_cast<size_t>(limit)];
}

void TenantUse::CountKvRefusal() {
  MutexLock lock(mutex_);
  ++num_refused_[static_cast<size_t>(TenantLimit::kKvShare)];
}

void TenantUse::CountAnswered(int http_status) {
  MutexLock lock(mutex_);
  ++num_answered_[http_status];
}

std::map<int, uint64_t> TenantUse::num_answered() const {
  MutexLock lock(mutex_);
  return num_answered_;
}

}  // namespace baton::api
