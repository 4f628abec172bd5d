// The functions that the reference operations share: the fixed summation tree, the kernels' exp in
// scalar form, and attention, the short convolution and the gated delta net (files of their own).
// std::fma and std::sqrt are correctly rounded by definition, so the C library cannot change a bit
// here.
#ifndef BATON_KERNELS_REFERENCE_REFERENCE_MATH_H_
#define BATON_KERNELS_REFERENCE_REFERENCE_MATH_H_

#include "kernels/ops.h"

namespace baton::kernels {

// Sum of 16 lanes by the fixed tree: i + 8, then + 4, then + 2, then + 1.
float ReferenceSumTree(const float (&lanes)[16]);

// The exp of kernels/cpu/simd_math.h.
float ReferenceExp(float x);

// Ops::attention.
void ReferenceAttention(device::ThreadPool& pool, const AttentionArgs& args);

// Ops::conv_append and Ops::short_conv.
void ReferenceConvAppend(device::ThreadPool& pool, const ShortConvArgs& args);
void ReferenceShortConv(device::ThreadPool& pool, const ShortConvArgs& args);

// Ops::gated_delta and Ops::sigmoid_mul.
void ReferenceGatedDelta(device::ThreadPool& pool, const GatedDeltaArgs& args);
void ReferenceSigmoidMul(device::ThreadPool& pool, const SigmoidMulArgs& args);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_REFERENCE_REFERENCE_MATH_H_
