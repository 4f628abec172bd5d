// ChoiceText: turns the tokens of one choice into the text that its client may see: whole
// characters, nothing that could still become a stop string, nothing from a stop string on. One
// thread at a time; the state is a pure function of the tokens pushed.
#ifndef BATON_ROUTER_CHOICE_TEXT_H_
#define BATON_ROUTER_CHOICE_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/ids.h"
#include "src/text/detokenizer.h"
#include "src/text/stop_matcher.h"

namespace baton::router {

// The detokenizer and the stop matcher of one choice.
class ChoiceText {
 public:
  // `tokenizer` outlives this; `matcher` is fresh. No stop string ends within the first
  // `min_tokens` tokens, as no end-of-generation token does (model/sampler.h).
  ChoiceText(const text::Tokenizer& tokenizer, text::StopMatcher matcher, uint32_t min_tokens)
      : detokenizer_(&tokenizer, /*skip_special=*/true),
        matcher_(std::move(matcher)),
        min_tokens_(min_tokens) {}

  // The control tokens that have text (GenerateRequest::shown_tokens).
  void ShowSpecial(std::vector<TokenId> shown) { detokenizer_.ShowSpecial(std::move(shown)); }

  // The text that `token` releases, valid until the next call. `is_hidden`: the token ends the
  // choice and has no text. `is_last`: no token follows, so what was held back is released too.
  std::string_view Push(TokenId token, bool is_hidden, bool is_last);

  // A stop string was found: the choice is over.
  bool stopped() const { return matcher_.stopped(); }
  // The stop string that was found, by its place in the request's list.
  std::optional<size_t> stop_idx() const { return matcher_.matched_idx(); }

 private:
  text::Detokenizer detokenizer_;
  text::StopMatcher matcher_;
  uint32_t min_tokens_;
  uint32_t num_tokens_ = 0;  // pushed
  std::string released_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_CHOICE_TEXT_H_
