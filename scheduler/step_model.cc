#include "scheduler/step_model.h"

#include <algorithm>

namespace baton {
namespace {

StepShape ShapeOf(const PlannedStep& step) {
  StepShape shape;
  shape.AddPrefill(step.first_pos, step.chunk_tokens);
  shape.decode_rows = step.decode_rows;
  shape.attention_keys += uint64_t{step.decode_rows} * step.context;
  shape.kv_tokens += uint64_t{step.decode_rows} * step.context;
  shape.logit_rows = step.decode_rows + (step.chunk_tokens > 0 ? 1 : 0);
  return shape;
}

double MeasuredUs(const MeasuredWeights& weights, const PlannedStep& step) {
  double fixed_us = 0;
  double rows_us = 0;
  if (step.chunk_tokens > 0) {
    StepShape chunk;
    chunk.AddPrefill(step.first_pos, step.chunk_tokens);
    fixed_us = weights.prefill.fixed_us;
    rows_us += weights.prefill.prefill_token_us * step.chunk_tokens +
               weights.prefill.key_us * static_cast<double>(chunk.attention_keys);
  }
  if (step.decode_rows > 0) {
    fixed_us = std::max(fixed_us, weights.decode.fixed_us);
    rows_us += (weights.decode.decode_row_us + weights.decode.key_us * step.context) *
               static_cast<double>(step.decode_rows);
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
  if (!roofline_) return MeasuredUs(weights_, step);
  const StepTimes limit = StepLimit(roofline_->device, roofline_->model, ShapeOf(step));
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

}  // namespace baton
