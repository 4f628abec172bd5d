// StepCost: a running estimate of how long a step takes, learnt from measured steps. Pure; engine
// thread.
//
//   us = fixed + per_prefill_token * (prefill_tokens + output_row_tokens * log_rows)
//        + per_decode_row * decode_rows + per_key * attention_keys
//
// A log row is a row of a prompt that has logits. What it costs beside its token is a property of
// the model, so it is given and not learnt: long runs of such prompts alone could not tell the two
// costs apart.
//
// Each measurement corrects the four weights by a normalised least-mean-squares step in scaled
// units (Haykin, Adaptive Filter Theory, ch. 6), so one outlier moves the estimate by a bounded
// share and weights never become negative.
#ifndef BATON_SCHEDULER_STEP_COST_H_
#define BATON_SCHEDULER_STEP_COST_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace baton::scheduler {

// The quantities that a step's time depends on.
struct StepShape {
  uint32_t prefill_tokens = 0;
  uint32_t decode_rows = 0;
  uint64_t attention_keys = 0;  // keys that rows see, summed over all rows of the step
  uint64_t kv_tokens = 0;       // positions whose K and V are read: a chunk's once
  uint32_t logit_rows = 0;      // rows that the output layer computes, decode rows among them

  // Adds a chunk [first_pos, first_pos + num_tokens), without logits, or a decode row with them.
  void AddPrefill(uint32_t first_pos, uint32_t num_tokens);
  void AddDecode(uint32_t position);
  // Rows of guesses [first_pos, first_pos + num_tokens) after a decode row, with logits.
  void AddProposals(uint32_t first_pos, uint32_t num_tokens);
  friend bool operator==(const StepShape&, const StepShape&) = default;
};

// The estimate in microseconds, none of them negative. Unless the machine is known (roofline.h): 1
// ms a prefill token, 5 ms a decode row: slow enough that the first chunks are small on any
// machine; ten steps of measurements replace it.
struct StepWeights {
  double fixed_us = 0;
  double prefill_token_us = 1'000;
  double decode_row_us = 5'000;
  double key_us = 0;
};

// The chunk of a prompt that a step may get beside what it has.
struct ChunkAsk {
  uint32_t first_pos = 0;
  uint32_t limit = 0;     // its tokens at most
  bool logs = false;      // each of them has logits
  int64_t layers_us = 0;  // the step may take so long without the output layer's log rows
  int64_t total_us = 0;   // and so long with them
};

// See the file comment.
class StepCost {
 public:
  // `start` is what is predicted before the first measurement. The output layer's work of one row
  // is that of `output_row_tokens` tokens of a prompt in all other layers (>= 0).
  explicit StepCost(const StepWeights& start = {}, double output_row_tokens = 0);

  // The step of this shape took `elapsed_us` (<= 0 is ignored).
  void Measure(const StepShape& shape, int64_t elapsed_us);
  int64_t PredictUs(const StepShape& shape) const;
  // The largest number of tokens in [0, ask.limit] of a chunk with which `shape` is predicted to
  // stay within both times.
  uint32_t MaxChunk(const StepShape& shape, const ChunkAsk& ask) const;

  uint64_t num_measurements() const { return num_measurements_; }
  // Average of the last decode-only steps; 0 = none yet.
  int64_t decode_step_us() const { return decode_step_us_; }
  // Tokens a second over the last steps that were mostly prefill; 0 = none yet.
  double prefill_tokens_per_s() const { return prefill_tokens_per_s_; }

 private:
  static constexpr size_t kNumFeatures = 4;
  using Features = std::array<double, kNumFeatures>;
  Features FeaturesOf(const StepShape& shape) const;

  double output_row_tokens_;  // constant
  Features weights_us_;       // per scaled feature
  uint64_t num_measurements_ = 0;
  int64_t decode_step_us_ = 0;
  double prefill_tokens_per_s_ = 0;
};

}  // namespace baton::scheduler

#endif  // BATON_SCHEDULER_STEP_COST_H_
