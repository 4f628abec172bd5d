// Attention of many rows of a sequence over its keys in blocks: 64 (token, head) pairs a cta.
//
// Work: a cta of four warps takes one item at a time, pairs of one kv head, and walks all tiles of
// 64 keys that they see. A warp has sixteen pairs, and all four multiply with the same K and V.
// Each tile is two units of the ring, K then V, copied two units ahead. The split's sums are in
// registers (head_dim / 2). The folded totals are in shared memory, where each thread touches its
// own. (In registers as well they would be 256 at head_dim 256.) Bytes: 4 head_dim a key and item
// through L2, from memory each K and V about once; 4 head_dim a pair. Flops: 4 head_dim a pair and
// key. Limit: the tensor cores, as far as mma.sync feeds them. Scale, mask and Exp2 are about 60
// instructions for each 16 products at head_dim 128. Reached: kernels/NOTES.md.
// Fp8: units are half as large and are copied three ahead. After the barrier of a unit the cta
// turns the next one into one of two buffers of bf16, beside the products of the unit itself.
// Bytes: 2 head_dim + 4 a key and item. Instructions: 2.25 for each element of K and V and item. A
// warp has a quarter of them: 290 beside its 128 products of a tile at head_dim 128.
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_walk.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

// See attention_walk.h.
template <KvElement kElement, uint32_t kDim>
struct PrefillShared : WalkTraits<kElement, kDim, SharedRows::kWhole> {
  Vec16 q[kPrefillPairs][kDim / kVec];
  StoredKeys<kElement, kDim, kTileKeys> ring[kSlots<kElement, kDim, SharedRows::kWhole>];
  FourSums totals[kDim / 8][kPrefillThreads];
};
template <uint32_t kDim>
struct PrefillShared<KvElement::kFp8, kDim>
    : WalkTraits<KvElement::kFp8, kDim, SharedRows::kWhole> {
  Vec16 q[kPrefillPairs][kDim / kVec];
  StoredKeys<KvElement::kFp8, kDim, kTileKeys>
      ring[kSlots<KvElement::kFp8, kDim, SharedRows::kWhole>];
  Vec16 wide[2][kTileKeys][kDim / kVec];
  FourSums totals[kDim / 8][kPrefillThreads];
};
static_assert(sizeof(PrefillShared<KvElement::kBf16, 128>) == 96 * 1024,
              "two ctas of an SM's 227 KiB");
static_assert(sizeof(PrefillShared<KvElement::kFp8, 128>) < 113 * 1024,
              "two ctas of an SM's 227 KiB");
static_assert(sizeof(PrefillShared<KvElement::kBf16, 256>) == 192 * 1024);
static_assert(sizeof(PrefillShared<KvElement::kFp8, 256>) < 227 * 1024);

BATON_KERNEL(kPrefillThreads) AttentionPrefill64Kernel(AttentionParams params) {
  AttendItems<PrefillShared<KvElement::kBf16, 64>>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionPrefill128Kernel(AttentionParams params) {
  AttendItems<PrefillShared<KvElement::kBf16, 128>>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionPrefill256Kernel(AttentionParams params) {
  AttendItems<PrefillShared<KvElement::kBf16, 256>>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionPrefill64Fp8Kernel(AttentionParams params) {
  AttendItems<PrefillShared<KvElement::kFp8, 64>>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionPrefill128Fp8Kernel(AttentionParams params) {
  AttendItems<PrefillShared<KvElement::kFp8, 128>>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionPrefill256Fp8Kernel(AttentionParams params) {
  AttendItems<PrefillShared<KvElement::kFp8, 256>>(params);
}

using Kernel = void (*)(AttentionParams);
constexpr Kernel kKernels[6] = {AttentionPrefill64Kernel,     AttentionPrefill128Kernel,
                                AttentionPrefill256Kernel,    AttentionPrefill64Fp8Kernel,
                                AttentionPrefill128Fp8Kernel, AttentionPrefill256Fp8Kernel};

}  // namespace

const KernelInfo kAttentionPrefillInfos[6] = {
    {"AttentionPrefill64Kernel", kPrefillThreads, sizeof(PrefillShared<KvElement::kBf16, 64>)},
    {"AttentionPrefill128Kernel", kPrefillThreads, sizeof(PrefillShared<KvElement::kBf16, 128>)},
    {"AttentionPrefill256Kernel", kPrefillThreads, sizeof(PrefillShared<KvElement::kBf16, 256>)},
    {"AttentionPrefill64Fp8Kernel", kPrefillThreads, sizeof(PrefillShared<KvElement::kFp8, 64>)},
    {"AttentionPrefill128Fp8Kernel", kPrefillThreads, sizeof(PrefillShared<KvElement::kFp8, 128>)},
    {"AttentionPrefill256Fp8Kernel", kPrefillThreads, sizeof(PrefillShared<KvElement::kFp8, 256>)}};

bool HasPrefill(uint32_t head_dim, KvElement element) {
  KvBlocks kv = {};
  kv.head_dim = head_dim;
  kv.element = element;
  const uint32_t index = KernelIndex(kv);
  return kAttentionPrefillInfos[index].shared_bytes <= simt::max_shared_bytes();
}

absl::Status AttentionPrefill(const AttentionParams& params, void* stream) {
  if (absl::Status status = CheckAttention("AttentionPrefill", params); !status.ok()) return status;
  if (params.by_wgmma) return LaunchAttentionWgmma(params, stream);
  const uint32_t index = KernelIndex(params.kv);
  return simt::launch({.name = "AttentionPrefill",
                       .grid = {params.num_ctas, 1, 1},
                       .num_threads = kPrefillThreads,
                       .shared_bytes = kAttentionPrefillInfos[index].shared_bytes,
                       .overlaps = true,
                       .stream = stream},
                      kKernels[index], params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
