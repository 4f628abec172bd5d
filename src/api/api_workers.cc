#include "src/api/api_workers.h"

#include <optional>

#include "src/base/clock.h"

namespace baton::api {
namespace {

// How long an idle thread sleeps before it looks again whether the queue was closed.
constexpr int64_t kIdleWaitUs = 60'000'000;

}  // namespace

void ApiWorkers::RunJobs(BoundedQueue<Job>& jobs) {
  while (true) {
    std::optional<Job> job = jobs.Pop(SystemClock().NowUs() + kIdleWaitUs);
    if (job.has_value()) {
      (*job)(stopping_.load());
      job.reset();
      num_busy_.fetch_sub(1);
    } else if (jobs.closed()) {
      return;
    }
  }
}

ApiWorkers::ApiWorkers(int num_threads) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.push_back(Thread("api-work", [this] { RunJobs(jobs_); }));
  }
  threads_.push_back(Thread("api-large", [this] { RunJobs(large_jobs_); }));
}

void ApiWorkers::Stop() {
  stopping_.store(true);
  jobs_.Close();
  large_jobs_.Close();
  for (Thread& thread : threads_) thread.Join();
}

}  // namespace baton::api
