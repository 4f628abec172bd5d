// GuessState: whether the last decode step of a choice verified guesses of its next tokens
// (--speculate), or why it did not. The engine tells it with each token, timings with the answer.
// Any thread.
#ifndef BATON_WIRE_GUESS_STATE_H_
#define BATON_WIRE_GUESS_STATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace baton::wire {

// The numbers are those of GuessState in worker.proto.
enum class GuessState : uint8_t {
  kOff = 0,           // tokens are not guessed, or the worker does not tell
  kOn = 1,            // guesses were verified
  kNoRepeats = 2,     // its text does not repeat itself: nothing to guess
  kWrongGuesses = 3,  // ngram: the next guess is more likely wrong than right
  kNoGain = 4,        // auto: steps with guesses give no more tokens a second, as measured
  kPrompts = 5,       // auto: a prompt was computed in the same step
  kGrammar = 6,       // it is constrained: its next token waits for a mask
};
inline constexpr std::array<std::string_view, 7> kGuessStateNames = {
    "off", "on", "no_repeats", "wrong_guesses", "no_gain", "prompts", "grammar"};
inline std::string_view GuessStateName(GuessState state) {
  return kGuessStateNames[static_cast<size_t>(state)];
}

}  // namespace baton::wire

#endif  // BATON_WIRE_GUESS_STATE_H_
