#include "src/engine/choice_guesses.h"

#include <algorithm>

#include "scheduler/proposer.h"

namespace baton::engine {

using scheduler::kMaxProposals;

ChoiceGuesses::ChoiceGuesses(uint32_t window, const GuessOdds& worker)
    : index_(window), odds_(GuessOdds::Begun(worker)) {
  tokens_.reserve(kMaxProposals);
}

void ChoiceGuesses::Follow(std::span<const TokenId> text, GuessOdds* worker) {
  const std::span<const TokenId> came = text.subspan(text_size_);
  // Guesses after the first wrong one were of another text, and say nothing.
  for (uint32_t i = 0; i < tokens_.size() && i < came.size(); ++i) {
    const bool is_right = came[i] == tokens_[i];
    odds_.Note(num_agreeing_ + i, is_right, GuessOdds::kOfChoice);
    worker->Note(num_agreeing_ + i, is_right, GuessOdds::kOfWorker);
    if (!is_right) break;
  }
  tokens_.clear();
  text_size_ = text.size();
  num_agreeing_ = index_.Guess(text, kMaxProposals, &tokens_);
  tokens_.resize(std::min<size_t>(tokens_.size(), num_agreeing_));
}

}  // namespace baton::engine
