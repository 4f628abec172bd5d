// How GemmBf16 cuts K, and what memory that takes. Pure host functions; any thread.
//
// K is cut into segments whose length depends on (n, k) alone. A segment starts at zero and rises
// in steps of 16 by the tensor cores' arithmetic; segments are added to +0 in index order in fp32.
// So an output's bits depend on its row of x, its row of w and (n, k), never on m, on the tile or
// on who computed which segment. The rule is part of the numerics: changing a constant here changes
// bits, and needs a new `numerics_id`.
#ifndef BATON_KERNELS_CUDA_GEMM_SEGMENTS_H_
#define BATON_KERNELS_CUDA_GEMM_SEGMENTS_H_

#include <cstddef>
#include <cstdint>

namespace baton::kernels::cuda {

// Rows of w a cta of the few-rows kernels, and of K a stage: 128 bytes a row, a line of L2.
inline constexpr uint32_t kGemmRowTile = 64;
inline constexpr uint32_t kGemmStageK = 64;
// Two ctas for each of Hopper's 132 SMs: each keeps 24 KiB of weights in flight by gemm_rows.cu, 32
// to 64 by gemm_narrow.cu, and 4.3 TB/s at 1 us of loaded latency need 33 KiB an SM.
inline constexpr uint32_t kGemmTargetTiles = 264;
// A segment is no shorter than four stages, the depth of gemm_rows.cu's pipeline: its partial sums
// of 32 rows then cost at most half of what its weights do, those of 64 as much, and stay in L2.
inline constexpr uint32_t kGemmMinSegmentK = 4 * kGemmStageK;
// Rows of x up to which segments may be spread over ctas.
inline constexpr uint32_t kGemmMaxSpreadRows = 64;

// The segments of one K: [i * segment_k, min((i + 1) * segment_k, k)) for i in [0, num_segments).
struct GemmSplit {
  uint32_t num_segments;
  uint32_t segment_k;  // a multiple of kGemmStageK, at least kGemmMinSegmentK
};

// n, k >= 1. Row tiles x segments >= kGemmTargetTiles, or segment_k == kGemmMinSegmentK; never more
// than ceil(kGemmTargetTiles / row tiles) segments, up to the rounding to stages.
constexpr GemmSplit GemmSegments(uint32_t n, uint32_t k) {
  const uint32_t row_tiles = (n - 1) / kGemmRowTile + 1;
  const uint32_t num_stages = (k - 1) / kGemmStageK + 1;
  const uint32_t wanted = (kGemmTargetTiles - 1) / row_tiles + 1;
  uint32_t stages = (num_stages - 1) / wanted + 1;
  // Rounded up, a length may leave fewer segments than wanted; rounded down, never.
  if ((num_stages - 1) / stages + 1 < wanted) stages = num_stages / wanted;
  constexpr uint32_t kMinStages = kGemmMinSegmentK / kGemmStageK;
  if (stages < kMinStages) stages = kMinStages;
  return {(num_stages - 1) / stages + 1, stages * kGemmStageK};
}

// True when products of m rows spread their segments over ctas and so need partial sums and
// counters. With one segment there is nothing to add.
constexpr bool GemmSpreads(uint32_t m, uint32_t n, uint32_t k) {
  return m <= kGemmMaxSpreadRows && GemmSegments(n, k).num_segments > 1;
}

// Bytes of GemmParams::partials, at most kGemmMaxPartialBytes; 0 when nothing is spread:
//   4 x segments x (n rounded up to 64) x (m rounded up to 32).
constexpr size_t GemmPartialBytes(uint32_t m, uint32_t n, uint32_t k) {
  constexpr size_t kGroup = 32;
  if (m == 0 || n == 0 || k == 0 || !GemmSpreads(m, n, k)) return 0;
  const size_t rows = (m + kGroup - 1) / kGroup * kGroup;
  const size_t columns = (size_t{n} + kGemmRowTile - 1) / kGemmRowTile * kGemmRowTile;
  return sizeof(float) * GemmSegments(n, k).num_segments * columns * rows;
}

// Several segments mean fewer than kGemmTargetTiles row tiles, and so fewer than twice as many
// pieces: 8.25 MiB.
inline constexpr size_t kGemmMaxPartialBytes =
    sizeof(float) * 2 * kGemmTargetTiles * kGemmRowTile * kGemmMaxSpreadRows;
// Words of GemmParams::counters: one for each tile of w and group of 8 rows of x.
inline constexpr uint32_t kGemmCounters = kGemmTargetTiles * (kGemmMaxSpreadRows / 8);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_GEMM_SEGMENTS_H_
