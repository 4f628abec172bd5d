// Attention of few rows over few splits (split-KV decode, Flash-Decoding): a cta of four warps for
// each split of 256 keys, when a launch has no more of them than the device takes at once.
//
// Work: as AttentionDecode (items of sixteen pairs, a run of splits), but the four tiles of a split
// have a warp each instead of one warp after another. A warp copies K and V of its tile, multiplies
// K, and leaves the pairs' maxima. When it knows the maxima of the tiles before, it turns its
// scores into weights and leaves them as operands. Then each warp walks the weights of all tiles in
// order over its quarter of the dims (its half, where there are 64 dims). So every sum is the chain
// that it is elsewhere. The parts of an item meet in the workspace, where the last cta folds them.
//
// Bytes, flops: AttentionDecode's; a split's state is written and read too. Limit: latency. All of
// K and half of V (128 KiB a split at 128 dims of bf16, 96 at once: two ctas an SM) are under way
// from the start; the rest lands where K lay. Keys of an item's first split are asked for in L2
// before the previous kernel ends. That is allowed because a request reads nothing, and because no
// kernel writes what names the keys (items, block lists). Calculated for an H100 of 1.75 GHz at 128
// dims: 700 cycles of scores, 700 of weights, 800 of sums, 1500 to store, meet and fold: with two
// trips to memory 4 us. Reached: one row of 1k keys 9.8 us (kernels/NOTES.md); where the other 6
// go is not known.
#include "kernels/cuda/attention_fold.h"
#include "kernels/cuda/attention_fp8.h"
#include "kernels/cuda/attention_items.h"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_splits.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

constexpr uint32_t kThreads = kSplitTiles * simt::kWarpSize;
constexpr uint32_t kCtas = 2;  // of an SM: for three, which it could have, the compiler would spill
constexpr uint32_t kHalfKeys = kTileKeys / 2;
constexpr uint32_t kLineBytes = 128;  // of L2
// Dims of a warp's sums, and how many warps have some: ldmatrix takes 32 dims of fp8.
template <uint32_t kDim>
constexpr uint32_t kSums = kDim / kSplitTiles < 32 ? 32 : kDim / kSplitTiles;
template <uint32_t kDim>
constexpr uint32_t kSumWarps = kDim / kSums<kDim>;

// A tile's K, then the later half of its V in the same place; the earlier half.
template <KvElement kElement, uint32_t kDim>
struct TileMemory {
  union {
    StoredKeys<kElement, kDim, kTileKeys> keys;
    StoredKeys<kElement, kDim, kHalfKeys> late;
  };
  StoredKeys<kElement, kDim, kHalfKeys> early;
};

// q [pair][chunk]; tiles by their index in a split; weights as A operands [tile][sixteen
// keys][lane]; the largest score of each pair.
template <KvElement kElement, uint32_t kDim>
struct SpreadShared {
  Vec16 q[kWarpPairs][kDim / kVec];
  TileMemory<kElement, kDim> tiles[kSplitTiles];
  Vec16 weights[kSplitTiles][kTileKeys / 16][simt::kWarpSize];
  float largest[kSplitTiles][kWarpPairs];
  uint32_t is_last;
};
static_assert(sizeof(SpreadShared<KvElement::kBf16, 128>) < 113 * 1024,
              "two ctas of an SM's 227 KiB");
static_assert(sizeof(SpreadShared<KvElement::kBf16, 256>) < 227 * 1024);

// Asks for K and V of an item's first split. Reads what no kernel writes.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void FetchSplit(const AttentionParams& params, const AttentionItem& item) {
  const KeyRange seen = KeysOfPairs(params, item, 0, kWarpPairs);
  const KeySource source = SourceOf(params, item, seen);
  const uint32_t first = item.first_split * kSplitKeys + 2 * simt::thread();
  BATON_UNROLL
  for (uint32_t key = first; key < first + 2; ++key) {
    if (!seen.Has(key)) continue;
    const std::byte* const at =
        params.kv.base + params.kv.KeyOffset(source.blocks[params.kv.BlockOf(key)], item.kv_head,
                                             params.kv.TokenOf(key), kElement);
    BATON_UNROLL
    for (uint32_t byte = 0; byte < kKeyChunks<kElement, kDim> * sizeof(Vec16); byte += kLineBytes) {
      simt::prefetch(at + byte);
      simt::prefetch(at + params.kv.ValueOffset(kElement) + byte);
    }
  }
}

// An item, and the split of it that the cta walks.
struct Walk {
  const AttentionParams& params;
  const AttentionItem& item;
  const KeySource& source;
  uint32_t split;
  Tiles tiles;  // of the split
};

// The weights of the warp's tile, whose scores are masked: moved to the largest score up to it.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void WeighOwnTile(const Walk& walk, const FragmentC (&scores)[kTileKeys / 8],
                               SpreadShared<kElement, kDim>& memory) {
  FragmentA weights[kTileKeys / 16];
  BATON_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t pair = simt::lane() / 4 + 8 * half;
    float largest = kNothing;
    float base = 0.0f;
    for (uint32_t slot = walk.tiles.first % kSplitTiles; slot <= simt::warp(); ++slot) {
      base = RaiseRow(memory.largest[slot][pair], largest).base;
    }
    BATON_UNROLL
    for (uint32_t n = 0; n < kTileKeys / 8; ++n) {
      weights[n / 2].regs[n % 2 * 2 + half] = WeighPair(scores[n], half, base);
    }
  }
  BATON_UNROLL
  for (uint32_t j = 0; j < kTileKeys / 16; ++j) {
    const FragmentA& a = weights[j];
    memory.weights[simt::warp()][j][simt::lane()] = {{a.regs[0], a.regs[1], a.regs[2], a.regs[3]}};
  }
}

// Adds half a tile's values to the warp's dims.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void AddHalf(const FragmentA* weights,
                          const StoredKeys<kElement, kDim, kHalfKeys>& values, const SeenTile& tile,
                          SplitState<kSums<kDim>>& split) {
  if constexpr (kElement == KvElement::kFp8) {
    AddCodes<kDim, kHalfKeys>(weights, values, tile, split, simt::warp() * (kSums<kDim> / 16));
  } else {
    AddValues<kDim, kHalfKeys>(weights, values.rows, split, simt::warp() * (kSums<kDim> / kVec));
  }
}

// Walks the weights of all tiles.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void AddTiles(const Walk& walk, const SpreadShared<kElement, kDim>& memory,
                           SplitState<kSums<kDim>>& split) {
  Begin(split);
  for (uint32_t tile = walk.tiles.first; tile < walk.tiles.end; ++tile) {
    const uint32_t slot = tile % kSplitTiles;
    FragmentA weights[kTileKeys / 16];
    BATON_UNROLL
    for (uint32_t j = 0; j < kTileKeys / 16; ++j) {
      const Vec16 a = memory.weights[slot][j][simt::lane()];
      weights[j] = {{a.words[0], a.words[1], a.words[2], a.words[3]}};
    }
    BATON_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const Rise rise =
          RaiseRow(memory.largest[slot][simt::lane() / 4 + 8 * half], split.largest[half]);
      float weight = split.weight[half] * rise.factor;
      BATON_UNROLL
      for (uint32_t n = 0; n < kTileKeys / 8; ++n) {
        weight = AddPair(weight, weights[n / 2].regs[n % 2 * 2 + half]);
      }
      split.weight[half] = weight;
      ScaleSums(rise.factor, half, split);
    }
    const TileMemory<kElement, kDim>& from = memory.tiles[slot];
    const uint32_t key = tile * kTileKeys;
    AddHalf<kElement, kDim>(weights, from.early, {walk.source.seen, key}, split);
    AddHalf<kElement, kDim>(weights + kHalfKeys / 16, from.late,
                            {walk.source.seen, key + kHalfKeys}, split);
  }
  End(split);
}

// Has q, of an item's first split, K of the own tile, and in another group half of its V under way.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void BeginCopies(const Walk& walk, bool has_tile,
                              SpreadShared<kElement, kDim>& memory) {
  const uint32_t key = (walk.split * kSplitTiles + simt::warp()) * kTileKeys;
  TileMemory<kElement, kDim>& own = memory.tiles[simt::warp()];
  if (has_tile) {
    CopyKeys<kElement, kDim, kTileKeys, simt::kWarpSize>(walk.source, key, false, own.keys);
  }
  if (walk.split == walk.item.first_split) {
    CopyPairs<kDim, kWarpPairs, kThreads>(walk.params, walk.item, memory.q);
  }
  simt::cp_async_commit();
  if (has_tile) {
    CopyKeys<kElement, kDim, kHalfKeys, simt::kWarpSize>(walk.source, key, true, own.early);
  }
  simt::cp_async_commit();
}

// The cta walks one split. Warps that have no dims leave `state` alone.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void AttendSplit(const Walk& walk, SpreadShared<kElement, kDim>& memory,
                              SplitState<kSums<kDim>>& state) {
  const uint32_t tile = walk.split * kSplitTiles + simt::warp();
  const bool has_tile = tile >= walk.tiles.first && tile < walk.tiles.end;
  const uint32_t key = tile * kTileKeys;
  TileMemory<kElement, kDim>& own = memory.tiles[simt::warp()];
  BeginCopies(walk, has_tile, memory);
  const PairRows rows = RowsOfWarp(walk.params, walk.item, 0);
  simt::cp_async_wait<1>();
  simt::sync_block();  // q and K have landed
  FragmentC scores[kTileKeys / 8];
  BATON_UNROLL
  for (FragmentC& c : scores) c = {{0.0f, 0.0f, 0.0f, 0.0f}};
  if (has_tile) {
    if constexpr (kElement == KvElement::kFp8) {
      MultiplyCodes<kDim, kTileKeys>(memory.q, own.keys, scores);
    } else {
      MultiplyKeys<kDim, kTileKeys>(memory.q, own.keys.rows, scores);
    }
    simt::sync_warp();  // every lane has read K
    CopyKeys<kElement, kDim, kHalfKeys, simt::kWarpSize>(walk.source, key + kHalfKeys, true,
                                                         own.late);
    BATON_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const float largest = MaskRow({key, ScoreScale(walk.params)}, rows, half, scores);
      if (simt::lane() % 4 == 0) {
        memory.largest[simt::warp()][simt::lane() / 4 + 8 * half] = largest;
      }
    }
  }
  simt::cp_async_commit();
  simt::sync_block();  // the maxima are there
  if (has_tile) WeighOwnTile(walk, scores, memory);
  simt::cp_async_wait<0>();
  simt::sync_block();  // weights and V are there
  if (simt::warp() < kSumWarps<kDim>) AddTiles(walk, memory, state);
}

// The folded splits of an item: of the warp's dims, for each of a lane's two rows.
template <uint32_t kDim>
struct Totals {
  FragmentC sums[kSums<kDim> / 8];
  RowTotal rows[2];
};

template <uint32_t kDim>
BATON_DEVICE void FoldSplit(const SplitState<kSums<kDim>>& split, Totals<kDim>& totals) {
  BATON_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const Fold fold = FoldRow({split.largest[half], split.weight[half]}, totals.rows[half]);
    BATON_UNROLL
    for (uint32_t n = 0; n < kSums<kDim> / 8; ++n) {
      BATON_UNROLL
      for (uint32_t v = 2 * half; v < 2 * half + 2; ++v) {
        totals.sums[n].values[v] = fold.Join(totals.sums[n].values[v], split.sums[n].values[v]);
      }
    }
  }
}

template <uint32_t kDim>
BATON_DEVICE void StoreTotals(const AttentionParams& params, const AttentionItem& item,
                              const Totals<kDim>& totals) {
  BATON_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t pair = simt::lane() / 4 + 8 * half;
    if (!simt::guard(pair < item.num_pairs)) continue;
    Bf16* const out = params.out + PairOffset(params, item, pair);
    const float scale = 1.0f / totals.rows[half].weight;
    BATON_UNROLL
    for (uint32_t n = 0; n < kSums<kDim> / 8; ++n) {
      const FragmentC& c = totals.sums[n];
      StorePair(out, simt::warp() * kSums<kDim> + 8 * n + simt::lane() % 4 * 2,
                c.values[2 * half] * scale, c.values[2 * half + 1] * scale);
    }
  }
}

template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void AttendItem(const AttentionParams& params, const AttentionItem& item,
                             SpreadShared<kElement, kDim>& memory) {
  constexpr uint32_t kCount = kSums<kDim> / 8;
  const KeyRange seen = KeysOfPairs(params, item, 0, kWarpPairs);
  const KeySource source = SourceOf(params, item, seen);
  const bool has_dims = simt::warp() < kSumWarps<kDim>;
  const bool is_alone = item.num_parts == 1;
  auto* const partials =
      reinterpret_cast<Partial<kDim>*>(params.partials) + (is_alone ? 0 : item.first_partial);
  const uint32_t first_split = seen.begin / kSplitKeys;
  const uint32_t first_n = simt::warp() * kCount;
  Totals<kDim> totals = {};
  for (RowTotal& row : totals.rows) row = {kNothing, 0.0f};

  for (uint32_t i = 0; i < item.num_splits; ++i) {
    const uint32_t split = item.first_split + i;
    if (i > 0) simt::sync_block();  // everyone has read the split before
    SplitState<kSums<kDim>> state;
    AttendSplit({params, item, source, split, TilesOfSplit(split, seen)}, memory, state);
    if (!has_dims) continue;
    if (is_alone) {
      FoldSplit<kDim>(state, totals);
    } else {
      StorePartial(state, item.num_pairs, first_n, partials[split - first_split]);
    }
  }
  if (is_alone) {
    if (has_dims) StoreTotals<kDim>(params, item, totals);
  } else if (ArrivesLast(params, item, memory.is_last) && has_dims) {
    const uint32_t end_split = (seen.end + kSplitKeys - 1) / kSplitKeys;
    MergePartials<kDim, kCount>(params, item, {partials, end_split - first_split}, first_n);
  }
}

template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void AttendItems(const AttentionParams& params) {
  auto& memory = simt::shared<SpreadShared<kElement, kDim>>();
  const uint32_t num_items = *params.num_items;
  if (simt::block().x < num_items) {
    FetchSplit<kElement, kDim>(params, params.items[simt::block().x]);
  }
  simt::wait_for_previous();
  for (uint32_t i = simt::block().x; i < num_items; i += simt::grid().x) {
    if (i != simt::block().x) simt::sync_block();  // everyone has read the item before
    const AttentionItem item = params.items[i];
    AttendItem(params, item, memory);
  }
}

BATON_KERNEL(kThreads, kCtas) AttentionSpread64Kernel(AttentionParams params) {
  AttendItems<KvElement::kBf16, 64>(params);
}
BATON_KERNEL(kThreads, kCtas) AttentionSpread128Kernel(AttentionParams params) {
  AttendItems<KvElement::kBf16, 128>(params);
}
BATON_KERNEL(kThreads, kCtas) AttentionSpread256Kernel(AttentionParams params) {
  AttendItems<KvElement::kBf16, 256>(params);
}
BATON_KERNEL(kThreads, kCtas) AttentionSpread64Fp8Kernel(AttentionParams params) {
  AttendItems<KvElement::kFp8, 64>(params);
}
BATON_KERNEL(kThreads, kCtas) AttentionSpread128Fp8Kernel(AttentionParams params) {
  AttendItems<KvElement::kFp8, 128>(params);
}
BATON_KERNEL(kThreads, kCtas) AttentionSpread256Fp8Kernel(AttentionParams params) {
  AttendItems<KvElement::kFp8, 256>(params);
}

using Kernel = void (*)(AttentionParams);
constexpr Kernel kKernels[6] = {AttentionSpread64Kernel,     AttentionSpread128Kernel,
                                AttentionSpread256Kernel,    AttentionSpread64Fp8Kernel,
                                AttentionSpread128Fp8Kernel, AttentionSpread256Fp8Kernel};

}  // namespace

const KernelInfo kAttentionSpreadInfos[6] = {
    {"AttentionSpread64Kernel", kThreads, sizeof(SpreadShared<KvElement::kBf16, 64>)},
    {"AttentionSpread128Kernel", kThreads, sizeof(SpreadShared<KvElement::kBf16, 128>)},
    {"AttentionSpread256Kernel", kThreads, sizeof(SpreadShared<KvElement::kBf16, 256>)},
    {"AttentionSpread64Fp8Kernel", kThreads, sizeof(SpreadShared<KvElement::kFp8, 64>)},
    {"AttentionSpread128Fp8Kernel", kThreads, sizeof(SpreadShared<KvElement::kFp8, 128>)},
    {"AttentionSpread256Fp8Kernel", kThreads, sizeof(SpreadShared<KvElement::kFp8, 256>)}};

bool HasSpread(uint32_t head_dim, KvElement element) {
  KvBlocks kv = {};
  kv.head_dim = head_dim;
  kv.element = element;
  return kAttentionSpreadInfos[KernelIndex(kv)].shared_bytes <= simt::max_shared_bytes();
}

absl::Status LaunchAttentionSpread(const AttentionParams& params, void* stream) {
  const uint32_t index = KernelIndex(params.kv);
  return simt::launch({.name = "AttentionSpread",
                       .grid = {params.num_ctas, 1, 1},
                       .num_threads = kThreads,
                       .shared_bytes = kAttentionSpreadInfos[index].shared_bytes,
                       .overlaps = true,
                       .stream = stream},
                      kKernels[index], params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
