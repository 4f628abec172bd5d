// StepCost: a running estimate of how long a step takes, learnt from measured steps. Pure; engine
// thread.
//
//   us = fixed + per_prefill_token * prefill_tokens + per_decode_row * decode_rows
//        + per_key * attention_keys
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
  uint32_t logit_rows = 0;      // rows that the output layer computes

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

// See the file comment.
class StepCost {
 public:
  // `start` is what is predicted before the first measurement.
  explicit StepCost(const StepWeights& start = {});

  // The step of this shape took `elapsed_us` (<= 0 is ignored).
  void Measure(const StepShape& shape, int64_t elapsed_us);
  int64_t PredictUs(const StepShape& shape) const;
  // The largest number of tokens in [0, limit] of a chunk at `first_pos` with which `shape` is
  // predicted to stay within `target_us`.
  uint32_t MaxChunk(const StepShape& shape, uint32_t first_pos, uint32_t limit,
                    int64_t target_us) const;

  uint64_t num_measurements() const { return num_measurements_; }
  // Average of the last decode-only steps; 0 = none yet.
  int64_t decode_step_us() const { return decode_step_us_; }
  // Tokens a second over the last steps that were mostly prefill; 0 = none yet.
  double prefill_tokens_per_s() const { return prefill_tokens_per_s_; }

 private:
  static constexpr size_t kNumFeatures = 4;
  using Features = std::array<double, kNumFeatures>;
  static Features FeaturesOf(const StepShape& shape);

  Features weights_us_;  // per scaled feature
  uint64_t num_measurements_ = 0;
  int64_t decode_step_us_ = 0;
  double prefill_tokens_per_s_ = 0;
};

}  // namespace baton::scheduler

#endif  // BATON_SCHEDULER_STEP_COST_H_
