#include "src/router/router_inbox.h"

#include <chrono>
#include <utility>

namespace baton::router {

bool RouterInbox::Post(RouterTask task) {
  {
    MutexLock lock(mutex_);
    if (closed_) return false;
    tasks_.push_back(std::move(task));
  }
  not_empty_.NotifyOne();
  return true;
}

bool RouterInbox::TryPostRequest(RouterTask task) {
  {
    MutexLock lock(mutex_);
    if (closed_ || num_requests_ >= kMaxWaitingRequests) return false;
    ++num_requests_;
    tasks_.push_back(std::move(task));
  }
  not_empty_.NotifyOne();
  return true;
}

void RouterInbox::Take(int64_t deadline_us, std::vector<RouterTask>* out) {
  out->clear();
  MutexLock lock(mutex_);
  const std::chrono::steady_clock::time_point deadline{std::chrono::microseconds(deadline_us)};
  while (tasks_.empty() && !closed_ && not_empty_.WaitUntil(mutex_, deadline)) {
  }
  std::swap(tasks_, *out);
  num_requests_ = 0;
}

void RouterInbox::Close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  not_empty_.NotifyAll();
}

bool RouterInbox::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

}  // namespace baton::router
