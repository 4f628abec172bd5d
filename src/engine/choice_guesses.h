// ChoiceGuesses: what is remembered of one choice to guess its next tokens. Plain data; engine
// thread.
#ifndef BATON_ENGINE_CHOICE_GUESSES_H_
#define BATON_ENGINE_CHOICE_GUESSES_H_

#include <cstdint>

#include "src/engine/guess_length.h"
#include "src/engine/ngram_index.h"

namespace baton::engine {

// See the file comment.
struct ChoiceGuesses {
  explicit ChoiceGuesses(uint32_t window) : index(window) {}

  NgramIndex index;
  GuessLength length;
  uint32_t num_declined = 0;  // guesses in a row that did not pay
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_CHOICE_GUESSES_H_
