#include "src/router/known_models.h"

#include <algorithm>
#include <utility>

#include "src/base/log.h"

namespace baton::router {

KnownModels::KnownModels(const std::vector<std::string>& expected, ServedNames names)
    : names_(std::move(names)), expected_(expected.begin(), expected.end()) {}

void KnownModels::Remember(const std::string& id, int64_t now_us) {
  if (expected_.contains(id)) return;
  seen_[id] = now_us;
  if (seen_.size() <= kMaxKnownModels) return;
  seen_.erase(std::ranges::min_element(
      seen_, {}, [](const auto& entry) { return entry.second; }));  // not served for the longest
}

std::vector<std::string> KnownModels::NamesOf(const std::string& id, bool is_only) {
  std::vector<std::string> names = names_.NamesOf(id, is_only);
  std::erase_if(names, [&](const std::string& name) {
    if (name == id || !(expected_.contains(name) || seen_.contains(name))) return false;
    if (warned_.size() < kMaxKnownModels && warned_.insert(id + " " + name).second) {
      BATON_LOG_WARN("the model {} is not served as {}: that is the id of another model", id, name);
    }
    return true;
  });
  return names;
}

// Moves models that left from served_ to gone_.
void KnownModels::KeepGone(const std::vector<KnownModel>& known) {
  const auto entry_of = [&](const auto& model) {
    return std::ranges::find(known, model->id, &KnownModel::id);
  };
  for (auto& model : served_) gone_.push_back(std::move(model));
  served_.clear();
  std::erase_if(gone_, [&](const auto& model) {
    const auto entry = entry_of(model);
    return entry == known.end() || entry->served != nullptr;
  });
  if (gone_.size() > kMaxGoneModels) gone_.erase(gone_.begin(), gone_.end() - kMaxGoneModels);
}

std::shared_ptr<const ModelDirectory> KnownModels::Take(
    const std::vector<std::shared_ptr<const ModelInfo>>& served, int64_t now_us) {
  std::map<std::string, std::shared_ptr<const ModelInfo>> models;  // null: not served now
  for (const std::string& id : expected_) models[id] = nullptr;
  for (const auto& model : served_) Remember(model->id, now_us);  // it was served until now
  for (const auto& model : served) {
    models[model->id] = model;
    Remember(model->id, now_us);
  }
  const bool is_only = models.size() == 1;  // of those that are offered
  std::erase_if(seen_, [&](const auto& entry) { return now_us - entry.second >= kKeptUs; });
  forget_us_ = INT64_MAX;
  for (const auto& [id, seen_us] : seen_) {
    const bool is_served = !models.try_emplace(id, nullptr).second && models[id] != nullptr;
    if (!is_served) forget_us_ = std::min(forget_us_, seen_us + kKeptUs);
  }
  std::vector<KnownModel> known;
  for (const auto& [id, model] : models) {
    KnownModel& entry = known.emplace_back();
    entry.id = id;
    entry.is_expected = expected_.contains(id);
    entry.names = NamesOf(id, is_only && (model != nullptr || entry.is_expected));
    if (model != nullptr) {
      ModelInfo named = *model;
      named.names = entry.names;
      entry.served = std::make_shared<const ModelInfo>(std::move(named));
    }
    if (entry.names.empty()) entry.names = {id};
  }
  KeepGone(known);
  for (KnownModel& entry : known) {
    if (entry.served != nullptr) served_.push_back(entry.served);
    const auto gone = std::ranges::find(gone_, entry.id, [](const auto& m) { return m->id; });
    if (gone != gone_.end()) entry.gone = *gone;
  }
  return std::make_shared<const ModelDirectory>(std::move(known));
}

}  // namespace baton::router
