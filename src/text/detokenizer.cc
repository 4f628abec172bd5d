#include "src/text/detokenizer.h"

namespace baton {

std::string Detokenizer::Push(TokenId id) {
  std::string text;
  if (skip_special_ && tokenizer_->IsSpecial(id)) return text;
  stream_.Push(tokenizer_->TokenBytes(id), &text);
  return text;
}

std::string Detokenizer::Flush() {
  std::string text;
  stream_.Finish(&text);
  return text;
}

}  // namespace baton
