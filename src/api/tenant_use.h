// TenantUse: counts one tenant's use against its limits. Requests and tokens have a bucket each. A
// bucket holds the limit of one minute and fills steadily, so that no minute boundary lets twice
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
  // Sets other limits. Earlier use still counts.
  void SetLimits(const TenantLimits& limits, int64_t now_us);

  // Takes a request, before its prompt is known. Refuses it where no tokens or no places are left.
  // A refused request takes nothing.
  TenantVerdict TakeRequest(int64_t now_us);
  // Takes a place and the tokens of a prompt, for an answer that begins. A prompt above a whole
  // minute's tokens needs a full bucket, which then owes the rest.
  TenantVerdict Begin(uint64_t num_prompt_tokens, int64_t now_us);
  // The tenant's KV, which the router counts. The router refuses requests beyond kv_share.
  const std::shared_ptr<router::TenantKv>& kv() const { return kv_; }
  void CountKvRefusal();
  // Gives the place back and takes the answer's tokens, which the bucket may owe.
  void End(uint64_t num_answer_tokens, int64_t now_us);

  // The standard rate-limit fields, in lower case: the limit, the rest of it, and the time until
  // the bucket is full ("12.500s"). No fields where there is no limit.
  std::vector<std::pair<std::string, std::string>> Fields(int64_t now_us) const;
  uint64_t num_refused(TenantLimit limit) const;
  // Counts an answered request by its HTTP status; over gRPC by the status that HTTP would have.
  void CountAnswered(int http_status);
  // The counts by status. Status 200 is always there.
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
  mutable Mutex mutex_;  // guards the members below
  Bucket requests_ BATON_GUARDED_BY(mutex_);
  Bucket tokens_ BATON_GUARDED_BY(mutex_);
  uint64_t concurrency_ BATON_GUARDED_BY(mutex_) = 0;
  uint64_t num_running_ BATON_GUARDED_BY(mutex_) = 0;
  std::array<uint64_t, kNumTenantLimits> num_refused_ BATON_GUARDED_BY(mutex_) = {};
  std::map<int, uint64_t> num_answered_ BATON_GUARDED_BY(mutex_) = {{200, 0}};
};

}  // namespace baton::api

#endif  // BATON_API_TENANT_USE_H_
