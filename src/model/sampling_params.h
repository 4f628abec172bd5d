// SamplingParams: how one token is chosen from a row of logits. Plain data; any thread. The meaning
// of each field is that of the public API after validation (proto/baton/v1/worker.proto).
#ifndef BATON_MODEL_SAMPLING_PARAMS_H_
#define BATON_MODEL_SAMPLING_PARAMS_H_

#include <cstdint>
#include <vector>

#include "src/base/ids.h"

namespace baton {

// Added to the logit of one token.
struct LogitBias {
  TokenId token = 0;
  float bias = 0;  // [-100, 100]

  friend bool operator==(const LogitBias&, const LogitBias&) = default;
};

// See the file comment. The default is greedy with everything else off.
struct SamplingParams {
  float temperature = 0;         // [0, 2]; 0 = greedy
  float top_p = 1;               // (0, 1]; 1 = off
  uint32_t top_k = 0;            // 0 = off
  float min_p = 0;               // [0, 1]; 0 = off
  float repetition_penalty = 1;  // > 0; 1 = off; prompt and output tokens
  float presence_penalty = 0;    // [-2, 2]; output tokens
  float frequency_penalty = 0;   // [-2, 2]; output tokens, times their count
  uint64_t seed = 0;             // key of the counter-based generator
  std::vector<LogitBias> logit_bias;
  bool logprobs = false;         // report the natural log probability of the token
  uint32_t top_logprobs = 0;     // and of so many most likely ones, [0, 20]
  uint32_t min_tokens = 0;       // stop tokens cannot be chosen at an output index below
};

}  // namespace baton

#endif  // BATON_MODEL_SAMPLING_PARAMS_H_
