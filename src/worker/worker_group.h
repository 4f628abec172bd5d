// WorkerGroup: the workers of one process. With `--colocate` they are a prefill and a decode worker
// that share the weights and hand off within the process; otherwise there is one worker. Each is a
// worker of its own to routers, with its own engine, pool of blocks, ports and incarnation. All
// workers of a process start, leave and die together.
//
// One thread: the process's main thread.
#ifndef BATON_WORKER_WORKER_GROUP_H_
#define BATON_WORKER_WORKER_GROUP_H_

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/transport/local_transport.h"
#include "src/base/status.h"
#include "src/worker/worker_config.h"
#include "src/worker/worker_process.h"

namespace baton::worker {

// See the file comment.
class WorkerGroup {
 public:
  // The first worker loads the model; a second one uses its weights and its device. The configs are
  // equal in model, device, types and context. Errors as WorkerProcess::Start; after an error
  // nothing runs.
  static StatusOr<std::unique_ptr<WorkerGroup>> Start(std::vector<WorkerConfig> configs);
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  // In the order of the configs; null never.
  std::span<const std::unique_ptr<WorkerProcess>> workers() const { return workers_; }

  // True once a router asked one of the workers to leave. Then all workers leave.
  bool drain_asked() const;
  // The failure of the first worker that can never serve; Ok while all may still serve.
  Status failure() const;
  // As WorkerProcess::DrainTogether.
  Status Drain(const std::atomic<bool>* stop_now);
  // WorkerProcess::Stop of each. Idempotent.
  void Stop();

 private:
  WorkerGroup() = default;

  std::unique_ptr<kv::LocalHub> hub_;  // null for one worker
  // The other workers use the weights of the first one, so the first ends last.
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_WORKER_GROUP_H_
