// Scalar arithmetic that gives the same bits on every machine: number formats, exp and log. Inline,
// pure, any thread. No libm, no fma (a machine without the instruction would need libm's), no
// branches in the hot path, so that a compiler may vectorise loops over them.
//
// Error bounds, each checked by tests/kernels/math_test.cc (in units of the last place of the exact
// result): Exp <= 1.5 ulp for results that are normal numbers, Log <= 1.5 ulp.
#ifndef BATON_KERNELS_MATH_H_
#define BATON_KERNELS_MATH_H_

#include <bit>
#include <cstdint>

namespace baton::kernels {

// bfloat16 (the upper half of an fp32) to fp32; exact.
constexpr float FloatFromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// fp32 to bfloat16, round to nearest even; overflow gives infinity, a NaN stays a (quiet) NaN.
constexpr uint16_t Bf16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// IEEE half to fp32; exact, subnormals included; a NaN becomes quiet.
constexpr float FloatFromHalf(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7FFFu;
  if (magnitude >= 0x7C00u) {
    const uint32_t quiet = magnitude > 0x7C00u ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13 | quiet);
  }
  // As an fp32 the shifted bits are the value times 2^-112; subnormals come out right because the
  // product is exact.
  constexpr float kTwoTo112 = 5192296858534827628530496329220096.0f;
  const float value = std::bit_cast<float>(magnitude << 13) * kTwoTo112;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

// e4m3 (OCP 8-bit floating point, revision 1.0: sign, exponent of 4 bits with bias 7, mantissa of 3
// bits; no infinity, NaN is 0x7F and 0xFF) to fp32; exact, subnormals included.
constexpr float FloatFromE4m3(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7Fu;
  if (magnitude == 0x7Fu) return std::bit_cast<float>(sign | 0x7FC00000u);
  // As an fp32 the shifted bits are the value times 2^-120.
  constexpr float kTwoTo120 = 1329227995784915872903807060280344576.0f;
  const float value = std::bit_cast<float>(magnitude << 20) * kTwoTo120;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

// fp32 to e4m3, round to nearest even; what is beyond 448 becomes 448, a NaN 0x7F.
constexpr uint8_t E4m3FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7Fu;
  if (magnitude >= 0x43E00000u) return static_cast<uint8_t>(sign | 0x7Eu);  // >= 448
  if (magnitude < 0x3C800000u) {  // < 2^-6: a multiple of 2^-9, rounded by adding 2^14 (its ulp)
    const float rounded = std::bit_cast<float>(magnitude) + 16384.0f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded - 0x3C000000u) >> 20));
}

// fp32 to IEEE half, round to nearest even; overflow gives infinity, a NaN stays a NaN.
constexpr uint16_t HalfFromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);  // >= 65536
  if (magnitude < 0x38800000u) {  // < 2^-14: a multiple of 2^-24, rounded by adding 0.5 (ulp 2^-24)
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// e^x as fraction * 2^power.
struct ExpParts {
  float fraction;  // about [0.7, 1.42]
  int32_t power;
};

// For -104 <= x <= 89.
//   x = n ln2 + r with |r| <= 0.347; e^r = 1 + r + r^2 P(r), P of degree 5 (Cephes' coefficients,
//   http://www.netlib.org/cephes, expf).
constexpr ExpParts SplitExp(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float biased = x * 1.44269504088896341f + kRound;
  const float n = biased - kRound;
  float r = x - n * 0.693359375f;  // 355/512: the product is exact
  r = r - n * -2.12194440e-4f;     // ln2 - 355/512
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float e = (p * (r * r) + r) + 1.0f;
  return {e, static_cast<int32_t>(std::bit_cast<uint32_t>(biased) - 0x4B400000u)};
}

// e^x for every x: 0 below -104, infinity from 88.73 on, NaN for NaN. exp(0) is exactly 1.
constexpr float Exp(float x) {
  float clamped = x < -104.0f ? -104.0f : x;
  clamped = clamped > 89.0f ? 89.0f : clamped;
  const ExpParts parts = SplitExp(clamped);
  // 2^n in two exact factors, since n reaches from -150 to 128.
  const int32_t half = parts.power >> 1;
  const float low = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float high = std::bit_cast<float>(static_cast<uint32_t>(parts.power - half + 127) << 23);
  const float result = parts.fraction * low * high;
  return x != x ? x : result;
}

// Exp(x) of x <= 0, with the same bits; 0 of a NaN. Half of the instructions: there is no upper
// bound, and one of the two factors of 2^n is constant.
constexpr float ExpOfNonPositive(float x) {
  const float clamped = x > -104.0f ? x : -104.0f;  // e^-104 rounds to 0
  const ExpParts parts = SplitExp(clamped);
  // n reaches from -150 to 0, so the first product is exact.
  const float scale = std::bit_cast<float>(static_cast<uint32_t>(parts.power + 64 + 127) << 23);
  constexpr float kTwoToMinus64 = 5.421010862427522e-20f;
  return parts.fraction * scale * kTwoToMinus64;
}

// Natural logarithm: -infinity for +-0, NaN below 0, infinity for infinity. log(1) is exactly 0.
//   x = 2^n m with m in [sqrt(1/2), sqrt(2)); log m = t - t^2/2 + t^3 Q(t), t = m - 1, Q of degree
//   8 (Cephes, logf).
constexpr float Log(float x) {
  const bool subnormal = x < 1.17549435e-38f;
  const float scaled = subnormal ? x * 8388608.0f : x;  // 2^23
  const uint32_t bits = std::bit_cast<uint32_t>(scaled);
  // Subtracting the bits of sqrt(1/2) puts the cut between exponents at sqrt(1/2).
  const uint32_t offset = bits - 0x3F3504F3u;
  const int32_t exponent = static_cast<int32_t>(offset) >> 23;
  const float m = std::bit_cast<float>((offset & 0x007FFFFFu) + 0x3F3504F3u);
  const float n = static_cast<float>(exponent - (subnormal ? 23 : 0));
  const float t = m - 1.0f;
  const float z = t * t;
  float q = 7.0376836292e-2f;
  q = q * t - 1.1514610310e-1f;
  q = q * t + 1.1676998740e-1f;
  q = q * t - 1.2420140846e-1f;
  q = q * t + 1.4249322787e-1f;
  q = q * t - 1.6668057665e-1f;
  q = q * t + 2.0000714765e-1f;
  q = q * t - 2.4999993993e-1f;
  q = q * t + 3.3333331174e-1f;
  float y = q * t * z;
  y = y + n * -2.12194440e-4f;
  y = y - 0.5f * z;
  float result = t + y;
  result = result + n * 0.693359375f;
  const float infinity = std::bit_cast<float>(0x7F800000u);
  result = x == infinity ? x : result;
  result = x == 0.0f ? -infinity : result;
  return x >= 0.0f ? result : std::bit_cast<float>(0x7FC00000u);
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_MATH_H_
