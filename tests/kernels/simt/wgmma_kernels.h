// Small correct kernels of tensor copies and wgmma, for the tests of the runner; gpu_check runs
// them on a GPU. sm_90a.
#ifndef BATON_TESTS_KERNELS_SIMT_WGMMA_KERNELS_H_
#define BATON_TESTS_KERNELS_SIMT_WGMMA_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/simt/types.h"
#include "tests/kernels/simt/ring_kernels.h"

namespace baton::kernels::simt_test {

// The matrix of TensorTiles, and its tiles: the first inside, the second beyond both ends.
inline constexpr uint32_t kMatrixRows = 37;
inline constexpr uint32_t kMatrixColumns = 72;
inline constexpr uint32_t kMatrixWords = kMatrixRows * kMatrixColumns / 2;
inline constexpr uint32_t kCopiedRows = 16;  // of a tile
inline constexpr uint32_t kCopiedTiles = 2;
inline constexpr uint32_t kCopiedWords = kCopiedTiles * kCopiedRows * simt::kTileColumns / 2;
constexpr uint32_t FirstRowOf(uint32_t tile) { return tile == 0 ? 3 : 30; }
constexpr uint32_t FirstColumnOf(uint32_t tile) { return tile == 0 ? 8 : 64; }

// Words of a wgmma's operands: A [64][16], B [columns][16], C and D [64][columns].
inline constexpr uint32_t kWgmmaWordsA = 64 * 16 / 2;
constexpr uint32_t WgmmaWordsB(uint32_t columns) { return columns * 16 / 2; }
constexpr uint32_t WgmmaWordsC(uint32_t columns) { return 64 * columns; }
constexpr uint32_t WgmmaWords(uint32_t columns) {
  return kWgmmaWordsA + WgmmaWordsB(columns) + WgmmaWordsC(columns);
}
// WordParams::count of WarpgroupProduct: the step of K in which its tiles hold A and B, and whether
// C counts.
constexpr uint32_t WgmmaCount(uint32_t step, bool adds) { return step + (adds ? 4 : 0); }

inline constexpr uint32_t kChainProducts = 3;

inline namespace BATON_BODY {

// out = kCopiedTiles tiles of the bf16 matrix `in` [kMatrixRows][kMatrixColumns], in plain order.
absl::Status TensorTiles(const WordParams& params);
// out = D = A B^T, plus C when it counts, of `in` = A, B, C; `columns` is 64, 128, 192 or 256.
absl::Status WarpgroupProduct(const WordParams& params, uint32_t columns);
// As WarpgroupProduct, with A in registers and B in tiles of columns. B is in rows [16 step, 16
// step + 16) of those tiles. C counts; `columns` is 64, 128 or 256.
absl::Status WarpgroupColumns(const WordParams& params, uint32_t columns);
// out = D of kChainProducts products in turn, all of the same A and B and each a group of its own,
// begun while the one before is under way; C counts; 128 columns.
absl::Status WarpgroupChain(const WordParams& params);

}  // namespace BATON_BODY

}  // namespace baton::kernels::simt_test

#endif  // BATON_TESTS_KERNELS_SIMT_WGMMA_KERNELS_H_
