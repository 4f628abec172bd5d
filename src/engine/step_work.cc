#include "src/engine/step_work.h"

#include <algorithm>
#include <utility>

#include "src/base/limits.h"

namespace baton::engine {

using model::ForwardModel;
using scheduler::kMaxProposalRows;

namespace {

StepBatch MakeBatch(const EngineState& state) {
  const ForwardModel& model = *state.parts.model;
  return StepBatch(
      {.max_tokens = state.config.scheduler.max_batch_tokens,
       .max_items = state.MaxItems(),
       .max_more_logits = limits::kMaxPromptLogRows + (state.guesses() ? kMaxProposalRows : 0),
       .vocab_size = model.vocab_size(),
       .hidden_size = model.hidden_size(),
       .state_blocks = state.prefix_index ? state.kv_view.layout->state_blocks : 0,
       .samples = model.samples()});
}

}  // namespace

StepWork::StepWork(const EngineState& state) : batches{MakeBatch(state), MakeBatch(state)} {
  const uint32_t max_items = state.MaxItems();
  uses.reserve(max_items);
  results.reserve(max_items);
  done_prompts.reserve(max_items);
  finished.reserve(max_items);
  failed.reserve(max_items);
}

void StepWork::NoteFailed(LiveRequest* request, Status status) {
  const bool is_noted =
      std::any_of(failed.begin(), failed.end(),
                  [request](const FailedRequest& one) { return one.request == request; });
  if (!is_noted) failed.push_back({request, std::move(status)});
}

}  // namespace baton::engine
