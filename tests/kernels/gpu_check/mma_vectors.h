// Operands that make tensor cores show their arithmetic, and the model's answers. Pure.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_MMA_VECTORS_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_MMA_VECTORS_H_

#include <cstdint>
#include <vector>

#include "kernels/simt/tensor_core.h"

namespace baton::kernels::gpu_check {

// Random: factors near one. Wide: exponents 40 apart. Denormal: bf16 and fp32 subnormals. Huge:
// sums near and beyond fp32. Cancelling: products in pairs that nearly cancel. Special: zeros of
// both signs, infinities and NaNs among ordinary values. Zeros: products below every normal C, C
// that is mostly zero, and products of zero and a huge number: what a zero counts shows.
enum class MmaKind : uint8_t { kRandom, kWide, kDenormal, kHuge, kCancelling, kSpecial, kZeros };
inline constexpr MmaKind kMmaKinds[] = {MmaKind::kRandom, MmaKind::kWide,       MmaKind::kDenormal,
                                        MmaKind::kHuge,   MmaKind::kCancelling, MmaKind::kSpecial,
                                        MmaKind::kZeros};
const char* MmaKindName(MmaKind kind);

// num_tiles times A, B, C as the mma primitive reads them (primitives.h).
std::vector<uint32_t> MmaInputs(MmaKind kind, uint32_t num_tiles, uint64_t seed);
// D of each tile, by the model of those tensor cores.
std::vector<uint32_t> MmaModel(simt::TensorCore core, const std::vector<uint32_t>& in);
// Exchanges A's first eight rows and B in the same products: A' = B and eight rows of zeros, B' =
// A[0, 8), C' = the transpose of C[0, 8).
std::vector<uint32_t> MmaExchanged(const std::vector<uint32_t>& in);
// The D that the exchanged operands must give. Its first eight rows hold the transpose of D[0, 8);
// the other rows are those of `model_of_exchanged`.
std::vector<uint32_t> ExchangedModel(const std::vector<uint32_t>& model,
                                     const std::vector<uint32_t>& model_of_exchanged);

// Products of a warpgroup, A [64][16] by B [columns][16], as tiles for the mma primitive: tile i *
// columns / 8 + j is of A's 16 rows i and of B's 8 rows j.
std::vector<uint32_t> MmaGrid(MmaKind kind, uint32_t columns, uint64_t seed);
// Operands in the order in which the wgmma primitives read them, and D in the order in which those
// primitives write it.
std::vector<uint32_t> WgmmaInputs(const std::vector<uint32_t>& grid, uint32_t columns);
std::vector<uint32_t> WgmmaOutputs(const std::vector<uint32_t>& d, uint32_t columns);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_MMA_VECTORS_H_
