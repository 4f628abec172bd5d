// RowSampler: the tokens of a step's rows: chosen by the model where it was asked to, else sampled
// here from the row's logits with the choice's own state. Engine thread.
#ifndef BATON_ENGINE_ROW_SAMPLER_H_
#define BATON_ENGINE_ROW_SAMPLER_H_

#include <cstddef>
#include <cstdint>

#include "src/engine/step_work.h"
#include "src/model/sampler.h"

namespace baton::engine {

// See the file comment.
class RowSampler {
 public:
  // `work` outlives it.
  RowSampler(const StepParts& parts, StepWork* work);

  // Before a step begins: the model may choose the tokens of its rows, where one token is enough.
  void AskModel(const scheduler::BatchPlan& plan, StepBatch* step) const;
  // After it: the tokens of all decode rows, and the result of each item. A prompt that ends is
  // listed in StepWork::done_prompts and sampled later.
  void SampleAll(const scheduler::BatchPlan& plan);
  // The token of plan item `item` after `row` of its guesses into sampled(); false, and the request
  // is noted as failed, when nothing can be chosen.
  bool Sample(LiveRequest* request, const Choice& choice, size_t item, uint32_t row = 0);
  const model::SampledToken& sampled() const { return sampled_; }

  // Tells the log-probabilities of the prompts' tokens. The logits of one are those of the token
  // before it. What was told before the prompt was preempted is not told again.
  void LogPrompts(const scheduler::BatchPlan& plan);

 private:
  // The model gave no number to sample from: in which layer the request's state holds none, if any.
  Status NoNumberError(const LiveRequest& request, const Choice& choice) const;
  Status SampleHere(const LiveRequest& request, const Choice& choice, size_t item, uint32_t row);
  scheduler::ItemResult SampleItem(const scheduler::BatchItem& item, size_t idx);
  // The choice's next token, and those after it as long as the item's guesses are right.
  scheduler::ItemResult TakeTokens(const scheduler::BatchItem& item, size_t idx, Choice* choice);

  EngineState* const state_;
  RequestLife* const life_;
  GuideWaits* const guides_;
  ChoiceTokens* const tokens_;
  StepWork* const work_;
  model::Sampler sampler_;
  model::SampledToken sampled_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ROW_SAMPLER_H_
