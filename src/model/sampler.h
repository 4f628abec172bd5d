// Sampler: one row of logits and the history of a choice -> the next token. A pure function: equal
// logits, params, history and output index give equal bits on every machine. So a choice can be
// continued anywhere (run(0..n) == run(0..i) + resume(i..n) for every cut i).
//
// The order of operations (each is off by default):
//   1. repetition penalty r on tokens of prompt and output: l > 0 ? l / r : l * r   (CTRL, 2019),
//      which raises no l above kMostPenalised
//   2. frequency penalty: l -= frequency * count; presence penalty: l -= presence if count > 0.
//      A token's count is the number of times it was output
//   3. logit_bias: l += bias
//   4. the mask of a grammar: tokens that may not come next get -infinity
//   5. min_tokens: end-of-generation and stop tokens get -infinity while index < min_tokens, unless
//      a mask leaves nothing else
//   -- temperature 0: the token of the largest l, ties by lowest id. Else:
//   6. temperature: l = l / T
//   7. top_k: the k largest l
//   8. top_p: the shortest prefix, by descending probability, whose sum reaches top_p times the sum
//      of all that top_k left; at least one. Probabilities are integers here (kernels/sampling.h)
//   9. min_p: of those, the ones whose probability is >= min_p times the largest
//   10. the token of the largest l + Gumbel(u), ties by lowest id.
//      Gumbel(u) = -log(-log(1 - u)), u = (w + 0.5) * 2^-32, w the token's word of Philox4x32-10
//      with key = seed, by (output index, choice, token id): GumbelAt in kernels/sampling.h
// Steps 7 and 8 sort by descending l, then ascending id. A NaN logit counts as -infinity.
//
// Log-probabilities are those of the model: log-softmax of the logits before step 1 (vLLM's
// default, logprobs_mode=raw_logprobs).
//
// No libm (kernels/math.h), no contraction. No allocation after construction.
#ifndef BATON_MODEL_SAMPLER_H_
#define BATON_MODEL_SAMPLER_H_

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/sampling.h"
#include "src/base/ids.h"
#include "src/base/limits.h"
#include "src/base/status.h"
#include "src/base/token_logprob.h"
#include "src/model/sampler_state.h"
#include "src/wire/sampling_params.h"

namespace baton::model {

inline constexpr float kMostPenalised = 1e30f;
static_assert(kMostPenalised / wire::kMinTemperature < std::numeric_limits<float>::max());

// The arguments of Sample.
struct SampleQuery {
  const wire::SamplingParams* params = nullptr;
  const SamplerState* state =
      nullptr;                    // history of the choice; its num_output() is the output index
  uint32_t choice = 0;            // 0..n-1
  std::span<const float> logits;  // [vocab_size]
  // Tokens that may come next: bit i % 32 of mask[i / 32]; those past its end may not. Empty = all.
  std::span<const uint32_t> mask;
};

// The query as a row for a model which samples(), so that the device chooses, with the same bits.
// on_device is 0 where the choice needs more than the logits: a penalty, bias, grammar or
// log-probability.
kernels::RowSampling RowSamplingOf(const SampleQuery& query);

// The answer of Sample. Self-contained, so that the tokens of a whole step can be kept side by
// side.
struct SampledToken {
  TokenId token = 0;
  bool has_logprob = false;
  float logprob = 0;
  uint32_t num_top = 0;  // entries of `top` that are set; best first, ties by lowest id
  std::array<TokenLogprob, limits::kMaxTopLogprobs> top;

  std::span<const TokenLogprob> top_logprobs() const { return {top.data(), num_top}; }
};

// Holds the working memory and the end-of-generation tokens; one thread at a time. Threads that
// sample rows side by side have one each.
class Sampler {
 public:
  // Working memory of one. The system gives the pages of candidates, 8 bytes a token, when they are
  // first needed.
  static constexpr uint64_t BytesFor(uint32_t vocab_size) {
    return uint64_t{vocab_size} * (sizeof(float) + sizeof(Candidate));
  }

  // `eog_tokens`: the model's end-of-generation ids.
  Sampler(uint32_t vocab_size, std::span<const TokenId> eog_tokens);

  // Fills `out`. DataLoss, and `out` unspecified, when no token is left to choose (all logits
  // are NaN or -infinity): the request must fail, not answer nonsense. Costs one pass over the
  // logits when greedy without logprobs, some passes otherwise.
  absl::Status Sample(const SampleQuery& query, SampledToken& out);

  // The log-probability of out.token and of the `num_top` <= kMaxTopLogprobs likeliest tokens by
  // these logits [vocab_size], with the bits that Sample gives. Returns one more than the tokens
  // that are likelier. Needs no working memory: any thread. Costs four passes over the logits.
  static uint32_t LogprobOf(std::span<const float> logits, uint32_t num_top, SampledToken& out);

  uint32_t vocab_size() const { return vocab_size_; }

 private:
  // One token that may still be chosen; l is the logit after the steps so far.
  struct Candidate {
    float l;
    TokenId token;
  };

  std::span<const float> AdjustLogits(const SampleQuery& query);
  // Copies the logits of the mask's tokens; all others are -infinity.
  void CopyAllowed(std::span<const float> logits, std::span<const uint32_t> mask);
  void MaskEndOfGeneration(const SampleQuery& query);
  TokenId PickRandom(const SampleQuery& query, std::span<const float> logits, float largest);
  // The largest logits into `best`, which has room for one at least, in the order of steps 7 and 8.
  // Returns how many there are: fewer than the room when fewer are numbers.
  static size_t TakeLargest(std::span<const float> logits, std::span<Candidate> best);
  // Step 8 on the candidates, or on all logits where there are none yet. What is left has no order.
  void KeepTopP(std::span<const float> logits, float largest, float top_p);
  // Without sorting what is kept.
  void KeepTopPOfAll(std::span<const float> logits, float largest, float top_p);
  // Keeps the first `num_kept` candidates, and as many after them as weigh `units` together.
  void KeepUnits(size_t num_kept, float largest, uint64_t units);
  void KeepMinP(float largest, float min_p);
  static void FillLogprobs(std::span<const float> logits, uint32_t num_top, SampledToken& out);

  // Constant after construction.
  uint32_t vocab_size_;
  std::vector<TokenId> eog_tokens_;
  // Working memory.
  std::vector<float> adjusted_;        // [vocab_size]
  std::vector<Candidate> candidates_;  // capacity vocab_size
};

}  // namespace baton::model

#endif  // BATON_MODEL_SAMPLER_H_
