// Names by which other programs look for the values of baton_metrics.h: those of vLLM, and those of
// the model server protocol of the Kubernetes Gateway API Inference Extension, whose endpoint
// picker reads vLLM's names by default. An alias shows the same value under one more name.
//
// Sources: vllm/v1/metrics/loggers.py; proposal 003-model-server-protocol of the extension.
#ifndef BATON_OBS_METRIC_ALIASES_H_
#define BATON_OBS_METRIC_ALIASES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/obs/baton_metrics.h"
#include "src/obs/metrics.h"

namespace baton::obs {

// The names that a process has beside its own.
struct MetricAliasSet {
  bool vllm = false;                 // "vllm": everything below
  bool inference_extension = false;  // "inference-extension": what the endpoint picker reads

  bool none() const { return !vllm && !inference_extension; }
  // As the flag takes them, "vllm,inference-extension"; "" for none.
  std::string Text() const;
};

// Names with commas between them; "" is the empty set. InvalidArgument for an unknown name, which
// names the nearest.
StatusOr<MetricAliasSet> ParseMetricAliases(std::string_view list);

// The process whose values there are. A name that the process does not count is left out. So a sum
// over processes counts nothing twice but the gauges that a router shows for its decode workers.
enum class MetricAliasRole : uint8_t { kRouter, kWorker };

// Adds the names to `registry`, which holds `metrics`. Once per
// registry, after the refreshes of the metrics.
void AddMetricAliases(MetricAliasSet set, MetricAliasRole role, const BatonMetrics& metrics,
                      MetricsRegistry* registry);

}  // namespace baton::obs

#endif  // BATON_OBS_METRIC_ALIASES_H_
