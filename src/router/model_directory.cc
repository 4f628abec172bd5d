#include "src/router/model_directory.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"

#include "src/router/submit.h"

namespace baton::router {

ModelDirectory::ModelDirectory(std::vector<KnownModel> models) : models_(std::move(models)) {
  for (const KnownModel& model : models_) {
    if (model.served != nullptr) served_.push_back(model.served);
  }
}

std::vector<const KnownModel*> ModelDirectory::Offered() const {
  std::vector<const KnownModel*> offered;
  for (const KnownModel& model : models_) {
    if (model.IsOffered()) offered.push_back(&model);
  }
  return offered;
}

ModelFound ModelDirectory::Find(std::string_view name,
                                std::shared_ptr<const ModelInfo>* model) const {
  const std::vector<const KnownModel*> offered = Offered();
  const KnownModel* found = nullptr;
  if (name.empty() || name == "default") {
    if (offered.size() > 1) return ModelFound::kNotOne;
    if (offered.size() == 1) found = offered.front();
    if (offered.empty() && models_.size() == 1) found = &models_.front();
  }
  for (size_t i = 0; i < models_.size() && found == nullptr; ++i) {
    const std::vector<std::string>& names = models_[i].names;
    if (std::ranges::find(names, name) != names.end()) found = &models_[i];
  }
  if (found == nullptr) return offered.empty() ? ModelFound::kNoWorkers : ModelFound::kUnknown;
  *model = found->served != nullptr ? found->served : found->gone;
  return found->served != nullptr ? ModelFound::kServed : ModelFound::kNoWorkers;
}

std::string ModelDirectory::NameList() const {
  const std::vector<const KnownModel*> offered = Offered();
  std::vector<std::string_view> names;
  for (const KnownModel* model : offered) {
    names.insert(names.end(), model->names.begin(), model->names.end());
  }
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) {
    list += fmt::format("{}'{}'", i == 0 ? "" : ", ", names[i]);
  }
  if (names.size() > kMaxListed) list += fmt::format(" and {} more", names.size() - kMaxListed);
  return list;
}

}  // namespace baton::router
