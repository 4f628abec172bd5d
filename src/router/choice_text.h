// ChoiceText: turns the tokens of one choice into the text that its client may see: whole
// characters, nothing that could still become a stop string, nothing from a stop string on. One
// thread at a time; the state is a pure function of the tokens pushed.
#ifndef BATON_ROUTER_CHOICE_TEXT_H_
#define BATON_ROUTER_CHOICE_TEXT_H_

#include <string>
#include <string_view>

#include "src/base/ids.h"
#include "src/text/detokenizer.h"
#include "src/text/stop_matcher.h"

namespace baton {

// The detokenizer and the stop matcher of one choice.
class ChoiceText {
 public:
  // `tokenizer` outlives this; `matcher` is fresh.
  ChoiceText(const Tokenizer& tokenizer, StopMatcher matcher)
      : detokenizer_(&tokenizer, /*skip_special=*/true), matcher_(std::move(matcher)) {}

  // The text that `token` releases, valid until the next call. `is_hidden`: the token ends the
  // choice and has no text. `is_last`: no token follows, so what was held back is released too.
  std::string_view Push(TokenId token, bool is_hidden, bool is_last);

  // A stop string was found: the choice is over.
  bool stopped() const { return matcher_.stopped(); }

 private:
  Detokenizer detokenizer_;
  StopMatcher matcher_;
  std::string released_;
};

}  // namespace baton

#endif  // BATON_ROUTER_CHOICE_TEXT_H_
