// The arithmetic of tensor cores for bf16 with fp32 sums, bit for bit as published (arXiv
// 2511.10909, "MMA-Sim": fused dot-add), by generation, and a fast fp32 chain. Pure.
//
// One step takes some products and C. Each product keeps its exact 16-bit significand and the sum
// of its factors' exponents (a subnormal one counts -126). All are aligned to the largest exponent
// of them, cut toward zero to so many fraction bits, and added exactly. The sum is cut toward zero
// to fp32. A term that is zero, C or a product, counts an exponent of its own whatever its factors
// are. That exponent is so low that it matters to subnormal sums from C = 0 alone.
// A sum beyond fp32 is an infinity; a NaN is 0x7FFFFFFF; a zero is +0.
// Hopper: one step of 16 products, 25 bits, zero counts -133. Ampere and Ada: 24 bits, -132, two
// steps of 8, k ascending, so that the sixteen are no set: which products share a step matters. fp8
// differs, and what came after Hopper is not known here.
//
// Hopper's is compared with an H100, mma.sync and wgmma (tests/golden, tensor_core_h100.golden): a
// C of 0 that is added counts -133, and a wgmma that does not add starts as from it. Ampere's -132
// is from the authors' later program: no vector here shows it yet.
#ifndef BATON_KERNELS_SIMT_TENSOR_CORE_H_
#define BATON_KERNELS_SIMT_TENSOR_CORE_H_

#include <cstdint>
#include <optional>

#include "kernels/simt/types.h"

namespace baton::kernels::simt {

inline constexpr int kTensorCoreProducts = 16;

// The GPUs whose bits the runner gives.
enum class TensorCore : uint8_t { kHopper, kAmpere };

// The tensor cores of GPUs with that major compute capability; none where nothing is known.
constexpr std::optional<TensorCore> TensorCoreOf(int major) {
  if (major == 9) return TensorCore::kHopper;
  if (major == 8) return TensorCore::kAmpere;
  return std::nullopt;
}

// c + sum of a[i] b[i] over kTensorCoreProducts elements, with its bits.
float DotBf16(TensorCore core, const Bf16* a, const Bf16* b, float c);

// The dot product as one fp32 chain: every product rounded, then added, in ascending order.
// Subnormal numbers count as zero.
float FloatDotBf16(const Bf16* a, const Bf16* b, float c);

// Where in a tile of 16 rows and 8 columns a lane's value of FragmentC is.
constexpr uint32_t RowOfValue(uint32_t lane, uint32_t value) { return lane / 4 + value / 2 * 8; }
constexpr uint32_t ColumnOfValue(uint32_t lane, uint32_t value) { return lane % 4 * 2 + value % 2; }

// DotBf16, and FloatDotBf16, of every row of a tile [16][k] with every column [8][k], added to c
// [16][8]: the same bits, sooner.
void MultiplyBf16(TensorCore core, const Bf16 (*a)[kTensorCoreProducts],
                  const Bf16 (*b)[kTensorCoreProducts], float (*c)[8]);
void FloatMultiplyBf16(const Bf16 (*a)[kTensorCoreProducts], const Bf16 (*b)[kTensorCoreProducts],
                       float (*c)[8]);

}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_TENSOR_CORE_H_
