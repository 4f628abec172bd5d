// The seam between what all tokenizers share (special tokens, bos/eos, ids to bytes) and how one
// kind turns ordinary text into tokens.
#ifndef BATON_TEXT_PIECE_ENCODER_H_
#define BATON_TEXT_PIECE_ENCODER_H_

#include <string_view>
#include <vector>

#include "src/base/ids.h"
#include "src/base/status.h"

namespace baton::text {

// Encodes a run of text that holds no special token. Const calls may run on several threads.
class PieceEncoder {
 public:
  virtual ~PieceEncoder() = default;

  // Appends the tokens of `text` (valid UTF-8, at most kMaxEncodeBytes) to `out`, which is
  // unchanged on failure.
  virtual Status Encode(std::string_view text, std::vector<TokenId>* out) const = 0;
};

}  // namespace baton::text

#endif  // BATON_TEXT_PIECE_ENCODER_H_
