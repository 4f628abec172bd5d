// A TokenizerSpec as the keys of a GGUF file, the inverse of reading them: what `baton convert`
// adds to a model folder's weights. Pure; any thread.
#ifndef BATON_CLI_TOKENIZER_KEYS_H_
#define BATON_CLI_TOKENIZER_KEYS_H_

#include "src/model/gguf_writer.h"
#include "src/text/tokenizer_spec.h"

namespace baton::cli {

// ReadModelTokenizer gives `spec` back for a file of these keys. Facts that GGUF cannot say are
// written under kTokenizerOwnPrefix, which other readers skip.
void AddTokenizerKeys(const text::TokenizerSpec& spec, model::GgufWriter& writer);

}  // namespace baton::cli

#endif  // BATON_CLI_TOKENIZER_KEYS_H_
