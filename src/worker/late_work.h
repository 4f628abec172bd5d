// LateWork: what a worker does after it can serve, so that its start need not wait for it. One
// thread ("late-work") does one task after another, at a lower priority than steps. It begins when
// the worker had nothing to do for two seconds: the first request of a start, and all of a server
// that is full, need the processors more. After a minute it goes on beside requests.
//
// The maker's thread makes and destroys it; the tasks run on its own thread. OnBusy: any thread.
#ifndef BATON_WORKER_LATE_WORK_H_
#define BATON_WORKER_LATE_WORK_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <vector>

#include "src/base/mutex.h"
#include "src/base/thread.h"

namespace baton::worker {

// How long late work waits for requests.
struct LateWorkWaits {
  std::chrono::milliseconds quiet{2'000};     // after the start, and after each OnBusy
  std::chrono::milliseconds longest{60'000};  // after the start
};

// See the file comment.
class LateWork {
 public:
  // Called until it returns false: there is nothing left to do. The end of the worker waits for a
  // call, so that it is short, or returns soon once `stops` is true.
  using Task = std::function<bool(const std::atomic<bool>& stops)>;

  explicit LateWork(std::vector<Task> tasks, const LateWorkWaits& waits = {});
  // Stops.
  ~LateWork() { Stop(); }
  LateWork(const LateWork&) = delete;
  LateWork& operator=(const LateWork&) = delete;

  // The worker has requests, or has just had some. Told at least once a second while it has.
  void OnBusy();
  // Waits for the call that runs; the rest is left. Idempotent; one thread at a time.
  void Stop();

 private:
  void Run();
  // False: it stops.
  bool WaitForTurn();

  const std::vector<Task> tasks_;
  const std::chrono::milliseconds quiet_;
  const std::chrono::steady_clock::time_point latest_;  // it waits no longer
  std::atomic<bool> stops_{false};                      // written with the mutex held
  Mutex mutex_;
  CondVar stop_;
  std::chrono::steady_clock::time_point busy_until_ BATON_GUARDED_BY(mutex_);
  Thread thread_;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_LATE_WORK_H_
