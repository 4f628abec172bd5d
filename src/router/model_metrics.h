// ModelMetrics: the metrics in which the requests of each model are counted. The router's thread
// changes it. The pointer that Of returns stays valid as long as the registry.
//
// While one model is known, the process's own metrics count its requests, under the constant label
// `model`. From the second model on, each model has its own series, which begin at 0. The process's
// metrics then count requests without a model (refused before the model was known), and keep their
// old counts. So a sum over all series counts nothing twice.
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

  // Registers series for new models, for at most kMaxKnownModels of them.
  void Know(const ModelDirectory& directory);
  const obs::BatonMetrics* Of(std::string_view model_id) const;
  // Calls `visit` with each model that has series of its own.
  void ForEach(const std::function<void(const std::string& model_id,
                                        const obs::BatonMetrics& metrics)>& visit) const;

 private:
  const obs::BatonMetrics* const process_;
  const obs::MetricAliasSet aliases_;
  obs::MetricsRegistry* const registry_;
  std::map<std::string, obs::BatonMetrics, std::less<>> own_;  // by model; a map moves no value
};

}  // namespace baton::router

#endif  // BATON_ROUTER_MODEL_METRICS_H_
