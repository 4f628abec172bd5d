#include "src/worker/late_work.h"

#include <algorithm>
#include <utility>

namespace baton::worker {

using std::chrono::steady_clock;

namespace {

// A tenth of the time that a step's thread gets on the same processor: 100 MiB of a pool a second.
constexpr int kLateNice = 10;

}  // namespace

LateWork::LateWork(std::vector<Task> tasks, const LateWorkWaits& waits)
    : tasks_(std::move(tasks)),
      quiet_(waits.quiet),
      latest_(steady_clock::now() + waits.longest),
      busy_until_(steady_clock::now() + waits.quiet) {
  thread_ = Thread("late-work", [this] { Run(); });
}

void LateWork::OnBusy() {
  MutexLock lock(mutex_);
  busy_until_ = steady_clock::now() + quiet_;
}

void LateWork::Stop() {
  {
    MutexLock lock(mutex_);
    stops_.store(true, std::memory_order_relaxed);
  }
  stop_.NotifyOne();
  thread_.Join();
}

bool LateWork::WaitForTurn() {
  MutexLock lock(mutex_);
  while (!stops_.load(std::memory_order_relaxed)) {
    const steady_clock::time_point turn = std::min(busy_until_, latest_);
    if (steady_clock::now() >= turn) return true;
    (void)stop_.WaitUntil(mutex_, turn);
  }
  return false;
}

void LateWork::Run() {
  LowerThisThread(kLateNice);
  for (const Task& task : tasks_) {
    while (WaitForTurn() && task(stops_)) {
    }
  }
}

}  // namespace baton::worker
