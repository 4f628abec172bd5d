// ModelText: the facts about a model's tokenizer that a worker reads without building it. Any
// thread.
#ifndef BATON_WORKER_MODEL_TEXT_H_
#define BATON_WORKER_MODEL_TEXT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/ids.h"
#include "src/base/status.h"
#include "src/model/gguf.h"
#include "src/text/tokenizer.h"

namespace baton::worker {

// See the file comment.
struct ModelText {
  std::string tokenizer;      // serialized TokenizerSpec, as routers get it
  uint64_t tokenizer_id = 0;  // TokenizerSpecId
  std::vector<TokenId> eog_tokens;

  // `path`: the file that `file` was opened from. Fails where no tokenizer can be built from the
  // file. Some faults show only in Build, which takes longer than the rest of a small model's file.
  static StatusOr<ModelText> Read(const model::GgufFile& file, const std::string& path);

  // Builds the tokenizer as a router does, with the errors for which a router refuses the worker.
  StatusOr<std::shared_ptr<const text::Tokenizer>> Build() const;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_MODEL_TEXT_H_
