// GuessOdds: how likely a guess of the next token is right, by how many tokens before it agree with
// those before its place. Pure; engine thread.
//
// Every guess counts, also one that no step verified: the token that came says whether it was
// right. So it costs no row to find out that a text does not repeat itself, or that it begins to.
#ifndef BATON_ENGINE_GUESS_ODDS_H_
#define BATON_ENGINE_GUESS_ODDS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "scheduler/proposer.h"

namespace baton::engine {

// See the file comment. Plain data.
class GuessOdds {
 public:
  // Guesses that the odds are the average of, about: a choice follows its own text, a worker is the
  // average of its last choices.
  static constexpr uint32_t kOfChoice = 8;
  static constexpr uint32_t kOfWorker = 32;
  // Odds without own guesses weigh as much as so many: another text may be another kind of text.
  static constexpr uint32_t kBegun = 1;
  // Without any guess before, `--speculate ngram` verifies one to begin with.
  static constexpr float kFirst = 0.6f;

  GuessOdds() = default;
  // Begins with the odds of the worker.
  static GuessOdds Begun(const GuessOdds& worker);

  // A guess after `num_agreeing` (> 0) tokens was right, or not. `memory`: kOfChoice or kOfWorker.
  void Note(uint32_t num_agreeing, bool is_right, uint32_t memory);
  // The probability that the next one is right.
  double Of(uint32_t num_agreeing) const;

  // Tokens that the first 1, 2 .. guesses give on average, beside the step's own. A guess counts
  // only if all before it are right, and then one token more agrees.
  using Gains = std::array<double, scheduler::kMaxProposals>;
  Gains GainsOf(uint32_t num_agreeing) const;
  // How many guesses, of `limit` at most, are all right with a probability of one half or more.
  uint32_t NumLikely(uint32_t num_agreeing, uint32_t limit) const;

 private:
  // 2 and 3 agreeing tokens, 4 to 7, 8 and more.
  static constexpr size_t kNumClasses = 3;
  static size_t ClassOf(uint32_t num_agreeing);

  std::array<float, kNumClasses> odds_ = {kFirst, kFirst, kFirst};
  std::array<uint32_t, kNumClasses> num_ = {kBegun, kBegun, kBegun};  // at most `memory`
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_GUESS_ODDS_H_
