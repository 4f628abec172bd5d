// BoundedQueue<T>: the inbox between threads that post and the one thread that owns the state.
//
// Invariants
//  1. Any thread may push; one thread pops (several may, but order is then per pop).
//  2. Never holds more than `capacity` items: a push into a full queue fails and leaves the item
//     with the caller. Memory is reserved at construction; a push allocates nothing.
//  3. After Close no push succeeds; what was pushed before can still be popped.
//  4. The mutex is held for moving items, never while calling out.
#ifndef BATON_BASE_BOUNDED_QUEUE_H_
#define BATON_BASE_BOUNDED_QUEUE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/check.h"
#include "src/base/mutex.h"

namespace baton {

// A first-in first-out queue with a fixed capacity; see the file comment.
template <typename T>
class BoundedQueue {
 public:
  // capacity >= 1 items.
  explicit BoundedQueue(size_t capacity) : slots_(capacity) {
    BATON_CHECK(capacity > 0, "a queue needs room for one item");
  }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Moves from `item` only on success; false = full or closed.
  bool TryPush(T&& item) {
    {
      MutexLock lock(mutex_);
      if (closed_ || size_ == slots_.size()) return false;
      slots_[(head_ + size_) % slots_.size()].emplace(std::move(item));
      ++size_;
    }
    not_empty_.NotifyOne();
    return true;
  }
  bool TryPush(const T& item) {
    T copy = item;
    return TryPush(std::move(copy));
  }

  // The oldest item; waits until `deadline_us` (SystemClock().NowUs()). Nothing = timed out, or
  // closed and empty (then at once).
  std::optional<T> Pop(int64_t deadline_us) {
    // steady_clock is CLOCK_MONOTONIC, the clock of SystemClock().NowUs().
    const std::chrono::steady_clock::time_point deadline{std::chrono::microseconds(deadline_us)};
    MutexLock lock(mutex_);
    while (size_ == 0 && !closed_ && not_empty_.WaitUntil(mutex_, deadline)) {
    }
    if (size_ == 0) return std::nullopt;
    std::optional<T> item(std::move(slots_[head_]));
    slots_[head_].reset();
    head_ = (head_ + 1) % slots_.size();
    --size_;
    return item;
  }

  // Refuses pushes from now on and wakes every waiter; idempotent.
  void Close() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    not_empty_.NotifyAll();
  }

  bool closed() const {
    MutexLock lock(mutex_);
    return closed_;
  }
  size_t size() const {
    MutexLock lock(mutex_);
    return size_;
  }

 private:
  mutable Mutex mutex_;
  CondVar not_empty_;
  std::vector<std::optional<T>> slots_ BATON_GUARDED_BY(mutex_);  // ring; its size is constant
  size_t head_ BATON_GUARDED_BY(mutex_) = 0;
  size_t size_ BATON_GUARDED_BY(mutex_) = 0;
  bool closed_ BATON_GUARDED_BY(mutex_) = false;
};

}  // namespace baton

#endif  // BATON_BASE_BOUNDED_QUEUE_H_
