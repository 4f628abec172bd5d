#include "src/engine/engine_inbox.h"

#include <chrono>
#include <iterator>
#include <utility>

namespace baton::engine {

EngineInbox::EngineInbox(size_t capacity) : capacity_(capacity) { events_.reserve(capacity); }

bool EngineInbox::TryPost(EngineEvent event) {
  {
    MutexLock lock(mutex_);
    if (closed_ || events_.size() >= capacity_) return false;
    events_.push_back(std::move(event));
    num_waiting_.store(events_.size(), std::memory_order_release);
    num_posted_.fetch_add(1, std::memory_order_release);
  }
  not_empty_.NotifyOne();
  return true;
}

void EngineInbox::Post(EngineEvent event) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    events_.push_back(std::move(event));
    num_waiting_.store(events_.size(), std::memory_order_release);
    num_posted_.fetch_add(1, std::memory_order_release);
  }
  not_empty_.NotifyOne();
}

void EngineInbox::TakeLocked(std::vector<EngineEvent>* out) {
  if (out->empty()) {
    std::swap(*out, events_);
  } else {
    out->insert(out->end(), std::make_move_iterator(events_.begin()),
                std::make_move_iterator(events_.end()));
    events_.clear();
  }
  num_waiting_.store(0, std::memory_order_release);
}

void EngineInbox::Take(std::vector<EngineEvent>* out) {
  if (!HasEvents()) return;
  MutexLock lock(mutex_);
  TakeLocked(out);
}

void EngineInbox::WaitAndTake(int64_t deadline_us, std::vector<EngineEvent>* out) {
  // steady_clock is CLOCK_MONOTONIC, the clock of SystemClock().
  const std::chrono::steady_clock::time_point deadline{std::chrono::microseconds(deadline_us)};
  MutexLock lock(mutex_);
  while (events_.empty() && !closed_ && not_empty_.WaitUntil(mutex_, deadline)) {
  }
  TakeLocked(out);
}

void EngineInbox::Close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  not_empty_.NotifyAll();
}

bool EngineInbox::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

}  // namespace baton::engine
