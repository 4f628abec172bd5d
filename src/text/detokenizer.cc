#include "src/text/detokenizer.h"

#include <algorithm>

namespace baton::text {

std::string Detokenizer::Push(TokenId id) {
  std::string text;
  const bool is_skipped = skip_special_ && tokenizer_->IsSpecial(id) &&
                          std::find(shown_.begin(), shown_.end(), id) == shown_.end();
  if (is_skipped) return text;
  stream_.Push(at_start_ ? tokenizer_->BytesAtStart(id) : tokenizer_->TokenBytes(id), &text);
  at_start_ = at_start_ && tokenizer_->TokenBytes(id).empty();
  return text;
}

std::string Detokenizer::Flush() {
  std::string text;
  stream_.Finish(&text);
  return text;
}

}  // namespace baton::text
