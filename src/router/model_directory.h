// ModelDirectory: the models that a router serves or waits for, and the names by which clients ask
// for them. Constant; any thread.
#ifndef BATON_ROUTER_MODEL_DIRECTORY_H_
#define BATON_ROUTER_MODEL_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace baton::router {

struct ModelInfo;

// A model that is known, with or without workers.
struct KnownModel {
  std::string id;
  std::vector<std::string> names;           // that clients use; the first one is shown
  std::shared_ptr<const ModelInfo> served;  // null: no decode worker of the model is there now
  // The model as it was last served, while it is not; null where that is long ago.
  std::shared_ptr<const ModelInfo> gone;
  // The server was started for it; another one without workers is only remembered for a while.
  bool is_expected = false;

  bool IsOffered() const { return served != nullptr || is_expected; }
};

// The outcome of a look for a model's name.
enum class ModelFound : uint8_t {
  kServed,
  kNoWorkers,  // the model is known and has no decode worker now, or no model is offered yet
  kNotOne,     // "" or "default", and several models are offered
  kUnknown,
};

// See the file comment.
class ModelDirectory {
 public:
  // Entries ascend by id; each has a name.
  explicit ModelDirectory(std::vector<KnownModel> models = {});

  // "" and "default" name the only model that is offered, or the only one that is remembered.
  // `*model` is set with kServed, and with kNoWorkers to KnownModel::gone.
  ModelFound Find(std::string_view name, std::shared_ptr<const ModelInfo>* model) const;
  // The models that have a decode worker, ascending by id.
  const std::vector<std::shared_ptr<const ModelInfo>>& served() const { return served_; }
  const std::vector<KnownModel>& models() const { return models_; }
  // "'gemma3:270m', 'smollm2:135m'": the names of the models that are offered, for an error;
  // of more than kMaxListed the first ones and how many more there are.
  std::string NameList() const;
  static constexpr size_t kMaxListed = 16;

 private:
  std::vector<const KnownModel*> Offered() const;

  std::vector<KnownModel> models_;
  std::vector<std::shared_ptr<const ModelInfo>> served_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_MODEL_DIRECTORY_H_
