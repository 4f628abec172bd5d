// RouterInbox: the one way into the router's thread. Shared by everything that posts, so that a
// gRPC stream that outlives the router posts into a closed inbox instead of into freed memory.
//
// Invariants
//  1. Any thread posts; the router's thread takes everything at once, in order.
//  2. New requests are refused once kMaxWaitingRequests of them wait. All other messages are
//  bounded
//     by their senders: a stream of a worker has at most 16 messages under way, a request one
//     cancellation.
//  3. After Close every post is dropped and the poster is told.
//  4. With a source its thread waits in the source, and takes what was read there before what was
//     posted. However many posts wake the thread once.
#ifndef BATON_ROUTER_ROUTER_INBOX_H_
#define BATON_ROUTER_ROUTER_INBOX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"

#include "src/base/mutex.h"

namespace baton::router {

class RouterCore;

// A message to the router's thread: runs there with the time of its arrival.
using RouterTask = absl::AnyInvocable<void(RouterCore& core, int64_t now_us)>;

// Where the router's thread waits and reads itself, beside what others post.
class InboxSource {
 public:
  virtual ~InboxSource() = default;
  // Waits until something can be read, `deadline_us` of the system clock or Wake, and adds what it
  // read to `out`. The router's thread only.
  virtual void Wait(int64_t deadline_us, std::vector<RouterTask>* out) = 0;
  // Ends the Wait under way, or else the next one. Any thread; does not wait.
  virtual void Wake() = 0;
};

// See the file comment.
class RouterInbox {
 public:
  static constexpr size_t kMaxWaitingRequests = 4096;

  // Once, before the router's thread runs; null = none.
  void SetSource(std::shared_ptr<InboxSource> source);

  // False: closed.
  bool Post(RouterTask task);
  // False: too many requests wait, or closed.
  bool TryPostRequest(RouterTask task);

  // Moves everything posted into `out` (emptied first); waits until `deadline_us` of the system
  // clock for a first message or Close. The router's thread only.
  void Take(int64_t deadline_us, std::vector<RouterTask>* out);

  void Close();
  bool closed() const;

 private:
  void UnlockAndWake(MutexLock* lock) BATON_NO_THREAD_SAFETY_ANALYSIS;

  mutable Mutex mutex_;
  std::shared_ptr<InboxSource> source_ BATON_GUARDED_BY(mutex_);
  CondVar not_empty_;                                 // without a source
  bool is_waiting_ BATON_GUARDED_BY(mutex_) = false;  // its thread; nobody has woken it
  std::vector<RouterTask> tasks_ BATON_GUARDED_BY(mutex_);
  size_t num_requests_ BATON_GUARDED_BY(mutex_) = 0;
  bool closed_ BATON_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTER_INBOX_H_
