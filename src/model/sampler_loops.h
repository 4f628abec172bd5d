// SamplerLoops: the sampler's passes over a whole row of logits. One body (sampler_loops_body.h),
// compiled for the baseline and for AVX2; without contraction both give the same bits
// (tests/model). Private to the sampler. Pure; any thread.
#ifndef BATON_MODEL_SAMPLER_LOOPS_H_
#define BATON_MODEL_SAMPLER_LOOPS_H_

#include <cstdint>
#include <limits>
#include <span>

#include "kernels/math.h"
#include "src/base/philox.h"

namespace baton {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// What makes the random function of one position.
struct GumbelKey {
  PhiloxKey key;
  uint32_t output_index;
  uint32_t choice;
};

// -log(-log(1 - u)) with u = (word + 0.5) * 2^-32; see sampler.h. Between -2.9 and 22.9.
constexpr float GumbelFromWord(uint32_t word) {
  // Halves first: a signed conversion is one instruction in every vector set. For words >= 2^24 the
  // lowest bits are below the precision of fp32 anyway.
  const float high = static_cast<float>(static_cast<int32_t>(word >> 8)) * 256.0f;
  const float low = static_cast<float>(static_cast<int32_t>(word & 0xFFu)) + 0.5f;
  const float u = (high + low) * 2.3283064365386963e-10f;
  // 1 - u has an absolute error of 2^-25; below 2^-5 the series is exact to fp32.
  const float series =
      u * (1.0f + u * (0.5f + u * (1.0f / 3.0f + u * (0.25f + u * (0.2f + u * (1.0f / 6.0f))))));
  // u can round up to 1; the largest fp32 below 1 keeps the logarithm finite.
  const float rest = 1.0f - u;
  const float direct = -Log(rest > 5.9604645e-8f ? rest : 5.9604645e-8f);
  return -Log(u < 0.03125f ? series : direct);
}

inline float GumbelAt(const GumbelKey& key, int32_t token) {
  return GumbelFromWord(
      Philox4x32({key.output_index, key.choice, static_cast<uint32_t>(token), 0}, key.key)[0]);
}

// One implementation of the passes.
struct SamplerLoops {
  // The largest logit; NaN counts as -infinity.
  float (*largest)(std::span<const float> logits);
  // Index of the first logit equal to `value`; size when none is.
  size_t (*first_equal)(std::span<const float> logits, float value);
  // out[i] = logits[i] / temperature, NaN becomes -infinity; out may be logits.
  void (*divide)(std::span<const float> logits, float temperature, float* out);
  // Sum of exp(l - largest); NaN counts 0. Chunks of 512 in 16 fp32 lanes, folded in a fixed order
  // into a double.
  double (*sum_exp)(std::span<const float> logits, float largest);
  // out[i] = exp(l - largest), 0 for NaN.
  void (*weights)(std::span<const float> logits, float largest, float* out);
  // The token of the largest l + Gumbel, ties by lowest id; -1 when all are -infinity.
  int32_t (*best_gumbel)(std::span<const float> logits, const GumbelKey& key);
};

const SamplerLoops& PortableSamplerLoops();
// Null when the processor has no AVX2.
const SamplerLoops* Avx2SamplerLoops();
// The fastest that runs here.
const SamplerLoops& BestSamplerLoops();

}  // namespace baton

#endif  // BATON_MODEL_SAMPLER_LOOPS_H_
