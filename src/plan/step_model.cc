#include "src/plan/step_model.h"

#include <algorithm>

namespace baton::plan {

using scheduler::DeviceLimits;
using scheduler::RooflineModel;
using scheduler::StepShape;
using scheduler::StepTimes;

namespace {

StepShape PromptsOf(const PlannedStep& step) {
  StepShape shape;
  shape.AddPrefill(step.first_pos, step.chunk_tokens);
  shape.logit_rows = step.chunk_tokens > 0 ? 1 : 0;
  return shape;
}

StepShape DecodesOf(const PlannedStep& step) {
  StepShape shape;
  shape.decode_rows = step.decode_rows;
  shape.attention_keys = uint64_t{step.decode_rows} * step.context;
  shape.kv_tokens = shape.attention_keys;
  shape.logit_rows = step.decode_rows;
  return shape;
}

StepShape Together(const StepShape& a, const StepShape& b) {
  return {.prefill_tokens = a.prefill_tokens + b.prefill_tokens,
          .decode_rows = a.decode_rows + b.decode_rows,
          .attention_keys = a.attention_keys + b.attention_keys,
          .kv_tokens = a.kv_tokens + b.kv_tokens,
          .logit_rows = a.logit_rows + b.logit_rows};
}

double MeasuredUs(const MeasuredWeights& weights, const StepShape& prompts,
                  const StepShape& decodes) {
  double fixed_us = 0;
  double rows_us = 0;
  if (prompts.prefill_tokens > 0) {
    fixed_us = weights.prefill.fixed_us;
    rows_us += weights.prefill.prefill_token_us * prompts.prefill_tokens +
               weights.prefill.key_us * static_cast<double>(prompts.attention_keys);
  }
  if (decodes.decode_rows > 0) {
    fixed_us = std::max(fixed_us, weights.decode.fixed_us);
    rows_us += weights.decode.decode_row_us * decodes.decode_rows +
               weights.decode.key_us * static_cast<double>(decodes.attention_keys);
  }
  return fixed_us + rows_us;
}

}  // namespace

StepModel StepModel::OfDevice(const DeviceLimits& device, const RooflineModel& model,
                              double share) {
  StepModel out;
  out.roofline_ = Roofline{device, model, share};
  return out;
}

StepModel StepModel::OfMeasurements(const MeasuredWeights& weights) {
  StepModel out;
  out.weights_ = weights;
  return out;
}

double StepModel::StepUs(const PlannedStep& step) const {
  return StepUs(PromptsOf(step), DecodesOf(step));
}

double StepModel::StepUs(const StepShape& prompts, const StepShape& decodes) const {
  if (!roofline_) return MeasuredUs(weights_, prompts, decodes);
  const StepTimes limit =
      StepLimit(roofline_->device, roofline_->model, Together(prompts, decodes));
  return limit.total_us() / roofline_->share;
}

double StepModel::PromptUs(uint32_t num_tokens, uint32_t chunk, const PlannedStep& beside) const {
  const uint32_t num_whole = num_tokens / chunk;
  const uint32_t rest = num_tokens % chunk;
  PlannedStep step = beside;
  double us = 0;
  if (num_whole > 0) {
    step.chunk_tokens = chunk;
    step.first_pos = (num_whole - 1) * chunk / 2;
    us += num_whole * StepUs(step);
  }
  if (rest > 0) {
    step.chunk_tokens = rest;
    step.first_pos = num_tokens - rest;
    us += StepUs(step);
  }
  return us;
}

}  // namespace baton::plan
