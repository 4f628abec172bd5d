#include "scheduler/step_cost.h"

#include <algorithm>
#include <cmath>

namespace baton::scheduler {
namespace {

// Units in which a feature is about 1 in a usual step, so that one learning rate fits all.
constexpr double kTokensUnit = 128;
constexpr double kRowsUnit = 8;
constexpr double kKeysUnit = 65'536;
// A small constant term: the fixed cost is learnt last, when the others explain the rest.
constexpr double kConstantTerm = 0.25;
// Half of each step's error is corrected: ten steps leave 0.1 % of a wrong start, one step that was
// held up by the system is forgotten in as many.
constexpr double kLearningRate = 0.5;
// Steps are planned to 200 ms at most. One that takes so long, and so many times what is predicted
// by earlier steps of its kind, is no slow step: the process or its machine stood still. A worker
// that was stopped for half a second or for 10 s would otherwise count as a fifth slower, and
// routers would send it nothing by which it could learn better. The prediction goes half of the
// way to twice its value, so that ten such steps in a row are believed.
constexpr double kStoodStillUs = 250'000;
constexpr double kStoodStillTimes = 4;
// Weight of the newest value in the two averages.
constexpr double kAverageShare = 0.2;

}  // namespace

void StepShape::AddPrefill(uint32_t first_pos, uint32_t num_tokens) {
  prefill_tokens += num_tokens;
  // Row i of the chunk reads first_pos + i + 1 keys.
  attention_keys += uint64_t{num_tokens} * first_pos + uint64_t{num_tokens} * (num_tokens + 1) / 2;
  if (num_tokens > 0) kv_tokens += uint64_t{first_pos} + num_tokens;
}

void StepShape::AddDecode(uint32_t position) {
  ++decode_rows;
  ++logit_rows;
  attention_keys += uint64_t{position} + 1;
  kv_tokens += uint64_t{position} + 1;
}

void StepShape::AddProposals(uint32_t first_pos, uint32_t num_tokens) {
  decode_rows += num_tokens;
  logit_rows += num_tokens;
  attention_keys += uint64_t{num_tokens} * first_pos + uint64_t{num_tokens} * (num_tokens + 1) / 2;
  kv_tokens += num_tokens;
}

StepCost::StepCost(const StepWeights& start, double output_row_tokens)
    : output_row_tokens_(output_row_tokens),
      weights_us_{start.fixed_us / kConstantTerm, start.prefill_token_us * kTokensUnit,
                  start.decode_row_us * kRowsUnit, start.key_us * kKeysUnit} {}

StepCost::Features StepCost::FeaturesOf(const StepShape& shape) const {
  const uint32_t log_rows = shape.logit_rows - std::min(shape.logit_rows, shape.decode_rows);
  const double tokens = shape.prefill_tokens + output_row_tokens_ * log_rows;
  return {kConstantTerm, tokens / kTokensUnit, shape.decode_rows / kRowsUnit,
          static_cast<double>(shape.attention_keys) / kKeysUnit};
}

int64_t StepCost::PredictUs(const StepShape& shape) const {
  const Features x = FeaturesOf(shape);
  double us = 0;
  for (size_t i = 0; i < kNumFeatures; ++i) us += weights_us_[i] * x[i];
  return std::llround(us);
}

void StepCost::Measure(const StepShape& shape, int64_t elapsed_us) {
  if (elapsed_us <= 0 || (shape.prefill_tokens == 0 && shape.decode_rows == 0)) return;
  const Features x = FeaturesOf(shape);
  double norm = 0;
  double predicted = 0;
  for (size_t i = 0; i < kNumFeatures; ++i) {
    norm += x[i] * x[i];
    predicted += weights_us_[i] * x[i];
  }
  const bool is_known = shape.prefill_tokens == 0 ? decode_step_us_ > 0 : prefill_tokens_per_s_ > 0;
  const bool stood_still = is_known && predicted > 0 &&
                           static_cast<double>(elapsed_us) >= kStoodStillUs &&
                           static_cast<double>(elapsed_us) > kStoodStillTimes * predicted;
  const double believed_us = stood_still ? 2 * predicted : static_cast<double>(elapsed_us);
  const double step = kLearningRate * (believed_us - predicted) / norm;
  for (size_t i = 0; i < kNumFeatures; ++i) {
    weights_us_[i] = std::max(0.0, weights_us_[i] + step * x[i]);
  }
  ++num_measurements_;
  if (stood_still) return;

  const auto average = [](double old, double now) {
    return old == 0 ? now : old + kAverageShare * (now - old);
  };
  const double elapsed = static_cast<double>(elapsed_us);
  if (shape.prefill_tokens == 0) {
    decode_step_us_ = std::llround(average(static_cast<double>(decode_step_us_), elapsed));
  } else if (shape.prefill_tokens >= 4 * shape.decode_rows) {
    prefill_tokens_per_s_ = average(prefill_tokens_per_s_, shape.prefill_tokens * 1e6 / elapsed);
  }
}

uint32_t StepCost::MaxChunk(const StepShape& shape, const ChunkAsk& ask) const {
  const auto fits = [&](uint32_t num_tokens) {
    StepShape with = shape;
    with.AddPrefill(ask.first_pos, num_tokens);
    if (ask.logs) with.logit_rows += num_tokens;
    StepShape layers = with;
    layers.logit_rows = with.decode_rows;
    return PredictUs(with) <= ask.total_us && PredictUs(layers) <= ask.layers_us;
  };
  if (fits(ask.limit)) return ask.limit;
  // The cost rises with the length, because no weight is negative: [low fits, high does not).
  uint32_t low = 0;
  uint32_t high = ask.limit;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace baton::scheduler
