#include "kernels/delta_gates.h"

#include "kernels/math.h"
#include "kernels/softplus.h"

namespace baton::kernels {

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
