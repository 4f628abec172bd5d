// The arithmetic of Hopper's tensor cores for bf16 with fp32 sums, bit for bit as published
// (arXiv 2511.10909, "MMA-Sim": fused dot-add with 25 fraction bits), and a fast fp32 chain. Pure.
//
// One step takes 16 products and C: each product keeps its exact 16-bit significand and the sum of
// its factors' exponents (a zero or subnormal factor counts -126); all are aligned to the largest
// exponent of the 17, cut toward zero to 25 fraction bits, added exactly, and the sum is cut toward
// zero to fp32. A sum beyond fp32 is an infinity; a NaN is 0x7FFFFFFF; a zero is +0.
// Ampere differs (8 products, 24 bits), and so does fp8.
#ifndef BATON_KERNELS_SIMT_TENSOR_CORE_H_
#define BATON_KERNELS_SIMT_TENSOR_CORE_H_

#include <cstdint>

#include "kernels/simt/types.h"

namespace baton::simt {

inline constexpr int kTensorCoreProducts = 16;
inline constexpr int kHopperFractionBits = 25;

// c + sum of a[i] b[i] over kTensorCoreProducts elements, with Hopper's bits.
float HopperDotBf16(const Bf16* a, const Bf16* b, float c);

// The same as one fp32 chain: every product rounded, then added, in ascending order.
float FloatDotBf16(const Bf16* a, const Bf16* b, float c);

}  // namespace baton::simt

#endif  // BATON_KERNELS_SIMT_TENSOR_CORE_H_
