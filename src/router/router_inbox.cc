#include "src/router/router_inbox.h"

#include <chrono>
#include <utility>

namespace baton::router {

bool RouterInbox::Post(RouterTask task) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    tasks_.push_back(std::move(task));
  }
  not_empty_.notify_one();
  return true;
}

bool RouterInbox::TryPostRequest(RouterTask task) {
  {
    std::lock_guard lock(mutex_);
    if (closed_ || num_requests_ >= kMaxWaitingRequests) return false;
    ++num_requests_;
    tasks_.push_back(std::move(task));
  }
  not_empty_.notify_one();
  return true;
}

void RouterInbox::Take(int64_t deadline_us, std::vector<RouterTask>* out) {
  out->clear();
  std::unique_lock lock(mutex_);
  const std::chrono::steady_clock::time_point deadline{std::chrono::microseconds(deadline_us)};
  not_empty_.wait_until(lock, deadline, [this] { return !tasks_.empty() || closed_; });
  std::swap(tasks_, *out);
  num_requests_ = 0;
}

void RouterInbox::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  not_empty_.notify_all();
}

bool RouterInbox::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace baton::router
