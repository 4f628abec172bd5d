// KnownModels: which models a router offers or remembers: those that it was told to expect, and
// those whose workers it has seen. Owned by the router's thread; time is an argument.
//
// Invariants
//  1. An expected model is known for good. Another one is known while it is served and for kKeptUs
//     after, so that its clients hear of a pool that is gone, not of a model that never was.
//  2. At most kMaxKnownModels are known that are not served. Of kMaxGoneModels of them, the last
//  ones
//     that left, it is known what they were: an answer that is kept can be asked for again.
#ifndef BATON_ROUTER_KNOWN_MODELS_H_
#define BATON_ROUTER_KNOWN_MODELS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "src/router/model_directory.h"
#include "src/router/served_names.h"
#include "src/router/submit.h"

namespace baton::router {

inline constexpr size_t kMaxKnownModels = 64;
inline constexpr size_t kMaxGoneModels = 4;  // each has a tokenizer

// See the file comment.
class KnownModels {
 public:
  static constexpr int64_t kKeptUs = 600'000'000;

  // `expected`: ids, at most kMaxKnownModels.
  KnownModels(const std::vector<std::string>& expected, ServedNames names);

  // The models that are known, given those that are served now. Gives each its names, and warns
  // once of a name that is the id of another model: it is dropped, since requests for that model
  // would go to this one.
  std::shared_ptr<const ModelDirectory> Take(
      const std::vector<std::shared_ptr<const ModelInfo>>& served, int64_t now_us);
  // When the next remembered model is forgotten; INT64_MAX = none is.
  int64_t forget_us() const { return forget_us_; }

 private:
  std::vector<std::string> NamesOf(const std::string& id, bool is_only);
  void Remember(const std::string& id, int64_t now_us);
  void KeepGone(const std::vector<KnownModel>& known);

  const ServedNames names_;
  const std::set<std::string> expected_;
  std::map<std::string, int64_t> seen_;  // when each other model was last served, by id
  std::vector<std::shared_ptr<const ModelInfo>> served_;  // as of the last Take
  std::vector<std::shared_ptr<const ModelInfo>> gone_;    // the last one that left is the last
  std::set<std::string> warned_;                          // "MODEL NAME", at most kMaxKnownModels
  int64_t forget_us_ = INT64_MAX;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_KNOWN_MODELS_H_
