// ModelText: what a worker knows of its model's tokenizer without building it. Any thread.
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

  // `path`: that `file` was opened from. An error is one for which the tokenizer cannot be built;
  // some show only there, since to build it takes longer than all else of a small model's file.
  static StatusOr<ModelText> Read(const model::GgufFile& file, const std::string& path);

  // As a router builds it, with the errors for which that one refuses the worker.
  StatusOr<std::shared_ptr<const text::Tokenizer>> Build() const;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_MODEL_TEXT_H_
