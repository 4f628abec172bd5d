#include "src/wire/sampling_params.h"

#include <algorithm>
#include <string_view>

#include "src/base/limits.h"

namespace baton::wire {

using limits::kMaxAddedPenalty;
using limits::kMaxLogitBias;
using limits::kMaxLogitBiases;
using limits::kMaxRepetitionPenalty;
using limits::kMaxTemperature;
using limits::kMaxTopLogprobs;

namespace {

// Inclusive range; `open` excludes min.
struct FloatRange {
  float min;
  float max;
  bool open = false;
};

absl::Status CheckRange(std::string_view field, float value, FloatRange range) {
  const bool above = range.open ? value > range.min : value >= range.min;
  if (above && value <= range.max) return OkStatus();  // false for NaN
  return InvalidArgument("{} {} is outside {}{}, {}]", field, value, range.open ? "(" : "[",
                         range.min, range.max);
}

absl::Status CheckBiases(const std::vector<LogitBias>& biases, uint32_t vocab_size) {
  if (biases.size() > kMaxLogitBiases) {
    return InvalidArgument("logit_bias has {} entries, at most {} are allowed", biases.size(),
                           kMaxLogitBiases);
  }
  std::vector<TokenId> tokens;
  for (const LogitBias& entry : biases) {
    if (entry.token < 0 || static_cast<uint32_t>(entry.token) >= vocab_size) {
      return InvalidArgument("logit_bias token {} is outside [0, {})", entry.token, vocab_size);
    }
    BATON_RETURN_IF_ERROR(CheckRange("logit_bias", entry.bias, {-kMaxLogitBias, kMaxLogitBias}));
    tokens.push_back(entry.token);
  }
  std::sort(tokens.begin(), tokens.end());
  const auto twice = std::adjacent_find(tokens.begin(), tokens.end());
  if (twice == tokens.end()) return OkStatus();
  return InvalidArgument("logit_bias names token {} twice", *twice);
}

}  // namespace

absl::Status ValidateSamplingParams(const SamplingParams& params, uint32_t vocab_size) {
  BATON_RETURN_IF_ERROR(CheckRange("temperature", params.temperature, {0.0f, kMaxTemperature}));
  BATON_RETURN_IF_ERROR(CheckRange("top_p", params.top_p, {0.0f, 1.0f}));
  BATON_RETURN_IF_ERROR(CheckRange("min_p", params.min_p, {0.0f, 1.0f}));
  BATON_RETURN_IF_ERROR(CheckRange("repetition_penalty", params.repetition_penalty,
                                   {0.0f, kMaxRepetitionPenalty, true}));
  BATON_RETURN_IF_ERROR(CheckRange("presence_penalty", params.presence_penalty,
                                   {-kMaxAddedPenalty, kMaxAddedPenalty}));
  BATON_RETURN_IF_ERROR(CheckRange("frequency_penalty", params.frequency_penalty,
                                   {-kMaxAddedPenalty, kMaxAddedPenalty}));
  if (params.top_logprobs > kMaxTopLogprobs) {
    return InvalidArgument("top_logprobs {} is outside [0, {}]", params.top_logprobs,
                           kMaxTopLogprobs);
  }
  if (params.prompt_logprobs.value_or(0) > kMaxTopLogprobs) {
    return InvalidArgument("prompt_logprobs {} is outside [0, {}]", *params.prompt_logprobs,
                           kMaxTopLogprobs);
  }
  return CheckBiases(params.logit_bias, vocab_size);
}

}  // namespace baton::wire
