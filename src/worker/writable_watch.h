// WritableWatch: waits until full sockets can be written again. Its thread starts with the first
// socket, so a worker whose routers keep up has none.
//
// Invariant: the watch calls the callback of each Add once, without a lock, unless the watch ends
// first. It also calls when the other end of the socket has closed. A callback may call Add.
//
// Any thread. A callback may not destroy the watch.
#ifndef BATON_WORKER_WRITABLE_WATCH_H_
#define BATON_WORKER_WRITABLE_WATCH_H_

#include <functional>
#include <vector>

#include "src/base/mutex.h"
#include "src/base/thread.h"
#include "src/base/unique_fd.h"

namespace baton::worker {

// See the file comment.
class WritableWatch {
 public:
  WritableWatch();
  ~WritableWatch();

  // `fd` stays open until the callback, which keeps the owner of `fd` alive.
  void Add(int fd, std::function<void()> on_writable);

 private:
  struct Waiting {
    int fd = -1;
    std::function<void()> on_writable;
  };

  void Run();

  const UniqueFd event_;  // readable: look at added_ and stopped_
  Mutex mutex_;
  bool stopped_ BATON_GUARDED_BY(mutex_) = false;
  std::vector<Waiting> added_ BATON_GUARDED_BY(mutex_);
  Thread thread_ BATON_GUARDED_BY(mutex_);  // joined without it
};

}  // namespace baton::worker

#endif  // BATON_WORKER_WRITABLE_WATCH_H_
