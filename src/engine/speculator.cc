#include "src/engine/speculator.h"

#include <algorithm>
#include <memory>
#include <span>

#include "src/engine/live_request.h"

namespace baton::engine {

using scheduler::BatchPlan;
using scheduler::ItemResult;
using scheduler::Sequence;
using wire::GuessState;

std::string_view SpeculateModeName(SpeculateMode mode) {
  static constexpr std::string_view kNames[] = {"off", "ngram", "auto"};
  return kNames[static_cast<size_t>(mode)];
}

void Speculator::BeginStep(uint32_t num_rows, bool has_prompts) {
  num_rows_ = num_rows;
  expected_tokens_ = num_rows;
  has_prompts_ = has_prompts;
  is_plain_ = mode_ == SpeculateMode::kAuto && num_guessing_steps_ + 1 >= kPlainStep;
}

void Speculator::Propose(const Sequence& sequence, uint32_t max_tokens, std::vector<TokenId>* out) {
  const SequenceUse* const use = requests_->FindSequence(sequence.id());
  if (use == nullptr || use->is_prompt) return;
  Choice& choice = use->request->choices[use->choice];
  choice.guess_state = Guess(sequence, max_tokens, &choice, out);
}

GuessState Speculator::Guess(const Sequence& sequence, uint32_t max_tokens, Choice* choice,
                             std::vector<TokenId>* out) {
  if (choice->guide != nullptr) return GuessState::kGrammar;
  if (mode_ == SpeculateMode::kAuto && has_prompts_) return GuessState::kPrompts;
  if (choice->guesses == nullptr) {
    choice->guesses =
        std::make_unique<ChoiceGuesses>(std::max(sequence.MaxKvTokens() + 1, 4u), odds_);
  }
  ChoiceGuesses* const guesses = choice->guesses.get();
  guesses->Follow(sequence.spec.tokens, &odds_);
  if (guesses->tokens().empty()) return GuessState::kNoRepeats;
  // A step that goes without guesses does not change what the choice's steps are like.
  if (is_plain_ && choice->guess_state == GuessState::kOn) return GuessState::kOn;
  const uint32_t limit = std::min(max_tokens, static_cast<uint32_t>(guesses->tokens().size()));
  const bool measures = mode_ == SpeculateMode::kAuto;
  const uint32_t num_tokens = measures ? NumThatPay(*guesses, limit)
                                       : guesses->odds().NumLikely(guesses->num_agreeing(), limit);
  const std::span<const TokenId> verified = guesses->tokens().first(num_tokens);
  out->insert(out->end(), verified.begin(), verified.end());
  if (num_tokens > 0) return GuessState::kOn;
  return measures ? GuessState::kNoGain : GuessState::kWrongGuesses;
}

uint32_t Speculator::NumThatPay(const ChoiceGuesses& guesses, uint32_t limit) {
  if (is_plain_) return 0;
  const GuessOdds::Gains gains = guesses.odds().GainsOf(guesses.num_agreeing());
  const uint32_t num =
      gain_.Choose(num_rows_, expected_tokens_, std::span<const double>(gains).first(limit));
  num_rows_ += num;
  if (num > 0) expected_tokens_ += gains[num - 1];
  return num;
}

void Speculator::EndStep(const BatchPlan& plan, std::span<const ItemResult> results,
                         int64_t elapsed_us) {
  if (mode_ != SpeculateMode::kAuto || plan.shape.prefill_tokens > 0) return;
  if (is_plain_) num_guessing_steps_ = 0;
  if (!plan.proposals.empty()) ++num_guessing_steps_;
  uint32_t num_accepted = 0;
  for (const ItemResult& result : results) num_accepted += result.num_accepted;
  const auto num_guesses = static_cast<uint32_t>(plan.proposals.size());
  gain_.Measure(plan.shape.decode_rows - num_guesses, num_guesses, num_accepted, elapsed_us);
}

}  // namespace baton::engine
