// A norm that is divided between two products of few rows: the first adds its sums to the residual
// and leaves the squares of each eight elements, the second scales what it multiplies. Included by
// those kernels only.
//
// The order is that of rms_norm.cu, whose threads have eight elements each up to kMaxNormedDim: a
// group's squares ascending by fma, groups of a warp by the tree 16, 8, 4, 2, 1, warps ascending.
// Each cta of the second product adds up all squares of its rows: m k / 2 bytes through L2, while
// its first weights come. It norms its part of K on the way to shared memory.
#ifndef BATON_KERNELS_CUDA_GEMM_NORM_H_
#define BATON_KERNELS_CUDA_GEMM_NORM_H_

#include <cstdint>

#include "kernels/cuda/gemm_spread.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// y_bf16 is the residual [m][n].
struct SumTail {
  static constexpr uint32_t kRuns = 1;

  float* squares;  // [m][n / kVec]

  template <uint32_t kGroup>
  BATON_DEVICE void Finish(const GemmParams& params, const RowsMemory& memory,
                           const RowsSums<kGroup>& sums) const {
    // [kGroup][kGemmRowTile]
    auto* added = reinterpret_cast<Bf16*>(memory.ring);
    simt::sync_block();  // the last stage may lie in the slot
    if (simt::thread() < kRowsThreads) {
      // As RowsShape::EachOutput.
      const uint32_t column = simt::warp() * RowsShape<kGroup>::kWarpRows + simt::lane() / 4;
      const uint32_t row = simt::lane() % 4 * 2;
      BATON_UNROLL
      for (uint32_t j = 0; j < kGroup / 8; ++j) {
        BATON_UNROLL
        for (uint32_t v = 0; v < 4; ++v) {
          added[(row + 8 * j + v % 2) * kGemmRowTile + column + v / 2 * 8] =
              simt::to_bf16(sums[j].values[v]);
        }
      }
    }
    simt::sync_block();
    if (simt::thread() < kGroup * kGemmChunks) AddGroup<kGroup>(params, memory.ring);
  }

 private:
  // Eight columns of one row.
  template <uint32_t kGroup>
  BATON_DEVICE void AddGroup(const GemmParams& params, const simt::Vec16* added) const {
    static_assert(kGroup * kGemmChunks <= kRowsThreads);
    const uint32_t row = simt::block().z * kGroup + simt::thread() / kGemmChunks;
    const uint32_t group = simt::block().x * kGemmChunks + simt::thread() % kGemmChunks;
    const uint32_t num_groups = params.n / kVec;
    if (!simt::guard(row < params.m && group < num_groups)) return;
    const size_t at = size_t{row} * num_groups + group;
    simt::Vec16* residual = reinterpret_cast<simt::Vec16*>(params.y_bf16) + at;
    const simt::Vec16 x = added[simt::thread()];
    simt::Vec16 sum = *residual;
    float of_group = 0.0f;
    BATON_UNROLL
    for (uint32_t w = 0; w < 4; ++w) {
      sum.words[w] = Pair(Element(x, 2 * w) + Element(sum, 2 * w),
                          Element(x, 2 * w + 1) + Element(sum, 2 * w + 1));
    }
    BATON_UNROLL
    for (uint32_t i = 0; i < kVec; ++i) {
      of_group = simt::fma(Element(sum, i), Element(sum, i), of_group);
    }
    *residual = sum;
    squares[at] = of_group;
  }
};

// 1 / sqrt(mean of squares + eps) of each row, 0 of those beyond m. All warps of the cta call.
template <uint32_t kGroup>
BATON_DEVICE void ScaleRows(const GemmParams& params, const NormedRows& norm,
                            float (&scales)[kGroup]) {
  const uint32_t num_groups = params.k / kVec;
  for (uint32_t row = simt::warp(); row < kGroup; row += simt::num_threads() / simt::kWarpSize) {
    float sum = 0.0f;
    BATON_UNROLL_BY(4)
    for (uint32_t first = 0; first < num_groups; first += simt::kWarpSize) {
      const uint32_t group = first + simt::lane();
      const bool inside = simt::guard(row < params.m && group < num_groups);
      float value = inside ? norm.squares[size_t{row} * num_groups + group] : 0.0f;
      BATON_UNROLL
      for (uint32_t step = simt::kWarpSize / 2; step > 0; step /= 2) {
        value += simt::shfl_xor(value, step);
      }
      sum += value;
    }
    const float mean = sum / static_cast<float>(params.k);
    if (simt::lane() == 0) {
      scales[row] = row < params.m ? 1.0f / simt::square_root(mean + norm.eps) : 0.0f;
    }
  }
}

// A lane's part of a stage of x, on its way: chunk lane % 8 of rows lane / 8, lane / 8 + 4, ...
template <uint32_t kGroup>
struct NormedChunks {
  static constexpr uint32_t kRowsApart = simt::kWarpSize / kGemmChunks;
  static constexpr uint32_t kCount = kGroup / kRowsApart;

  simt::Vec16 x[kCount];
  simt::Vec16 weight;

  // Zeros beyond the rows and columns.
  BATON_DEVICE void Load(const GemmParams& params, const NormedRows& norm, uint32_t stage) {
    const uint32_t column = stage * kGemmStageK + simt::lane() % kGemmChunks * kVec;
    const bool is_column = simt::guard(column < params.k);
    weight = simt::Vec16{{0, 0, 0, 0}};
    if (is_column) weight = *reinterpret_cast<const simt::Vec16*>(norm.weight + column);
    BATON_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint32_t row = simt::lane() / kGemmChunks + i * kRowsApart;
      x[i] = simt::Vec16{{0, 0, 0, 0}};
      if (is_column && simt::guard(row < params.m)) {
        x[i] = *reinterpret_cast<const simt::Vec16*>(params.x + size_t{row} * params.k + column);
      }
    }
  }

  // As RmsNorm, to where a tensor copy would put them.
  BATON_DEVICE void Store(const float (&scales)[kGroup], GemmRow* to) const {
    const uint32_t chunk = simt::lane() % kGemmChunks;
    BATON_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint32_t row = simt::lane() / kGemmChunks + i * kRowsApart;
      const float scale = scales[row];
      simt::Vec16 normed;
      BATON_UNROLL
      for (uint32_t w = 0; w < 4; ++w) {
        normed.words[w] = Pair(Element(x[i], 2 * w) * scale * Element(weight, 2 * w),
                               Element(x[i], 2 * w + 1) * scale * Element(weight, 2 * w + 1));
      }
      to[row][Swizzled(row, chunk)] = normed;
    }
  }
};

using SumLaunch = TailLaunch<SumTail>;

// The launches of GemmSum, and of GemmGated and GemmRope with a norm.
absl::Status LaunchSumNarrow(const SumLaunch& launch, void* stream);

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_GEMM_NORM_H_
