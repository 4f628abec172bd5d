// ChoiceGuesses: the guesses of one choice's next tokens, and how earlier ones came out. Engine
// thread.
#ifndef BATON_ENGINE_CHOICE_GUESSES_H_
#define BATON_ENGINE_CHOICE_GUESSES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/ids.h"
#include "src/engine/guess_odds.h"
#include "src/engine/ngram_index.h"

namespace baton::engine {

// See the file comment. All memory is taken at construction.
class ChoiceGuesses {
 public:
  // `window` as NgramIndex takes it. The odds begin as those of the worker.
  ChoiceGuesses(uint32_t window, const GuessOdds& worker);

  // Compares the last guesses with what came: `text` is the prompt and all tokens so far, and
  // begins with the text of the call before. Notes that in the worker's odds too, and then guesses
  // what follows the text.
  void Follow(std::span<const TokenId> text, GuessOdds* worker);

  // The guesses after that text: as many as tokens before them agree, or none. A sentence that
  // is copied has more of them with each step, and a pair that came twice by chance has two.
  std::span<const TokenId> tokens() const { return tokens_; }
  // How many tokens before them agree (> 0 where there are guesses).
  uint32_t num_agreeing() const { return num_agreeing_; }
  const GuessOdds& odds() const { return odds_; }

 private:
  NgramIndex index_;
  GuessOdds odds_;
  std::vector<TokenId> tokens_;
  size_t text_size_ = 0;  // that tokens_ follow
  uint32_t num_agreeing_ = 0;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_CHOICE_GUESSES_H_
