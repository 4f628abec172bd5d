#include "src/engine/row_sampler.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace baton::engine {

using device::StageRange;
using device::StepStage;
using kernels::RowSampling;
using model::kNoTokenId;
using model::RowSamplingOf;
using model::SampleQuery;
using scheduler::BatchItem;
using scheduler::BatchPlan;
using scheduler::ItemResult;
using scheduler::kNotFed;
using scheduler::Sequence;

namespace {

// All masks of a step together may be late by so much: about the time of the step itself.
constexpr int64_t kLateMaskWaitUs = 5'000;

// All but the logits.
SampleQuery QueryOf(const LiveRequest& request, const Choice& choice) {
  return {.params = &request.spec.sampling, .state = &choice.sampler, .choice = choice.index};
}

}  // namespace

RowSampler::RowSampler(const StepParts& parts, StepWork* work)
    : state_(parts.state),
      life_(parts.life),
      guides_(parts.guides),
      tokens_(parts.tokens),
      work_(work),
      sampler_(parts.state->parts.model->vocab_size(), parts.state->config.eog_tokens) {}

void RowSampler::AskModel(const BatchPlan& plan, StepBatch* step) const {
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    const SequenceUse& use = *state_->requests.FindSequence(item.id);
    // The choices of a prompt that ends all begin with its logits.
    const bool one_choice = !item.ends_prompt || use.request->choices.size() == 1;
    if (!item.wants_logits || !one_choice || !item.proposed.empty()) continue;
    RowSampling sampling = RowSamplingOf(QueryOf(*use.request, use.request->choices[use.choice]));
    if (item.fed_by != kNotFed) ++sampling.output_index;  // after a token that is not known yet
    step->SetSampling(i, sampling);
  }
}

void RowSampler::SampleAll(const BatchPlan& plan) {
  const StageRange sample(state_->parts.stages, StepStage::kSample);
  guides_->Allow(kLateMaskWaitUs);
  for (size_t i = 0; i < plan.items.size(); ++i) {
    work_->results.push_back(SampleItem(plan.items[i], i));
  }
}

ItemResult RowSampler::SampleItem(const BatchItem& item, size_t idx) {
  if (!item.wants_logits) return {};
  if (item.sequence->ended) {
    ++state_->numbers.num_wasted_rows;
    return {};
  }
  const SequenceUse& use = work_->uses[idx];
  LiveRequest* const request = use.request;
  if (item.ends_prompt) {
    work_->done_prompts.push_back({request, idx});  // sampled once its sequence is at its end
    return {};
  }
  Choice* const choice = &request->choices[use.choice];
  // A row that moves a state on cannot be computed again: it waits for its mask.
  const bool may_retry = state_->kv_view.layout->state_blocks == 0;
  if (choice->guide != nullptr && may_retry && !guides_->HasMask(choice->guide.get())) {
    ++state_->numbers.num_late_masks;
    ItemResult again;
    again.retry = true;  // the row is computed again once the mask is there
    return again;
  }
  if (use.is_prompt) {
    tokens_->TakeSequence(request, choice);
    life_->Reach(request, RequestState::kPrefillDone);
  }
  const ItemResult result = TakeTokens(item, idx, choice);
  if (choice->finished && request->num_open_choices == 0) work_->finished.push_back(request);
  return result;
}

// Row r of the item has the logits after the sequence's last token and r guesses. The token of a
// row counts while the token of the row before it is the guess that the row was computed with. So
// each token is sampled from the logits, and with the state, that a step of its own would give it.
ItemResult RowSampler::TakeTokens(const BatchItem& item, size_t idx, Choice* choice) {
  LiveRequest* const request = work_->uses[idx].request;
  const auto num_proposed = static_cast<uint32_t>(item.proposed.size());
  state_->numbers.proposed_tokens += num_proposed;
  ItemResult result;
  for (uint32_t row = 0;; ++row) {
    result.num_accepted = row;
    if (!Sample(request, *choice, idx, row)) {
      result.finished = true;  // the sequence leaves now, the request fails after the step
      result.no_numbers = absl::IsDataLoss(work_->failed.back().status);
      break;
    }
    tokens_->Take(request, choice, sampled_,
                  {.num_proposed = row == 0 ? num_proposed : 0, .step_row = row});
    ++state_->numbers.generated_tokens;
    result.token = sampled_.token;
    result.finished = choice->finished;
    const bool goes_on =
        !result.finished && row < num_proposed && sampled_.token == item.proposed[row];
    if (!goes_on) break;
  }
  state_->numbers.accepted_tokens += result.num_accepted;
  if (num_proposed > 0 && choice->guesses != nullptr) {
    choice->guesses->length.Note(num_proposed, result.num_accepted);
  }
  return result;
}

bool RowSampler::Sample(LiveRequest* request, const Choice& choice, size_t item, uint32_t row) {
  Status status;
  if (const std::optional<TokenId> chosen = work_->batch().ChosenOf(item)) {
    sampled_ = {.token = *chosen};
    if (*chosen == kNoTokenId) status = NoNumberError(*request, choice);
  } else {
    status = SampleHere(*request, choice, item, row);
  }
  if (status.ok()) return true;
  work_->NoteFailed(request, std::move(status));
  return false;
}

// Samples from the logits of a row, among the tokens that the grammar allows.
Status RowSampler::SampleHere(const LiveRequest& request, const Choice& choice, size_t item,
                              uint32_t row) {
  SampleQuery query = QueryOf(request, choice);
  query.logits = work_->batch().LogitsOf(item, row);
  AnswerGuide* guide = choice.guide.get();
  if (request.spec.kind == RequestKind::kSource) guide = request.choices.front().guide.get();
  if (guide != nullptr) {
    const StatusOr<std::span<const uint32_t>> mask = guide->Mask();
    if (!mask.ok()) return FailedPrecondition("{}", std::string(mask.status().message()));
    query.mask = *mask;
  }
  if (sampler_.Sample(query, sampled_).ok()) return OkStatus();
  return NoNumberError(request, choice);
}

Status RowSampler::NoNumberError(const LiveRequest& request, const Choice& choice) const {
  const Sequence* sequence = state_->scheduler.Find(request.prompt_sequence);
  if (sequence == nullptr) sequence = state_->scheduler.Find(choice.sequence);
  const auto layer = sequence == nullptr ? std::nullopt
                                         : state_->parts.model->BrokenStateLayer(
                                               sequence->state_table.indices(), state_->kv_view);
  if (!layer.has_value()) return DataLoss("the model's logits hold no number");
  return DataLoss("the model's logits hold no number, nor does the state of its layer {}", *layer);
}

void RowSampler::LogPrompts(const BatchPlan& plan) {
  const StageRange sample(state_->parts.stages, StepStage::kSample);
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    LiveRequest* const request = work_->uses[i].request;
    if (!item.logs_prompt || !work_->uses[i].is_prompt || item.sequence->ended) continue;
    if (request->pool.has_value()) continue;  // its rows are wanted for their hidden states
    const RequestSpec& spec = request->spec;
    const uint32_t num_top = spec.sampling.prompt_logprobs.value_or(0);
    const uint32_t end = std::min(item.first_pos + item.num_tokens + 1, spec.num_prompt_tokens);
    for (uint32_t& pos = request->num_logged; pos < end; ++pos) {
      const std::span<const float> logits =
          work_->batch().PromptLogitsOf(item, i, pos - 1 - item.first_pos);
      sampled_.token = spec.tokens[pos];
      const uint32_t rank = sampler_.LogprobOf(logits, num_top, sampled_);
      state_->outbox.Add({.session = spec.session,
                          .key = spec.key,
                          .token = sampled_.token,
                          .has_logprob = true,
                          .logprob = sampled_.logprob,
                          .prompt_pos = pos,
                          .rank = rank},
                         sampled_.top_logprobs());
    }
  }
}

}  // namespace baton::engine
