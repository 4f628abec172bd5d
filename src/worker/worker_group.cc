#include "src/worker/worker_group.h"

#include <algorithm>
#include <utility>

namespace baton::worker {

using kv::LocalHub;

StatusOr<std::unique_ptr<WorkerGroup>> WorkerGroup::Start(std::vector<WorkerConfig> configs) {
  std::unique_ptr<WorkerGroup> group(new WorkerGroup());
  group->workers_.reserve(configs.size());
  if (configs.size() > 1) group->hub_ = std::make_unique<LocalHub>(/*own_thread=*/true);
  for (WorkerConfig& config : configs) {
    Colocation colocation;
    colocation.hub = group->hub_.get();
    if (!group->workers_.empty()) colocation.first = group->workers_.front().get();
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<WorkerProcess> worker,
                           WorkerProcess::Start(std::move(config), colocation));
    group->workers_.push_back(std::move(worker));
  }
  return group;
}

WorkerGroup::~WorkerGroup() {
  while (!workers_.empty()) workers_.pop_back();
}

bool WorkerGroup::drain_asked() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker->drain_asked(); });
}

Status WorkerGroup::failure() const {
  for (const auto& worker : workers_) BATON_RETURN_IF_ERROR(worker->failure());
  return OkStatus();
}

Status WorkerGroup::Drain(const std::atomic<bool>* stop_now) {
  std::vector<WorkerProcess*> workers;
  workers.reserve(workers_.size());
  for (const auto& worker : workers_) workers.push_back(worker.get());
  return WorkerProcess::DrainTogether(workers, stop_now);
}

void WorkerGroup::Stop() {
  for (const auto& worker : workers_) worker->Stop();
}

}  // namespace baton::worker
