// y = x w^T for few rows of x: weights are read once, and the segments of K are spread over ctas.
//
// Work: a cta takes 64 rows of w, one segment of K and 8 or 32 rows of x; its four warps take 16
// rows of w each. Bytes: 2 n k once from memory, 2 m k through L2 for each of the n / 64 tiles;
// with several segments 8 m n for each through L2. Flops: 2 m n k. Limit: memory up to m = 32,
// where a stage of 8 KiB of weights takes an SM 430 cycles of 4.3 TB/s, and its fragments 24 KiB of
// shared memory, 190 cycles; 64 rows in one cta would need 440. Reached: not yet measured on a GPU.
//
// Weights are the A operand (m16) and x is B (n8): one row of x costs half of what it would as A.
// The bits are those of the other orientation (gemm_shapes.h).
//
// Combining: each cta stores its partial sums in the order of its fragments, 16 bytes a thread, and
// counts itself; the one that arrives last adds all segments in index order, its own too, and sets
// the counter back. Stages of 36 KiB (8 rows) or 48 KiB (32) let six or four ctas share an SM.
#include "kernels/cuda/gemm_shapes.h"
#include "kernels/cuda/gemm_tile.h"

namespace baton::cuda {
inline namespace BATON_BODY {
namespace {

using simt::FragmentC;
using simt::Vec16;

constexpr uint32_t kRowsThreads = 128;
static_assert(RowsShape<8>::kThreads == kRowsThreads);

// See GemmStages.
template <uint32_t kGroup>
struct RowsShared {
  GemmStages<RowsShape<kGroup>> stages;
  uint32_t is_last;  // whether this cta arrived last
};

template <uint32_t kGroup>
using RowsSums = typename RowsShape<kGroup>::Sums;

// Copies a stage of K, if it belongs to this cta's segment; always ends a group.
template <uint32_t kGroup>
BATON_DEVICE void CopyRowsStage(const GemmLaunch& launch, RowsShared<kGroup>& memory,
                                uint32_t stage, uint32_t end) {
  if (simt::guard(stage < end)) {
    const GemmParams& params = launch.params;
    const uint32_t slot = stage % kGemmStages;
    CopyRows<kGemmRowTile, kRowsThreads>(
        {params.w, params.n, simt::block().x * kGemmRowTile, params.k}, stage * kGemmStageK,
        memory.stages.w[slot]);
    CopyRows<kGroup, kRowsThreads>({params.x, params.m, simt::block().z * kGroup, params.k},
                                   stage * kGemmStageK, memory.stages.x[slot]);
  }
  simt::cp_async_commit();
}

// The partial sums of this cta's outputs in one segment, in sixteens of bytes: [j][thread].
template <uint32_t kGroup>
BATON_DEVICE Vec16* PartialsOf(const GemmLaunch& launch, uint32_t segment) {
  const size_t tile = size_t{simt::block().z} * simt::grid().x + simt::block().x;
  return static_cast<Vec16*>(launch.params.partials) +
         (tile * launch.split.num_segments + segment) * (kGroup / 8 * kRowsThreads);
}

BATON_DEVICE Vec16 WordsOf(const FragmentC& sums) {
  Vec16 words;
  BATON_UNROLL
  for (uint32_t v = 0; v < 4; ++v) words.words[v] = std::bit_cast<uint32_t>(sums.values[v]);
  return words;
}

// Stores this cta's sums; true, with the sums of all segments, for the cta that arrives last.
template <uint32_t kGroup>
BATON_DEVICE bool CombineSegments(const GemmLaunch& launch, RowsShared<kGroup>& memory,
                                  RowsSums<kGroup>& sums) {
  Vec16* own = PartialsOf<kGroup>(launch, simt::block().y);
  BATON_UNROLL
  for (uint32_t j = 0; j < kGroup / 8; ++j) {
    own[j * kRowsThreads + simt::thread()] = WordsOf(sums[j]);
  }
  simt::sync_block();
  if (simt::thread() == 0) {
    uint32_t* counter = launch.params.counters + simt::block().z * simt::grid().x + simt::block().x;
    simt::fence();
    memory.is_last = simt::atomic_add(counter, 1) == launch.split.num_segments - 1 ? 1 : 0;
    simt::fence();
    if (memory.is_last != 0) simt::atomic_exchange(counter, 0);
  }
  simt::sync_block();
  if (memory.is_last == 0) return false;
  Clear(sums);
  for (uint32_t segment = 0; segment < launch.split.num_segments; ++segment) {
    const Vec16* from = PartialsOf<kGroup>(launch, segment) + simt::thread();
    BATON_UNROLL
    for (uint32_t j = 0; j < kGroup / 8; ++j) {
      const Vec16 words = from[j * kRowsThreads];
      BATON_UNROLL
      for (uint32_t v = 0; v < 4; ++v) {
        sums[j].values[v] += std::bit_cast<float>(words.words[v]);
      }
    }
  }
  return true;
}

template <uint32_t kGroup>
BATON_DEVICE void MultiplyFewRows(const GemmLaunch& launch) {
  auto& memory = simt::shared<RowsShared<kGroup>>();
  RowsSums<kGroup> sums;
  Clear(sums);
  const uint32_t num_stages = (launch.params.k + kGemmStageK - 1) / kGemmStageK;
  const uint32_t stages = launch.split.segment_k / kGemmStageK;
  const uint32_t begin = simt::block().y * stages;
  const uint32_t end = begin + stages < num_stages ? begin + stages : num_stages;
  BATON_UNROLL
  for (uint32_t i = 0; i < kGemmStages - 1; ++i) CopyRowsStage(launch, memory, begin + i, end);
  for (uint32_t stage = begin; stage < end; ++stage) {
    // The own copies of this stage have landed; behind the barrier everyone's have, and everyone
    // has read the stage before, whose slot is filled next.
    simt::cp_async_wait<kGemmStages - 2>();
    simt::sync_block();
    CopyRowsStage(launch, memory, stage + kGemmStages - 1, end);
    RowsShape<kGroup>::Multiply(memory.stages, stage % kGemmStages, sums);
  }
  if (launch.split.num_segments > 1) {
    if (!CombineSegments(launch, memory, sums)) return;
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

BATON_KERNEL(kRowsThreads) GemmRows8Kernel(GemmLaunch launch) { MultiplyFewRows<8>(launch); }
BATON_KERNEL(kRowsThreads) GemmRows32Kernel(GemmLaunch launch) { MultiplyFewRows<32>(launch); }

template <uint32_t kGroup>
absl::Status Launch(const GemmLaunch& launch, void (*kernel)(GemmLaunch), void* stream) {
  const GemmParams& params = launch.params;
  return simt::launch({.name = "GemmRows",
                       .grid = {(params.n + kGemmRowTile - 1) / kGemmRowTile,
                                launch.split.num_segments, (params.m + kGroup - 1) / kGroup},
                       .num_threads = kRowsThreads,
                       .shared_bytes = sizeof(RowsShared<kGroup>),
                       .stream = stream},
                      kernel, launch);
}

}  // namespace

const KernelInfo kGemmRows8Info = {"GemmRows8Kernel", kRowsThreads, sizeof(RowsShared<8>)};
const KernelInfo kGemmRows32Info = {"GemmRows32Kernel", kRowsThreads, sizeof(RowsShared<32>)};

absl::Status LaunchGemmRows(const GemmLaunch& launch, GemmPath path, void* stream) {
  return path == GemmPath::kRows8 ? Launch<8>(launch, GemmRows8Kernel, stream)
                                  : Launch<32>(launch, GemmRows32Kernel, stream);
}

}  // namespace BATON_BODY
}  // namespace baton::cuda
