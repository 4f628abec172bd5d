// The GPU body of the primitives that are arithmetic. Included through device.h only.
#ifndef BATON_KERNELS_SIMT_GPU_ARITHMETIC_H_
#define BATON_KERNELS_SIMT_GPU_ARITHMETIC_H_

#include <cstdint>

#include "kernels/math.h"
#include "kernels/simt/types.h"

namespace baton::kernels::simt {
inline namespace gpu {

// One rounding; IEEE square root; bf16 to nearest even.
BATON_DEVICE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
BATON_DEVICE float square_root(float x) { return __fsqrt_rn(x); }
BATON_DEVICE float from_bf16(Bf16 value) { return FloatFromBf16(value.bits); }
BATON_DEVICE Bf16 to_bf16(float value) {
  // The instruction gives 0x7FFF for every NaN; the processor's keeps its payload.
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return {value != value ? Bf16FromFloat(value) : bits};
}
// Two values that are no NaN, each to bf16 as above; `low` in the lower half.
BATON_DEVICE uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// The larger of two, NaN if either is one; the smaller, of a number and a NaN the number. Which of
// two zeros is not promised.
BATON_DEVICE float larger_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
BATON_DEVICE float smaller(float a, float b) { return fminf(a, b); }
// (value & mask) | bits in one instruction; the compiler makes two of it when both are constants.
BATON_DEVICE uint32_t and_or(uint32_t value, uint32_t mask, uint32_t bits) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(value), "r"(mask), "r"(bits));
  return result;
}
// An IEEE half, exact; no NaN.
BATON_DEVICE float from_half(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// Two bf16 times two bf16, each product rounded to nearest even; every NaN is 0x7FFF.
BATON_DEVICE uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  // sm_80 has no product of its own; adding -0 keeps the sign of a zero.
  uint32_t product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
}
// Two values to e4m3 as E4m3FromFloat; `low` in the lower byte.
BATON_DEVICE uint32_t to_e4m3x2(float low, float high) {
#if __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return E4m3FromFloat(low) | uint32_t{E4m3FromFloat(high)} << 8;
#endif
}

}  // namespace gpu
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_GPU_ARITHMETIC_H_
