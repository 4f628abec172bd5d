#include "src/engine/engine_inbox.h"

#include <chrono>
#include <iterator>
#include <utility>

namespace baton::engine {

EngineInbox::EngineInbox(size_t capacity) : capacity_(capacity) { events_.reserve(capacity); }

bool EngineInbox::TryPost(EngineEvent event) {
  {
    std::lock_guard lock(mutex_);
    if (closed_ || events_.size() >= capacity_) {
      num_refused_.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    events_.push_back(std::move(event));
    num_waiting_.store(events_.size(), std::memory_order_release);
    num_posted_.fetch_add(1, std::memory_order_release);
  }
  not_empty_.notify_one();
  return true;
}

void EngineInbox::Post(EngineEvent event) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    events_.push_back(std::move(event));
    num_waiting_.store(events_.size(), std::memory_order_release);
    num_posted_.fetch_add(1, std::memory_order_release);
  }
  not_empty_.notify_one();
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
  std::lock_guard lock(mutex_);
  TakeLocked(out);
}

void EngineInbox::WaitAndTake(int64_t deadline_us, std::vector<EngineEvent>* out) {
  // steady_clock is CLOCK_MONOTONIC, the clock of SystemClock().
  const std::chrono::steady_clock::time_point deadline{std::chrono::microseconds(deadline_us)};
  std::unique_lock lock(mutex_);
  not_empty_.wait_until(lock, deadline, [this] { return !events_.empty() || closed_; });
  TakeLocked(out);
}

void EngineInbox::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  not_empty_.notify_all();
}

bool EngineInbox::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace baton::engine
