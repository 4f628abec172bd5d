// PeerUpdates: hands the latest list of peers to the KV endpoint, from a thread of its own. Looking
// a name up blocks, for many seconds where the resolver is unreachable, and whoever tells of peers
// also sends the heartbeats.
#ifndef BATON_WORKER_PEER_UPDATES_H_
#define BATON_WORKER_PEER_UPDATES_H_

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "kvcache/transport/transport_types.h"
#include "src/base/mutex.h"
#include "src/base/status.h"
#include "src/base/thread.h"

namespace baton::worker {

// A list that could not be applied whole is applied again after kRetry, until it can or a newer one
// is there: no router sends it twice. A failure that repeats is logged once.
class PeerUpdates {
 public:
  // `is_old`: whether a newer list is there, or none is wanted any more.
  using Apply = std::function<Status(const std::vector<kv::PeerAddress>& peers,
                                     const std::function<bool()>& is_old)>;
  static constexpr std::chrono::milliseconds kRetry{2000};

  // `apply` runs on the thread, one call at a time.
  explicit PeerUpdates(Apply apply, std::chrono::milliseconds retry = kRetry);
  // Stops, and waits for a call of `apply` that is under way.
  ~PeerUpdates();

  // No call of `apply` begins any more; one may be under way. Any thread, returns at once.
  void Stop();

  // Replaces what has not been applied yet. Any thread; returns at once.
  void Set(std::vector<kv::PeerAddress> peers);

 private:
  void Loop();
  bool HasWorkLocked() const BATON_REQUIRES(mutex_) { return stops_ || next_.has_value(); }

  const Apply apply_;
  const std::chrono::milliseconds retry_;
  Mutex mutex_;
  CondVar change_;
  std::optional<std::vector<kv::PeerAddress>> next_ BATON_GUARDED_BY(mutex_);
  bool stops_ BATON_GUARDED_BY(mutex_) = false;
  Thread thread_;  // last: it runs in the rest
};

}  // namespace baton::worker

#endif  // BATON_WORKER_PEER_UPDATES_H_
