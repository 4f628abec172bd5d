// AttentionPrefill on Hopper: the walk, the rules and so the bits of attention_prefill.cu, but the
// four warps are one warpgroup, and wgmma multiplies.
//
// Work: as there. Scores are eight products at 128 dims, m64 n64 k16, of q and K in shared memory.
// The sums are four, m64 n128 k16, of the weights in registers and V, whose rows lie along K: no
// lane loads an operand. In bf16 up to 128 dims, the scores of the next tile are multiplied while
// this one's are weighed. So K runs a tile ahead of V in a ring of four. Bytes and flops: as there.
//
// Limits, a tile of 64 keys at 128 dims and a cta:
//   - The tensor cores: 512 cycles.
//   - Shared memory, 128 bytes a cycle: 32 KiB of q and K, 16 of V, and 32 that are copied, 640
//     cycles.
//   - About 1070 instructions of each warp (cuobjdump): 560 for weights, 110 for scale and rescaled
//     sums, 200 for copies, 90 for folds, 110 for products and waits. These bind.
// Two ctas share an SM up to 128 dims. At 256 there is one, and these three take turns. Fp8 takes
// 520 instructions more, to widen units. Reached on an H100 at commit 1ef4488: 2048 tokens, 32
// heads on 8 of 128 dims, 150 us or 228 TFLOP/s; 83 us at full issue slots [calc]. Before the walk
// looked ahead, copied by TileSource and weighed by WeighMasked, it took 298 [not kept].
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_walk.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

// See attention_walk.h; tiles are aligned.
template <KvElement kElement, uint32_t kDim>
struct WgmmaShared : WalkTraits<kElement, kDim, SharedRows::kTiles> {
  alignas(simt::kTileAlignment) Vec16 q[kPrefillPairs][kDim / kVec];
  StoredKeys<kElement, kDim, kTileKeys> ring[kSlots<kElement, kDim, SharedRows::kTiles>];
  FourSums totals[kDim / 8][kPrefillThreads];
};
template <uint32_t kDim>
struct WgmmaShared<KvElement::kFp8, kDim> : WalkTraits<KvElement::kFp8, kDim, SharedRows::kTiles> {
  alignas(simt::kTileAlignment) Vec16 q[kPrefillPairs][kDim / kVec];
  Vec16 wide[2][kTileKeys][kDim / kVec];
  StoredKeys<KvElement::kFp8, kDim, kTileKeys>
      ring[kSlots<KvElement::kFp8, kDim, SharedRows::kTiles>];
  FourSums totals[kDim / 8][kPrefillThreads];
};
static_assert(sizeof(WgmmaShared<KvElement::kBf16, 128>) < 113 * 1024 &&
                  sizeof(WgmmaShared<KvElement::kFp8, 128>) < 113 * 1024,
              "two ctas of an SM's 227 KiB");
static_assert(sizeof(WgmmaShared<KvElement::kFp8, 256>) < 227 * 1024);

BATON_KERNEL(kPrefillThreads) AttentionWgmma64Kernel(AttentionParams params) {
  AttendItems<WgmmaShared<KvElement::kBf16, 64>>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionWgmma128Kernel(AttentionParams params) {
  AttendItems<WgmmaShared<KvElement::kBf16, 128>>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionWgmma256Kernel(AttentionParams params) {
  AttendItems<WgmmaShared<KvElement::kBf16, 256>>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionWgmma64Fp8Kernel(AttentionParams params) {
  AttendItems<WgmmaShared<KvElement::kFp8, 64>>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionWgmma128Fp8Kernel(AttentionParams params) {
  AttendItems<WgmmaShared<KvElement::kFp8, 128>>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionWgmma256Fp8Kernel(AttentionParams params) {
  AttendItems<WgmmaShared<KvElement::kFp8, 256>>(params);
}

using Kernel = void (*)(AttentionParams);
constexpr Kernel kKernels[6] = {AttentionWgmma64Kernel,     AttentionWgmma128Kernel,
                                AttentionWgmma256Kernel,    AttentionWgmma64Fp8Kernel,
                                AttentionWgmma128Fp8Kernel, AttentionWgmma256Fp8Kernel};

}  // namespace

const KernelInfo kAttentionWgmmaInfos[6] = {
    {"AttentionWgmma64Kernel", kPrefillThreads, sizeof(WgmmaShared<KvElement::kBf16, 64>)},
    {"AttentionWgmma128Kernel", kPrefillThreads, sizeof(WgmmaShared<KvElement::kBf16, 128>)},
    {"AttentionWgmma256Kernel", kPrefillThreads, sizeof(WgmmaShared<KvElement::kBf16, 256>)},
    {"AttentionWgmma64Fp8Kernel", kPrefillThreads, sizeof(WgmmaShared<KvElement::kFp8, 64>)},
    {"AttentionWgmma128Fp8Kernel", kPrefillThreads, sizeof(WgmmaShared<KvElement::kFp8, 128>)},
    {"AttentionWgmma256Fp8Kernel", kPrefillThreads, sizeof(WgmmaShared<KvElement::kFp8, 256>)}};

absl::Status LaunchAttentionWgmma(const AttentionParams& params, void* stream) {
  if (!simt::has_wgmma()) {
    return absl::FailedPreconditionError("AttentionPrefill: the device has no wgmma");
  }
  const uint32_t index = KernelIndex(params.kv);
  return simt::launch({.name = "AttentionWgmma",
                       .grid = {params.num_ctas, 1, 1},
                       .num_threads = kPrefillThreads,
                       .shared_bytes = kAttentionWgmmaInfos[index].shared_bytes,
                       .overlaps = true,
                       .stream = stream},
                      kKernels[index], params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
