// RouterState: what all parts of RouterCore share: its configuration, the workers and what they
// hold of prompts, and the time. The router's thread.
#ifndef BATON_ROUTER_ROUTER_STATE_H_
#define BATON_ROUTER_ROUTER_STATE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "src/base/limits.h"
#include "src/obs/baton_metrics.h"
#include "src/router/model_metrics.h"
#include "src/router/router_core_config.h"
#include "src/router/router_prefix_index.h"
#include "src/router/worker_registry.h"

namespace baton::router {

// How far the router is in its life.
enum class RouterStage : uint8_t { kServes, kLeaves, kStopped };

// The first workers of a model in this life of the router.
struct FirstWorkers {
  bool seen_prefill = false;     // a prefill worker has registered
  int64_t first_decode_us = -1;  // when the first decode worker registered, -1 = none yet
};

// See the file comment.
struct RouterState {
  RouterState(const RouterCoreConfig& config_in, const obs::BatonMetrics* metrics_in)
      : config(config_in), metrics(metrics_in), prefixes(config_in.max_prefix_entries) {}

  const RouterCoreConfig config;
  const obs::BatonMetrics* const metrics;
  WorkerRegistry registry;
  RouterPrefixIndex prefixes;  // of the workers whose chain has our key
  RouterStage stage = RouterStage::kServes;
  std::map<std::string, FirstWorkers, std::less<>> first_workers;  // by model, at most kMaxWorkers
  bool workers_changed = true;  // in what Readiness depends on, since it last looked
  int64_t now_us = 0;           // the latest time told

  // The metrics of one model's requests.
  const obs::BatonMetrics* MetricsOf(std::string_view model_id) const {
    return config.model_metrics == nullptr ? metrics : config.model_metrics->Of(model_id);
  }
  // Notes a worker that has registered now.
  void NoteFirst(const RegisteredWorker& worker) {
    const std::string& model = worker.description.model->id;
    if (first_workers.size() >= limits::kMaxWorkers && !first_workers.contains(model)) return;
    FirstWorkers& first = first_workers[model];
    if (worker.IsPrefill()) first.seen_prefill = true;
    if (!worker.IsPrefill() && first.first_decode_us < 0) first.first_decode_us = now_us;
  }
  void Advance(int64_t time_us) { now_us = std::max(now_us, time_us); }
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTER_STATE_H_
