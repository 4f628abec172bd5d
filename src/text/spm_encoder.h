// SentencePiece-style BPE (tokenizer.ggml.model = llama): characters are joined to tokens, best
// pair first; what is left without a token becomes its bytes.
#ifndef BATON_TEXT_SPM_ENCODER_H_
#define BATON_TEXT_SPM_ENCODER_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/text/piece_encoder.h"
#include "src/text/tokenizer_spec.h"

namespace baton::text {

// How such vocabularies write a space: U+2581.
inline constexpr std::string_view kSpmSpace = "\xE2\x96\x81";

// tokenizer.ggml.model of files whose merges decide, although they have scores, all alike. No space
// comes before a text, and user-defined tokens are found as they are written.
inline constexpr std::string_view kGemma4Model = "gemma4";

// `text` with every U+2581 as `space`. The encoder and Tokenizer work on the form with spaces: the
// two are the same to the model.
std::string WithPlainSpaces(std::string_view text, std::string_view space = " ");

// The byte that a token called "<0xNN>" stands for, or -1.
int ByteOfToken(std::string_view token);

// An encoder for text in the form of WithPlainSpaces, with no special token inside and no prefix
// added. Its cost is O(n log n) for any text.
//
// Which pair is joined first: with scores, the pair whose joined text is the token of the highest
// score; without, the pair that is listed first in `merges`. Among equals it is the leftmost. With
// scores, unused tokens are joined too and then taken apart again (as SentencePiece does).
//
// `spec`: distinct tokens of the given types [vocab_size]. InvalidArgument when it has neither
// scores nor merges, names the first merge whose parts or result are not tokens, and the first byte
// token that is none. A byte without a token yields nothing.
StatusOr<std::unique_ptr<PieceEncoder>> CreateSpmEncoder(const TokenizerSpec& spec,
                                                         std::span<const TokenType> types);

}  // namespace baton::text

#endif  // BATON_TEXT_SPM_ENCODER_H_
