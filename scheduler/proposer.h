// Proposer: guesses the tokens that follow a sequence, so that one step can verify several of them.
// A row of a step has the same bits whatever else is in the step. So a verified guess is the token
// that would have come, and a wrong guess costs its row alone. Engine thread.
#ifndef BATON_SCHEDULER_PROPOSER_H_
#define BATON_SCHEDULER_PROPOSER_H_

#include <cstdint>
#include <vector>

#include "scheduler/sequence.h"

namespace baton::scheduler {

// Guesses for one sequence, and for all sequences together, in one step. Each is a row of logits
// (1 MiB for a vocabulary of 262,144). 16 is as far as doubling from 4 on full acceptance pays: a
// longer row of right guesses saves less than 1/17 of a step more for each.
inline constexpr uint32_t kMaxProposals = 16;
inline constexpr uint32_t kMaxProposalRows = 128;

// See the file comment. The implementation outlives its scheduler.
class Proposer {
 public:
  virtual ~Proposer() = default;

  // A step of `num_rows` decode rows is planned. `has_prompts`: prompts wait or are being computed.
  virtual void BeginStep(uint32_t num_rows, bool has_prompts) = 0;
  // Appends at most `max_tokens` (1..kMaxProposals) guesses of the tokens after the last one of
  // `sequence`, which decodes in this step. Each is an id of the vocabulary.
  virtual void Propose(const Sequence& sequence, uint32_t max_tokens,
                       std::vector<TokenId>* out) = 0;
};

}  // namespace baton::scheduler

#endif  // BATON_SCHEDULER_PROPOSER_H_
