// The two ways in which a cta of a GEMM divides its outputs among warps: how many rows of x and of
// w it takes, a stage's products, and where they go. Included by the GEMM's sources only.
//
// The bits are the same: a step of the tensor cores is a function of the sixteen products and C as
// a set (tensor_core.h: exponents of a product add up, significands multiply, the aligned terms are
// added exactly), so it does not matter which operand is A. gemm_test asserts it, gpu_check asks a
// GPU.
#ifndef BATON_KERNELS_CUDA_GEMM_SHAPES_H_
#define BATON_KERNELS_CUDA_GEMM_SHAPES_H_

#include <cstdint>

#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// kGroup rows of x as B (n8) by 64 of w as A (m16): each of four warps takes 16 rows of w. One row
// of x costs half of what it would as A.
template <uint32_t kGroup>
struct RowsShape {
  static constexpr uint32_t kRowsX = kGroup;
  static constexpr uint32_t kRowsW = kGemmRowTile;
  static constexpr uint32_t kWarpRows = 16;  // of w
  static constexpr uint32_t kThreads = kRowsW / kWarpRows * simt::kWarpSize;
  using Sums = simt::FragmentC[kGroup / 8];  // [8 rows of x]

  // sums += the products of the stage in `slot`.
  BATON_DEVICE static void Multiply(const GemmStages<RowsShape>& memory, uint32_t slot,
                                    Sums& sums) {
    constexpr uint32_t kStepChunks = kGemmStepK / kVec;
    const uint32_t row = simt::warp() * kWarpRows;
    BATON_UNROLL
    for (uint32_t chunk = 0; chunk < kGemmChunks; chunk += 2 * kStepChunks) {
      const simt::FragmentA first = LoadA(memory.w[slot], row, chunk);
      const simt::FragmentA second = LoadA(memory.w[slot], row, chunk + kStepChunks);
      BATON_UNROLL
      for (uint32_t j = 0; j < kGroup / 8; ++j) {
        const simt::Matrices b = LoadTwoSteps(memory.x[slot], 8 * j, chunk);
        simt::mma_bf16_m16n8k16(sums[j], first, simt::FragmentB{{b.regs[0], b.regs[1]}});
        simt::mma_bf16_m16n8k16(sums[j], second, simt::FragmentB{{b.regs[2], b.regs[3]}});
      }
    }
  }

  // Values 0..3 of a lane: rows of w g, g, g + 8, g + 8; rows of x 2t, 2t + 1, 2t, 2t + 1.
  // Without biases and with bf16 outputs, as almost always, no output is asked about them: of 64
  // rows of o (4096 x 4096) that took an H100 2.7 us of 24.0 at commit 20277ae.
  BATON_DEVICE static void Store(const GemmParams& params, const TileOrigin& origin,
                                 const Sums& sums) {
    if (IsPlain(params)) {
      EachOutput(params, origin, sums, [&](uint32_t r, uint32_t c, float sum) {
        params.y_bf16[size_t{r} * params.n + c] = simt::to_bf16(sum);
      });
      return;
    }
    EachOutput(params, origin, sums,
               [&](uint32_t r, uint32_t c, float sum) { StoreOutput(params, r, c, sum); });
  }

 private:
  // store(row of x, row of w, sum) for those of the lane's that are inside.
  template <typename StoreOne>
  BATON_DEVICE static void EachOutput(const GemmParams& params, const TileOrigin& origin,
                                      const Sums& sums, const StoreOne& store) {
    const uint32_t column = origin.column + simt::warp() * kWarpRows + simt::lane() / 4;
    const uint32_t row = origin.row + simt::lane() % 4 * 2;
    BATON_UNROLL
    for (uint32_t j = 0; j < kGroup / 8; ++j) {
      BATON_UNROLL
      for (uint32_t v = 0; v < 4; ++v) {
        const uint32_t r = row + 8 * j + v % 2;
        const uint32_t c = column + v / 2 * 8;
        if (simt::guard(r < params.m && c < params.n)) store(r, c, sums[j].values[v]);
      }
    }
  }
};

// kWarpsM x kWarpsN warps, each kWarpM rows of x as A by kWarpN rows of w as B.
template <uint32_t kWarpsM, uint32_t kWarpsN, uint32_t kWarpM, uint32_t kWarpN>
struct TileShape {
  static constexpr uint32_t kRowsX = kWarpsM * kWarpM;
  static constexpr uint32_t kRowsW = kWarpsN * kWarpN;
  static constexpr uint32_t kThreads = kWarpsM * kWarpsN * simt::kWarpSize;
  using Sums = simt::FragmentC[kWarpM / 16][kWarpN / 8];  // [16 rows of x][8 rows of w]

  // sums += the products of the stage in `slot`.
  BATON_DEVICE static void Multiply(const GemmStages<TileShape>& memory, uint32_t slot,
                                    Sums& sums) {
    const uint32_t row = simt::warp() / kWarpsN * kWarpM;
    const uint32_t column = simt::warp() % kWarpsN * kWarpN;
    BATON_UNROLL
    for (uint32_t chunk = 0; chunk < kGemmChunks; chunk += kGemmStepK / kVec) {
      simt::FragmentA a[kWarpM / 16];
      BATON_UNROLL
      for (uint32_t i = 0; i < kWarpM / 16; ++i) a[i] = LoadA(memory.x[slot], row + 16 * i, chunk);
      BATON_UNROLL
      for (uint32_t j = 0; j < kWarpN / 8; j += 2) {
        const simt::Matrices b = LoadTwoB(memory.w[slot], column + 8 * j, chunk);
        BATON_UNROLL
        for (uint32_t i = 0; i < kWarpM / 16; ++i) {
          simt::mma_bf16_m16n8k16(sums[i][j], a[i], simt::FragmentB{{b.regs[0], b.regs[1]}});
          simt::mma_bf16_m16n8k16(sums[i][j + 1], a[i], simt::FragmentB{{b.regs[2], b.regs[3]}});
        }
      }
    }
  }

  // Values 0..3 of a lane: rows of x g, g, g + 8, g + 8; rows of w 2t, 2t + 1, 2t, 2t + 1.
  BATON_DEVICE static void Store(const GemmParams& params, const TileOrigin& origin,
                                 const Sums& totals) {
    const uint32_t row = origin.row + simt::warp() / kWarpsN * kWarpM + simt::lane() / 4;
    const uint32_t column = origin.column + simt::warp() % kWarpsN * kWarpN + simt::lane() % 4 * 2;
    BATON_UNROLL
    for (uint32_t i = 0; i < kWarpM / 16; ++i) {
      BATON_UNROLL
      for (uint32_t j = 0; j < kWarpN / 8; ++j) {
        BATON_UNROLL
        for (uint32_t v = 0; v < 4; ++v) {
          const uint32_t r = row + 16 * i + v / 2 * 8;
          const uint32_t c = column + 8 * j + v % 2;
          const bool inside = simt::guard(r < params.m && c < params.n);
          if (inside) StoreOutput(params, r, c, totals[i][j].values[v]);
        }
      }
    }
  }
};

// Ninety-six registers and 64 KiB: three ctas an SM.
using Tile64 = TileShape<2, 2, 32, 32>;

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_GEMM_SHAPES_H_
