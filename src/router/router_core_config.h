// The configuration of RouterCore. Plain data; any thread.
#ifndef BATON_ROUTER_ROUTER_CORE_CONFIG_H_
#define BATON_ROUTER_ROUTER_CORE_CONFIG_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/limits.h"
#include "src/obs/metric_aliases.h"
#include "src/obs/span.h"
#include "src/router/router_prefix_index.h"
#include "src/router/served_names.h"
#include "src/router/service_objective.h"

namespace baton::router {

class ModelMetrics;

// The path that prompts take.
enum class ServeMode : uint8_t {
  kDisagg,      // always a pair, when there is one
  kAggregated,  // always the decode worker alone
  kAdaptive,    // what is predicted to be better for each prompt (scheduler/path_choice.h)
};

// Limits and policy; constant.
struct RouterCoreConfig {
  ServeMode mode = ServeMode::kDisagg;
  // kAdaptive: the decode worker computes a prompt of which its cache lacks at most so many tokens.
  // A request that names its path ("disagg" or "local") is none of them.
  uint32_t local_max_tokens = 0;
  size_t max_queued = limits::kMaxQueuedRequests;
  size_t max_live = limits::kMaxRouterRequests;
  int64_t queue_wait_us = 10'000'000;
  ServiceObjective objective;
  // A worker with more to compute than this gets no more prompts: they wait here, where they can
  // still go to another and where the queue wait counts.
  int64_t prefill_wait_us = 60'000'000;
  // How long a request that lost its worker waits for another: a restart and loading the model.
  int64_t resume_wait_us = 30'000'000;
  // How long of that it waits for one of the numerics that its client has seen, before another one
  // may go on: at most resume_wait_us.
  int64_t own_numerics_wait_us = 15'000'000;
  // A decode worker answers a reservation within one step (<= 100 ms); 2 s allow for a loaded host.
  int64_t reserve_timeout_us = 2'000'000;
  // No sign of progress of a worker that holds requests, heartbeats going on: its engine hangs.
  int64_t worker_stall_us = 10'000'000;
  int64_t slow_client_us = 30'000'000;
  // A request without a new token for so long, since its last one or its arrival, ends.
  int64_t request_timeout_us = 600'000'000;
  // After the first decode worker, how long to wait for a first prefill worker; and after a worker
  // joined, how long to wait for its data connection, before prompts take the local path.
  int64_t first_prefill_wait_us = 5'000'000;
  int64_t link_wait_us = 3'000'000;
  // Keys the prompts' chains, with each request's tenant: without the workers' secret no prompt is
  // found in their caches.
  std::string cluster_secret;
  ServedNames served_names;  // of the models, for clients
  // Ids of the models that are to be served: ready means a pool of each, and without one a model is
  // not unknown. At most kMaxKnownModels; empty = those that workers bring.
  std::vector<std::string> expected_models;
  obs::MetricAliasSet metric_aliases;     // names that the metrics of each model have too
  ModelMetrics* model_metrics = nullptr;  // null: all models count together
  uint32_t max_prefix_entries = kMaxPrefixEntries;
  obs::SpanSink* spans =
      nullptr;              // takes the spans of every request that ended; null: there are none
  uint64_t probe_seed = 0;  // names probes of links and draws their prompts; 0 = at random
  double shadow_share = 0;  // of requests that are run again and compared (shadow_runs.h), 0..1

  // The longest wait of a request that has not begun, for workers with room. A vector has no first
  // token.
  int64_t QueueWaitUs(bool embeds) const {
    const bool is_bounded = objective.ttft_us > 0 && !embeds;
    return is_bounded ? std::min(queue_wait_us, objective.ttft_us) : queue_wait_us;
  }
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTER_CORE_CONFIG_H_
