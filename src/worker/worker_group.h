// WorkerGroup: the workers of one process: one, or a prefill and a decode worker that share the
// weights and hand off to each other within the process (`--colocate`). To routers these are two
// workers, each with an engine, a pool of blocks, ports and an incarnation of its own; they start,
// leave and die together.
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
  // The first loads the model, a second one uses its weights and its device; what their configs say
  // of model, device, types and context is equal. Errors as WorkerProcess::Start, and nothing is
  // left running.
  static StatusOr<std::unique_ptr<WorkerGroup>> Start(std::vector<WorkerConfig> configs);
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  // In the order of the configs; null never.
  std::span<const std::unique_ptr<WorkerProcess>> workers() const { return workers_; }

  // A router asked one of them to leave: then all do.
  bool drain_asked() const;
  // The failure of the first worker that can never serve; Ok while there is hope for all.
  Status failure() const;
  // As WorkerProcess::DrainTogether.
  Status Drain(const std::atomic<bool>* stop_now);
  // WorkerProcess::Stop of each. Idempotent.
  void Stop();

 private:
  WorkerGroup() = default;

  std::unique_ptr<kv::LocalHub> hub_;  // null for one worker
  // The first one's weights are used by the others, so it ends last.
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_WORKER_GROUP_H_
