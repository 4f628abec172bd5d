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
    std::lock_guard<std::mutex> lock(mutex_);
    stops_ = true;
  }
  change_.notify_one();
}

void PeerUpdates::Set(std::vector<PeerAddress> peers) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    next_ = std::move(peers);
  }
  change_.notify_one();
}

void PeerUpdates::Loop() {
  std::vector<PeerAddress> peers;
  std::string failure;
  const auto has_work = [this] { return stops_ || next_.has_value(); };
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (failure.empty()) {
      change_.wait(lock, has_work);
    } else {
      change_.wait_for(lock, retry_, has_work);
    }
    if (stops_) return;
    if (next_) peers = *std::exchange(next_, std::nullopt);
    lock.unlock();
    const Status status = apply_(peers, [&] {
      const std::lock_guard<std::mutex> guard(mutex_);
      return has_work();
    });
    const std::string before = std::exchange(failure, std::string(status.message()));
    if (!status.ok() && failure != before) BATON_LOG_WARN("{}; it is tried again", failure);
    lock.lock();
  }
}

}  // namespace baton::worker
