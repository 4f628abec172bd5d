#include "src/router/choice_text.h"

namespace baton::router {

std::string_view ChoiceText::Push(TokenId token, bool is_hidden, bool is_last) {
  released_.clear();
  if (stopped()) return released_;
  std::string text;
  if (!is_hidden) text = detokenizer_.Push(token);
  if (is_last) text += detokenizer_.Flush();
  released_ = matcher_.Push(text, /*may_stop=*/num_tokens_++ >= min_tokens_);
  if (is_last && !matcher_.stopped()) released_ += matcher_.Flush();
  return released_;
}

}  // namespace baton::router
