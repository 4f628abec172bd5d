#include "src/router/cluster_views.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "fmt/format.h"

namespace baton::router {

using obs::BatonMetrics;
using obs::kObjectiveNames;
using obs::Objective;
using obs::ObjectiveResult;
using scheduler::LinkHealth;

namespace {

// Bytes a second as the topology and the metrics show them; 0 = not measured.
uint64_t ShownSpeed(const LinkHealth& health) {
  const double limit = health.limit_bytes_per_s();
  return static_cast<uint64_t>(limit > 0 ? limit : health.average_bytes_per_s());
}

// Null: nothing was handed off there.
const LinkHealth* HealthOf(const WorkerRegistry& registry, const RegisteredWorker& prefill,
                           std::string_view decode_id) {
  for (const auto& [lease, health] : prefill.links) {
    const RegisteredWorker* const decode = registry.Find(lease);
    if (decode != nullptr && decode->description.name.worker_id == decode_id) return &health;
  }
  return nullptr;
}

void ShowHealth(const WorkerRegistry& registry, const RegisteredWorker& prefill, LinkView& link,
                int64_t now_us) {
  const LinkHealth* const health = HealthOf(registry, prefill, link.to);
  if (health == nullptr) return;
  link.bytes_per_s = ShownSpeed(*health);
  // No probe tries a link between decode workers: it only rests.
  const bool is_left = prefill.IsPrefill() ? health->IsLeftAlone(now_us) : health->Rests(now_us);
  if (!link.up || !is_left) return;
  if (health->IsSuspected()) {
    link.why = "left alone until a probe: another link of its prefill worker was slow";
    return;
  }
  link.why = fmt::format("left alone for a while: {} hand-offs over it failed or came too slowly",
                         health->num_stalls());
}

}  // namespace

std::vector<LinkRow> LinkRowsOf(const WorkerRegistry& registry) {
  std::map<std::string_view, const RegisteredWorker*> decode_workers;
  for (const auto& [lease, worker] : registry.workers()) {
    if (!worker.IsPrefill()) decode_workers[worker.description.name.worker_id] = &worker;
  }
  std::vector<LinkRow> rows;
  for (const auto& [lease, worker] : registry.workers()) {
    std::set<std::pair<std::string_view, LinkKind>> seen;
    for (const LinkView& link : worker.load.links) {
      if (link.kind == LinkKind::kUnspecified) continue;  // it was never up
      const auto decode = decode_workers.find(link.to);
      // A connection to a former life may be reported for a while after the next has registered.
      if (decode == decode_workers.end() ||
          decode->second->description.name.incarnation != link.to_incarnation ||
          !seen.emplace(link.to, link.kind).second) {
        continue;
      }
      LinkRow row{.model = worker.description.model->id,
                  .from = worker.description.name.worker_id,
                  .to = link.to,
                  .kind = link.kind,
                  .bytes_per_s = link.bytes_per_s};
      const auto health = worker.links.find(decode->second->lease);
      if (health != worker.links.end()) {
        row.bytes_per_s = ShownSpeed(health->second);
        row.num_stalls = health->second.num_stalls();
      }
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::vector<ObjectiveView> ObjectivesOf(const RouterState& state) {
  const ServiceObjective& objective = state.config.objective;
  std::vector<ObjectiveView> views;
  for (const auto& [which, limit_us] : {std::pair(Objective::kTtft, objective.ttft_us),
                                        std::pair(Objective::kItl, objective.itl_us)}) {
    if (limit_us == 0) continue;
    const auto idx = static_cast<size_t>(which);
    ObjectiveView view = {.name = kObjectiveNames[idx], .limit_us = limit_us};
    const auto add = [&view, idx](const BatonMetrics& metrics) {
      const auto& counters = metrics.slo_requests_total[idx];
      view.num_met += counters[static_cast<size_t>(ObjectiveResult::kMet)]->value();
      view.num_missed += counters[static_cast<size_t>(ObjectiveResult::kMissed)]->value();
    };
    add(*state.metrics);
    if (state.config.model_metrics != nullptr) {
      state.config.model_metrics->ForEach(
          [&add](const std::string&, const BatonMetrics& metrics) { add(metrics); });
    }
    views.push_back(view);
  }
  return views;
}

Topology TopologyOf(const WorkerRegistry& registry, size_t num_expected_models, int64_t now_us) {
  Topology topology;
  std::set<std::string_view> models;
  for (const auto& model : registry.Models()) {
    if (!topology.model.empty()) topology.model += ',';
    topology.model += model->id;
  }
  for (const auto& [lease, worker] : registry.workers()) {
    const WorkerDescription& description = worker.description;
    ProcessView view;
    view.role = WorkerRoleName(description.role);
    view.worker_id = description.name.worker_id;
    view.incarnation = fmt::format("{:016x}", description.name.incarnation.value());
    view.model = description.model->id;
    view.pid = description.pid;
    view.grpc = description.grpc_address;
    view.admin = description.admin_address;
    view.kv = description.kv_address;
    view.ready = worker.Usable(now_us);
    view.draining = worker.load.draining || worker.drain_asked;
    for (size_t i = 0; i < kBlockStateNames.size(); ++i) {
      view.kv_blocks.emplace_back(kBlockStateNames[i], worker.load.blocks[i]);
    }
    view.running = worker.load.running;
    view.waiting = worker.load.waiting;
    view.not_paired = worker.not_paired;
    view.links = worker.load.links;
    for (LinkView& link : view.links) ShowHealth(registry, worker, link, now_us);
    models.insert(description.model->id);
    topology.processes.push_back(std::move(view));
  }
  topology.has_several_models = std::max(models.size(), num_expected_models) > 1;
  return topology;
}

}  // namespace baton::router
