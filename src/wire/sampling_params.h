// SamplingParams: how the tokens of one choice are chosen and when the choice ends, as plain data.
// The API fills it, the router carries it, and a worker computes by it. Any thread.
#ifndef BATON_WIRE_SAMPLING_PARAMS_H_
#define BATON_WIRE_SAMPLING_PARAMS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "src/base/ids.h"
#include "src/base/status.h"
#include "src/wire/answer_grammar.h"

namespace baton::wire {

// Below this a temperature means greedy (as in vLLM): the division would only lose precision.
inline constexpr float kMinTemperature = 1e-5f;

// Added to the logit of one token.
struct LogitBias {
  TokenId token = 0;
  float bias = 0;  // [-kMaxLogitBias, kMaxLogitBias]

  friend bool operator==(const LogitBias&, const LogitBias&) = default;
};

// The meaning of each field is that of the OpenAI API, with vLLM's extensions; the order in which
// they act is written in sampler.h. ValidateSamplingParams checks the ranges, which
// src/base/limits.h names.
struct SamplingParams {
  float temperature = 1.0f;           // [0, kMaxTemperature]; 0 = greedy
  uint32_t top_k = 0;                 // candidates kept; 0 = off
  float top_p = 1.0f;                 // [0, 1]; 1 = off
  float min_p = 0.0f;                 // [0, 1]; 0 = off
  float repetition_penalty = 1.0f;    // (0, kMaxRepetitionPenalty]; 1 = off; all tokens
  float presence_penalty = 0.0f;      // +-kMaxAddedPenalty; output tokens
  float frequency_penalty = 0.0f;     // +-kMaxAddedPenalty; output tokens, times their count
  uint64_t seed = 0;                  // key of the random function; drawn if no client gave one
  uint32_t min_tokens = 0;            // no end of generation before this many output tokens
  bool logprobs = false;              // log-probability of the chosen token
  uint32_t top_logprobs = 0;          // and of this many best tokens; <= kMaxTopLogprobs
  std::vector<LogitBias> logit_bias;  // <= kMaxLogitBiases, a token at most once
  // Output tokens a choice, replayed ones included; >= 1, and no more than the context leaves.
  uint32_t max_tokens = 1;
  bool ignore_eos = false;  // end-of-generation tokens do not stop
  // Stop like end-of-generation tokens, and min_tokens masks both; <= kMaxStopTokens. An id outside
  // the vocabulary is never sampled.
  std::vector<TokenId> stop_token_ids;
  // The form of the answer; a std::shared_ptr<const AnswerGrammar>, null = any. With it, tokens
  // that end a generation stop in spite of ignore_eos, and min_tokens ends where nothing else
  // could follow.
  SharedGrammar grammar;
  // Log-probabilities of the prompt's tokens are wanted, with this many best tokens each; <=
  // kMaxTopLogprobs. The worker that computes the prompt then reads no cached prefix.
  std::optional<uint32_t> prompt_logprobs;

  bool greedy() const { return temperature < kMinTemperature; }
  bool has_penalties() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

// InvalidArgument naming the field, its value and its range.
absl::Status ValidateSamplingParams(const SamplingParams& params, uint32_t vocab_size);

}  // namespace baton::wire

#endif  // BATON_WIRE_SAMPLING_PARAMS_H_
