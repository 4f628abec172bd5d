// ApiWorkers: the threads that parse, render and tokenise requests ("api-work"), so that a prompt
// of megabytes delays neither other streams' writes nor the router. Any thread may post.
#ifndef BATON_API_API_WORKERS_H_
#define BATON_API_API_WORKERS_H_

#include <cstddef>
#include <vector>

#include "absl/functional/any_invocable.h"

#include "src/base/bounded_queue.h"
#include "src/base/thread.h"
#include "src/router/request_error.h"

namespace baton {

class Submitter;

// A few threads behind one bounded queue.
class ApiWorkers {
 public:
  using Job = absl::AnyInvocable<void()>;
  // One prompt of 4 MiB takes a thread for about a second; the queue holds more requests than the
  // router would.
  static constexpr size_t kMaxJobs = 2048;

  // num_threads >= 1.
  explicit ApiWorkers(int num_threads);
  // Stops.
  ~ApiWorkers() { Stop(); }

  // False: the queue is full, or stopped; the job is dropped.
  bool TryPost(Job job) { return jobs_.TryPush(std::move(job)); }
  // Runs what is queued and joins the threads. Idempotent; not from a job.
  void Stop();

 private:
  void Loop();

  BoundedQueue<Job> jobs_{kMaxJobs};
  std::vector<Thread> threads_;
};

// What both APIs work with; the pointees outlive them.
struct ApiParts {
  Submitter* submitter = nullptr;
  ApiWorkers* workers = nullptr;
  // Thoughts get a field of their own in answers to requests that do not say.
  bool splits_reasoning = true;
};

// What a client is told when TryPost has failed.
inline RequestError ApiQueueFull() {
  RequestError error{ErrorCode::kQueueFull};
  error.retry_after_s = 1;
  return error;
}

}  // namespace baton

#endif  // BATON_API_API_WORKERS_H_
