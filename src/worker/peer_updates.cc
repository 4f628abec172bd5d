#include "src/worker/peer_updates.h"

#include <string>
#include <utility>

#include "src/base/log.h"

namespace baton::worker {

using kv::PeerAddress;

PeerUpdates::PeerUpdates(Apply apply, std::chrono::milliseconds retry)
    : apply_(std::move(apply)), retry_(retry) {
  thread_ = Thread("kv-peers", [this] { Loop(); });
}

PeerUpdates::~PeerUpdates() { Stop(); }

void PeerUpdates::Stop() {
  {
    MutexLock lock(mutex_);
    stops_ = true;
  }
  change_.NotifyOne();
}

void PeerUpdates::Set(std::vector<PeerAddress> peers) {
  {
    MutexLock lock(mutex_);
    next_ = std::move(peers);
  }
  change_.NotifyOne();
}

void PeerUpdates::Loop() {
  std::vector<PeerAddress> peers;
  std::string failure;
  MutexLock lock(mutex_);
  while (true) {
    const auto retry_at = std::chrono::steady_clock::now() + retry_;
    while (!HasWorkLocked()) {
      if (failure.empty()) {
        change_.Wait(mutex_);
      } else if (!change_.WaitUntil(mutex_, retry_at)) {
        break;
      }
    }
    if (stops_) return;
    if (next_) peers = *std::exchange(next_, std::nullopt);
    lock.Unlock();
    const Status status = apply_(peers, [&] {
      const MutexLock guard(mutex_);
      return HasWorkLocked();
    });
    const std::string before = std::exchange(failure, std::string(status.message()));
    if (!status.ok() && failure != before) BATON_LOG_WARN("{}; it is tried again", failure);
    lock.Lock();
  }
}

}  // namespace baton::worker
