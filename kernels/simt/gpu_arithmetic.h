// The GPU body of the primitives that are arithmetic. Included through device.h only.
#ifndef BATON_KERNELS_SIMT_GPU_ARITHMETIC_H_
#define BATON_KERNELS_SIMT_GPU_ARITHMETIC_H_

#include <cstdint>

#include "kernels/math.h"
#include "kernels/simt/types.h"

namespace baton::simt {
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

}  // namespace gpu
}  // namespace baton::simt

#endif  // BATON_KERNELS_SIMT_GPU_ARITHMETIC_H_
