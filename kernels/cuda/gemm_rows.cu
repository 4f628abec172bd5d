// y = x w^T for few rows of x: weights are read once, and the segments of K are spread over ctas.
//
// Work: a cta takes 64 rows of w, one segment of K and 8 or 32 rows of x; its four warps take 16
// rows of w each. Bytes: 2 n k once from memory, 2 m k through L2 for each of the n / 64 tiles;
// with several segments 8 m n for each through L2. Flops: 2 m n k. Limit: memory up to m = 32.
// There a stage of 8 KiB of weights takes an SM 430 cycles of 4.3 TB/s. Its fragments take 24 KiB
// of shared memory, 190 cycles; 64 rows in one cta would need 440. An H100 takes gemm_narrow.cu
// instead. Reached on an H100 at one row, of reading: down 80 %, gate_up 78, qkv 72, o 65 (47, 97,
// 23 and 17 us; benchmarks/results/gpu_check_tools.json, "sweep").
//
// Weights are the A operand (m16) and x is B (n8): one row of x costs half of what it would as A.
// The bits are those of the other orientation (gemm_shapes.h).
//
// GatedRows: the same, and gates in the same launch (gemm_gates.h). RopedRows: of q, k and v, with
// rope_append (gemm_rope.h).
//
// Combining: gemm_spread.h. Stages of 36 KiB (8 rows) or 48 KiB (32) let six or four ctas share an
// SM.
#include "kernels/cuda/gemm_gates.h"
#include "kernels/cuda/gemm_rope.h"
#include "kernels/cuda/gemm_spread.h"
#include "kernels/simt/newer_ctas.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

// See GemmStages.
template <uint32_t kGroup>
struct RowsShared {
  GemmStages<RowsShape<kGroup>> stages;
  uint32_t is_last;  // whether this cta arrived last
};

// The stages of K of this cta's rows, those of w in kRuns runs.
template <uint32_t kGroup, uint32_t kRuns>
struct RowsStages {
  static constexpr uint32_t kCount = kGemmStages;
  static constexpr uint32_t kRunRows = kGemmRowTile / kRuns;

  const GemmParams& params;
  GemmStages<RowsShape<kGroup>>& memory;

  // A row of w in a stage is a line of L2 (two where k is no multiple of 64: then its first). The
  // ctas of other rows of x read the same.
  BATON_DEVICE void Prefetch(uint32_t first, uint32_t num_stages) const {
    if (simt::block().z > 0) return;
    for (uint32_t at = simt::thread(); at < num_stages * kGemmRowTile; at += kRowsThreads) {
      const uint32_t of_tile = at % kGemmRowTile;
      const uint32_t row = RunRow<kRuns>(params, of_tile / kRunRows) + of_tile % kRunRows;
      const size_t column = size_t{first + at / kGemmRowTile} * kGemmStageK;
      if (row < params.n) simt::prefetch(params.w + size_t{row} * params.k + column);
    }
  }
  BATON_DEVICE void Copy(uint32_t stage) const {
    const uint32_t slot = stage % kCount;
    BATON_UNROLL
    for (uint32_t run = 0; run < kRuns; ++run) {
      CopyRows<kRunRows, kRowsThreads>({params.w, params.n, RunRow<kRuns>(params, run), params.k},
                                       stage * kGemmStageK, memory.w[slot] + run * kRunRows);
    }
    CopyRows<kGroup, kRowsThreads>({params.x, params.m, simt::block().z * kGroup, params.k},
                                   stage * kGemmStageK, memory.x[slot]);
  }
  BATON_DEVICE void Multiply(uint32_t stage, RowsSums<kGroup>& sums) const {
    RowsShape<kGroup>::Multiply(memory, stage % kCount, sums);
  }
};

template <uint32_t kGroup, typename Tail>
BATON_DEVICE void MultiplyRows(const GemmLaunch& launch, const Tail& tail) {
  auto& memory = simt::shared<RowsShared<kGroup>>();
  MultiplyFewRows<kGroup>(launch, RowsStages<kGroup, Tail::kRuns>{launch.params, memory.stages},
                          tail, {&memory.is_last, &memory.stages.w[0][0][0]});
}

BATON_KERNEL(kRowsThreads) GemmRows8Kernel(GemmLaunch launch) {
  MultiplyRows<8>(launch, StoreTail{});
}
BATON_KERNEL_NEWER(kRowsThreads, 8) GemmRows32Kernel(GemmLaunch launch) {
  MultiplyRows<32>(launch, StoreTail{});
}
BATON_KERNEL(kRowsThreads) GatedRows8Kernel(GatedLaunch launch) {
  MultiplyRows<8>(launch.product, launch.tail);
}
BATON_KERNEL_NEWER(kRowsThreads, 4) GatedRows32Kernel(GatedLaunch launch) {
  MultiplyRows<32>(launch.product, launch.tail);
}
BATON_KERNEL(kRowsThreads) RopedRows8Kernel(RopedLaunch launch) {
  MultiplyRows<8>(launch.product, launch.tail);
}
BATON_KERNEL_NEWER(kRowsThreads, 4) RopedRows32Kernel(RopedLaunch launch) {
  MultiplyRows<32>(launch.product, launch.tail);
}

template <uint32_t kGroup>
simt::LaunchConfig ConfigOf(const char* name, const GemmLaunch& launch, void* stream) {
  return RowsConfig<kGroup>(name, launch, sizeof(RowsShared<kGroup>), stream);
}

}  // namespace

const KernelInfo kGemmRows8Info = {"GemmRows8Kernel", kRowsThreads, sizeof(RowsShared<8>)};
const KernelInfo kGemmRows32Info = {"GemmRows32Kernel", kRowsThreads, sizeof(RowsShared<32>)};
const KernelInfo kGatedRowsInfos[2] = {{"GatedRows8Kernel", kRowsThreads, sizeof(RowsShared<8>)},
                                       {"GatedRows32Kernel", kRowsThreads, sizeof(RowsShared<32>)}};
const KernelInfo kRopedRowsInfos[2] = {{"RopedRows8Kernel", kRowsThreads, sizeof(RowsShared<8>)},
                                       {"RopedRows32Kernel", kRowsThreads, sizeof(RowsShared<32>)}};

absl::Status LaunchGemmRows(const GemmLaunch& launch, GemmPath path, void* stream) {
  return path == GemmPath::kRows8
             ? simt::launch(ConfigOf<8>("GemmRows", launch, stream), GemmRows8Kernel, launch)
             : simt::launch(ConfigOf<32>("GemmRows", launch, stream), GemmRows32Kernel, launch);
}

absl::Status LaunchGatedRows(const GatedLaunch& launch, GemmPath path, void* stream) {
  const GemmLaunch& product = launch.product;
  return path == GemmPath::kRows8
             ? simt::launch(ConfigOf<8>("GatedRows", product, stream), GatedRows8Kernel, launch)
             : simt::launch(ConfigOf<32>("GatedRows", product, stream), GatedRows32Kernel, launch);
}

absl::Status LaunchRopedRows(const RopedLaunch& launch, GemmPath path, void* stream) {
  const GemmLaunch& product = launch.product;
  return path == GemmPath::kRows8
             ? simt::launch(ConfigOf<8>("RopedRows", product, stream), RopedRows8Kernel, launch)
             : simt::launch(ConfigOf<32>("RopedRows", product, stream), RopedRows32Kernel, launch);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
