// ClusterEvents: the event stream that many viewers watch (GET /v1/cluster/events). One thread
// ("ui-events") looks at the cluster while somebody watches, writes the events once, and gives the
// same text to every viewer.
//
// Any thread may call the public functions; Stop and the destructor not from a server's thread.
//
// Invariants
//  1. Without a viewer nothing runs: the thread starts with the first one, and waits without a
//     limit when the last one has gone.
//  2. There are at most kMaxViewers, and at least kIntervalUs between two looks.
//  3. A viewer that leaves more than kMaxUnreadBytes unread is dropped. Nobody waits for a viewer.
#ifndef BATON_API_CLUSTER_EVENTS_H_
#define BATON_API_CLUSTER_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/api/cluster_diary.h"
#include "src/base/clock.h"
#include "src/base/mutex.h"
#include "src/base/thread.h"
#include "src/http/http_responder.h"

namespace baton::api {

// See the file comment.
class ClusterEvents {
 public:
  static constexpr size_t kMaxViewers = 200;
  static constexpr int64_t kIntervalUs = 250'000;  // 4 looks a second
  // About 10 s of a small cluster's events; 50 MiB for all viewers.
  static constexpr size_t kMaxUnreadBytes = size_t{256} << 10;

  // Takes a look; called on the thread, and may wait for the router's. None: the router did not
  // answer in time, and the events of this turn are left out.
  using LookFunction = std::function<std::optional<ClusterLook>()>;
  // The outcome for a viewer that came.
  enum class Entry : uint8_t { kTaken, kFull, kStopped };

  // `ping_ms`: silence before a comment, 0 = there are none.
  ClusterEvents(LookFunction look, int64_t ping_ms) : look_(std::move(look)), ping_ms_(ping_ms) {}
  ~ClusterEvents() { Stop(); }
  ClusterEvents(const ClusterEvents&) = delete;
  ClusterEvents& operator=(const ClusterEvents&) = delete;

  // Begins the stream of a viewer. Unless it is taken, `responder` is as it was.
  Entry Add(http::HttpHeaders headers, std::shared_ptr<http::HttpResponder> responder);
  // Ends every stream with an `end` event and joins the thread; later viewers are not taken.
  // Idempotent.
  void Stop();
  size_t num_viewers() const;

 private:
  // Somebody who watches.
  struct Viewer {
    uint64_t number = 0;
    std::shared_ptr<http::HttpResponder> responder;
    bool is_welcome = false;  // it has had the first events
  };

  void Run();
  // Tells viewers what is new to them; `is_due`: after another look.
  void Serve(const std::vector<Viewer>& viewers, bool is_due);
  void Remove(uint64_t number);
  static ClockPair Now();

  const LookFunction look_;
  const int64_t ping_ms_;
  ClusterDiary diary_;  // the thread's

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Viewer> viewers_ BATON_GUARDED_BY(mutex_);
  uint64_t last_number_ BATON_GUARDED_BY(mutex_) = 0;
  size_t num_starting_ BATON_GUARDED_BY(mutex_) = 0;  // places taken by streams that begin now
  bool has_new_ BATON_GUARDED_BY(mutex_) = false;
  bool is_stopped_ BATON_GUARDED_BY(mutex_) = false;
  Thread thread_ BATON_GUARDED_BY(mutex_);  // Stop alone takes it out
};

}  // namespace baton::api

#endif  // BATON_API_CLUSTER_EVENTS_H_
