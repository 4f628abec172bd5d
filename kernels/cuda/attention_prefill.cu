// Attention of many rows of a sequence over its keys in blocks: 64 (token, head) pairs a cta.
//
// Work: a cta of four warps takes one item at a time, pairs of one kv head, and walks all tiles of
// 64 keys that they see; a warp has sixteen pairs, and all four multiply with the same K and V.
// Each tile is two units of the ring, K then V, copied two units ahead. The split's sums are in
// registers (head_dim / 2), the folded totals in shared memory, where each thread touches its own
// (in registers as well they would be 256 at head_dim 256). Bytes: 4 head_dim a key and item
// through L2, from memory each K and V about once; 4 head_dim a pair. Flops: 4 head_dim a pair and
// key. Limit: the tensor cores, as far as mma.sync feeds them; scale, mask and Exp2 are about 60
// instructions for each 16 products at head_dim 128. Reached: not yet measured on a GPU.
// Fp8: units are half as large and are copied three ahead; behind the barrier of a unit the cta
// turns the next one into one of two buffers of bf16, beside the products of the unit itself.
// Bytes: 2 head_dim + 4 a key and item. Instructions: 2.25 for each element of K and V and item, a
// quarter of them a warp's: 290 beside its 128 products of a tile at head_dim 128.
#include "kernels/cuda/attention_fp8.h"
#include "kernels/cuda/attention_items.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/simt/device.h"

namespace baton::cuda {
inline namespace BATON_BODY {
namespace {

constexpr uint32_t kPrefillThreads = 128;
constexpr uint32_t kPrefillPairs = 64;
constexpr uint32_t kSlots = 3;
static_assert(kPrefillThreads / simt::kWarpSize * kWarpPairs == kPrefillPairs);

// q [pair][chunk]; K and V units [slot]; totals [n8 of head_dim, value][thread].
template <KvElement kElement, uint32_t kDim>
struct PrefillShared {
  Vec16 q[kPrefillPairs][kDim / kVec];
  StoredKeys<kElement, kDim, kTileKeys> ring[kSlots];
  float totals[kDim / 2][kPrefillThreads];
};
// Units as bf16 besides: [unit % 2][key][chunk].
template <uint32_t kDim>
struct PrefillShared<KvElement::kFp8, kDim> {
  Vec16 q[kPrefillPairs][kDim / kVec];
  StoredKeys<KvElement::kFp8, kDim, kTileKeys> ring[kSlots];
  Vec16 wide[2][kTileKeys][kDim / kVec];
  float totals[kDim / 2][kPrefillThreads];
};
static_assert(sizeof(PrefillShared<KvElement::kBf16, 128>) == 96 * 1024,
              "two ctas of an SM's 227 KiB");
static_assert(sizeof(PrefillShared<KvElement::kFp8, 128>) < 113 * 1024,
              "two ctas of an SM's 227 KiB");
static_assert(sizeof(PrefillShared<KvElement::kBf16, 256>) == 192 * 1024);
static_assert(sizeof(PrefillShared<KvElement::kFp8, 256>) < 227 * 1024);

// Tiles [first, end) of an item, at absolute positions.
struct Tiles {
  uint32_t first;
  uint32_t end;
};

// Units under way when the first one is waited for.
template <KvElement kElement>
inline constexpr uint32_t kUnitsAhead = kElement == KvElement::kFp8 ? kSlots : kSlots - 1;

// Copies a unit into its slot, if there is one: unit 2i is K of tile first + i, 2i + 1 its V.
// Always ends a group.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void CopyUnit(const KeySource& source, const Tiles& tiles, uint32_t unit,
                           PrefillShared<kElement, kDim>& memory) {
  const uint32_t tile = tiles.first + unit / 2;
  if (simt::guard(tile < tiles.end)) {
    CopyKeys<kElement, kDim, kTileKeys, kPrefillThreads>(source, tile * kTileKeys, unit % 2 == 1,
                                                         memory.ring[unit % kSlots]);
  }
  simt::cp_async_commit();
}

// Turns a unit of fp8 into bf16, if there is one.
template <uint32_t kDim>
BATON_DEVICE void WidenUnit(const KeySource& source, const Tiles& tiles, uint32_t unit,
                            PrefillShared<KvElement::kFp8, kDim>& memory) {
  const uint32_t tile = tiles.first + unit / 2;
  if (tile >= tiles.end) return;
  WidenKeys<kDim, kTileKeys, kPrefillThreads>(
      memory.ring[unit % kSlots], {source.seen, tile * kTileKeys}, memory.wide[unit % 2]);
}

// Starts the walk: the first copies, which may be of q's group.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void BeginUnits(const KeySource& source, const Tiles& tiles,
                             PrefillShared<kElement, kDim>& memory) {
  BATON_UNROLL
  for (uint32_t unit = 0; unit < kUnitsAhead<kElement>; ++unit) {
    CopyUnit(source, tiles, unit, memory);
  }
  if constexpr (kElement == KvElement::kFp8) {
    simt::cp_async_wait<kSlots - 1>();
    simt::sync_block();
    WidenUnit(source, tiles, 0, memory);
  }
}

// Waits for a unit of the walk, has later ones under way, and says where its rows of bf16 lie.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE const Vec16 (*NextUnit(const KeySource& source, const Tiles& tiles, uint32_t unit,
                                    PrefillShared<kElement, kDim>& memory))[kDim / kVec] {
  // The own copies have landed: of this unit, of fp8 of the next one. Behind the barrier everyone's
  // have; everyone has read the unit before, whose slot (of fp8: whose bf16) is filled next, and of
  // fp8 has turned this one into bf16, so that its slot is free.
  simt::cp_async_wait<kSlots - 2>();
  simt::sync_block();
  CopyUnit(source, tiles, unit + kUnitsAhead<kElement>, memory);
  if constexpr (kElement == KvElement::kFp8) {
    WidenUnit(source, tiles, unit + 1, memory);
    return memory.wide[unit % 2];
  } else {
    return memory.ring[unit % kSlots].rows;
  }
}

// Folds the split into the thread's totals and starts the next one.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void FoldSplit(SplitState<kDim>& split, RowTotal (&rows)[2],
                            PrefillShared<kElement, kDim>& memory) {
  End(split);
  const Fold folds[2] = {FoldRow({split.largest[0], split.weight[0]}, rows[0]),
                         FoldRow({split.largest[1], split.weight[1]}, rows[1])};
  BATON_UNROLL
  for (uint32_t n = 0; n < kDim / 8; ++n) {
    BATON_UNROLL
    for (uint32_t v = 0; v < 4; ++v) {
      float& total = memory.totals[4 * n + v][simt::thread()];
      total = folds[v / 2].Join(total, split.sums[n].values[v]);
    }
  }
  Begin(split);
}

template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void StoreTotals(const AttentionParams& params, const AttentionItem& item,
                              const RowTotal (&rows)[2],
                              const PrefillShared<kElement, kDim>& memory) {
  BATON_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t pair = simt::warp() * kWarpPairs + simt::lane() / 4 + 8 * half;
    if (!simt::guard(pair < item.num_pairs)) continue;
    Bf16* const out = params.out + PairOffset(params, item, pair);
    const float scale = 1.0f / rows[half].weight;
    BATON_UNROLL
    for (uint32_t n = 0; n < kDim / 8; ++n) {
      StorePair(out, 8 * n + simt::lane() % 4 * 2,
                memory.totals[4 * n + 2 * half][simt::thread()] * scale,
                memory.totals[4 * n + 2 * half + 1][simt::thread()] * scale);
    }
  }
}

template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void AttendItem(const AttentionParams& params, const AttentionItem& item,
                             PrefillShared<kElement, kDim>& memory) {
  const KeyRange seen = KeysOfPairs(params, item, 0, kPrefillPairs);
  const KeySource source = SourceOf(params, item, seen);
  const Tiles tiles = {seen.begin / kTileKeys, (seen.end + kTileKeys - 1) / kTileKeys};
  CopyPairs<kDim, kPrefillPairs, kPrefillThreads>(params, item, memory.q);  // of the first group
  BeginUnits(source, tiles, memory);
  const PairRows rows = RowsOfWarp(params, item, simt::warp() * kWarpPairs);
  RowTotal totals[2] = {{kNothing, 0.0f}, {kNothing, 0.0f}};
  SplitState<kDim> split;
  Begin(split);
  uint32_t unit = 0;
  for (uint32_t tile = tiles.first; tile < tiles.end; ++tile) {
    // The same number, and the compiler sees which units are K: fewer addresses in registers. At
    // 128 dims it then aims at three ctas an SM, for which there is no shared memory, and spills.
    if (kElement == KvElement::kFp8 && kDim != 128) unit = 2 * (tile - tiles.first);
    const bool is_seen = rows.any.Meets(tile * kTileKeys, kTileKeys);
    FragmentA weights[kTileKeys / 16];
    const Vec16(*keys)[kDim / kVec] = NextUnit(source, tiles, unit, memory);
    if (is_seen) {
      FragmentC scores[kTileKeys / 8];
      BATON_UNROLL
      for (FragmentC& c : scores) c = {{0.0f, 0.0f, 0.0f, 0.0f}};
      MultiplyKeys<kDim, kTileKeys>(memory.q + simt::warp() * kWarpPairs, keys, scores);
      WeighTile({tile * kTileKeys, ScoreScale(params)}, rows, scores, split, weights);
    }
    ++unit;
    const Vec16(*values)[kDim / kVec] = NextUnit(source, tiles, unit, memory);
    if (is_seen) AddValues<kDim, kTileKeys>(weights, values, split);
    ++unit;
    if (tile % kSplitTiles == kSplitTiles - 1 || tile + 1 == tiles.end) {
      FoldSplit(split, totals, memory);
    }
  }
  StoreTotals(params, item, totals, memory);
}

template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void AttendItems(const AttentionParams& params) {
  auto& memory = simt::shared<PrefillShared<kElement, kDim>>();
  simt::wait_for_previous();
  const uint32_t num_items = *params.num_items;
  for (uint32_t i = simt::block().x; i < num_items; i += simt::grid().x) {
    const AttentionItem item = params.items[i];
    AttendItem(params, item, memory);
    // Everyone has read the last units, whose slots the next item fills. Fp8 could do without (its
    // slots were read before the last unit's barrier), but 256 dims on sm_90, and 64 on
    // sm_80, then take a register too many.
    simt::sync_block();  // between items
  }
}

BATON_KERNEL(kPrefillThreads) AttentionPrefill64Kernel(AttentionParams params) {
  AttendItems<KvElement::kBf16, 64>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionPrefill128Kernel(AttentionParams params) {
  AttendItems<KvElement::kBf16, 128>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionPrefill256Kernel(AttentionParams params) {
  AttendItems<KvElement::kBf16, 256>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionPrefill64Fp8Kernel(AttentionParams params) {
  AttendItems<KvElement::kFp8, 64>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionPrefill128Fp8Kernel(AttentionParams params) {
  AttendItems<KvElement::kFp8, 128>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionPrefill256Fp8Kernel(AttentionParams params) {
  AttendItems<KvElement::kFp8, 256>(params);
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

absl::Status AttentionPrefill(const AttentionParams& params, void* stream) {
  if (absl::Status status = CheckAttention("AttentionPrefill", params); !status.ok()) return status;
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
}  // namespace baton::cuda
