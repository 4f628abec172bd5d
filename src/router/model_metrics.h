// ModelMetrics: where the requests of each model are counted. The router's thread changes it; what
// Of gives stays valid as long as the registry.
//
// While one model is known, the process's own metrics are its metrics, under the constant label
// `model`. From the second model on each has series of its own, from 0, and the process's count
// what is of no model: refusals before the model was known, and what was counted before that time.
// So a sum over all series counts nothing twice.
#ifndef BATON_ROUTER_MODEL_METRICS_H_
#define BATON_ROUTER_MODEL_METRICS_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "src/obs/baton_metrics.h"
#include "src/obs/metric_aliases.h"
#include "src/obs/metrics.h"
#include "src/router/model_directory.h"

namespace baton::router {

// See the file comment.
class ModelMetrics {
 public:
  // Both pointers outlive it; `process` are the metrics of `registry`.
  ModelMetrics(const obs::BatonMetrics* process, obs::MetricAliasSet aliases,
               obs::MetricsRegistry* registry)
      : process_(process), aliases_(aliases), registry_(registry) {}

  // Registers what is new; at most kMaxKnownModels models get series of their own.
  void Know(const ModelDirectory& directory);
  const obs::BatonMetrics* Of(std::string_view model_id) const;
  // Calls `visit` with each model that has series of its own.
  void ForEach(const std::function<void(const std::string& model_id,
                                        const obs::BatonMetrics& metrics)>& visit) const;

 private:
  const obs::BatonMetrics* const process_;
  const obs::MetricAliasSet aliases_;
  obs::MetricsRegistry* const registry_;
  std::map<std::string, obs::BatonMetrics, std::less<>> own_;  // by model; a map: nothing moves
};

}  // namespace baton::router

#endif  // BATON_ROUTER_MODEL_METRICS_H_
