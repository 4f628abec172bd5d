// e^x as the processor's vectors compute it (kernels/cpu/simd_math.h), with its bits. Included by
// kernels only.
#ifndef BATON_KERNELS_CUDA_FMA_EXP_H_
#define BATON_KERNELS_CUDA_FMA_EXP_H_

#include <bit>
#include <cstdint>

#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// e^x; exactly 0 below -87.3, exactly 1 at 0, constant above 88, NaN for NaN.
BATON_DEVICE float FmaExp(float x) {
  constexpr float kLowest = -87.3f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  float clamped = x < kLowest ? kLowest : x;
  clamped = clamped > 88.0f ? 88.0f : clamped;
  const float biased = clamped * 1.44269504088896341f + kRound;
  const float n = biased - kRound;
  float r = simt::fma(n, -0.693359375f, clamped);  // exact: 355/512
  r = simt::fma(n, 2.12194440e-4f, r);
  float p = simt::fma(1.9875691500e-4f, r, 1.3981999507e-3f);
  p = simt::fma(p, r, 8.3334519073e-3f);
  p = simt::fma(p, r, 4.1665795894e-2f);
  p = simt::fma(p, r, 1.6666665459e-1f);
  p = simt::fma(p, r, 5.0000001201e-1f);
  const float e = simt::fma(p, r * r, r) + 1.0f;
  const auto power = static_cast<int32_t>(std::bit_cast<uint32_t>(biased) - 0x4B400000u);
  const float two_to_n = std::bit_cast<float>(static_cast<uint32_t>(power + 127) << 23);
  return x < kLowest ? 0.0f : e * two_to_n;
}

// x / (1 + e^-gate).
BATON_DEVICE float SigmoidTimes(float x, float gate) { return x / (1.0f + FmaExp(-gate)); }

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_FMA_EXP_H_
