// LateWork: what a worker does after it can serve, so that its start need not wait for it. One
// thread ("late-work") does one task after another, at a lower priority than steps.
//
// The maker's thread makes and destroys it; the tasks run on its own thread.
#ifndef BATON_WORKER_LATE_WORK_H_
#define BATON_WORKER_LATE_WORK_H_

#include <atomic>
#include <functional>
#include <vector>

#include "src/base/thread.h"

namespace baton::worker {

// See the file comment.
class LateWork {
 public:
  // Called until it returns false: there is nothing left to do. The end of the worker waits for a
  // call, so that it is short, or returns soon once `stops` is true.
  using Task = std::function<bool(const std::atomic<bool>& stops)>;

  explicit LateWork(std::vector<Task> tasks);
  // Waits for the call that runs; the rest is left.
  ~LateWork();
  LateWork(const LateWork&) = delete;
  LateWork& operator=(const LateWork&) = delete;

 private:
  void Run();

  const std::vector<Task> tasks_;
  std::atomic<bool> stops_{false};
  Thread thread_;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_LATE_WORK_H_
