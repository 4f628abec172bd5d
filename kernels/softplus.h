// log(1 + e^x) with the same bits on every machine, processor or GPU. Pure; any thread.
#ifndef BATON_KERNELS_SOFTPLUS_H_
#define BATON_KERNELS_SOFTPLUS_H_

#include "kernels/math.h"

namespace baton::kernels {

// log(1 + e^x). From 20 on it is x, to the last bit of an fp32.
constexpr float Softplus(float x) {
  constexpr float kLinearFrom = 20.0f;
  if (x > kLinearFrom) return x;
  const float e = Exp(x);
  // The sum loses bits of a small e; the quotient gives them back (Higham, "Accuracy and Stability
  // of Numerical Algorithms", problem 1.5).
  const float sum = 1.0f + e;
  const float kept = sum - 1.0f;
  return kept == 0.0f ? e : Log(sum) * (e / kept);
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_SOFTPLUS_H_
