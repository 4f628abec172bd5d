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

// q [pair][chunk]; K and V units [slot][key][chunk]; totals [n8 of head_dim, value][thread].
template <uint32_t kDim>
struct PrefillShared {
  Vec16 q[kPrefillPairs][kDim / kVec];
  Vec16 ring[kSlots][kTileKeys][kDim / kVec];
  float totals[kDim / 2][kPrefillThreads];
};
static_assert(sizeof(PrefillShared<128>) == 96 * 1024, "two ctas of an SM's 227 KiB");
static_assert(sizeof(PrefillShared<256>) == 192 * 1024);

// Tiles [first, end) of an item, at absolute positions.
struct Tiles {
  uint32_t first;
  uint32_t end;
};

// Copies a unit into its slot, if there is one: unit 2i is K of tile first + i, 2i + 1 its V.
// Always ends a group.
template <uint32_t kDim>
BATON_DEVICE void CopyUnit(const KeySource& source, const Tiles& tiles, uint32_t unit,
                           PrefillShared<kDim>& memory) {
  const uint32_t tile = tiles.first + unit / 2;
  if (simt::guard(tile < tiles.end)) {
    CopyKeys<kDim, kTileKeys, kPrefillThreads>(source, tile * kTileKeys, unit % 2 == 1,
                                               memory.ring[unit % kSlots]);
  }
  simt::cp_async_commit();
}

// Folds the split into the thread's totals and starts the next one.
template <uint32_t kDim>
BATON_DEVICE void FoldSplit(SplitState<kDim>& split, RowTotal (&rows)[2],
                            PrefillShared<kDim>& memory) {
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

template <uint32_t kDim>
BATON_DEVICE void StoreTotals(const AttentionParams& params, const AttentionItem& item,
                              const RowTotal (&rows)[2], const PrefillShared<kDim>& memory) {
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

template <uint32_t kDim>
BATON_DEVICE void AttendItem(const AttentionParams& params, const AttentionItem& item,
                             PrefillShared<kDim>& memory) {
  const KeyRange seen = KeysOfPairs(params, item, 0, kPrefillPairs);
  const KeySource source = SourceOf(params, item, seen);
  const Tiles tiles = {seen.begin / kTileKeys, (seen.end + kTileKeys - 1) / kTileKeys};
  CopyPairs<kDim, kPrefillPairs, kPrefillThreads>(params, item, memory.q);  // of the first group
  BATON_UNROLL
  for (uint32_t unit = 0; unit < kSlots - 1; ++unit) CopyUnit(source, tiles, unit, memory);
  const PairRows rows = RowsOfWarp(params, item, simt::warp() * kWarpPairs);
  RowTotal totals[2] = {{kNothing, 0.0f}, {kNothing, 0.0f}};
  SplitState<kDim> split;
  Begin(split);
  uint32_t unit = 0;
  for (uint32_t tile = tiles.first; tile < tiles.end; ++tile) {
    const bool is_seen = rows.any.Meets(tile * kTileKeys, kTileKeys);
    FragmentA weights[kTileKeys / 16];
    // The own copies of K have landed; behind the barrier everyone's have, and everyone has read
    // the unit before, whose slot is filled next.
    simt::cp_async_wait<kSlots - 2>();
    simt::sync_block();
    CopyUnit(source, tiles, unit + kSlots - 1, memory);
    if (is_seen) {
      FragmentC scores[kTileKeys / 8];
      BATON_UNROLL
      for (FragmentC& c : scores) c = {{0.0f, 0.0f, 0.0f, 0.0f}};
      MultiplyKeys<kDim, kTileKeys>(memory.q + simt::warp() * kWarpPairs,
                                    memory.ring[unit % kSlots], scores);
      WeighTile({tile * kTileKeys, ScoreScale(params)}, rows, scores, split, weights);
    }
    ++unit;
    simt::cp_async_wait<kSlots - 2>();
    simt::sync_block();
    CopyUnit(source, tiles, unit + kSlots - 1, memory);
    if (is_seen) AddValues<kDim, kTileKeys>(weights, memory.ring[unit % kSlots], split);
    ++unit;
    if (tile % kSplitTiles == kSplitTiles - 1 || tile + 1 == tiles.end) {
      FoldSplit(split, totals, memory);
    }
  }
  StoreTotals(params, item, totals, memory);
}

template <uint32_t kDim>
BATON_DEVICE void AttendItems(const AttentionParams& params) {
  auto& memory = simt::shared<PrefillShared<kDim>>();
  const uint32_t num_items = *params.num_items;
  for (uint32_t i = simt::block().x; i < num_items; i += simt::grid().x) {
    const AttentionItem item = params.items[i];
    AttendItem(params, item, memory);
    simt::sync_block();  // everyone has read the last units, whose slots the next item fills
  }
}

BATON_KERNEL(kPrefillThreads) AttentionPrefill64Kernel(AttentionParams params) {
  AttendItems<64>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionPrefill128Kernel(AttentionParams params) {
  AttendItems<128>(params);
}
BATON_KERNEL(kPrefillThreads) AttentionPrefill256Kernel(AttentionParams params) {
  AttendItems<256>(params);
}

}  // namespace

const KernelInfo kAttentionPrefillInfos[3] = {
    {"AttentionPrefill64Kernel", kPrefillThreads, sizeof(PrefillShared<64>)},
    {"AttentionPrefill128Kernel", kPrefillThreads, sizeof(PrefillShared<128>)},
    {"AttentionPrefill256Kernel", kPrefillThreads, sizeof(PrefillShared<256>)}};

absl::Status AttentionPrefill(const AttentionParams& params, void* stream) {
  if (absl::Status status = CheckAttention("AttentionPrefill", params); !status.ok()) return status;
  const bool is_64 = params.kv.head_dim == 64;
  const bool is_128 = params.kv.head_dim == 128;
  const KernelInfo& info = kAttentionPrefillInfos[is_64 ? 0 : is_128 ? 1 : 2];
  return simt::launch({.name = "AttentionPrefill",
                       .grid = {params.num_ctas, 1, 1},
                       .num_threads = kPrefillThreads,
                       .shared_bytes = info.shared_bytes,
                       .stream = stream},
                      is_64    ? AttentionPrefill64Kernel
                      : is_128 ? AttentionPrefill128Kernel
                               : AttentionPrefill256Kernel,
                      params);
}

}  // namespace BATON_BODY
}  // namespace baton::cuda
