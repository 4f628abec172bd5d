// y = x w^T for few rows of x on Hopper (a skinny GEMM with split K): what gemm_rows.cu does, by
// tensor copies and wgmma.
//
// Work: a cta takes 64 rows of w, one segment of K and all rows of x, which are padded to 8, 32 or
// 64: a warpgroup multiplies, a fifth warp fills a ring of stages of 64 of K (8, 6 or 4 of 9, 12 or
// 16 KiB; three ctas share an SM) by one thread's tensor copies. Bytes: 2 n k once from memory,
// 2 m k through L2 for each of the n / 64 tiles; with several segments 8 m n for each through L2.
// Flops: 2 m n k. Limit: memory. The first weights are on their way to shared memory before the
// kernel that makes x is done. Reached on an H100 at one row, of reading: output 100 %, gate_up 93,
// down 88, qkv 81, o 70 (kernels/NOTES.md).
//
// Weights are the A operand, x is B, as in gemm_shapes.h; the bits are those of mma.sync where
// wgmma has them, which is asked of a device before this kernel is chosen (wgmma_check.h).
// Combining: gemm_spread.h. GatedNarrow: the same, and gates in the same launch (gemm_gates.h).
// RopedNarrow: of q, k and v, with rope_append (gemm_rope.h). SumNarrow, and NormGatedNarrow and
// NormRopedNarrow: with the norm between them (gemm_norm.h); the fifth warp norms x as it fills the
// ring, a stage ahead in registers.
#include "kernels/cuda/gemm_gates.h"
#include "kernels/cuda/gemm_norm.h"
#include "kernels/cuda/gemm_rope.h"
#include "kernels/cuda/gemm_spread.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

constexpr uint32_t kNarrowThreads = kRowsThreads + simt::kWarpSize;
static_assert(kRowsThreads == simt::kWarpgroupSize && kGemmRowTile == 64);
static_assert(kGemmStageK == simt::kTileColumns);
// Rows of x for which there is a kernel.
constexpr uint32_t kFewest = 8;
constexpr uint32_t kFew = 32;
static_assert(kFew == kMaxJoinedRows && kFewest == kMaxNormedRows);

// The ring: [slot][row]. Tiles are aligned because their sizes are multiples of 1024 bytes.
template <uint32_t kGroup>
struct NarrowShared {
  static constexpr uint32_t kSlots = kGroup == 8 ? 8 : (kGroup == 32 ? 6 : 4);
  static constexpr uint32_t kWeightBytes = kGemmRowTile * sizeof(GemmRow);
  static constexpr uint32_t kStageBytes = kWeightBytes + kGroup * sizeof(GemmRow);

  alignas(simt::kTileAlignment) GemmRow w[kSlots][kGemmRowTile];
  GemmRow x[kSlots][kGroup];
  // A phase: one arrival and kStageBytes; with a norm two, and kWeightBytes.
  simt::Mbarrier full[kSlots];
  simt::Mbarrier empty[kSlots];  // a phase: the four warps that multiply
  uint32_t is_last;              // whether this cta arrived last
  float scales[kGroup];          // of rows of x that are normed
};

// Whether x is multiplied as it lies or as rms_norm would give it.
enum class RowsOfX { kPlain, kNormed };

// A launch: the call, and its operands as tensor copies see them.
template <typename Tail>
struct NarrowLaunch {
  simt::TensorMap x;  // not used for rows that are normed
  simt::TensorMap w;  // in runs of rows
  TailLaunch<Tail> call;
  NormedRows norm;
};

// The stages of K of this cta's segment.
struct StageRange {
  uint32_t begin;
  uint32_t end;
};

BATON_DEVICE StageRange StagesOfCta(const GemmLaunch& launch) {
  const uint32_t num_stages = (launch.params.k + kGemmStageK - 1) / kGemmStageK;
  const uint32_t a_segment = launch.split.segment_k / kGemmStageK;
  const uint32_t begin = simt::block().y * a_segment;
  return {begin, begin + a_segment < num_stages ? begin + a_segment : num_stages};
}

// One thread: begins the copy of the weights of a stage, which with `bytes` fill the slot.
template <uint32_t kGroup, typename Tail>
BATON_DEVICE void CopyWeights(const NarrowLaunch<Tail>& launch, uint32_t stage, uint32_t slot,
                              uint32_t bytes, NarrowShared<kGroup>& memory) {
  simt::mbar_arrive_expect(&memory.full[slot], bytes);
  BATON_UNROLL
  for (uint32_t run = 0; run < Tail::kRuns; ++run) {
    const uint32_t row = RunRow<Tail::kRuns>(launch.call.product.params, run);
    simt::tensor_copy(memory.w[slot] + run * (kGemmRowTile / Tail::kRuns), launch.w,
                      {stage * kGemmStageK, row}, &memory.full[slot]);
  }
}

// One thread: fills the slots, the first ones with weights alone until x is there.
template <uint32_t kGroup, typename Tail>
BATON_DEVICE void CopyStages(const NarrowLaunch<Tail>& launch, StageRange range,
                             NarrowShared<kGroup>& memory) {
  using Shared = NarrowShared<kGroup>;
  const auto copy_w = [&](uint32_t stage, uint32_t slot) {
    CopyWeights(launch, stage, slot, Shared::kStageBytes, memory);
  };
  const auto copy_x = [&](uint32_t stage, uint32_t slot) {
    simt::tensor_copy(memory.x[slot], launch.x, {stage * kGemmStageK, 0}, &memory.full[slot]);
  };
  const uint32_t count = range.end - range.begin;
  const uint32_t num_first = count < Shared::kSlots ? count : Shared::kSlots;
  for (uint32_t i = 0; i < num_first; ++i) copy_w(range.begin + i, i);
  simt::wait_for_previous();
  for (uint32_t i = 0; i < num_first; ++i) copy_x(range.begin + i, i);
  for (uint32_t i = num_first; i < count; ++i) {
    const uint32_t slot = i % Shared::kSlots;
    simt::mbar_wait(&memory.empty[slot], i / Shared::kSlots % 2 ^ 1);
    copy_w(range.begin + i, slot);
    copy_x(range.begin + i, slot);
  }
}

// The weights of the first stages. One thread, before the kernel that makes x is done.
template <uint32_t kGroup, typename Tail>
BATON_DEVICE void CopyFirstWeights(const NarrowLaunch<Tail>& launch, StageRange range,
                                   NarrowShared<kGroup>& memory) {
  using Shared = NarrowShared<kGroup>;
  for (uint32_t i = 0; i < Shared::kSlots && range.begin + i < range.end; ++i) {
    CopyWeights(launch, range.begin + i, i, Shared::kWeightBytes, memory);
  }
}

// One warp: fills the slots, those of the first stages with x alone, whose weights are on their
// way.
template <uint32_t kGroup, typename Tail>
BATON_DEVICE void FillNormed(const NarrowLaunch<Tail>& launch, StageRange range,
                             NarrowShared<kGroup>& memory) {
  using Shared = NarrowShared<kGroup>;
  const GemmParams& params = launch.call.product.params;
  NormedChunks<kGroup> chunks;
  chunks.Load(params, launch.norm, range.begin);
  for (uint32_t i = 0; i < range.end - range.begin; ++i) {
    const uint32_t slot = i % Shared::kSlots;
    if (i >= Shared::kSlots) {
      simt::mbar_wait(&memory.empty[slot], i / Shared::kSlots % 2 ^ 1);
      if (simt::lane() == 0) {
        CopyWeights(launch, range.begin + i, slot, Shared::kWeightBytes, memory);
      }
    }
    chunks.Store(memory.scales, memory.x[slot]);
    simt::fence_proxy_async();
    simt::sync_warp();
    if (simt::lane() == 0) simt::mbar_arrive(&memory.full[slot]);
    // After the cta's last stage: a part of K that nobody multiplies, or zeros.
    chunks.Load(params, launch.norm, range.begin + i + 1);
  }
}

// sums = the products of `count` stages. The warpgroup.
template <uint32_t kGroup>
BATON_DEVICE void MultiplyStages(uint32_t count, NarrowShared<kGroup>& memory,
                                 RowsSums<kGroup>& sums) {
  using Shared = NarrowShared<kGroup>;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t slot = i % Shared::kSlots;
    simt::mbar_wait(&memory.full[slot], i / Shared::kSlots % 2);
    const simt::TileDescriptor a = simt::describe_tile(memory.w[slot]);
    const simt::TileDescriptor b = simt::describe_tile(memory.x[slot]);
    simt::wgmma_fence();
    BATON_UNROLL
    for (uint32_t step = 0; step < kGemmStageK / kGemmStepK; ++step) {
      // The first product of a segment starts from zero; added to the zeros that are there, it
      // would be the same.
      simt::wgmma_bf16_m64k16(sums, TileStep(a, step), TileStep(b, step), i > 0 || step > 0);
    }
    simt::wgmma_commit();
    // The tensor cores go on with this stage while the one before is given back.
    simt::wgmma_wait<1>();
    if (i > 0 && simt::lane() == 0) simt::mbar_arrive(&memory.empty[(i - 1) % Shared::kSlots]);
  }
  // The slots of the last stage are not filled again.
  simt::wgmma_finish(sums);
}

template <uint32_t kGroup, RowsOfX kRows = RowsOfX::kPlain, typename Tail>
BATON_DEVICE void MultiplyNarrow(const NarrowLaunch<Tail>& launch) {
  using Shared = NarrowShared<kGroup>;
  auto& memory = simt::shared<Shared>();
  const bool multiplies = simt::thread() < kRowsThreads;
  if (simt::thread() == 0) {
    for (uint32_t slot = 0; slot < Shared::kSlots; ++slot) {
      simt::mbar_init(&memory.full[slot], kRows == RowsOfX::kNormed ? 2 : 1);
      simt::mbar_init(&memory.empty[slot], kRowsThreads / simt::kWarpSize);
    }
    simt::mbar_fence_init();
  }
  simt::sync_block();
  const StageRange range = StagesOfCta(launch.call.product);
  RowsSums<kGroup> sums;
  Clear(sums);
  if constexpr (kRows == RowsOfX::kNormed) {
    if (simt::thread() == kRowsThreads) CopyFirstWeights<kGroup>(launch, range, memory);
    simt::wait_for_previous();
    ScaleRows<kGroup>(launch.call.product.params, launch.norm, memory.scales);
    simt::sync_block();
    if (multiplies) {
      MultiplyStages<kGroup>(range.end - range.begin, memory, sums);
    } else {
      FillNormed<kGroup>(launch, range, memory);
    }
  } else if (multiplies) {
    simt::wait_for_previous();
    MultiplyStages<kGroup>(range.end - range.begin, memory, sums);
  } else if (simt::thread() == kRowsThreads) {
    CopyStages<kGroup>(launch, range, memory);
  } else {
    simt::wait_for_previous();
  }
  // The products' registers stay theirs: what is added to is a copy.
  RowsSums<kGroup> totals;
  BATON_UNROLL
  for (uint32_t j = 0; j < kGroup / 8; ++j) totals[j] = sums[j];
  FinishTile<kGroup>(launch.call.product, launch.call.tail, {&memory.is_last, &memory.w[0][0][0]},
                     totals);
}

using PlainLaunch = NarrowLaunch<StoreTail>;
using NarrowGates = NarrowLaunch<GateTail>;
using NarrowRope = NarrowLaunch<RopeTail>;
using NarrowSum = NarrowLaunch<SumTail>;

BATON_KERNEL(kNarrowThreads) GemmNarrow8Kernel(BATON_MAP_PARAM PlainLaunch launch) {
  MultiplyNarrow<8>(launch);
}
BATON_KERNEL(kNarrowThreads) GemmNarrow32Kernel(BATON_MAP_PARAM PlainLaunch launch) {
  MultiplyNarrow<32>(launch);
}
BATON_KERNEL(kNarrowThreads) GemmNarrow64Kernel(BATON_MAP_PARAM PlainLaunch launch) {
  MultiplyNarrow<64>(launch);
}
BATON_KERNEL(kNarrowThreads) GatedNarrow8Kernel(BATON_MAP_PARAM NarrowGates launch) {
  MultiplyNarrow<8>(launch);
}
BATON_KERNEL(kNarrowThreads) GatedNarrow32Kernel(BATON_MAP_PARAM NarrowGates launch) {
  MultiplyNarrow<32>(launch);
}
BATON_KERNEL(kNarrowThreads) RopedNarrow8Kernel(BATON_MAP_PARAM NarrowRope launch) {
  MultiplyNarrow<8>(launch);
}
BATON_KERNEL(kNarrowThreads) RopedNarrow32Kernel(BATON_MAP_PARAM NarrowRope launch) {
  MultiplyNarrow<32>(launch);
}
BATON_KERNEL(kNarrowThreads) SumNarrow8Kernel(BATON_MAP_PARAM NarrowSum launch) {
  MultiplyNarrow<8>(launch);
}
BATON_KERNEL(kNarrowThreads) NormGatedNarrow8Kernel(BATON_MAP_PARAM NarrowGates launch) {
  MultiplyNarrow<8, RowsOfX::kNormed>(launch);
}
BATON_KERNEL(kNarrowThreads) NormRopedNarrow8Kernel(BATON_MAP_PARAM NarrowRope launch) {
  MultiplyNarrow<8, RowsOfX::kNormed>(launch);
}

template <uint32_t kGroup, typename Tail>
absl::Status Launch(const char* name, const TailLaunch<Tail>& call,
                    void (*kernel)(NarrowLaunch<Tail>), void* stream, const NormedRows& norm = {}) {
  if (!simt::has_wgmma()) {
    return absl::FailedPreconditionError(std::string(name) + ": the device has no wgmma");
  }
  const GemmParams& params = call.product.params;
  NarrowLaunch<Tail> launch;
  launch.call = call;
  launch.norm = norm;
  const simt::TensorShape x = {params.x, params.m, params.k, kGroup};
  const simt::TensorShape w = {params.w, params.n, params.k, kGemmRowTile / Tail::kRuns};
  if (absl::Status status = simt::make_tensor_map(x, &launch.x); !status.ok()) return status;
  if (absl::Status status = simt::make_tensor_map(w, &launch.w); !status.ok()) return status;
  simt::LaunchConfig config =
      RowsConfig<kGroup>(name, call.product, sizeof(NarrowShared<kGroup>), stream);
  config.num_threads = kNarrowThreads;
  return simt::launch(config, kernel, launch);
}

}  // namespace

const KernelInfo kGemmNarrowInfos[3] = {
    {"GemmNarrow8Kernel", kNarrowThreads, sizeof(NarrowShared<8>)},
    {"GemmNarrow32Kernel", kNarrowThreads, sizeof(NarrowShared<32>)},
    {"GemmNarrow64Kernel", kNarrowThreads, sizeof(NarrowShared<64>)}};
const KernelInfo kGatedNarrowInfos[2] = {
    {"GatedNarrow8Kernel", kNarrowThreads, sizeof(NarrowShared<8>)},
    {"GatedNarrow32Kernel", kNarrowThreads, sizeof(NarrowShared<32>)}};
const KernelInfo kRopedNarrowInfos[2] = {
    {"RopedNarrow8Kernel", kNarrowThreads, sizeof(NarrowShared<8>)},
    {"RopedNarrow32Kernel", kNarrowThreads, sizeof(NarrowShared<32>)}};
const KernelInfo kNormedNarrowInfos[3] = {
    {"SumNarrow8Kernel", kNarrowThreads, sizeof(NarrowShared<8>)},
    {"NormGatedNarrow8Kernel", kNarrowThreads, sizeof(NarrowShared<8>)},
    {"NormRopedNarrow8Kernel", kNarrowThreads, sizeof(NarrowShared<8>)}};

absl::Status LaunchGemmNarrow(const GemmLaunch& launch, void* stream) {
  const char* const name = "GemmNarrow";
  const TailLaunch<StoreTail> call = {launch, {}};
  if (launch.params.m <= kFewest) return Launch<kFewest>(name, call, GemmNarrow8Kernel, stream);
  if (launch.params.m <= kFew) return Launch<kFew>(name, call, GemmNarrow32Kernel, stream);
  return Launch<kGemmMaxSpreadRows>(name, call, GemmNarrow64Kernel, stream);
}

absl::Status LaunchSumNarrow(const SumLaunch& launch, void* stream) {
  return Launch<kFewest>("SumNarrow", launch, SumNarrow8Kernel, stream);
}

absl::Status LaunchGatedNarrow(const GatedLaunch& launch, const NormedRows& norm, void* stream) {
  const char* const name = "GatedNarrow";
  if (norm.weight != nullptr) {
    return Launch<kFewest>(name, launch, NormGatedNarrow8Kernel, stream, norm);
  }
  return launch.product.params.m <= kFewest
             ? Launch<kFewest>(name, launch, GatedNarrow8Kernel, stream)
             : Launch<kFew>(name, launch, GatedNarrow32Kernel, stream);
}

absl::Status LaunchRopedNarrow(const RopedLaunch& launch, const NormedRows& norm, void* stream) {
  const char* const name = "RopedNarrow";
  if (norm.weight != nullptr) {
    return Launch<kFewest>(name, launch, NormRopedNarrow8Kernel, stream, norm);
  }
  return launch.product.params.m <= kFewest
             ? Launch<kFewest>(name, launch, RopedNarrow8Kernel, stream)
             : Launch<kFew>(name, launch, RopedNarrow32Kernel, stream);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
