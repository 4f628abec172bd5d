// Speculator: guesses the next tokens of choices from their own prompt and answer, for the
// scheduler's decode steps. A guess changes no token and no log-probability, only how many steps
// they take: each is verified by sampling at its row with the choice's own state.
//
// 1. `ngram` verifies guesses that are all right more often than not, by GuessOdds. `auto` verifies
//    as many as raise the tokens a second most, by GuessOdds and RowGain, and none beside prompts:
//    a step with them is bound by its rows. One of kPlainStep steps with guesses goes without, so
//    that the time of the step's own rows stays known.
// 2. A choice with a grammar has no guesses: the mask of its next token is computed beside the
//    step, and the one after that needs the token.
// 3. Memory of a choice is taken with its first decode step.
#ifndef BATON_ENGINE_SPECULATOR_H_
#define BATON_ENGINE_SPECULATOR_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "scheduler/batch_plan.h"
#include "scheduler/proposer.h"
#include "src/engine/choice_guesses.h"
#include "src/engine/guess_odds.h"
#include "src/engine/row_gain.h"
#include "src/wire/guess_state.h"

namespace baton::engine {

class LiveRequests;
struct Choice;

// The values of `--speculate`.
enum class SpeculateMode : uint8_t { kOff = 0, kNgram = 1, kAuto = 2 };
std::string_view SpeculateModeName(SpeculateMode mode);

// See the file comment. Engine thread.
class Speculator final : public scheduler::Proposer {
 public:
  // `requests` outlives it.
  Speculator(SpeculateMode mode, const LiveRequests* requests) : mode_(mode), requests_(requests) {}

  void BeginStep(uint32_t num_rows, bool has_prompts) override;
  void Propose(const scheduler::Sequence& sequence, uint32_t max_tokens,
               std::vector<TokenId>* out) override;

  // The step is over, and took so long. `results`: of the plan's items.
  void EndStep(const scheduler::BatchPlan& plan, std::span<const scheduler::ItemResult> results,
               int64_t elapsed_us);

 private:
  static constexpr uint32_t kPlainStep = 32;

  // Adds guesses for the choice to `out`, or tells why there are none.
  wire::GuessState Guess(const scheduler::Sequence& sequence, uint32_t max_tokens, Choice* choice,
                         std::vector<TokenId>* out);
  // How many of `limit` guesses pay in the step being planned; counts them as its rows.
  uint32_t NumThatPay(const ChoiceGuesses& guesses, uint32_t limit);

  const SpeculateMode mode_;
  const LiveRequests* const requests_;
  RowGain gain_;
  GuessOdds odds_;                   // of the last choices; new ones begin with them
  uint32_t num_guessing_steps_ = 0;  // since the last one that went without
  // State of the step being planned.
  uint32_t num_rows_ = 0;
  double expected_tokens_ = 0;
  bool has_prompts_ = false;
  bool is_plain_ = false;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_SPECULATOR_H_
