// TenantUse: what one tenant has asked for, against its limits. Requests and tokens have a bucket
// each, which holds one minute's worth and fills steadily, so that no minute boundary lets twice
// the limit through. Times are of a steady clock: steps of the wall clock change nothing. Any
// thread.
#ifndef BATON_API_TENANT_USE_H_
#define BATON_API_TENANT_USE_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/api/key_file.h"
#include "src/base/mutex.h"
#include "src/router/kv_share.h"

namespace baton::api {

// The limit that a request meets.
enum class TenantLimit : uint8_t { kRequests, kTokens, kConcurrency, kKvShare, kNone };
inline constexpr int kNumTenantLimits = static_cast<int>(TenantLimit::kNone);
// "requests", "tokens", "concurrency", "kv_share".
std::string_view NameOf(TenantLimit limit);

// Whether a request may go on.
struct TenantVerdict {
  TenantLimit limit = TenantLimit::kNone;
  uint64_t allowed = 0;        // by that limit
  uint32_t retry_after_s = 0;  // when it may; >= 1 with a limit

  bool ok() const { return limit == TenantLimit::kNone; }
};

// See the file comment.
class TenantUse {
 public:
  // Both buckets begin full.
  TenantUse(std::string name, const TenantLimits& limits, int64_t now_us);

  const std::string& name() const { return name_; }
  // Other limits from now on; what was used stays used.
  void SetLimits(const TenantLimits& limits, int64_t now_us);

  // Takes a request, before its prompt is known. Tokens and concurrency refuse it where nothing of
  // them is left. A refused request takes nothing.
  TenantVerdict TakeRequest(int64_t now_us);
  // Takes a place and the tokens of a prompt, for an answer that begins. A prompt above a whole
  // minute's tokens needs a full bucket, which then owes the rest.
  TenantVerdict Begin(uint64_t num_prompt_tokens, int64_t now_us);
  // For its requests on their way through the router, which refuses those beyond kv_share.
  const std::shared_ptr<router::TenantKv>& kv() const { return kv_; }
  void CountKvRefusal();
  // Gives the place back; the bucket may come to owe what the answer took.
  void End(uint64_t num_answer_tokens, int64_t now_us);

  // The standard rate-limit fields, in lower case: limit, what remains, and the time until all of
  // it is back ("12.500s"). None for what has no limit.
  std::vector<std::pair<std::string, std::string>> Fields(int64_t now_us) const;
  uint64_t num_refused(TenantLimit limit) const;
  // Counts a request that was answered, by its HTTP status, over gRPC by what would be it.
  void CountAnswered(int http_status);
  // The counts; that of 200 is always there.
  std::map<int, uint64_t> num_answered() const;

 private:
  // Tokens of either kind; `per_minute` 0 = no limit.
  struct Bucket {
    uint64_t per_minute = 0;
    double level = 0;
    int64_t at_us = 0;

    void FillTo(int64_t now_us);
    double LevelAt(int64_t now_us) const;
    // Seconds until the level is `wanted`, rounded up, at least 1.
    uint32_t SecondsTo(double wanted) const;
    void SetLimit(uint64_t limit, int64_t now_us);
  };

  TenantVerdict Refuse(TenantLimit limit, uint64_t allowed, uint32_t retry_after_s)
      BATON_REQUIRES(mutex_);
  bool IsFull() const BATON_REQUIRES(mutex_) {
    return concurrency_ > 0 && num_running_ >= concurrency_;
  }

  const std::string name_;
  const std::shared_ptr<router::TenantKv> kv_ = std::make_shared<router::TenantKv>();
  mutable Mutex mutex_;  // guards what follows
  Bucket requests_ BATON_GUARDED_BY(mutex_);
  Bucket tokens_ BATON_GUARDED_BY(mutex_);
  uint64_t concurrency_ BATON_GUARDED_BY(mutex_) = 0;
  uint64_t num_running_ BATON_GUARDED_BY(mutex_) = 0;
  std::array<uint64_t, kNumTenantLimits> num_refused_ BATON_GUARDED_BY(mutex_) = {};
  std::map<int, uint64_t> num_answered_ BATON_GUARDED_BY(mutex_) = {{200, 0}};
};

}  // namespace baton::api

#endif  // BATON_API_TENANT_USE_H_
