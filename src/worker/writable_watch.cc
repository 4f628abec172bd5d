#include "src/worker/writable_watch.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <iterator>
#include <utility>

#include "src/base/check.h"
#include "src/base/errno_text.h"

namespace baton::worker {

WritableWatch::WritableWatch() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  BATON_CHECK(event_.valid(), "eventfd: {}", ErrnoText(errno));
}

WritableWatch::~WritableWatch() {
  Thread thread;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    thread = std::move(thread_);
  }
  ::eventfd_write(event_.get(), 1);
  thread.Join();
}

void WritableWatch::Add(int fd, std::function<void()> on_writable) {
  MutexLock lock(mutex_);
  if (stopped_) return;
  added_.push_back({fd, std::move(on_writable)});
  if (!thread_.joinable()) thread_ = Thread("session-full", [this] { Run(); });
  lock.Unlock();
  ::eventfd_write(event_.get(), 1);
}

void WritableWatch::Run() {
  std::vector<Waiting> waiting;
  std::vector<pollfd> polled;
  while (true) {
    {
      MutexLock lock(mutex_);
      if (stopped_) return;
      std::move(added_.begin(), added_.end(), std::back_inserter(waiting));
      added_.clear();
    }
    polled.assign(1, {.fd = event_.get(), .events = POLLIN, .revents = 0});
    for (const Waiting& one : waiting) {
      polled.push_back({.fd = one.fd, .events = POLLOUT, .revents = 0});
    }
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;
    eventfd_t num_wakes = 0;
    if (polled[0].revents != 0) ::eventfd_read(event_.get(), &num_wakes);
    std::vector<Waiting> still;
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (polled[i + 1].revents == 0) {
        still.push_back(std::move(waiting[i]));
      } else {
        waiting[i].on_writable();
      }
    }
    waiting = std::move(still);
  }
}

}  // namespace baton::worker
