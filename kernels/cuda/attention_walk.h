// The walk of a prefill cta over the keys of its items, by mma.sync or by wgmma: 64 (token, head)
// pairs of one kv head against tiles of 64 keys, each of which is two units of a ring in shared
// memory, K then V. Included by both kernels, whose shared memory says how rows lie and so which
// instructions multiply:
//   struct Memory : WalkTraits<...> { q [pair][chunk]; ring [slot] of StoredKeys; of fp8 wide
//   [unit % 2][key][chunk], units as bf16; totals [n8 of head_dim][thread] }
#ifndef BATON_KERNELS_CUDA_ATTENTION_WALK_H_
#define BATON_KERNELS_CUDA_ATTENTION_WALK_H_

#include <cstdint>

#include "kernels/cuda/attention_fold.h"
#include "kernels/cuda/attention_items.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/attention_tile_copies.h"
#include "kernels/cuda/attention_tile_wgmma.h"
#include "kernels/cuda/attention_units.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// A thread's totals of eight dims, moved at once.
struct alignas(16) FourSums {
  float values[4];
};

// Each of the thread's totals becomes join(row's half, total, sum of the split).
template <typename Memory, typename Join>
BATON_DEVICE void FoldSums(const SplitState<Memory::kDim>& split, Memory& memory,
                           const Join& join) {
  BATON_UNROLL
  for (uint32_t n = 0; n < Memory::kDim / 8; ++n) {
    FourSums totals = memory.totals[n][simt::thread()];
    BATON_UNROLL
    for (uint32_t v = 0; v < 4; ++v) {
      totals.values[v] = join(v / 2, totals.values[v], split.sums[n].values[v]);
    }
    memory.totals[n][simt::thread()] = totals;
  }
}

// Folds the split into the thread's totals and starts the next one.
template <typename Memory>
BATON_DEVICE void FoldSplit(SplitState<Memory::kDim>& split, RowTotal (&rows)[2], Memory& memory) {
  End(split);
  const Fold folds[2] = {FoldRow({split.largest[0], split.weight[0]}, rows[0]),
                         FoldRow({split.largest[1], split.weight[1]}, rows[1])};
  const bool is_plain =
      !folds[0].is_first && !folds[0].is_empty && !folds[1].is_first && !folds[1].is_empty;
  if (is_plain) {
    // Join of most splits, which asks of each sum whether it is.
    FoldSums<Memory>(split, memory, [&](uint32_t half, float total, float sum) {
      return simt::fma(sum, folds[half].of_split, total * folds[half].of_total);
    });
  } else {
    FoldSums<Memory>(split, memory, [&](uint32_t half, float total, float sum) {
      return folds[half].Join(total, sum);
    });
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
      const FourSums& totals = memory.totals[n][simt::thread()];
      StorePair(out, 8 * n + simt::lane() % 4 * 2, totals.values[2 * half] * scale,
                totals.values[2 * half + 1] * scale);
    }
  }
}

// The values that a cta needs to walk one item.
template <typename Memory>
struct ItemWalk {
  TileSource& source;
  const Tiles& tiles;
  const PairRows& rows;
  Memory& memory;
};

// The walk that looks ahead; q is in the first unit's group.
template <typename Memory>
BATON_DEVICE void WalkAhead(const AttentionParams& params, const ItemWalk<Memory>& walk,
                            SplitState<Memory::kDim>& split, RowTotal (&totals)[2]) {
  constexpr uint32_t kDim = Memory::kDim;
  const Tiles& tiles = walk.tiles;
  FragmentC next[kTileKeys / 8];
  BeginKeyTiles<kDim>(walk.memory.q, NextUnit(walk.source, tiles, 0, walk.memory), next);
  simt::wgmma_finish(next);
  for (uint32_t tile = tiles.first; tile < tiles.end; ++tile) {
    const uint32_t unit = 2 * (tile - tiles.first) + 1;
    FragmentA weights[kTileKeys / 16];
    // Scores are never wgmma's own, or ptxas takes too many registers and lets each product wait
    // for the one before (C7511).
    FragmentC scores[kTileKeys / 8];
    MaskProducts({tile * kTileKeys, ScoreScale(params)}, walk.rows, next, scores);
    const UnitRows<Memory> keys = NextUnit(walk.source, tiles, unit, walk.memory);
    BeginKeyTiles<kDim>(walk.memory.q, keys, next);
    WeighMasked(scores, split, weights);
    const UnitRows<Memory> values = NextUnit(walk.source, tiles, unit + 1, walk.memory);
    AddValueTiles<kDim>(weights, values, split);
    simt::wgmma_finish(next);  // done with the sums
    if (tile % kSplitTiles == kSplitTiles - 1 || tile + 1 == tiles.end) {
      FoldSplit(split, totals, walk.memory);
    }
  }
}

template <typename Memory>
BATON_DEVICE void AttendItem(const AttentionParams& params, const AttentionItem& item,
                             Memory& memory) {
  constexpr uint32_t kDim = Memory::kDim;
  constexpr bool kIsTogether = Memory::kRows == SharedRows::kTiles;  // all warps multiply, or none
  const KeyRange seen = KeysOfPairs(params, item, 0, kPrefillPairs);
  const KeySource keys_seen = SourceOf(params, item, seen);
  const Tiles tiles = {seen.begin / kTileKeys, (seen.end + kTileKeys - 1) / kTileKeys};
  auto source = UnitSourceOf<Memory>(keys_seen, tiles);
  // q belongs to the first group of copies.
  CopyPairs<kDim, kPrefillPairs, kPrefillThreads, Memory::kRows>(params, item, memory.q);
  BeginUnits(source, tiles, memory);
  const PairRows rows = RowsOfWarp(params, item, simt::warp() * kWarpPairs);
  RowTotal totals[2] = {{kNothing, 0.0f}, {kNothing, 0.0f}};
  SplitState<kDim> split;
  Begin(split);
  if constexpr (Memory::kIsAhead) {
    WalkAhead(params, ItemWalk<Memory>{source, tiles, rows, memory}, split, totals);
    StoreTotals(params, item, totals, memory);
    return;
  }
  uint32_t unit = 0;
  for (uint32_t tile = tiles.first; tile < tiles.end; ++tile) {
    // `unit` has this value already. So written, the compiler sees which units are K, and needs
    // fewer addresses in registers. At 128 dims it then aims at three ctas an SM, for which there
    // is no shared memory, and spills.
    if (Memory::kElement == KvElement::kFp8 && kDim != 128) unit = 2 * (tile - tiles.first);
    const bool is_seen = kIsTogether || rows.any.Meets(tile * kTileKeys, kTileKeys);
    FragmentA weights[kTileKeys / 16];
    const UnitRows<Memory> keys = NextUnit(source, tiles, unit, memory);
    if (is_seen) {
      FragmentC scores[kTileKeys / 8];
      if constexpr (kIsTogether) {
        BeginKeyTiles<kDim>(memory.q, keys, scores);
        simt::wgmma_finish(scores);
      } else {
        BATON_UNROLL
        for (FragmentC& c : scores) c = {{0.0f, 0.0f, 0.0f, 0.0f}};
        MultiplyKeys<kDim, kTileKeys>(memory.q + simt::warp() * kWarpPairs, keys, scores);
      }
      if constexpr (kIsTogether) {
        MaskProducts({tile * kTileKeys, ScoreScale(params)}, rows, scores, scores);
        WeighMasked(scores, split, weights);
      } else {
        WeighTile({tile * kTileKeys, ScoreScale(params)}, rows, scores, split, weights);
      }
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
  // Items shorten, so the ctas take turns back and forth: the one with the longest of a turn has
  // the shortest of the next. From left to right each time, the first cta would have a quarter more
  // keys than the mean at 2048 tokens and four turns.
  const uint32_t num_ctas = simt::grid().x;
  for (uint32_t turn = 0;; ++turn) {
    const uint32_t own = turn % 2 == 0 ? simt::block().x : num_ctas - 1 - simt::block().x;
    const uint32_t i = turn * num_ctas + own;
    if (i >= num_items) break;
    const AttentionItem item = params.items[i];
    AttendItem(params, item, memory);
    // Everyone has read the last units, whose slots the next item fills. Fp8 could do without (its
    // slots were read before the last unit's barrier), but 256 dims on sm_90, and 64 on
    // sm_80, then take a register too many.
    simt::sync_block();  // between items
  }
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_WALK_H_
