// SamplerLoops: the sampler's passes over a whole row of logits. One body (sampler_loops_body.h),
// compiled for the baseline, AVX2 and AVX-512; without contraction all give the same bits
// (tests/model). Private to the sampler. Pure; any thread.
#ifndef BATON_MODEL_SAMPLER_LOOPS_H_
#define BATON_MODEL_SAMPLER_LOOPS_H_

#include <cstdint>
#include <span>

#include "kernels/sampling.h"

namespace baton::model {

// One implementation of the passes.
struct SamplerLoops {
  // The largest logit; NaN counts as -infinity.
  float (*largest)(std::span<const float> logits);
  // Index of the first logit equal to `value`; size when none is.
  size_t (*first_equal)(std::span<const float> logits, float value);
  // How many logits are larger than `value`; a NaN is not.
  uint32_t (*num_above)(std::span<const float> logits, float value);
  // out[i] = logits[i] / temperature, NaN becomes -infinity; out may be logits.
  void (*divide)(std::span<const float> logits, float temperature, float* out);
  // Sum of exp(l - largest); NaN counts 0. Chunks of 512 in 16 fp32 lanes, folded in a fixed order
  // into a double.
  double (*sum_exp)(std::span<const float> logits, float largest);
  // out[i] = RelativeWeight(l, largest).
  void (*weights)(std::span<const float> logits, float largest, float* out);
  // The token of the largest l + Gumbel, ties by lowest id; -1 when all are -infinity.
  int32_t (*best_gumbel)(std::span<const float> logits, const kernels::GumbelKey& key);
};

const SamplerLoops& PortableSamplerLoops();
// Null when the processor lacks an instruction set.
const SamplerLoops* Avx2SamplerLoops();
const SamplerLoops* Avx512SamplerLoops();
// The fastest that runs here.
const SamplerLoops& BestSamplerLoops();

}  // namespace baton::model

#endif  // BATON_MODEL_SAMPLER_LOOPS_H_
