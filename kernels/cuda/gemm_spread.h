// The parts that the GEMM kernels of few rows share. A cta takes 64 rows of w, one segment of K and
// 8, 32 or (gemm_narrow.cu) 64 rows of x; four of its warps have the sums of 16 rows of w each.
// Each kernel decides how weights come to be multiplied; warps beyond those four only copy.
// Included by those kernels only.
//
// Combining: each cta stores its partial sums in the order of its fragments, 16 bytes a thread, and
// counts itself; the one that arrives last adds all segments in index order, its own too, and sets
// the counter back.
//
// A tail is what becomes of the sums. It names kRuns, the runs of consecutive rows of w that a tile
// is made of, and has Finish<kGroup>(params, memory, sums), which all threads of the cta with the
// sums call; those from kRowsThreads on have none.
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

// Shared memory that the end of a tile uses.
struct RowsMemory {
  uint32_t* is_last;  // whether this cta arrived last
  // [kGroup / 8][kRowsThreads / 2] and more: the first slot of the ring, which is free once all
  // threads are done with their products.
  simt::Vec16* ring;
};

// A launch: the product, and what ends it.
template <typename Tail>
struct TailLaunch {
  GemmLaunch product;
  Tail tail;
};

// The first row of w of a run of this cta's tile.
template <uint32_t kRuns>
BATON_DEVICE uint32_t RunRow(const GemmParams& params, uint32_t run) {
  return simt::block().x * (kGemmRowTile / kRuns) + run * (params.n / kRuns);
}

// Stores this cta's sums; true for the cta that arrives last, with the sums of all segments. All
// threads call; those from kRowsThreads on have no sums.
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
  if (is_last == 0) return false;
  if (!has_sums) return true;
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

// The sums of all segments of this cta's tile go to the tail, in the cta that gets them. All
// threads call.
template <uint32_t kGroup, typename Tail>
BATON_DEVICE void FinishTile(const GemmLaunch& launch, const Tail& tail, const RowsMemory& memory,
                             RowsSums<kGroup>& sums) {
  if (launch.split.num_segments > 1) {
    if (!CombineSegments<kGroup>(launch, *memory.is_last, sums)) return;
  } else {
    // The addition of the only segment to +0.
    BATON_UNROLL
    for (uint32_t j = 0; j < kGroup / 8; ++j) {
      BATON_UNROLL
      for (float& value : sums[j].values) value += 0.0f;
    }
  }
  tail.template Finish<kGroup>(launch.params, memory, sums);
}

// The sums are y: 64 consecutive rows of w.
struct StoreTail {
  static constexpr uint32_t kRuns = 1;

  template <uint32_t kGroup>
  BATON_DEVICE void Finish(const GemmParams& params, const RowsMemory& /*memory*/,
                           const RowsSums<kGroup>& sums) const {
    if (simt::thread() >= kRowsThreads) return;
    RowsShape<kGroup>::Store(params, {simt::block().z * kGroup, RunRow<kRuns>(params, 0)}, sums);
  }
};

// The tile of this cta. `stages` as AddSegments', and Prefetch(first, count) asks for the cta's
// weights of some stages. The first weights are on their way to L2 before the kernel that makes x
// is done.
template <uint32_t kGroup, typename Stages, typename Tail>
BATON_DEVICE void MultiplyFewRows(const GemmLaunch& launch, const Stages& stages, const Tail& tail,
                                  const RowsMemory& memory) {
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
  FinishTile<kGroup>(launch, tail, memory, sums);
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
