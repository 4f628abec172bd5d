// RequestTimers: when the router looks at the timers of each live request again. Pure; owned by the
// router's thread.
//
// Each request has a row of 32 bytes in one array. A tick reads this array and leaves alone the
// records of requests whose time has not come: a record takes a dozen cache lines.
//
// Invariants
//  1. A request that was added is looked at in the next Run. Each look names the time of the next
//     one, until a look says that the request has ended.
//  2. After LookAtAll the next Run looks at every request.
//  3. due_us() is the first time at which a request needs a look. A look that only finds out
//     whether a timer has begun meanwhile waits for a Run that comes anyway.
#ifndef BATON_ROUTER_REQUEST_TIMERS_H_
#define BATON_ROUTER_REQUEST_TIMERS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/ids.h"

namespace baton::router {

// The next look at one request.
struct NextLook {
  int64_t due_us = 0;   // the request may need something then
  int64_t look_us = 0;  // a Run from then on looks at it; at most due_us
};

// See the file comment.
class RequestTimers {
 public:
  void Add(RequestUid uid) {
    rows_.push_back({NextLook{}, uid});
    due_us_ = 0;
  }
  // A request has changed: it may need a look before the time of its row.
  void LookAtAll() { looks_at_all_ = true; }
  // INT64_MAX: no request needs a look.
  int64_t due_us() const { return looks_at_all_ ? 0 : due_us_; }

  // Calls `look(uid)` for each request whose time has come. The result is an optional NextLook;
  // none: there is no such request. A look may add requests.
  template <typename Look>
  void Run(int64_t now_us, Look look) {
    const bool looks_at_all = std::exchange(looks_at_all_, false);
    int64_t due_us = INT64_MAX;
    for (size_t i = 0; i < rows_.size();) {
      if (!looks_at_all && now_us < rows_[i].next.look_us) {
        due_us = std::min(due_us, rows_[i++].next.due_us);
        continue;
      }
      const RequestUid uid = rows_[i].uid;
      const std::optional<NextLook> next = look(uid);
      if (next) {
        due_us = std::min(due_us, next->due_us);
        rows_[i++].next = *next;
      } else {
        rows_[i] = rows_.back();
        rows_.pop_back();
      }
    }
    due_us_ = due_us;
  }

  // Requests that no look has found ended.
  size_t size() const { return rows_.size(); }

 private:
  // One request.
  struct Row {
    NextLook next;
    RequestUid uid;
  };

  std::vector<Row> rows_;
  bool looks_at_all_ = false;
  int64_t due_us_ = INT64_MAX;  // of the rows, as of the last Run
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_TIMERS_H_
