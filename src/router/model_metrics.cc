#include "src/router/model_metrics.h"

#include <vector>

#include "src/obs/model_metrics.h"
#include "src/router/known_models.h"

namespace baton::router {

using obs::AddModelAliases;
using obs::BatonMetrics;
using obs::RegisterModelMetrics;

void ModelMetrics::Know(const ModelDirectory& directory) {
  const std::vector<KnownModel>& models = directory.models();
  if (models.empty()) return;
  if (models.size() == 1 && own_.empty()) {
    return registry_->SetConstantLabel("model", models.front().id);
  }
  for (const KnownModel& model : models) {
    if (own_.contains(model.id) || own_.size() >= kMaxKnownModels) continue;
    const BatonMetrics& metrics =
        own_.emplace(model.id, RegisterModelMetrics(model.id, *process_, registry_)).first->second;
    AddModelAliases(model.id, aliases_, metrics, registry_);
  }
  // Never the id of one model again: its own series has that.
  std::string all;
  for (const auto& [id, metrics] : own_) all += (all.empty() ? "" : ",") + id;
  registry_->SetConstantLabel("model", all);
}

const BatonMetrics* ModelMetrics::Of(std::string_view model_id) const {
  const auto own = own_.find(model_id);
  return own == own_.end() ? process_ : &own->second;
}

void ModelMetrics::ForEach(const std::function<void(const std::string& model_id,
                                                    const BatonMetrics& metrics)>& visit) const {
  for (const auto& [id, metrics] : own_) visit(id, metrics);
}

}  // namespace baton::router
