#include "src/engine/choice_tokens.h"

#include <utility>

#include "src/base/limits.h"

namespace baton::engine {

using kv::BlockCopy;
using kv::BlockHandle;
using limits::kMaxChoices;
using model::SampledToken;
using scheduler::FinishReason;

ChoiceTokens::ChoiceTokens(EngineState* state) : state_(state) {
  starts_.reserve(kMaxChoices);
  copies_.reserve(kMaxChoices);
}

void ChoiceTokens::Take(LiveRequest* request, Choice* choice, const SampledToken& sampled,
                        const TokenEvent& told) {
  choice->sampler.Append(sampled.token);
  const FinishReason finish = request->After(*choice, sampled.token, state_->config.eog_tokens);
  const bool goes_on = finish == FinishReason::kNone && request->source == nullptr;
  if (choice->guide != nullptr && goes_on) choice->guide->Accept(sampled.token);
  if (finish != FinishReason::kNone) {
    choice->finished = true;
    choice->guesses.reset();
    --request->num_open_choices;
    if (choice->sequence != SequenceId()) {
      state_->requests.EraseSequence(std::exchange(choice->sequence, SequenceId()));
    }
  }
  state_->outbox.Add({.session = request->spec.session,
                      .key = request->spec.key,
                      .choice = choice->index,
                      .index = choice->sampler.num_output() - 1,
                      .token = sampled.token,
                      .finish = finish,
                      .has_logprob = sampled.has_logprob,
                      .logprob = sampled.logprob,
                      .num_proposed = told.num_proposed,
                      .step_row = told.step_row,
                      .guess_state = choice->guess_state},
                     sampled.top_logprobs());
}

void ChoiceTokens::TakeSequence(LiveRequest* request, Choice* choice) {
  choice->sequence = std::exchange(request->prompt_sequence, SequenceId());
  state_->requests.AddSequence(choice->sequence, {request, choice->index, /*is_prompt=*/false});
}

void ChoiceTokens::Fork(LiveRequest* request, std::span<const SampledToken> first_tokens) {
  const SequenceId prompt = std::exchange(request->prompt_sequence, SequenceId());
  state_->requests.EraseSequence(prompt);
  Start(request, first_tokens);
  state_->scheduler.Fork(prompt, starts_, &copies_);
  CopyBlocks();
}

void ChoiceTokens::Bind(LiveRequest* request, std::span<const SampledToken> first_tokens,
                        std::span<const BlockHandle> blocks) {
  Start(request, first_tokens);
  state_->scheduler.AddBound(state_->SequenceSpecOf(*request, SequenceId()), blocks, starts_,
                             &copies_, state_->now_us);
  CopyBlocks();
}

void ChoiceTokens::Start(LiveRequest* request, std::span<const SampledToken> first_tokens) {
  starts_.clear();
  for (Choice& choice : request->choices) {
    const SampledToken& sampled = first_tokens[choice.index];
    Take(request, &choice, sampled);
    const SequenceId id = state_->NewSequenceId();
    starts_.push_back({.id = id,
                       .choice = choice.index,
                       .first_token = sampled.token,
                       .finished = choice.finished});
    if (choice.finished) continue;
    choice.sequence = id;
    state_->requests.AddSequence(id, {request, choice.index, /*is_prompt=*/false});
  }
}

void ChoiceTokens::CopyBlocks() {
  for (const BlockCopy& copy : copies_) state_->parts.kv->Copy(copy.from, copy.to);
  copies_.clear();
}

}  // namespace baton::engine
