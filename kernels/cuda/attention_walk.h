// The walk of a prefill cta over the keys of its items, by mma.sync or by wgmma: 64 (token, head)
// pairs of one kv head against tiles of 64 keys, each of which is two units of a ring in shared
// memory, K then V. Included by both kernels, whose shared memory says how rows lie and so which
// instructions multiply:
//   struct Memory : WalkTraits<...> { q [pair][chunk]; ring [slot] of StoredKeys; of fp8 wide
//   [unit % 2][key][chunk], units as bf16; totals [n8 of head_dim, value][thread] }
#ifndef BATON_KERNELS_CUDA_ATTENTION_WALK_H_
#define BATON_KERNELS_CUDA_ATTENTION_WALK_H_

#include <cstdint>

#include "kernels/cuda/attention_fp8.h"
#include "kernels/cuda/attention_items.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/attention_tile_wgmma.h"
#include "kernels/simt/device.h"

namespace baton::cuda {
inline namespace BATON_BODY {

inline constexpr uint32_t kPrefillThreads = 128;
inline constexpr uint32_t kPrefillPairs = 64;
inline constexpr uint32_t kSlots = 3;
static_assert(kPrefillThreads / simt::kWarpSize * kWarpPairs == kPrefillPairs);

// See the file comment.
template <KvElement kType, uint32_t kSize, SharedRows kAs>
struct WalkTraits {
  static constexpr KvElement kElement = kType;
  static constexpr uint32_t kDim = kSize;
  static constexpr SharedRows kRows = kAs;
};

// Units under way when the first one is waited for.
template <KvElement kElement>
inline constexpr uint32_t kUnitsAhead = kElement == KvElement::kFp8 ? kSlots : kSlots - 1;

// Copies a unit into its slot, if there is one: unit 2i is K of tile first + i, 2i + 1 its V.
// Always ends a group.
template <typename Memory>
BATON_DEVICE void CopyUnit(const KeySource& source, const Tiles& tiles, uint32_t unit,
                           Memory& memory) {
  const uint32_t tile = tiles.first + unit / 2;
  if (simt::guard(tile < tiles.end)) {
    CopyKeys<Memory::kElement, Memory::kDim, kTileKeys, kPrefillThreads, Memory::kRows>(
        source, tile * kTileKeys, unit % 2 == 1, memory.ring[unit % kSlots]);
  }
  simt::cp_async_commit();
}

// Turns a unit of fp8 into bf16, if there is one.
template <typename Memory>
BATON_DEVICE void WidenUnit(const KeySource& source, const Tiles& tiles, uint32_t unit,
                            Memory& memory) {
  const uint32_t tile = tiles.first + unit / 2;
  if (tile >= tiles.end) return;
  WidenKeys<Memory::kDim, kTileKeys, kPrefillThreads, Memory::kRows>(
      memory.ring[unit % kSlots], {source.seen, tile * kTileKeys}, memory.wide[unit % 2]);
}

// Starts the walk: the first copies, which may be of q's group.
template <typename Memory>
BATON_DEVICE void BeginUnits(const KeySource& source, const Tiles& tiles, Memory& memory) {
  BATON_UNROLL
  for (uint32_t unit = 0; unit < kUnitsAhead<Memory::kElement>; ++unit) {
    CopyUnit(source, tiles, unit, memory);
  }
  if constexpr (Memory::kElement == KvElement::kFp8) {
    simt::cp_async_wait<kSlots - 1>();
    simt::sync_block();
    WidenUnit(source, tiles, 0, memory);
  }
}

template <typename Memory>
using UnitRows = const Vec16 (*)[Memory::kDim / kVec];

// Waits for a unit of the walk, has later ones under way, and says where its rows of bf16 lie.
template <typename Memory>
BATON_DEVICE UnitRows<Memory> NextUnit(const KeySource& source, const Tiles& tiles, uint32_t unit,
                                       Memory& memory) {
  // The own copies have landed: of this unit, of fp8 of the next one. Behind the barrier everyone's
  // have; everyone has read the unit before, whose slot (of fp8: whose bf16) is filled next, and of
  // fp8 has turned this one into bf16, so that its slot is free.
  simt::cp_async_wait<kSlots - 2>();
  if constexpr (Memory::kRows == SharedRows::kTiles) simt::fence_proxy_async();
  simt::sync_block();
  CopyUnit(source, tiles, unit + kUnitsAhead<Memory::kElement>, memory);
  if constexpr (Memory::kElement == KvElement::kFp8) {
    WidenUnit(source, tiles, unit + 1, memory);
    return memory.wide[unit % 2];
  } else {
    return memory.ring[unit % kSlots].rows;
  }
}

// Folds the split into the thread's totals and starts the next one.
template <typename Memory>
BATON_DEVICE void FoldSplit(SplitState<Memory::kDim>& split, RowTotal (&rows)[2], Memory& memory) {
  End(split);
  const Fold folds[2] = {FoldRow({split.largest[0], split.weight[0]}, rows[0]),
                         FoldRow({split.largest[1], split.weight[1]}, rows[1])};
  BATON_UNROLL
  for (uint32_t n = 0; n < Memory::kDim / 8; ++n) {
    BATON_UNROLL
    for (uint32_t v = 0; v < 4; ++v) {
      float& total = memory.totals[4 * n + v][simt::thread()];
      total = folds[v / 2].Join(total, split.sums[n].values[v]);
    }
  }
  Begin(split);
}

template <typename Memory>
BATON_DEVICE void StoreTotals(const AttentionParams& params, const AttentionItem& item,
                              const RowTotal (&rows)[2], const Memory& memory) {
  BATON_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t pair = simt::warp() * kWarpPairs + simt::lane() / 4 + 8 * half;
    if (!simt::guard(pair < item.num_pairs)) continue;
    Bf16* const out = params.out + PairOffset(params, item, pair);
    const float scale = 1.0f / rows[half].weight;
    BATON_UNROLL
    for (uint32_t n = 0; n < Memory::kDim / 8; ++n) {
      StorePair(out, 8 * n + simt::lane() % 4 * 2,
                memory.totals[4 * n + 2 * half][simt::thread()] * scale,
                memory.totals[4 * n + 2 * half + 1][simt::thread()] * scale);
    }
  }
}

template <typename Memory>
BATON_DEVICE void AttendItem(const AttentionParams& params, const AttentionItem& item,
                             Memory& memory) {
  constexpr uint32_t kDim = Memory::kDim;
  constexpr bool kIsTogether = Memory::kRows == SharedRows::kTiles;  // all warps multiply, or none
  const KeyRange seen = KeysOfPairs(params, item, 0, kPrefillPairs);
  const KeySource source = SourceOf(params, item, seen);
  const Tiles tiles = {seen.begin / kTileKeys, (seen.end + kTileKeys - 1) / kTileKeys};
  // Of the first group.
  CopyPairs<kDim, kPrefillPairs, kPrefillThreads, Memory::kRows>(params, item, memory.q);
  BeginUnits(source, tiles, memory);
  const PairRows rows = RowsOfWarp(params, item, simt::warp() * kWarpPairs);
  RowTotal totals[2] = {{kNothing, 0.0f}, {kNothing, 0.0f}};
  SplitState<kDim> split;
  Begin(split);
  uint32_t unit = 0;
  for (uint32_t tile = tiles.first; tile < tiles.end; ++tile) {
    // The same number, and the compiler sees which units are K: fewer addresses in registers. At
    // 128 dims it then aims at three ctas an SM, for which there is no shared memory, and spills.
    if (Memory::kElement == KvElement::kFp8 && kDim != 128) unit = 2 * (tile - tiles.first);
    const bool is_seen = kIsTogether || rows.any.Meets(tile * kTileKeys, kTileKeys);
    FragmentA weights[kTileKeys / 16];
    const UnitRows<Memory> keys = NextUnit(source, tiles, unit, memory);
    if (is_seen) {
      FragmentC scores[kTileKeys / 8];
      if constexpr (kIsTogether) {
        MultiplyKeyTiles<kDim>(memory.q, keys, scores);
      } else {
        BATON_UNROLL
        for (FragmentC& c : scores) c = {{0.0f, 0.0f, 0.0f, 0.0f}};
        MultiplyKeys<kDim, kTileKeys>(memory.q + simt::warp() * kWarpPairs, keys, scores);
      }
      WeighTile({tile * kTileKeys, ScoreScale(params)}, rows, scores, split, weights);
    }
    ++unit;
    const UnitRows<Memory> values = NextUnit(source, tiles, unit, memory);
    if constexpr (kIsTogether) {
      AddValueTiles<kDim>(weights, values, split);
    } else {
      if (is_seen) AddValues<kDim, kTileKeys>(weights, values, split);
    }
    ++unit;
    if (tile % kSplitTiles == kSplitTiles - 1 || tile + 1 == tiles.end) {
      FoldSplit(split, totals, memory);
    }
  }
  StoreTotals(params, item, totals, memory);
}

template <typename Memory>
BATON_DEVICE void AttendItems(const AttentionParams& params) {
  auto& memory = simt::shared<Memory>();
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

// attention_wgmma.cu: of params that CheckAttention took. FailedPrecondition without wgmma.
absl::Status LaunchAttentionWgmma(const AttentionParams& params, void* stream);

}  // namespace BATON_BODY
}  // namespace baton::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_WALK_H_
