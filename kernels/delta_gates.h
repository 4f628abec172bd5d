// The two numbers that a net with a fixed state computes for each row and head: how strongly it
// writes and how much of its state stays. All instruction sets share them, since they are few. The
// scalar exp and log of math.h give the same bits everywhere.
#ifndef BATON_KERNELS_DELTA_GATES_H_
#define BATON_KERNELS_DELTA_GATES_H_

#include <cstdint>

namespace baton::kernels {

// Turns logits into numbers in place, for each head:
//   beta[h]  = 1 / (1 + e^-beta[h])
//   decay[h] = e^(rates[h] * softplus(decay[h] + dt_bias[h])), softplus(x) = log(1 + e^x)
void DeltaGates(const float* rates, const float* dt_bias, uint32_t num_heads, float* beta,
                float* decay);

// Turns the logit of Mamba-2's step into two numbers; `decay` is output alone:
//   step[h]  = softplus(step[h] + dt_bias[h])
//   decay[h] = e^(rates[h] * step[h])
void StepGates(const float* rates, const float* dt_bias, uint32_t num_heads, float* step,
               float* decay);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_DELTA_GATES_H_
