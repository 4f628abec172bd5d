// SessionLeases: until when each router's stream with live requests may be silent. Engine thread.
#ifndef BATON_ENGINE_SESSION_LEASES_H_
#define BATON_ENGINE_SESSION_LEASES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"

#include "src/engine/engine_types.h"

namespace baton::engine {

// See the file comment.
class SessionLeases {
 public:
  // The router has sent an order. That is a word from it, and nobody renews while nothing runs: the
  // rest of an old lease may be short.
  void Begin(SessionId session, int64_t until_us) {
    int64_t& lease_until_us = until_us_.try_emplace(session, 0).first->second;
    lease_until_us = std::max(lease_until_us, until_us);
  }
  // Nothing when the session has none.
  void Renew(SessionId session, int64_t until_us) {
    const auto lease = until_us_.find(session);
    if (lease != until_us_.end()) lease->second = until_us;
  }
  void Erase(SessionId session) { until_us_.erase(session); }

  // INT64_MAX where there is none.
  int64_t NextEndUs() const {
    int64_t next_us = INT64_MAX;
    for (const auto& [session, until_us] : until_us_) next_us = std::min(next_us, until_us);
    return next_us;
  }
  // Sessions whose lease has ended.
  std::vector<SessionId> Ended(int64_t now_us) const {
    std::vector<SessionId> ended;
    for (const auto& [session, until_us] : until_us_) {
      if (until_us <= now_us) ended.push_back(session);
    }
    return ended;
  }
  uint32_t size() const { return static_cast<uint32_t>(until_us_.size()); }

 private:
  absl::btree_map<SessionId, int64_t> until_us_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_SESSION_LEASES_H_
