#include "src/engine/row_sampler.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>

#include "src/base/limits.h"
#include "src/device/thread_pool.h"

namespace baton::engine {

using device::StageRange;
using device::StepStage;
using kernels::RowSampling;
using limits::kMaxChoices;
using limits::kMaxPromptLogRows;
using model::kNoTokenId;
using model::RowSamplingOf;
using model::SampledToken;
using model::SampleQuery;
using model::Sampler;
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

// One of each thread that reads rows.
std::vector<Sampler> SamplersOf(const EngineState& state) {
  const device::ThreadPool* const pool = state.parts.pool;
  const uint32_t num_threads = pool == nullptr ? 1 : pool->num_threads();
  std::vector<Sampler> samplers;
  samplers.reserve(num_threads);
  for (uint32_t i = 0; i < num_threads; ++i) {
    samplers.emplace_back(state.parts.model->vocab_size(), state.config.eog_tokens);
  }
  return samplers;
}

}  // namespace

RowSampler::RowSampler(const StepParts& parts, StepWork* work)
    : state_(parts.state),
      life_(parts.life),
      guides_(parts.guides),
      tokens_(parts.tokens),
      work_(work),
      samplers_(SamplersOf(*parts.state)) {
  const size_t max_rows = std::max(state_->MaxItems(), kMaxChoices);
  rows_.reserve(max_rows);
  sampled_here_.reserve(max_rows);
  log_rows_.reserve(kMaxPromptLogRows);
}

template <typename Task>
void RowSampler::Share(size_t num_rows, const Task& task) const {
  device::ThreadPool* const pool = state_->parts.pool;
  const auto count = static_cast<uint32_t>(num_rows);
  if (pool != nullptr) return pool->Run(count, task);
  for (uint32_t i = 0; i < count; ++i) task(i, uint32_t{0});
}

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
  rows_.clear();
  for (size_t i = 0; i < plan.items.size(); ++i) {
    work_->results.push_back(AskItem(plan.items[i], i));
  }
  SampleRows();
  for (Row& row : rows_) work_->results[row.item] = TakeItem(plan.items[row.item], &row);
}

ItemResult RowSampler::AskItem(const BatchItem& item, size_t idx) {
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
  rows_.push_back(Ask(request, choice, idx, 0));
  return {};
}

RowSampler::Row RowSampler::Ask(LiveRequest* request, Choice* choice, size_t item,
                                uint32_t row) const {
  Row asked{.request = request, .choice = choice, .item = item};
  if (const std::optional<TokenId> chosen = work_->batch().ChosenOf(item)) {
    asked.token = {.token = *chosen};
    asked.has_number = *chosen != kNoTokenId;
    return asked;
  }
  asked.query = QueryOf(*request, *choice);
  AnswerGuide* guide = choice->guide.get();
  if (request->spec.kind == RequestKind::kSource) guide = request->choices.front().guide.get();
  if (guide != nullptr) {
    const StatusOr<std::span<const uint32_t>> mask = guide->Mask();
    if (!mask.ok()) {
      asked.status = GuideFailure(mask.status());
      return asked;
    }
    asked.query.mask = *mask;
  }
  asked.query.logits = work_->batch().LogitsOf(item, row);
  return asked;
}

void RowSampler::SampleRows() {
  sampled_here_.clear();
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (!rows_[i].query.logits.empty()) sampled_here_.push_back(static_cast<uint32_t>(i));
  }
  Share(sampled_here_.size(), [this](uint32_t idx, uint32_t thread_idx) {
    SampleRow(&samplers_[thread_idx], &rows_[sampled_here_[idx]]);
  });
}

void RowSampler::SampleRow(Sampler* sampler, Row* row) {
  row->has_number = sampler->Sample(row->query, row->token).ok();
}

bool RowSampler::HasToken(Row* row) {
  if (row->status.ok() && !row->has_number) {
    row->status = NoNumberError(*row->request, *row->choice);
  }
  if (row->status.ok()) return true;
  work_->NoteFailed(row->request, row->status);
  return false;
}

ItemResult RowSampler::TakeItem(const BatchItem& item, Row* row) {
  LiveRequest* const request = row->request;
  if (work_->uses[row->item].is_prompt) {
    tokens_->TakeSequence(request, row->choice);
    life_->Reach(request, RequestState::kPrefillDone);
  }
  const ItemResult result = TakeTokens(item, row);
  if (row->choice->finished && request->num_open_choices == 0) work_->finished.push_back(request);
  return result;
}

// Row r of the item has the logits after the sequence's last token and r guesses. The token of a
// row counts while the token of the row before it is the guess that the row was computed with. So
// each token is sampled from the logits, and with the state, that a step of its own would give it.
ItemResult RowSampler::TakeTokens(const BatchItem& item, Row* first) {
  LiveRequest* const request = first->request;
  Choice* const choice = first->choice;
  const auto num_proposed = static_cast<uint32_t>(item.proposed.size());
  state_->numbers.proposed_tokens += num_proposed;
  ItemResult result;
  Row after_guess;
  Row* row = first;
  for (uint32_t step_row = 0;; ++step_row) {
    result.num_accepted = step_row;
    if (step_row > 0) {
      after_guess = Ask(request, choice, first->item, step_row);
      row = &after_guess;
      if (!row->query.logits.empty()) SampleRow(&samplers_.front(), row);
    }
    if (!HasToken(row)) {
      result.finished = true;  // the sequence leaves now, the request fails after the step
      result.no_numbers = absl::IsDataLoss(row->status);
      break;
    }
    tokens_->Take(request, choice, row->token,
                  {.num_proposed = step_row == 0 ? num_proposed : 0, .step_row = step_row});
    ++state_->numbers.generated_tokens;
    result.token = row->token.token;
    result.finished = choice->finished;
    const bool goes_on =
        !result.finished && step_row < num_proposed && result.token == item.proposed[step_row];
    if (!goes_on) break;
  }
  state_->numbers.accepted_tokens += result.num_accepted;
  return result;
}

bool RowSampler::SampleFirst(LiveRequest* request, size_t item, std::vector<SampledToken>* out) {
  rows_.clear();
  for (Choice& choice : request->choices) rows_.push_back(Ask(request, &choice, item, 0));
  SampleRows();
  for (Row& row : rows_) {
    if (!HasToken(&row)) return false;
    out->push_back(row.token);
    ++state_->numbers.generated_tokens;
  }
  return true;
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
  log_rows_.clear();
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    LiveRequest* const request = work_->uses[i].request;
    if (!item.logs_prompt || !work_->uses[i].is_prompt || item.sequence->ended) continue;
    if (request->pool.has_value()) continue;  // its rows are wanted for their hidden states
    const RequestSpec& spec = request->spec;
    const uint32_t end = std::min(item.first_pos + item.num_tokens + 1, spec.num_prompt_tokens);
    for (uint32_t& pos = request->num_logged; pos < end; ++pos) {
      log_rows_.push_back(
          {.request = request,
           .pos = pos,
           .logits = work_->batch().PromptLogitsOf(item, i, pos - 1 - item.first_pos),
           .token = {.token = spec.tokens[pos]}});
    }
  }
  Share(log_rows_.size(), [this](uint32_t idx, uint32_t /*thread_idx*/) {
    LogRow& row = log_rows_[idx];
    const uint32_t num_top = row.request->spec.sampling.prompt_logprobs.value_or(0);
    row.rank = Sampler::LogprobOf(row.logits, num_top, row.token);
  });
  for (const LogRow& row : log_rows_) {
    state_->outbox.Add({.session = row.request->spec.session,
                        .key = row.request->spec.key,
                        .token = row.token.token,
                        .has_logprob = true,
                        .logprob = row.token.logprob,
                        .prompt_pos = row.pos,
                        .rank = row.rank},
                       row.token.top_logprobs());
  }
}

}  // namespace baton::engine
