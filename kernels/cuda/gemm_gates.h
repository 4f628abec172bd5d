// The end of a product of few rows whose rows of w are gates and ups. Included by those kernels
// only.
//
// A tile is 32 rows of gates and the 32 of their ups, so one cta has both. Both are rounded to
// bf16, as they would be on their way through memory, and gated as gate_mul.cu does. Two warps have
// the gates of sixteen rows each and two the ups: those go through shared memory. Less by 4 m n
// bytes through L2 than two kernels.
#ifndef BATON_KERNELS_CUDA_GEMM_GATES_H_
#define BATON_KERNELS_CUDA_GEMM_GATES_H_

#include <bit>
#include <cstdint>

#include "kernels/cuda/gate_times.h"
#include "kernels/cuda/gemm_spread.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// y_bf16 is [m][n / 2]: what is gated.
struct GateTail {
  static constexpr uint32_t kRuns = 2;

  GateKind gate;

  template <uint32_t kGroup>
  BATON_DEVICE void Finish(const GemmParams& params, const RowsMemory& memory,
                           const RowsSums<kGroup>& sums) const {
    constexpr uint32_t kGates = kRowsThreads / 2;  // threads that have gates; as many have ups
    static_assert(kGroup / 8 * kGates * sizeof(simt::Vec16) <= kGemmRowTile * sizeof(GemmRow));
    const uint32_t thread = simt::thread();
    simt::sync_block();  // the last stage may lie in the slot
    if (thread >= kGates && thread < kRowsThreads) {
      BATON_UNROLL
      for (uint32_t j = 0; j < kGroup / 8; ++j) {
        memory.ring[j * kGates + thread - kGates] = WordsOf(sums[j]);
      }
    }
    simt::sync_block();
    if (thread >= kGates) return;
    // As RowsShape::EachOutput.
    const uint32_t dim = params.n / 2;
    const uint32_t column =
        RunRow<kRuns>(params, 0) + simt::warp() * RowsShape<kGroup>::kWarpRows + simt::lane() / 4;
    const uint32_t row = simt::block().z * kGroup + simt::lane() % 4 * 2;
    BATON_UNROLL
    for (uint32_t j = 0; j < kGroup / 8; ++j) {
      const simt::Vec16 ups = memory.ring[j * kGates + thread];
      BATON_UNROLL
      for (uint32_t v = 0; v < 4; ++v) {
        const uint32_t r = row + 8 * j + v % 2;
        const uint32_t c = column + v / 2 * 8;
        if (!simt::guard(r < params.m && c < dim)) continue;
        params.y_bf16[size_t{r} * dim + c] =
            simt::to_bf16(Gated(sums[j].values[v], std::bit_cast<float>(ups.words[v])));
      }
    }
  }

 private:
  BATON_DEVICE float Gated(float gate_sum, float up_sum) const {
    const float g = simt::from_bf16(simt::to_bf16(gate_sum));
    const float up = simt::from_bf16(simt::to_bf16(up_sum));
    return gate == GateKind::kSilu ? SiluTimes(g, up) : GeluTimes(g, up);
  }
};

using GatedLaunch = TailLaunch<GateTail>;

// The launches that GemmGated chooses from. `path` is not kAuto.
absl::Status LaunchGatedRows(const GatedLaunch& launch, GemmPath path, void* stream);
absl::Status LaunchGatedNarrow(const GatedLaunch& launch, const NormedRows& norm, void* stream);

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_GEMM_GATES_H_
