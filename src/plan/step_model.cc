#include "src/plan/step_model.h"

#include <algorithm>
#include <cmath>

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

uint64_t Rounded(double count) { return static_cast<uint64_t>(std::llround(count)); }

}  // namespace

double KeyWindow::RunKeys(double first_pos, double num_rows) const {
  // Row i sees first_pos + i + 1 keys.
  const auto sum_of = [first_pos](double rows) { return rows * (first_pos + (rows + 1) / 2); };
  const double full = sum_of(num_rows);
  if (tokens == 0) return full;
  const double below = std::clamp(tokens - first_pos, 0.0, num_rows);  // rows that see less
  const double seen = sum_of(below) + (num_rows - below) * tokens;
  return (1 - share) * full + share * std::min(seen, full);
}

double KeyWindow::RowKeys(double context, double num_rows) const {
  const double seen = tokens == 0 ? context : std::min<double>(context, tokens);
  return num_rows * ((1 - share) * context + share * seen);
}

StepModel StepModel::OfDevice(const DeviceLimits& device, const RooflineModel& model, double share,
                              const KeyWindow& window) {
  StepModel out;
  out.roofline_ = Roofline{device, model, share};
  out.window_ = window;
  return out;
}

StepModel StepModel::OfMeasurements(const MeasuredWeights& weights, const KeyWindow& window) {
  StepModel out;
  out.weights_ = weights;
  out.window_ = window;
  return out;
}

double StepModel::StepUs(const PlannedStep& step) const {
  return StepUs(PromptsOf(step), DecodesOf(step));
}

double StepModel::StepUs(const StepShape& prompts, const StepShape& decodes) const {
  return roofline_ ? RooflineUs(prompts, decodes) : MeasuredUs(prompts, decodes);
}

double StepModel::PromptKeys(const StepShape& prompts) const {
  const auto keys = static_cast<double>(prompts.attention_keys);
  if (window_.tokens == 0 || prompts.prefill_tokens == 0) return keys;
  const double rows = prompts.prefill_tokens;
  return window_.RunKeys(std::max(0.0, keys / rows - (rows + 1) / 2), rows);
}

double StepModel::DecodeKeys(const StepShape& decodes) const {
  const auto keys = static_cast<double>(decodes.attention_keys);
  if (window_.tokens == 0 || decodes.decode_rows == 0) return keys;
  return window_.RowKeys(keys / decodes.decode_rows, decodes.decode_rows);
}

double StepModel::MeasuredUs(const StepShape& prompts, const StepShape& decodes) const {
  double fixed_us = 0;
  double rows_us = 0;
  if (prompts.prefill_tokens > 0) {
    fixed_us = weights_.prefill.fixed_us;
    rows_us += weights_.prefill.prefill_token_us * prompts.prefill_tokens +
               weights_.prefill.key_us * PromptKeys(prompts);
  }
  if (decodes.decode_rows > 0) {
    fixed_us = std::max(fixed_us, weights_.decode.fixed_us);
    rows_us += weights_.decode.decode_row_us * decodes.decode_rows +
               weights_.decode.key_us * DecodeKeys(decodes);
  }
  return fixed_us + rows_us;
}

double StepModel::RooflineUs(const StepShape& prompts, const StepShape& decodes) const {
  StepShape step = Together(prompts, decodes);
  if (window_.tokens > 0) {
    const double decode_keys = DecodeKeys(decodes);
    // A chunk's positions are read once, and of those before it the window's.
    const auto positions = static_cast<double>(prompts.kv_tokens);
    const double seen =
        std::min(positions, static_cast<double>(prompts.prefill_tokens) + window_.tokens - 1);
    step.attention_keys = Rounded(PromptKeys(prompts) + decode_keys);
    step.kv_tokens = Rounded((1 - window_.share) * positions + window_.share * seen + decode_keys);
  }
  const StepTimes limit = StepLimit(roofline_->device, roofline_->model, step);
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
