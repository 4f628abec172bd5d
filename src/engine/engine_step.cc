// One step: plan, lower, forward, sample, finish; or begin, begin the next, end.
#include <algorithm>
#include <optional>
#include <utility>

#include "src/base/check.h"
#include "src/base/log.h"
#include "src/engine/engine_core.h"

namespace baton::engine {

using device::StageOfStep;
using device::StageRange;
using device::StepStage;
using kernels::RowSampling;
using kv::BlockCopy;
using kv::FirstToken;
using kv::Grant;
using kv::Seal;
using model::kNoTokenId;
using model::RowSamplingOf;
using model::SampledToken;
using model::SampleQuery;
using scheduler::BatchItem;
using scheduler::BatchPlan;
using scheduler::FinishReason;
using scheduler::ItemResult;
using scheduler::kNotFed;
using scheduler::Sequence;
using scheduler::StepShape;

namespace {

// All masks of a step together may be late by so much: about the time of the step itself.
constexpr int64_t kLateMaskWaitUs = 5'000;

// All but the logits.
SampleQuery QueryOf(const LiveRequest& request, const Choice& choice) {
  return {.params = &request.spec.sampling, .state = &choice.sampler, .choice = choice.index};
}

void CheckComputed(const Status& status) {
  BATON_CHECK(status.ok(), "the model did not compute a batch of ours: {}", status.ToString());
}

}  // namespace

bool EngineCore::PlanStep() {
  if (!scheduler_.HasWork()) return false;
  const StageRange planned(parts_.stages, StepStage::kPlan);
  const BatchPlan& plan = scheduler_.Plan(now_us_);
  if (plan.empty()) return false;
  for (const BlockCopy& copy : plan.copies) parts_.kv->Copy(copy.from, copy.to);
  LowerPlan(plan);
  NotePlanned(plan);
  return true;
}

bool EngineCore::RunStep() {
  if (!in_flight_ && !PlanStep()) {
    if (parts_.cores != nullptr) parts_.cores->EndSteps();
    return false;
  }
  // The plan of the step that ends in this turn, when steps overlap.
  const StepShape& shape = scheduler_.plan().shape;
  const StageRange step(parts_.stages, StageOfStep(shape.prefill_tokens, shape.decode_rows));
  if (!in_flight_) {
    outbox_.Flush();
    if (parts_.cores != nullptr) parts_.cores->BeginStep();
    step_began_us_ = parts_.clock->NowUs();
    if (!parts_.model->overlaps_steps() || !seals_.empty() || !batch().IsChosenWhole()) {
      Compute();
      EndRequests();
      return true;
    }
    Begin(&batch());
    in_flight_ = true;
  }
  BeginNext();
  EndStep();
  if (!failed_.empty()) {
    Settle();
  } else if (!in_flight_) {
    EndRequests();
  }
  return true;
}

void EngineCore::Compute() {
  sources_.BeginStep();
  SealHits();
  {
    const StageRange forward(parts_.stages, StepStage::kForward);
    CheckComputed(parts_.model->Forward(batch().batch(), kv_view_, seals_.empty() ? nullptr : this,
                                        batch().logits()));
  }
  FinishStep();
}

// ---- Steps that overlap.

void EngineCore::Begin(StepBatch* step) {
  const StageRange launch(parts_.stages, StepStage::kLaunch);
  CheckComputed(parts_.model->Begin(step->batch(), kv_view_));
}

void EngineCore::BeginNext() {
  if (inbox_->HasEvents()) return;
  StepBatch& next = batches_[1 - current_];
  {
    const StageRange planned(parts_.stages, StepStage::kPlan);
    const BatchPlan* const ahead = scheduler_.PlanAhead();
    if (ahead == nullptr) return;
    next.Lower(*ahead);
    AskForTokens(*ahead, &next);
  }
  Begin(&next);
  ++numbers_.num_steps_ahead;
}

void EngineCore::EndStep() {
  {
    const StageRange wait(parts_.stages, StepStage::kWait);
    CheckComputed(parts_.model->End(batch().chosen()));
  }
  FinishStep();
  const BatchPlan& next = scheduler_.plan();
  in_flight_ = !next.empty();
  if (!in_flight_) return;
  current_ = 1 - current_;
  step_began_us_ = now_us_;
  TakeUses(next);
}

void EngineCore::Settle() {
  if (in_flight_) EndStep();
  BATON_CHECK(!in_flight_, "a step was begun behind the last one");
  EndRequests();
}

// ---- Before the forward pass.

void EngineCore::LowerPlan(const BatchPlan& plan) {
  batch().Lower(plan);
  TakeUses(plan);
  seals_.clear();
  hit_seals_.clear();
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const SequenceUse& use = uses_[i];
    if (use.is_prompt && use.request->source != nullptr) NoteSeals(plan.items[i], use);
  }
  if (parts_.model->samples()) AskForTokens(plan, &batch());
}

void EngineCore::TakeUses(const BatchPlan& plan) {
  uses_.clear();
  for (const BatchItem& item : plan.items) {
    const SequenceUse* const use = requests_.FindSequence(item.id);
    BATON_CHECK(use != nullptr || item.sequence->ended,
                "sequence {} is planned and works for nobody", item.id);
    uses_.push_back(use == nullptr ? SequenceUse() : *use);
  }
}

void EngineCore::AskForTokens(const BatchPlan& plan, StepBatch* step) const {
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    const SequenceUse& use = *requests_.FindSequence(item.id);
    // The choices of a prompt that ends all begin with its logits.
    const bool one_choice = !item.ends_prompt || use.request->choices.size() == 1;
    if (!item.wants_logits || !one_choice || !item.proposed.empty()) continue;
    RowSampling sampling = RowSamplingOf(QueryOf(*use.request, use.request->choices[use.choice]));
    if (item.fed_by != kNotFed) ++sampling.output_index;  // after a token that is not known yet
    step->SetSampling(i, sampling);
  }
}

void EngineCore::NotePlanned(const BatchPlan& plan) {
  for (size_t i = 0; i < plan.items.size(); ++i) {
    LiveRequest* const request = uses_[i].request;
    const BatchItem& item = plan.items[i];
    if (item.is_decode && request->state < RequestState::kDecodeStarted) {
      SetState(request, RequestState::kDecodeStarted);
      first_steps_.push_back(request);
    } else if (uses_[i].is_prompt && request->state < RequestState::kPrefillStarted) {
      SetState(request, RequestState::kPrefillStarted, item.sequence->num_hit_tokens);
      request->prefill_began_us = now_us_;
    }
  }
}

void EngineCore::NoteSeals(const BatchItem& item, const SequenceUse& use) {
  const uint32_t block_size = kv_view_.layout->block_size;
  SourceTransfer* const transfer = use.request->source;
  if (transfer->blocks.empty()) {
    sources_.SetBlocks(transfer, *item.sequence);
    if (item.first_pos > 0) hit_seals_.push_back({transfer, 0, item.first_pos / block_size});
  }
  // Blocks that were full before this chunk are sealed already; a part-full last one is sealed at
  // the prompt's end only.
  const uint32_t end_pos = item.first_pos + item.num_tokens;
  const uint32_t first = item.first_pos / block_size;
  const uint32_t end =
      item.ends_prompt ? kv_view_.layout->BlocksFor(end_pos) : end_pos / block_size;
  seals_.push_back({transfer, first, end - first});
  // The last chunk leaves the state as it crosses, in the last ordinals.
  const uint32_t num_state = kv_view_.layout->state_blocks;
  if (item.ends_prompt && num_state > 0) seals_.push_back({transfer, end, num_state});
}

// Blocks that the prefix index had may cross before anything is computed.
void EngineCore::SealHits() {
  if (hit_seals_.empty()) return;
  const StageRange seals(parts_.stages, StepStage::kSeal);
  for (const StepSeal& seal : hit_seals_) {
    sources_.HashAndSeal(seal.transfer, seal.first_ordinal, seal.num_ordinals, now_us_);
  }
}

// ---- Between two layers.

void EngineCore::OnLayerStored(uint32_t layer) {
  const StageRange seals(parts_.stages, StepStage::kSeal);
  for (const StepSeal& seal : seals_) {
    sources_.HashLayer(seal.transfer, seal.first_ordinal, seal.num_ordinals, layer);
  }
  const uint32_t num_layers = kv_view_.layout->num_layers;
  const uint32_t group = config_.layers_per_group;
  const bool is_last = layer + 1 == num_layers;
  if ((layer + 1) % group != 0 && !is_last) return;
  const uint32_t first_layer = layer / group * group;
  const int64_t now_us = parts_.clock->NowUs();
  for (const StepSeal& seal : seals_) {
    sources_.SealLayers(seal.transfer,
                        {.first_ordinal = seal.first_ordinal,
                         .num_ordinals = seal.num_ordinals,
                         .first_layer = first_layer,
                         .num_layers = layer + 1 - first_layer},
                        now_us);
  }
  TakeGrants();
}

void EngineCore::TakeGrants() {
  if (!inbox_->HasEvents()) return;
  inbox_->Take(&pending_);
  for (; num_scanned_ < pending_.size(); ++num_scanned_) {
    auto* const message = std::get_if<PeerMessage>(&pending_[num_scanned_]);
    if (message == nullptr || message->message == nullptr) continue;
    const auto* const grant = std::get_if<Grant>(message->message.get());
    if (grant == nullptr) continue;
    // One whose request is not here may stand behind it in the queue: both wait for the step's end.
    if (sources_.OnGrantInStep(message->peer, *grant, parts_.clock->NowUs())) {
      message->message.reset();
    }
  }
}

// ---- After the forward pass.

void EngineCore::FinishStep() {
  const BatchPlan& plan = scheduler_.plan();
  results_.clear();
  done_prompts_.clear();
  finished_.clear();
  if (plan.num_log_rows > 0) LogPrompts(plan);
  TellProgress(plan);
  PoolRows(plan);
  SampleAll(plan);
  JudgeStates(plan);
  now_us_ = parts_.clock->NowUs();
  const int64_t elapsed_us = now_us_ - step_began_us_;
  outbox_.NoteStep(elapsed_us);
  MeasureStep(plan, elapsed_us);
  if (config_.speculate != SpeculateMode::kOff) speculator_.EndStep(plan, results_, elapsed_us);
  scheduler_.Finish(results_, elapsed_us, now_us_);
  for (LiveRequest* request : first_steps_) SetState(request, RequestState::kFirstStepDone);
  first_steps_.clear();
  for (const DonePrompt& done : done_prompts_) FinishPrompt(done);
  // From here on requests end, and pointers to them become void.
  for (LiveRequest* request : finished_) End(request, RequestState::kFinished, OkStatus());
}

void EngineCore::EndRequests() {
  for (const FailedRequest& failed : failed_) {
    Abandon(failed.request, RequestState::kFailed, failed.status);
  }
  failed_.clear();
  sources_.FinishStep(now_us_);
}

// Tells the log-probabilities of the prompts' tokens. The logits of one are those of the token
// before it. What was told before the prompt was preempted is not told again.
void EngineCore::LogPrompts(const BatchPlan& plan) {
  const StageRange sample(parts_.stages, StepStage::kSample);
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    LiveRequest* const request = uses_[i].request;
    if (!item.logs_prompt || !uses_[i].is_prompt || item.sequence->ended) continue;
    if (request->pool.has_value()) continue;  // its rows are wanted for their hidden states
    const RequestSpec& spec = request->spec;
    const uint32_t num_top = spec.sampling.prompt_logprobs.value_or(0);
    const uint32_t end = std::min(item.first_pos + item.num_tokens + 1, spec.num_prompt_tokens);
    for (uint32_t& pos = request->num_logged; pos < end; ++pos) {
      const std::span<const float> logits =
          batch().PromptLogitsOf(item, i, pos - 1 - item.first_pos);
      sampled_.token = spec.tokens[pos];
      const uint32_t rank = sampler_.LogprobOf(logits, num_top, sampled_);
      outbox_.Add({.session = spec.session,
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

// Tells how far the prompts are of which a client wants to know, each at most once in
// kProgressGapUs but for its end.
void EngineCore::TellProgress(const BatchPlan& plan) {
  constexpr int64_t kProgressGapUs = 100'000;
  int64_t now_us = 0;  // of the first that is told; most steps tell none
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    LiveRequest* const request = uses_[i].request;
    if (!uses_[i].is_prompt || !request->spec.reports_progress || item.sequence->ended) continue;
    if (now_us == 0) now_us = parts_.clock->NowUs();
    const bool is_early = now_us - request->progress_told_us < kProgressGapUs;
    const bool is_end = item.first_pos + item.num_tokens >= request->spec.num_prompt_tokens;
    if (is_early && request->progress_told_us > 0 && !is_end) continue;
    request->progress_told_us = now_us;
    TokenEvent event{.session = request->spec.session, .key = request->spec.key};
    event.progress = {.num_tokens = item.first_pos + item.num_tokens,
                      .num_cached = item.sequence->num_hit_tokens,
                      .elapsed_us = now_us - request->prefill_began_us};
    outbox_.Add(event, std::span<const TokenLogprob>());
  }
}

// Takes the hidden states of texts that are embedded, before the next step writes over them.
void EngineCore::PoolRows(const BatchPlan& plan) {
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    const bool has_rows = item.logs_prompt || item.wants_logits;
    if (!has_rows || !item.sequence->spec.embeds || item.sequence->ended) continue;
    model::RowPool& pool = *uses_[i].request->pool;
    const uint32_t last = item.num_tokens - 1;
    for (uint32_t token = item.logs_prompt ? 0 : last; token <= last; ++token) {
      pool.Add(item.first_pos + token, batch().HiddenOf(item, i, token));
    }
  }
}

void EngineCore::SampleAll(const BatchPlan& plan) {
  const StageRange sample(parts_.stages, StepStage::kSample);
  guide_wait_us_ = kLateMaskWaitUs;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    ItemResult& result = results_.emplace_back();
    if (!item.wants_logits) continue;
    if (item.sequence->ended) {
      ++numbers_.num_wasted_rows;
      continue;
    }
    LiveRequest* const request = uses_[i].request;
    if (item.ends_prompt) {
      done_prompts_.push_back({request, i});  // sampled once the sequence is at its prompt's end
      continue;
    }
    Choice* const choice = &request->choices[uses_[i].choice];
    // A row that moves a state on cannot be computed again: it waits for its mask.
    const bool may_retry = kv_view_.layout->state_blocks == 0;
    if (choice->guide != nullptr && may_retry && !HasMask(choice->guide.get())) {
      result.retry = true;  // the row is computed again once the mask is there
      ++numbers_.num_late_masks;
      continue;
    }
    if (uses_[i].is_prompt) BecomeChoice(request, choice);
    result = TakeTokens(item, i, choice);
    if (choice->finished && request->num_open_choices == 0) finished_.push_back(request);
  }
}

// Row r of the item has the logits after the sequence's last token and r guesses. The token of a
// row counts while the token of the row before it is the guess that the row was computed with. So
// each token is sampled from the logits, and with the state, that a step of its own would give it.
ItemResult EngineCore::TakeTokens(const BatchItem& item, size_t idx, Choice* choice) {
  LiveRequest* const request = uses_[idx].request;
  const auto num_proposed = static_cast<uint32_t>(item.proposed.size());
  numbers_.proposed_tokens += num_proposed;
  ItemResult result;
  for (uint32_t row = 0;; ++row) {
    result.num_accepted = row;
    if (!Sample(request, *choice, idx, row)) {
      result.finished = true;  // the sequence leaves now, the request fails after the step
      break;
    }
    TakeToken(request, choice, sampled_,
              {.num_proposed = row == 0 ? num_proposed : 0, .step_row = row});
    ++numbers_.generated_tokens;
    result.token = sampled_.token;
    result.finished = choice->finished;
    const bool goes_on =
        !result.finished && row < num_proposed && sampled_.token == item.proposed[row];
    if (!goes_on) break;
  }
  numbers_.accepted_tokens += result.num_accepted;
  if (num_proposed > 0 && choice->guesses != nullptr) {
    choice->guesses->length.Note(num_proposed, result.num_accepted);
  }
  return result;
}

bool EngineCore::Sample(LiveRequest* request, const Choice& choice, size_t item, uint32_t row) {
  Status status;
  if (const std::optional<TokenId> chosen = batch().ChosenOf(item)) {
    sampled_ = {.token = *chosen};
    if (*chosen == kNoTokenId) status = NoNumberError(*request, choice);
  } else {
    status = SampleHere(*request, choice, item, row);
  }
  if (status.ok()) return true;
  NoteFailed(request, std::move(status));
  return false;
}

void EngineCore::NoteFailed(LiveRequest* request, Status status) {
  const bool is_noted =
      std::any_of(failed_.begin(), failed_.end(),
                  [request](const FailedRequest& failed) { return failed.request == request; });
  if (!is_noted) failed_.push_back({request, std::move(status)});
}

void EngineCore::JudgeStates(const BatchPlan& plan) {
  for (const model::StateCopy& copy : batch().state_copies()) {
    if (copy.has_numbers) continue;
    results_[copy.span].bad_state = true;
    const BatchItem& item = plan.items[copy.span];
    LiveRequest* const request = uses_[copy.span].request;
    // One that wants logits has none that are numbers, and fails when it is sampled.
    if (item.wants_logits || request == nullptr) continue;
    NoteFailed(request, DataLoss("the model's state after {} tokens holds no number",
                                 item.first_pos + copy.num_rows));
  }
}

Status EngineCore::NoNumberError(const LiveRequest& request, const Choice& choice) const {
  const Sequence* sequence = scheduler_.Find(request.prompt_sequence);
  if (sequence == nullptr) sequence = scheduler_.Find(choice.sequence);
  const auto layer = sequence == nullptr ? std::nullopt
                                         : parts_.model->BrokenStateLayer(
                                               sequence->state_table.indices(), kv_view_);
  if (!layer.has_value()) return DataLoss("the model's logits hold no number");
  return DataLoss("the model's logits hold no number, nor does the state of its layer {}", *layer);
}

// Samples from the logits of a row, among the tokens that the grammar allows.
Status EngineCore::SampleHere(const LiveRequest& request, const Choice& choice, size_t item,
                              uint32_t row) {
  SampleQuery query = QueryOf(request, choice);
  query.logits = batch().LogitsOf(item, row);
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

void EngineCore::BecomeChoice(LiveRequest* request, Choice* choice) {
  choice->sequence = std::exchange(request->prompt_sequence, SequenceId());
  requests_.AddSequence(choice->sequence, {request, choice->index, /*is_prompt=*/false});
  SetState(request, RequestState::kPrefillDone);
}

void EngineCore::TakeToken(LiveRequest* request, Choice* choice, const SampledToken& sampled,
                           const TokenEvent& told) {
  choice->sampler.Append(sampled.token);
  const FinishReason finish = request->After(*choice, sampled.token, config_.eog_tokens);
  const bool goes_on = finish == FinishReason::kNone && request->source == nullptr;
  if (choice->guide != nullptr && goes_on) choice->guide->Accept(sampled.token);
  if (finish != FinishReason::kNone) {
    choice->finished = true;
    choice->guesses.reset();
    --request->num_open_choices;
    if (choice->sequence != SequenceId()) {
      requests_.EraseSequence(std::exchange(choice->sequence, SequenceId()));
    }
  }
  outbox_.Add({.session = request->spec.session,
               .key = request->spec.key,
               .choice = choice->index,
               .index = choice->sampler.num_output() - 1,
               .token = sampled.token,
               .finish = finish,
               .has_logprob = sampled.has_logprob,
               .logprob = sampled.logprob,
               .num_proposed = told.num_proposed,
               .step_row = told.step_row},
              sampled.top_logprobs());
}

// ---- The end of a prompt that is not decoded by its own sequence.

void EngineCore::FinishPrompt(const DonePrompt& done) {
  LiveRequest* const request = done.request;
  if (request->pool.has_value()) return FinishEmbedding(request);
  first_tokens_.clear();
  for (const Choice& choice : request->choices) {
    if (!Sample(request, choice, done.item)) return;
    first_tokens_.push_back(sampled_);
    ++numbers_.generated_tokens;
  }
  SetState(request, RequestState::kPrefillDone);
  if (request->source != nullptr) return SealPrompt(request);
  const SequenceId prompt = std::exchange(request->prompt_sequence, SequenceId());
  requests_.EraseSequence(prompt);
  StartChoices(request);
  scheduler_.Fork(prompt, starts_, &copies_);
  CopyBlocks();
  if (request->num_open_choices == 0) finished_.push_back(request);
}

// The vector stands where a first and last token would.
void EngineCore::FinishEmbedding(LiveRequest* request) {
  StatusOr<std::vector<float>> vector = request->pool->Vector();
  if (!vector.ok()) {
    failed_.push_back({request, vector.status()});
    return;
  }
  SetState(request, RequestState::kPrefillDone);
  request->num_open_choices = 0;
  outbox_.Add({.session = request->spec.session,
               .key = request->spec.key,
               .token = request->spec.tokens.back(),
               .finish = FinishReason::kLength},
              *std::move(vector));
  finished_.push_back(request);
}

void EngineCore::SealPrompt(LiveRequest* request) {
  Seal seal;
  for (Choice& choice : request->choices) {
    const SampledToken& sampled = first_tokens_[choice.index];
    FirstToken& first = seal.first_tokens.emplace_back();
    first.choice = choice.index;
    first.token = sampled.token;
    if (sampled.has_logprob) first.logprob = sampled.logprob;
    first.top_logprobs.assign(sampled.top.begin(), sampled.top.begin() + sampled.num_top);
    TakeToken(request, &choice, sampled);
  }
  seal.next_output_index = request->num_replayed() + 1;
  seal.num_tokens = static_cast<uint32_t>(request->spec.tokens.size());
  const Sequence* const sequence = scheduler_.Find(request->source->sequence);
  seal.num_cached = sequence->num_hit_tokens;
  seal.chain = sequence->chain.Links();
  sources_.FinishPrompt(request->source, std::move(seal), now_us_);
}

void EngineCore::StartChoices(LiveRequest* request) {
  starts_.clear();
  for (Choice& choice : request->choices) {
    const SampledToken& sampled = first_tokens_[choice.index];
    TakeToken(request, &choice, sampled);
    const SequenceId id(++last_sequence_id_);
    starts_.push_back({.id = id,
                       .choice = choice.index,
                       .first_token = sampled.token,
                       .finished = choice.finished});
    if (choice.finished) continue;
    choice.sequence = id;
    requests_.AddSequence(id, {request, choice.index, /*is_prompt=*/false});
  }
}

void EngineCore::CopyBlocks() {
  for (const BlockCopy& copy : copies_) parts_.kv->Copy(copy.from, copy.to);
  copies_.clear();
}

}  // namespace baton::engine
