// The parts that the GEMM kernels of few rows share. A cta takes 64 rows of w, one segment of K and
// 8, 32 or (gemm_narrow.cu) 64 rows of x; four of its warps have the sums of 16 rows of w each.
// Each kernel decides how weights come to be multiplied; warps beyond those four only copy.
// Included by those kernels only.
//
// Combining: each cta stores its partial sums in the order of its fragments, 16 bytes a thread, and
// counts itself; the one that arrives last adds all segments in index order, its own too, and sets
// the counter back.
#ifndef BATON_KERNELS_CUDA_GEMM_SPREAD_H_
#define BATON_KERNELS_CUDA_GEMM_SPREAD_H_

#include <bit>
#include <cstdint>

#include "kernels/cuda/gemm_shapes.h"
#include "kernels/cuda/gemm_tile.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

inline constexpr uint32_t kRowsThreads = 128;
static_assert(RowsShape<8>::kThreads == kRowsThreads);

template <uint32_t kGroup>
using RowsSums = typename RowsShape<kGroup>::Sums;

// The partial sums of this cta's outputs in one segment, in sixteens of bytes: [j][thread].
template <uint32_t kGroup>
BATON_DEVICE simt::Vec16* PartialsOf(const GemmLaunch& launch, uint32_t segment) {
  const size_t tile = size_t{simt::block().z} * simt::grid().x + simt::block().x;
  return static_cast<simt::Vec16*>(launch.params.partials) +
         (tile * launch.split.num_segments + segment) * (kGroup / 8 * kRowsThreads);
}

BATON_DEVICE simt::Vec16 WordsOf(const simt::FragmentC& sums) {
  simt::Vec16 words;
  BATON_UNROLL
  for (uint32_t v = 0; v < 4; ++v) words.words[v] = std::bit_cast<uint32_t>(sums.values[v]);
  return words;
}

// Stores this cta's sums; true, with the sums of all segments, for the cta that arrives last. All
// threads call; those beyond kRowsThreads have no sums.
template <uint32_t kGroup>
BATON_DEVICE bool CombineSegments(const GemmLaunch& launch, uint32_t& is_last,
                                  RowsSums<kGroup>& sums) {
  const bool has_sums = simt::thread() < kRowsThreads;
  simt::Vec16* own = PartialsOf<kGroup>(launch, simt::block().y);
  BATON_UNROLL
  for (uint32_t j = 0; j < kGroup / 8; ++j) {
    if (has_sums) own[j * kRowsThreads + simt::thread()] = WordsOf(sums[j]);
  }
  simt::sync_block();
  if (simt::thread() == 0) {
    uint32_t* counter = launch.params.counters + simt::block().z * simt::grid().x + simt::block().x;
    simt::fence();
    is_last = simt::atomic_add(counter, 1) == launch.split.num_segments - 1 ? 1 : 0;
    simt::fence();
    if (is_last != 0) simt::atomic_exchange(counter, 0);
  }
  simt::sync_block();
  if (is_last == 0 || !has_sums) return false;
  Clear(sums);
  for (uint32_t segment = 0; segment < launch.split.num_segments; ++segment) {
    const simt::Vec16* from = PartialsOf<kGroup>(launch, segment) + simt::thread();
    BATON_UNROLL
    for (uint32_t j = 0; j < kGroup / 8; ++j) {
      const simt::Vec16 words = from[j * kRowsThreads];
      BATON_UNROLL
      for (uint32_t v = 0; v < 4; ++v) {
        sums[j].values[v] += std::bit_cast<float>(words.words[v]);
      }
    }
  }
  return true;
}

// y of this cta. `stages` as AddSegments', and Prefetch(first, count) asks for the cta's weights of
// some stages; `is_last` is a word of shared memory. The first weights are on their way to L2
// before the kernel that makes x is done.
template <uint32_t kGroup, typename Stages>
BATON_DEVICE void MultiplyFewRows(const GemmLaunch& launch, const Stages& stages,
                                  uint32_t& is_last) {
  RowsSums<kGroup> sums;
  Clear(sums);
  const uint32_t num_stages = (launch.params.k + kGemmStageK - 1) / kGemmStageK;
  const uint32_t stages_of_cta = launch.split.segment_k / kGemmStageK;
  const uint32_t begin = simt::block().y * stages_of_cta;
  const uint32_t end = begin + stages_of_cta < num_stages ? begin + stages_of_cta : num_stages;
  const uint32_t num_first = end - begin < Stages::kCount ? end - begin : Stages::kCount;
  stages.Prefetch(begin, num_first);
  simt::wait_for_previous();
  BATON_UNROLL
  for (uint32_t i = 0; i < Stages::kCount - 1; ++i) CopyStage(stages, begin + i, end);
  for (uint32_t stage = begin; stage < end; ++stage) {
    // The thread's own copies of this stage have landed. After the barrier everyone's copies have
    // landed, and everyone has read the stage before, whose slot is filled next.
    simt::cp_async_wait<Stages::kCount - 2>();
    simt::sync_block();
    CopyStage(stages, stage + Stages::kCount - 1, end);
    stages.Multiply(stage, sums);
  }
  if (launch.split.num_segments > 1) {
    if (!CombineSegments<kGroup>(launch, is_last, sums)) return;
  } else {
    // The addition of the only segment to +0.
    BATON_UNROLL
    for (uint32_t j = 0; j < kGroup / 8; ++j) {
      BATON_UNROLL
      for (float& value : sums[j].values) value += 0.0f;
    }
  }
  RowsShape<kGroup>::Store(launch.params,
                           {simt::block().z * kGroup, simt::block().x * kGemmRowTile}, sums);
}

// How such a kernel is started.
template <uint32_t kGroup>
simt::LaunchConfig RowsConfig(const char* name, const GemmLaunch& launch, uint32_t shared_bytes,
                              void* stream) {
  const GemmParams& params = launch.params;
  return {.name = name,
          .grid = {(params.n + kGemmRowTile - 1) / kGemmRowTile, launch.split.num_segments,
                   (params.m + kGroup - 1) / kGroup},
          .num_threads = kRowsThreads,
          .shared_bytes = shared_bytes,
          .overlaps = true,
          .stream = stream};
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_GEMM_SPREAD_H_
