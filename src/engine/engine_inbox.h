// EngineInbox: the one way into an engine thread. Any thread posts; the engine thread takes
// everything at once by swapping two buffers, so that it holds the lock for a pointer exchange.
//
// Two kinds of events:
//   refusable  new requests, peers' control messages, progress, debug queries: refused once
//              `capacity` events wait; their senders have an answer for that (a rejection, a
//              repetition by lease, the next progress).
//   certain    ends and closings, each of which frees something, and masks that requests wait for.
//              Never refused; their number is bounded by what they end or wake: requests, sessions,
//              transfers and connections have limits.
//
// Invariants
//  1. Events of one thread arrive in order.
//  2. In steady state neither side allocates: both buffers keep their capacity.
#ifndef BATON_ENGINE_ENGINE_INBOX_H_
#define BATON_ENGINE_ENGINE_INBOX_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/mutex.h"
#include "src/engine/engine_event.h"

namespace baton::engine {

// See the file comment.
class EngineInbox {
 public:
  explicit EngineInbox(size_t capacity);
  EngineInbox(const EngineInbox&) = delete;
  EngineInbox& operator=(const EngineInbox&) = delete;

  // False when `capacity` events wait, or after Close; the event is then gone.
  bool TryPost(EngineEvent event);
  // Always taken, except after Close.
  void Post(EngineEvent event);

  // Moves all waiting events to the end of `out`; never waits.
  void Take(std::vector<EngineEvent>* out);
  // As Take, after waiting until `deadline_us` of the system clock for a first event, or Close.
  void WaitAndTake(int64_t deadline_us, std::vector<EngineEvent>* out);
  // True when Take would move something; one atomic read.
  bool HasEvents() const { return num_waiting_.load(std::memory_order_acquire) > 0; }

  // Refuses everything from now on and wakes the engine.
  void Close();
  bool closed() const;
  // Events ever taken in.
  uint64_t num_posted() const { return num_posted_.load(std::memory_order_acquire); }

 private:
  void TakeLocked(std::vector<EngineEvent>* out) BATON_REQUIRES(mutex_);

  const size_t capacity_;
  std::atomic<size_t> num_waiting_{0};
  std::atomic<uint64_t> num_posted_{0};

  mutable Mutex mutex_;
  CondVar not_empty_;
  std::vector<EngineEvent> events_ BATON_GUARDED_BY(mutex_);
  bool closed_ BATON_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_INBOX_H_
