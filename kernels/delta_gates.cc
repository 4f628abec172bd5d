#include "kernels/delta_gates.h"

#include "kernels/math.h"

namespace baton::kernels {
namespace {

// log(1 + e^x). From 20 on it is x, to the last bit of an fp32.
float Softplus(float x) {
  constexpr float kLinearFrom = 20.0f;
  if (x > kLinearFrom) return x;
  const float e = Exp(x);
  // The sum loses bits of a small e; the quotient gives them back (Higham, "Accuracy and Stability
  // of Numerical Algorithms", problem 1.5).
  const float sum = 1.0f + e;
  const float kept = sum - 1.0f;
  return kept == 0.0f ? e : Log(sum) * (e / kept);
}

}  // namespace

void DeltaGates(const float* rates, const float* dt_bias, uint32_t num_heads, float* beta,
                float* decay) {
  for (uint32_t h = 0; h < num_heads; ++h) {
    beta[h] = 1.0f / (1.0f + Exp(-beta[h]));
    decay[h] = Exp(rates[h] * Softplus(decay[h] + dt_bias[h]));
  }
}

void StepGates(const float* rates, const float* dt_bias, uint32_t num_heads, float* step,
               float* decay) {
  for (uint32_t h = 0; h < num_heads; ++h) {
    step[h] = Softplus(step[h] + dt_bias[h]);
    decay[h] = Exp(rates[h] * step[h]);
  }
}

}  // namespace baton::kernels
