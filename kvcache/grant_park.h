// GrantPark: grants that reached the prefill worker before the router's StartPrefill did. Bounded
// in number and time, so that a stray or hostile decode worker costs 64 entries for half a second.
// Pure; engine thread.
//
// Invariants
//  1. At most `capacity` grants, one for each (uid, attempt, decode worker); the newest replaces an
//     older one.
//  2. A grant leaves by Take, Drop or Expire, never silently by another one's arrival.
#ifndef BATON_KVCACHE_GRANT_PARK_H_
#define BATON_KVCACHE_GRANT_PARK_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kvcache/handoff_messages.h"

namespace baton::kv {

// See the file comment.
class GrantPark {
 public:
  // Beyond these numbers a grant is refused; the decode worker repeats it as long as it holds the
  // blocks.
  static constexpr uint32_t kCapacity = 64;
  static constexpr int64_t kParkUs = 500'000;

  GrantPark();

  // False when full: the caller answers with RevokeUnknown, so that the decode worker frees at
  // once.
  bool Park(Grant grant, int64_t now_us);
  // Takes the grant of this placement and this decode worker from the park.
  std::optional<Grant> Take(const RequestUid& uid, uint32_t attempt, Incarnation decode);
  // Drops a grant that its decode worker revoked; true when it was here.
  bool Drop(const RequestUid& uid, uint32_t attempt, Incarnation decode);
  // Removes grants parked for kParkUs or longer and appends them to `expired`.
  void Expire(int64_t now_us, std::vector<Grant>* expired);

  uint32_t size() const { return static_cast<uint32_t>(parked_.size()); }
  // When Expire has something to do; INT64_MAX = never.
  int64_t NextDeadlineUs() const;

 private:
  // A grant and when it came.
  struct Parked {
    Grant grant;
    int64_t since_us = 0;
  };
  std::vector<Parked> parked_;  // oldest first
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_GRANT_PARK_H_
