// ModelCatalog: builds the tokenizer and chat template of a worker's hello once per tokenizer and
// shares them between all workers that have the same. Any thread; building takes about 0.1 s and
// runs on the caller's thread, which is never the router's.
#ifndef BATON_ROUTER_MODEL_CATALOG_H_
#define BATON_ROUTER_MODEL_CATALOG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/router/submit.h"

namespace baton {

// What a hello says of the model.
struct ModelClaim {
  std::string id;
  int64_t loaded_unix_s = 0;
  uint32_t max_context = 0;
  uint32_t vocab_size = 0;
  uint64_t tokenizer_id = 0;
  std::string_view tokenizer;  // serialized TokenizerSpec
};

// See the file comment.
class ModelCatalog {
 public:
  // InvalidArgument when the bytes are no tokenizer, are not the one that tokenizer_id names, or do
  // not fit vocab_size.
  StatusOr<std::shared_ptr<const ModelInfo>> Resolve(const ModelClaim& claim);

 private:
  // The parts of a model that are costly to build.
  struct TextParts {
    std::shared_ptr<const Tokenizer> tokenizer;
    std::shared_ptr<const ChatTemplate> chat_template;
    bool has_broken_template = false;
  };

  static StatusOr<TextParts> Build(const ModelClaim& claim);

  std::mutex mutex_;  // guards parts_; not held while building
  // By tokenizer_id. Kept alive by the models alone, so a model that has gone frees its tokenizer.
  std::map<uint64_t, std::weak_ptr<const TextParts>> parts_;
};

}  // namespace baton

#endif  // BATON_ROUTER_MODEL_CATALOG_H_
