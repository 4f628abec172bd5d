// PromptEnds: how far a step brought the prompts that it computed, and how a prompt ends that its
// own sequence does not decode: with several choices, with a hand-off, or with a vector. Engine
// thread.
#ifndef BATON_ENGINE_PROMPT_ENDS_H_
#define BATON_ENGINE_PROMPT_ENDS_H_

#include <vector>

#include "src/engine/row_sampler.h"
#include "src/engine/step_work.h"

namespace baton::engine {

// See the file comment.
class PromptEnds {
 public:
  // Both outlive it.
  PromptEnds(const StepParts& parts, StepWork* work, RowSampler* rows);

  // Tells how far the prompts are of which a client wants to know, each at most once in
  // kProgressGapUs but for its end.
  void TellProgress(const scheduler::BatchPlan& plan);
  // Takes the hidden states of texts that are embedded, before the next step writes over them.
  void PoolRows(const scheduler::BatchPlan& plan);
  // Samples the first tokens of a prompt that the step completed, and passes it on.
  void Finish(const DonePrompt& done);

 private:
  void FinishEmbedding(LiveRequest* request);
  void Seal(LiveRequest* request);

  EngineState* const state_;
  RequestLife* const life_;
  ChoiceTokens* const tokens_;
  SourceTransferSet* const sources_;
  StepWork* const work_;
  RowSampler* const rows_;
  std::vector<model::SampledToken> first_tokens_;  // of the prompt being finished, by choice
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_PROMPT_ENDS_H_
