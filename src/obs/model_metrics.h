// The metrics of one of several models in a process that serves them all. Any thread.
#ifndef BATON_OBS_MODEL_METRICS_H_
#define BATON_OBS_MODEL_METRICS_H_

#include <string_view>

#include "src/obs/baton_metrics.h"
#include "src/obs/metric_aliases.h"
#include "src/obs/metrics.h"

namespace baton::obs {

// Registers series of the model's own (label `model`) of each metric that belongs to requests or to
// a pool of decode workers, and their aliases. The other handles stay those of `process`, whose
// registry this is. Once per model; `model` is not empty.
BatonMetrics RegisterModelMetrics(std::string_view model, const BatonMetrics& process,
                                  MetricsRegistry* registry);
// The names of AddMetricAliases for what RegisterModelMetrics has registered as `metrics`.
void AddModelAliases(std::string_view model, MetricAliasSet set, const BatonMetrics& metrics,
                     MetricsRegistry* registry);

}  // namespace baton::obs

#endif  // BATON_OBS_MODEL_METRICS_H_
