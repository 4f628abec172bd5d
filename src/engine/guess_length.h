// GuessLength: how many tokens of one choice a step should guess, by how earlier guesses came out.
// Pure; engine thread.
//
// All right: twice as many. Some right: half as many, or the number that was right. None right
// three times in a row: one guess, after a pause of 8 steps, then 16, up to 128: a choice that
// never repeats itself loses 1 row in 128 steps.
#ifndef BATON_ENGINE_GUESS_LENGTH_H_
#define BATON_ENGINE_GUESS_LENGTH_H_

#include <cstdint>

namespace baton::engine {

// See the file comment.
class GuessLength {
 public:
  static constexpr uint32_t kFirst = 4;
  static constexpr uint32_t kMaxLosses = 3;
  static constexpr uint32_t kFirstPause = 8;
  static constexpr uint32_t kMaxPause = 128;
  // A new choice is expected to accept half of its guesses.
  static constexpr float kFirstAcceptance = 0.5f;

  // Guesses of the next step, once a step; 0 in a pause.
  uint32_t Next();
  // `num_proposed` (> 0) guesses were verified, and the first `num_accepted` of them were right.
  void Note(uint32_t num_proposed, uint32_t num_accepted);
  // The share of verified guesses that is right, over the last ten or so.
  float acceptance() const { return acceptance_; }

 private:
  uint32_t length_ = kFirst;
  uint32_t pause_ = 0;       // steps without guesses
  uint32_t num_losses_ = 0;  // steps in a row of which no guess was right
  float acceptance_ = kFirstAcceptance;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_GUESS_LENGTH_H_
