#include "src/engine/step_runner.h"

#include "src/base/check.h"

namespace baton::engine {

using device::StageOfStep;
using device::StageRange;
using device::StepStage;
using scheduler::BatchItem;
using scheduler::BatchPlan;
using scheduler::StepShape;

namespace {

// Weight of the newest step in an average: about the last 16 steps count.
constexpr float kNewest = 1.0f / 16;

void Average(float* average, double value) {
  const float v = static_cast<float>(value);
  *average = *average == 0 ? v : *average + kNewest * (v - *average);
}

void CheckComputed(const Status& status) {
  BATON_CHECK(status.ok(), "the model did not compute a batch of ours: {}", status.ToString());
}

}  // namespace

StepRunner::StepRunner(const StepParts& parts)
    : parts_(parts),
      state_(parts.state),
      work_(*parts.state),
      rows_(parts, &work_),
      seals_(parts),
      prompts_(parts, &work_, &rows_) {
  first_steps_.reserve(state_->MaxItems());
}

StepRunner::~StepRunner() {
  if (in_flight_) (void)state_->parts.model->End(work_.batch().chosen());
}

bool StepRunner::Run() {
  device::CoreShare* const cores = state_->parts.cores;
  if (!in_flight_ && !Plan()) {
    if (cores != nullptr) cores->EndSteps();
    return false;
  }
  // The plan of the step that ends in this turn, when steps overlap.
  const StepShape& shape = state_->scheduler.plan().shape;
  const StageRange step(state_->parts.stages, StageOfStep(shape.prefill_tokens, shape.decode_rows));
  if (!in_flight_) {
    state_->outbox.Flush();
    if (cores != nullptr) cores->BeginStep();
    began_us_ = state_->parts.clock->NowUs();
    const bool overlaps = state_->parts.model->overlaps_steps();
    if (!overlaps || !seals_.empty() || !work_.batch().IsChosenWhole()) {
      if (cores != nullptr) cores->SitDown(&place_);
      Compute();
      if (cores != nullptr) cores->StandUp(&place_);
      EndRequests();
      return true;
    }
    Begin(&work_.batch());
    in_flight_ = true;
  }
  BeginNext();
  End();
  if (!work_.failed.empty()) {
    Settle();
  } else if (!in_flight_) {
    EndRequests();
  }
  return true;
}

void StepRunner::Compute() {
  parts_.hub->sources().BeginStep();
  seals_.SealHits();
  {
    const StageRange forward(state_->parts.stages, StepStage::kForward);
    StepBatch& batch = work_.batch();
    CheckComputed(state_->parts.model->Forward(batch.batch(), state_->kv_view,
                                               seals_.empty() ? nullptr : &seals_, batch.logits()));
  }
  Finish();
}

// ---- Steps that overlap.

void StepRunner::Begin(StepBatch* step) {
  const StageRange launch(state_->parts.stages, StepStage::kLaunch);
  CheckComputed(state_->parts.model->Begin(step->batch(), state_->kv_view));
}

void StepRunner::BeginNext() {
  if (parts_.events->MoreWait()) return;
  StepBatch& next = work_.next_batch();
  {
    const StageRange planned(state_->parts.stages, StepStage::kPlan);
    const BatchPlan* const ahead = state_->scheduler.PlanAhead();
    if (ahead == nullptr) return;
    next.Lower(*ahead);
    rows_.AskModel(*ahead, &next);
  }
  Begin(&next);
  ++state_->numbers.num_steps_ahead;
}

void StepRunner::End() {
  {
    const StageRange wait(state_->parts.stages, StepStage::kWait);
    CheckComputed(state_->parts.model->End(work_.batch().chosen()));
  }
  Finish();
  const BatchPlan& next = state_->scheduler.plan();
  in_flight_ = !next.empty();
  if (!in_flight_) return;
  work_.current = 1 - work_.current;
  began_us_ = state_->now_us;
  TakeUses(next);
}

void StepRunner::Settle() {
  if (in_flight_) End();
  BATON_CHECK(!in_flight_, "a step was begun after the last one");
  EndRequests();
}

// ---- Before the forward pass.

bool StepRunner::Plan() {
  if (!state_->scheduler.HasWork()) return false;
  const StageRange planned(state_->parts.stages, StepStage::kPlan);
  const BatchPlan& plan = state_->scheduler.Plan(state_->now_us);
  for (const kv::BlockCopy& copy : plan.copies) state_->parts.kv->Copy(copy.from, copy.to);
  if (plan.empty()) return false;
  Lower(plan);
  NotePlanned(plan);
  return true;
}

void StepRunner::Lower(const BatchPlan& plan) {
  work_.batch().Lower(plan);
  TakeUses(plan);
  seals_.Clear();
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const SequenceUse& use = work_.uses[i];
    if (use.is_prompt && use.request->source != nullptr) {
      seals_.Note(plan.items[i], use.request->source);
    }
  }
  if (state_->parts.model->samples()) rows_.AskModel(plan, &work_.batch());
}

void StepRunner::TakeUses(const BatchPlan& plan) {
  work_.uses.clear();
  for (const BatchItem& item : plan.items) {
    const SequenceUse* const use = state_->requests.FindSequence(item.id);
    BATON_CHECK(use != nullptr || item.sequence->ended,
                "sequence {} is planned and works for nobody", item.id);
    work_.uses.push_back(use == nullptr ? SequenceUse() : *use);
  }
}

void StepRunner::NotePlanned(const BatchPlan& plan) {
  for (size_t i = 0; i < plan.items.size(); ++i) {
    LiveRequest* const request = work_.uses[i].request;
    const BatchItem& item = plan.items[i];
    if (item.is_decode && request->state < RequestState::kDecodeStarted) {
      parts_.life->Reach(request, RequestState::kDecodeStarted);
      first_steps_.push_back(request);
    } else if (work_.uses[i].is_prompt && request->state < RequestState::kPrefillStarted) {
      parts_.life->Reach(request, RequestState::kPrefillStarted, item.sequence->num_hit_tokens);
      request->prefill_began_us = state_->now_us;
    }
  }
}

// ---- After the forward pass.

void StepRunner::Finish() {
  const BatchPlan& plan = state_->scheduler.plan();
  work_.results.clear();
  work_.done_prompts.clear();
  work_.finished.clear();
  if (plan.num_log_rows > 0) rows_.LogPrompts(plan);
  prompts_.TellProgress(plan);
  prompts_.PoolRows(plan);
  rows_.SampleAll(plan);
  JudgeStates(plan);
  state_->now_us = state_->parts.clock->NowUs();
  const int64_t elapsed_us = state_->now_us - began_us_;
  state_->outbox.NoteStep(elapsed_us);
  Measure(plan, elapsed_us);
  if (state_->config.speculate != SpeculateMode::kOff) {
    state_->speculator.EndStep(plan, work_.results, elapsed_us);
  }
  state_->scheduler.Finish(work_.results, elapsed_us, state_->now_us);
  for (LiveRequest* request : first_steps_) {
    parts_.life->Reach(request, RequestState::kFirstStepDone);
  }
  first_steps_.clear();
  for (const DonePrompt& done : work_.done_prompts) prompts_.Finish(done);
  // From here on requests end, and pointers to them become void.
  for (LiveRequest* request : work_.finished) {
    parts_.life->End(request, RequestState::kFinished, OkStatus());
  }
}

void StepRunner::JudgeStates(const BatchPlan& plan) {
  for (const model::StateCopy& copy : work_.batch().state_copies()) {
    if (copy.has_numbers) continue;
    work_.results[copy.span].no_numbers = true;
    const BatchItem& item = plan.items[copy.span];
    LiveRequest* const request = work_.uses[copy.span].request;
    // One that wants logits has none that are numbers, and fails when it is sampled.
    if (item.wants_logits || request == nullptr) continue;
    work_.NoteFailed(request, DataLoss("the model's state after {} tokens holds no number",
                                       item.first_pos + copy.num_rows));
  }
}

void StepRunner::EndRequests() {
  for (const FailedRequest& failed : work_.failed) {
    if (absl::IsDataLoss(failed.status)) {
      state_->scheduler.ForgetComputed(failed.request->prompt_sequence);
    }
    parts_.ends->Abandon(failed.request, RequestState::kFailed, failed.status);
  }
  work_.failed.clear();
  parts_.hub->sources().FinishStep(state_->now_us);
}

void StepRunner::Measure(const BatchPlan& plan, int64_t elapsed_us) {
  EngineSnapshot& numbers = state_->numbers;
  const EngineParts& parts = state_->parts;
  ++numbers.num_steps;
  numbers.computed_tokens += plan.shape.prefill_tokens;
  if (parts.on_step) parts.on_step(plan.shape, elapsed_us);
  if (elapsed_us <= 0) return;
  const double seconds = static_cast<double>(elapsed_us) * 1e-6;
  if (plan.shape.prefill_tokens == 0) {
    const double bytes = static_cast<double>(parts.model->bytes_read_per_step()) +
                         static_cast<double>(plan.shape.kv_tokens) *
                             static_cast<double>(state_->kv_view.layout->BytesPerToken());
    Average(&numbers.decode_bytes_per_s, bytes / seconds);
  } else if (plan.shape.decode_rows == 0) {
    const double flops = static_cast<double>(parts.model->flops_per_row()) *
                         static_cast<double>(plan.shape.prefill_tokens);
    Average(&numbers.prefill_flops_per_s, flops / seconds);
  }
}

}  // namespace baton::engine
