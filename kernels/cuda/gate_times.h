// activation(gate) * up of one pair, for every kernel that gates. Included by kernels only.
#ifndef BATON_KERNELS_CUDA_GATE_TIMES_H_
#define BATON_KERNELS_CUDA_GATE_TIMES_H_

#include "kernels/math.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

BATON_DEVICE float SiluTimes(float gate, float up) { return gate / (1.0f + Exp(-gate)) * up; }

// The tanh form: t = 2 sqrt(2 / pi) (gate + 0.044715 gate^3), and (1 + tanh(t / 2)) / 2 is
// 1 / (1 + e^-t).
BATON_DEVICE float GeluTimes(float gate, float up) {
  const float t = simt::fma(gate * gate, 0.0713548163f, 1.5957691216f) * gate;
  return gate / (1.0f + Exp(-t)) * up;
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_GATE_TIMES_H_
