#include "src/router/router_inbox.h"

#include <chrono>
#include <iterator>
#include <utility>

namespace baton::router {

bool RouterInbox::Post(RouterTask task) {
  MutexLock lock(mutex_);
  if (closed_) return false;
  tasks_.push_back(std::move(task));
  UnlockAndWake(&lock);
  return true;
}

bool RouterInbox::TryPostRequest(RouterTask task) {
  MutexLock lock(mutex_);
  if (closed_ || num_requests_ >= kMaxWaitingRequests) return false;
  ++num_requests_;
  tasks_.push_back(std::move(task));
  UnlockAndWake(&lock);
  return true;
}

// The analysis does not follow a lock that a caller gives. The caller has just changed what the
// thread waits for; the source stays as long as this does.
void RouterInbox::UnlockAndWake(MutexLock* lock) {
  const bool must_wake = std::exchange(is_waiting_, false);
  InboxSource* const source = source_.get();
  lock->Unlock();
  if (!must_wake) return;
  if (source != nullptr) {
    source->Wake();
  } else {
    not_empty_.NotifyOne();
  }
}

void RouterInbox::SetSource(std::shared_ptr<InboxSource> source) {
  MutexLock lock(mutex_);
  source_ = std::move(source);
}

void RouterInbox::Take(int64_t deadline_us, std::vector<RouterTask>* out) {
  out->clear();
  MutexLock lock(mutex_);
  is_waiting_ = tasks_.empty() && !closed_;
  if (source_ == nullptr) {
    const std::chrono::steady_clock::time_point deadline{std::chrono::microseconds(deadline_us)};
    while (tasks_.empty() && !closed_ && not_empty_.WaitUntil(mutex_, deadline)) {
    }
  } else if (!closed_) {
    const int64_t until_us = is_waiting_ ? deadline_us : 0;
    InboxSource* const source = source_.get();
    lock.Unlock();
    source->Wait(until_us, out);
    lock.Lock();
  }
  is_waiting_ = false;
  if (out->empty()) {
    std::swap(tasks_, *out);
  } else {
    std::move(tasks_.begin(), tasks_.end(), std::back_inserter(*out));
    tasks_.clear();
  }
  num_requests_ = 0;
}

void RouterInbox::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  UnlockAndWake(&lock);
}

bool RouterInbox::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

}  // namespace baton::router
