#include "src/engine/speculator.h"

#include <algorithm>
#include <memory>

#include "src/engine/live_request.h"

namespace baton::engine {

using scheduler::BatchPlan;
using scheduler::ItemResult;
using scheduler::Sequence;
using wire::GuessState;

namespace {

// A choice whose guesses do not pay tries one again after so many: its text may repeat itself now.
constexpr uint32_t kTryAgainAfter = 64;

}  // namespace

std::string_view SpeculateModeName(SpeculateMode mode) {
  static constexpr std::string_view kNames[] = {"off", "ngram", "auto"};
  return kNames[static_cast<size_t>(mode)];
}

void Speculator::BeginStep(uint32_t num_rows, bool has_prompts) {
  num_rows_ = num_rows;
  expected_tokens_ = num_rows;
  has_prompts_ = has_prompts;
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
  if (mode_ == SpeculateMode::kAuto && gain_.balance_us() < 0) return GuessState::kNoGain;
  if (choice->guesses == nullptr) {
    choice->guesses = std::make_unique<ChoiceGuesses>(std::max(sequence.MaxKvTokens() + 1, 4u));
  }
  ChoiceGuesses* const guesses = choice->guesses.get();
  const uint32_t wanted = guesses->length.Next();
  if (wanted == 0) return GuessState::kWrongGuesses;
  const size_t begin = out->size();
  // Where a step has no room for guesses, the state of the step before stays.
  const uint32_t length = std::min(wanted, max_tokens);
  if (length == 0) return choice->guess_state;
  guesses->index.Guess(sequence.spec.tokens, length, out);
  const auto num_found = static_cast<uint32_t>(out->size() - begin);
  if (num_found == 0) return GuessState::kNoRepeats;
  if (mode_ == SpeculateMode::kNgram) return GuessState::kOn;
  const uint32_t num_tokens = CutToGain(guesses, num_found);
  guesses->num_declined = num_tokens == 0 ? guesses->num_declined + 1 : 0;
  out->resize(begin + num_tokens);
  num_rows_ += num_tokens;
  expected_tokens_ += RowGain::Expected(num_tokens, guesses->length.acceptance());
  return num_tokens > 0 ? GuessState::kOn : GuessState::kNoGain;
}

uint32_t Speculator::CutToGain(ChoiceGuesses* guesses, uint32_t num_tokens) const {
  const double acceptance = guesses->length.acceptance();
  // One row is tried where its time is not known yet, and for a choice whose guesses did not pay
  // for long.
  const bool tries = guesses->num_declined >= kTryAgainAfter;
  for (uint32_t num = num_tokens; num > 0; num /= 2) {
    const bool is_unknown = gain_.StepUs(num_rows_ + num) == 0;
    const bool may_try = is_unknown || (tries && num == 1);
    if (gain_.Pays(num_rows_, num, expected_tokens_, acceptance, may_try)) return num;
  }
  return 0;
}

void Speculator::EndStep(const BatchPlan& plan, std::span<const ItemResult> results,
                         int64_t elapsed_us) {
  if (plan.shape.prefill_tokens > 0) return;
  uint32_t num_accepted = 0;
  for (const ItemResult& result : results) num_accepted += result.num_accepted;
  const auto num_guesses = static_cast<uint32_t>(plan.proposals.size());
  gain_.Measure(plan.shape.decode_rows - num_guesses, num_guesses, num_accepted, elapsed_us);
}

}  // namespace baton::engine
