// ApiWorkers: the threads that parse, render and tokenise requests ("api-work"), so that a prompt
// of megabytes delays neither other streams' writes nor the router. Large requests have a thread of
// their own ("api-large"): however many come, a short one waits for no more than short ones. Any
// thread may post.
#ifndef BATON_API_API_WORKERS_H_
#define BATON_API_API_WORKERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"

#include "src/api/tool_metrics.h"
#include "src/base/bounded_queue.h"
#include "src/base/thread.h"
#include "src/router/request_error.h"
#include "src/text/tools/tool_style.h"

namespace baton::router {
class Submitter;
}  // namespace baton::router

namespace baton::api {

class AnswerBudget;
class ClusterEvents;
class KeptStreams;
class KeyRing;

// The error with which a job that came too late answers its client.
inline router::RequestError ApiStops() { return router::PlainError(router::ErrorCode::kDraining); }

// A few threads with one bounded queue, and one thread with another.
class ApiWorkers {
 public:
  // `too_late`: Stop has begun. The job then only tells its client so (ApiStops).
  using Job = absl::AnyInvocable<void(bool too_late)>;
  // Above it a request is large; README.md says what that costs.
  static constexpr size_t kLargeBytes = size_t{256} << 10;
  static constexpr size_t kMaxLargeJobs = 64;
  static constexpr size_t kMaxJobs = 2048;  // more requests than the router would hold

  // num_threads >= 1, for what is not large.
  explicit ApiWorkers(int num_threads);
  // Stops.
  ~ApiWorkers() { Stop(); }

  // `num_bytes`: the size of the request. False: the queue is full, or stopped; the job is dropped.
  bool TryPost(size_t num_bytes, Job job) {
    num_busy_.fetch_add(1);
    const bool taken = (num_bytes > kLargeBytes ? large_jobs_ : jobs_).TryPush(std::move(job));
    if (!taken) num_busy_.fetch_sub(1);
    return taken;
  }
  // Writes an answer of about `num_bytes`: at once, or, where that would hold up the router's loop,
  // from which it is called, on one of the threads. (At once too when no thread takes it.)
  void Write(size_t num_bytes, absl::AnyInvocable<void()> write) {
    constexpr size_t kShortAnswerBytes = size_t{64} << 10;  // tens of microseconds
    if (num_bytes <= kShortAnswerBytes) return write();
    const auto shared = std::make_shared<absl::AnyInvocable<void()>>(std::move(write));
    // Milliseconds for megabytes: it need not wait for prompts of that size.
    if (!TryPost(0, [shared](bool /*too_late*/) { (*shared)(); })) (*shared)();
  }
  // Jobs that wait or run.
  size_t num_busy() const { return num_busy_.load(); }
  // The error for the client when TryPost has failed.
  router::RequestError Refusal() const {
    return stopping_.load() ? ApiStops() : router::PlainError(router::ErrorCode::kQueueFull);
  }
  // Runs what is queued, as too late, and joins the threads: each waits for the job that it is in
  // the middle of. Idempotent; not from a job.
  void Stop();

 private:
  void RunJobs(BoundedQueue<Job>& jobs);

  std::atomic<bool> stopping_{false};
  std::atomic<size_t> num_busy_{0};
  BoundedQueue<Job> jobs_{kMaxJobs};
  BoundedQueue<Job> large_jobs_{kMaxLargeJobs};
  std::vector<Thread> threads_;
};

// The parts that both APIs share; the pointees outlive them.
struct ApiParts {
  router::Submitter* submitter = nullptr;
  ApiWorkers* workers = nullptr;
  AnswerBudget* answers = nullptr;
  // Thoughts get a field of their own in answers to requests that do not say.
  bool splits_reasoning = true;
  // How calls are read from answers to requests that do not say; absent = as the template says.
  std::optional<text::ToolStyle> tool_style;
  // Time that a client may take for the rest of a gRPC call that has ended (call_end_limit.h).
  int64_t slow_client_us = 30'000'000;
  // An event stream that is silent for so long gets a comment; 0 = never.
  int64_t sse_ping_ms = 15'000;
  ClusterEvents* events = nullptr;  // null: nobody can watch the cluster
  bool serves_ui = true;            // --ui
  // Whom the public API serves; null: everybody, without limits.
  KeyRing* keys = nullptr;
  KeptStreams* streams = nullptr;             // null: no stream can be resumed
  const ToolMetrics* tool_metrics = nullptr;  // null: calls of tools are not counted
};

}  // namespace baton::api

#endif  // BATON_API_API_WORKERS_H_
