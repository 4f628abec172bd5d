// The walk through K of a cta that multiplies packed weights: 64 rows of w, a tile a warp, and some
// rows of x. Included by kernels only.
#ifndef BATON_KERNELS_CUDA_PACKED_STAGES_H_
#define BATON_KERNELS_CUDA_PACKED_STAGES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gemm_spread.h"
#include "kernels/cuda/packed_tile.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// [stage] of both operands.
template <PackedFormat kFormat, uint32_t kGroup, uint32_t kStages>
struct PackedMemory {
  GemmRow x[kStages][kGroup];
  PackedTile<kFormat> w[kStages][kGemmRowTile / kPackedRows];  // a tile a warp
};

// The matrix [n][k] of a cta.
struct PackedOperand {
  const std::byte* tiles;
  uint32_t n;
  uint32_t k;
};

// The stages of K of this cta's rows. The data that a thread copies lies at the same distance in
// every stage, so places are found once: 32 instructions a stage are one a weight.
template <PackedFormat kFormat, uint32_t kGroup, uint32_t kStages>
class PackedStages {
 public:
  static constexpr uint32_t kCount = kStages;
  using Memory = PackedMemory<kFormat, kGroup, kStages>;

  // row_of(i): row i (< kGroup) of x, [k]; null where there is none.
  template <typename RowOf>
  BATON_DEVICE PackedStages(const PackedOperand& w, const RowOf& row_of, Memory& memory)
      : memory_(memory) {
    const uint32_t rows = simt::block().x * (kGemmRowTile / kPackedRows) + simt::warp();
    // Zeros below the last rows.
    const bool has_rows = simt::guard(rows * kPackedRows < w.n);
    w_bytes_ = has_rows ? 16 : 0;
    w_ = reinterpret_cast<const simt::Vec16*>(w.tiles) +
         (has_rows ? size_t{rows} * PackedTilesOfRow(w.k) * kTileVecs : 0) + simt::lane();
    BATON_UNROLL
    for (uint32_t i = 0; i < kXCopies; ++i) {
      const uint32_t at = i * kRowsThreads + simt::thread();
      const uint32_t column = at % kGemmChunks * kVec;
      const bool is_copied = kGroup * kGemmChunks >= kRowsThreads || at < kGroup * kGemmChunks;
      const Bf16* const row = is_copied ? row_of(at / kGemmChunks) : nullptr;
      const bool is_row = row != nullptr && simt::guard(column < w.k);
      x_[i] = is_row ? row + column : reinterpret_cast<const Bf16*>(w.tiles);
      x_ends_[i] = is_row ? w.k - column : 0;
    }
  }

  // The tiles of a warp lie one after the other.
  BATON_DEVICE void Prefetch(uint32_t first, uint32_t num_stages) const {
    constexpr uint32_t kLineVecs = 8;
    if (w_bytes_ == 0) return;
    const simt::Vec16* const from = w_ - simt::lane() + size_t{first} * kTileVecs;
    const uint32_t num_vecs = num_stages * kTileVecs;
    for (uint32_t vec = simt::lane() * kLineVecs; vec < num_vecs;
         vec += simt::kWarpSize * kLineVecs) {
      simt::prefetch(from + vec);
    }
  }
  BATON_DEVICE void Copy(uint32_t stage) const {
    const uint32_t slot = stage % kCount;
    auto* const tile = reinterpret_cast<simt::Vec16*>(&memory_.w[slot][simt::warp()]);
    const simt::Vec16* const from = w_ + size_t{stage} * kTileVecs;
    BATON_UNROLL
    for (uint32_t i = 0; i < (kTileVecs + simt::kWarpSize - 1) / simt::kWarpSize; ++i) {
      const uint32_t vec = i * simt::kWarpSize + simt::lane();
      if (vec < kTileVecs) simt::cp_async16(tile + vec, from + i * simt::kWarpSize, w_bytes_);
    }
    const uint32_t k_begin = stage * kGemmStageK;
    BATON_UNROLL
    for (uint32_t i = 0; i < kXCopies; ++i) {
      const uint32_t at = i * kRowsThreads + simt::thread();
      if (kGroup * kGemmChunks < kRowsThreads && at >= kGroup * kGemmChunks) break;
      const uint32_t row = at / kGemmChunks;
      const bool inside = simt::guard(k_begin < x_ends_[i]);
      simt::cp_async16(&memory_.x[slot][row][Swizzled(row, at % kGemmChunks)],
                       x_[i] + (inside ? k_begin : 0), inside ? 16 : 0);
    }
  }

  BATON_DEVICE void Multiply(uint32_t stage, RowsSums<kGroup>& sums) const {
    constexpr uint32_t kStepChunks = kGemmStepK / kVec;
    const uint32_t slot = stage % kCount;
    const PackedTile<kFormat>& tile = memory_.w[slot][simt::warp()];
    const LaneDigits<kFormat> digits = DigitsOf(tile, simt::lane());
    BATON_UNROLL
    for (uint32_t step = 0; step < kPackedSteps; step += 2) {
      const simt::FragmentA first = WeightsOf(tile, digits, step);
      const simt::FragmentA second = WeightsOf(tile, digits, step + 1);
      BATON_UNROLL
      for (uint32_t j = 0; j < kGroup / 8; ++j) {
        const simt::Matrices b = LoadTwoSteps(memory_.x[slot], 8 * j, step * kStepChunks);
        simt::mma_bf16_m16n8k16(sums[j], first, simt::FragmentB{{b.regs[0], b.regs[1]}});
        simt::mma_bf16_m16n8k16(sums[j], second, simt::FragmentB{{b.regs[2], b.regs[3]}});
      }
    }
  }

 private:
  static constexpr uint32_t kTileVecs = sizeof(PackedTile<kFormat>) / sizeof(simt::Vec16);
  static_assert(sizeof(PackedTile<kFormat>) == PackedTileBytes(kFormat));
  static constexpr uint32_t kXCopies =
      (kGroup * kGemmChunks + kRowsThreads - 1) / kRowsThreads;  // of a thread

  Memory& memory_;
  // The sources of this thread's copies in the first stage: its warp's tile, and x.
  const simt::Vec16* w_;
  uint32_t w_bytes_;
  const Bf16* x_[kXCopies];
  uint32_t x_ends_[kXCopies];  // what is left of K behind it; 0 below the last row
};

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_PACKED_STAGES_H_
