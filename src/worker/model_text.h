// A model file's tokenizer metadata as the text library wants it.
#ifndef BATON_WORKER_MODEL_TEXT_H_
#define BATON_WORKER_MODEL_TEXT_H_

#include "src/base/status.h"
#include "src/model/gguf.h"
#include "src/text/tokenizer_spec.h"

namespace baton {

// Errors as ReadTokenizerMetadata.
StatusOr<TokenizerSpec> TokenizerSpecOf(const GgufFile& file);

}  // namespace baton

#endif  // BATON_WORKER_MODEL_TEXT_H_
