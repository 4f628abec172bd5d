// Byte-level BPE (tokenizer.ggml.model = gpt2).
#ifndef BATON_TEXT_BPE_ENCODER_H_
#define BATON_TEXT_BPE_ENCODER_H_

#include <memory>
#include <span>

#include "src/base/status.h"
#include "src/text/piece_encoder.h"
#include "src/text/pre_tokenizer.h"
#include "src/text/tokenizer_spec.h"

namespace baton::text {

// An encoder over the normal, byte and user-defined tokens of `spec`, whose tokens are distinct and
// have the given types [vocab_size]. InvalidArgument names the first merge whose parts or result
// are not tokens. Merges of other types are left out, so that text cannot reach those tokens; a
// merge listed twice counts at its first place.
StatusOr<std::unique_ptr<PieceEncoder>> CreateBpeEncoder(const TokenizerSpec& spec,
                                                         std::span<const TokenType> types,
                                                         const PreTokenizer& pre_tokenizer);

}  // namespace baton::text

#endif  // BATON_TEXT_BPE_ENCODER_H_
