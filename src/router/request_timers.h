// RequestTimers: when the router looks at the timers of each live request again. Pure; owned by the
// router's thread.
//
// A row of 24 bytes a request, in one array, so that a tick passes over requests whose time has not
// come without touching them: their records lie apart, a dozen cache lines each.
//
// Invariants
//  1. A request that was added is looked at in the next Run, and then at each time that the look
//     before has named, until a look says that it has ended.
//  2. After LookAtAll the next Run looks at every request.
#ifndef BATON_ROUTER_REQUEST_TIMERS_H_
#define BATON_ROUTER_REQUEST_TIMERS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/ids.h"

namespace baton::router {

// See the file comment.
class RequestTimers {
 public:
  void Add(RequestUid uid) { rows_.push_back({0, uid}); }
  // A request has changed so that its time may be earlier than it said.
  void LookAtAll() { looks_at_all_ = true; }

  // Calls `look(uid)` for each request whose time has come. The result is the time of the next
  // look; none: there is no such request. A look may add requests.
  template <typename Look>
  void Run(int64_t now_us, Look look) {
    const bool looks_at_all = std::exchange(looks_at_all_, false);
    for (size_t i = 0; i < rows_.size();) {
      if (!looks_at_all && now_us < rows_[i].due_us) {
        ++i;
        continue;
      }
      const RequestUid uid = rows_[i].uid;
      const std::optional<int64_t> due_us = look(uid);
      if (due_us) {
        rows_[i++].due_us = *due_us;
      } else {
        rows_[i] = rows_.back();
        rows_.pop_back();
      }
    }
  }

  // Requests that no look has found ended.
  size_t size() const { return rows_.size(); }

 private:
  // One request.
  struct Row {
    int64_t due_us = 0;
    RequestUid uid;
  };

  std::vector<Row> rows_;
  bool looks_at_all_ = false;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_TIMERS_H_
