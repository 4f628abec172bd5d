// Attention of few rows of a sequence over many keys in blocks (split-KV decode, Flash-Decoding):
// sixteen (token, head) pairs a cta, a warp for each split of 256 keys.
//
// Work: a cta of four warps takes one item at a time: pairs of one kv head and a run of splits,
// four at a time. Each warp streams its split's tiles through a ring of its own (units of 8 KiB,
// two ahead: 64 KiB a cta under way). It leaves (maximum, weight, sums) as a partial in its ring.
// The cta folds the four there in ascending order, each warp a quarter of the dims. When the pairs'
// splits are cut over several items, partials go to the workspace instead, where the last cta to
// arrive folds all. Where shared memory has no room for four rings a cta has two warps; the bits
// are the same. (Rings of two slots instead take registers too many at 256 dims.) Bytes: 4 head_dim
// a key and kv head, once (a second time from L2 for each further sixteen pairs); a cut split also
// writes and reads 4 head_dim + 8 a pair, 3 % at four pairs. Flops: 64 head_dim a key, of which
// group / 16 are useful. Limit: memory. A warp takes 6 us a tile when it is alone, so few splits
// are for attention_spread.cu. The last cta of 128k keys and 4 pairs folds 1 MiB alone. Reached on
// an H100, of reading: 64 rows of 1k keys 88 %, of 8k 98 %, of fp8 64 and 78 %; 8 rows of 8k 72 and
// 48 % (kernels/NOTES.md). Fp8: codes become operands in registers (attention_fp8.h). Bytes: 2
// head_dim + 4 a key and kv head; units of 64 dims are 4 KiB. Instructions: 2.25 an element more,
// 1.75 of them shifts and LOP3. These are 45 % of what their pipe (64 a cycle) takes while memory
// gives an SM its 16.5 bytes a cycle (H200, 4.3 TB/s at 1.98 GHz).
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

// Warps of a cta, and where shared memory has no room for their rings.
constexpr uint32_t kMostWarps = 4;
constexpr uint32_t kFewWarps = 2;
constexpr uint32_t ThreadsOf(uint32_t num_warps) { return num_warps * simt::kWarpSize; }
constexpr uint32_t kSlots = 3;
constexpr uint32_t kUnitBytes = 8192;
constexpr uint32_t SmallerOf(uint32_t a, uint32_t b) { return a < b ? a : b; }
// 64, 32, 16 of bf16; 64, 64, 32 of fp8, whose units of 64 dims have 4 KiB.
template <KvElement kElement, uint32_t kDim>
constexpr uint32_t kUnitKeys = SmallerOf(kTileKeys, kUnitBytes / 16 / kKeyChunks<kElement, kDim>);
// A tile's units: those of K, then as many of V.
template <KvElement kElement, uint32_t kDim>
constexpr uint32_t kTileUnits = 2 * kTileKeys / kUnitKeys<kElement, kDim>;

// A warp's ring [slot] while it walks its split, then its partial.
template <KvElement kElement, uint32_t kDim>
union WarpMemory {
  StoredKeys<kElement, kDim, kUnitKeys<kElement, kDim>> ring[kSlots];
  Partial<kDim> partial;
};

// q [pair][chunk]; the folded splits, of which each warp has as many of the dims and each thread
// its own part, [n8, value][thread]: beside the sums of a split they do not fit into registers.
template <KvElement kElement, uint32_t kDim, uint32_t kWarps>
struct DecodeShared {
  Vec16 q[kWarpPairs][kDim / kVec];
  WarpMemory<kElement, kDim> warps[kWarps];
  float totals[kDim / 8 / kWarps * 4][ThreadsOf(kWarps)];
  uint32_t is_last;
};
static_assert(sizeof(DecodeShared<KvElement::kBf16, 128, kMostWarps>) < 113 * 1024 &&
                  sizeof(DecodeShared<KvElement::kFp8, 128, kMostWarps>) < 113 * 1024,
              "two ctas of an SM's 227 KiB");
static_assert(sizeof(DecodeShared<KvElement::kFp8, 64, kMostWarps>) <= simt::kLeastSharedBytes &&
                  sizeof(DecodeShared<KvElement::kBf16, 256, kFewWarps>) <=
                      simt::kLeastSharedBytes &&
                  sizeof(DecodeShared<KvElement::kFp8, 256, kFewWarps>) <= simt::kLeastSharedBytes,
              "every GPU has room for two warps");

// Copies a unit into its slot, if there is one; always ends a group.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void CopyUnit(const KeySource& source, const Tiles& tiles, uint32_t unit,
                           WarpMemory<kElement, kDim>& memory) {
  constexpr uint32_t kUnits = kTileUnits<kElement, kDim>;
  constexpr uint32_t kKeys = kUnitKeys<kElement, kDim>;
  const uint32_t tile = tiles.first + unit / kUnits;
  if (simt::guard(tile < tiles.end)) {
    const uint32_t part = unit % kUnits;
    CopyKeys<kElement, kDim, kKeys, simt::kWarpSize>(
        source, tile * kTileKeys + part * kKeys % kTileKeys, part >= kUnits / 2,
        memory.ring[unit % kSlots]);
  }
  simt::cp_async_commit();
}

// Waits for a unit of the walk and has the one after next under way.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void NextUnit(const KeySource& source, const Tiles& tiles, uint32_t unit,
                           WarpMemory<kElement, kDim>& memory) {
  // The thread's own copies of the unit have landed. After the barrier the warp's copies have
  // landed, and every lane has read the unit before, whose slot is filled next.
  simt::cp_async_wait<kSlots - 2>();
  simt::sync_warp();
  CopyUnit(source, tiles, unit + kSlots - 1, memory);
}

// The values that a warp needs to walk one split.
struct Walk {
  const KeySource& source;
  const PairRows& rows;
  Tiles tiles;
  float scale;
};

// Walks the tiles, whose first units are under way. At the end the ring is free.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void AttendSplit(const Walk& walk, const Vec16 (*q)[kDim / kVec],
                              WarpMemory<kElement, kDim>& memory, SplitState<kDim>& split) {
  constexpr uint32_t kKeys = kUnitKeys<kElement, kDim>;
  Begin(split);
  uint32_t unit = 0;
  for (uint32_t tile = walk.tiles.first; tile < walk.tiles.end; ++tile) {
    FragmentC scores[kTileKeys / 8];
    BATON_UNROLL
    for (FragmentC& c : scores) c = {{0.0f, 0.0f, 0.0f, 0.0f}};
    BATON_UNROLL
    for (uint32_t key = 0; key < kTileKeys; key += kKeys) {
      NextUnit(walk.source, walk.tiles, unit, memory);
      if constexpr (kElement == KvElement::kFp8) {
        MultiplyCodes<kDim, kKeys>(q, memory.ring[unit % kSlots], scores + key / 8);
      } else {
        MultiplyKeys<kDim, kKeys>(q, memory.ring[unit % kSlots].rows, scores + key / 8);
      }
      ++unit;
    }
    FragmentA weights[kTileKeys / 16];
    WeighTile({tile * kTileKeys, walk.scale}, walk.rows, scores, split, weights);
    BATON_UNROLL
    for (uint32_t key = 0; key < kTileKeys; key += kKeys) {
      NextUnit(walk.source, walk.tiles, unit, memory);
      if constexpr (kElement == KvElement::kFp8) {
        AddCodes<kDim, kKeys>(weights + key / 16, memory.ring[unit % kSlots],
                              {walk.source.seen, tile * kTileKeys + key}, split);
      } else {
        AddValues<kDim, kKeys>(weights + key / 16, memory.ring[unit % kSlots].rows, split);
      }
      ++unit;
    }
  }
  End(split);
  simt::sync_warp();
}

// Folds a split's partial into the thread's totals.
template <KvElement kElement, uint32_t kDim, uint32_t kWarps>
BATON_DEVICE void FoldPartial(const Partial<kDim>& from, uint32_t num_pairs, RowTotal (&rows)[2],
                              DecodeShared<kElement, kDim, kWarps>& memory) {
  BATON_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t pair = simt::lane() / 4 + 8 * half;
    if (pair >= num_pairs) continue;
    const Fold fold = FoldRow(from.rows[pair], rows[half]);
    BATON_UNROLL
    for (uint32_t i = 0; i < kDim / 8 / kWarps; ++i) {
      const uint32_t n = simt::warp() * (kDim / 8 / kWarps) + i;
      const SumPair sums = from.sums[n][half][simt::lane()];
      float& low = memory.totals[4 * i + 2 * half][simt::thread()];
      float& high = memory.totals[4 * i + 2 * half + 1][simt::thread()];
      low = fold.Join(low, sums.low);
      high = fold.Join(high, sums.high);
    }
  }
}

template <KvElement kElement, uint32_t kDim, uint32_t kWarps>
BATON_DEVICE void StoreTotals(const AttentionParams& params, const AttentionItem& item,
                              const RowTotal (&rows)[2],
                              const DecodeShared<kElement, kDim, kWarps>& memory) {
  BATON_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t pair = simt::lane() / 4 + 8 * half;
    if (!simt::guard(pair < item.num_pairs)) continue;
    Bf16* const out = params.out + PairOffset(params, item, pair);
    const float scale = 1.0f / rows[half].weight;
    BATON_UNROLL
    for (uint32_t i = 0; i < kDim / 8 / kWarps; ++i) {
      const uint32_t n = simt::warp() * (kDim / 8 / kWarps) + i;
      StorePair(out, 8 * n + simt::lane() % 4 * 2,
                memory.totals[4 * i + 2 * half][simt::thread()] * scale,
                memory.totals[4 * i + 2 * half + 1][simt::thread()] * scale);
    }
  }
}

template <KvElement kElement, uint32_t kDim, uint32_t kWarps>
BATON_DEVICE void AttendItem(const AttentionParams& params, const AttentionItem& item,
                             DecodeShared<kElement, kDim, kWarps>& memory) {
  const KeyRange seen = KeysOfPairs(params, item, 0, kWarpPairs);
  const KeySource source = SourceOf(params, item, seen);
  const PairRows rows = RowsOfWarp(params, item, 0);
  const bool is_alone = item.num_parts == 1;
  auto* const partials =
      reinterpret_cast<Partial<kDim>*>(params.partials) + (is_alone ? 0 : item.first_partial);
  const uint32_t first_split = seen.begin / kSplitKeys;
  WarpMemory<kElement, kDim>& own = memory.warps[simt::warp()];
  RowTotal totals[2] = {{kNothing, 0.0f}, {kNothing, 0.0f}};

  CopyPairs<kDim, kWarpPairs, ThreadsOf(kWarps)>(params, item, memory.q);
  simt::cp_async_commit();
  for (uint32_t round = 0; round < item.num_splits; round += kWarps) {
    const uint32_t split = item.first_split + round + simt::warp();
    const bool has_split = round + simt::warp() < item.num_splits;
    const Walk walk = {source, rows, has_split ? TilesOfSplit(split, seen) : Tiles{0, 0},
                       ScoreScale(params)};
    BATON_UNROLL
    for (uint32_t unit = 0; unit < kSlots - 1; ++unit) CopyUnit(source, walk.tiles, unit, own);
    simt::cp_async_wait<kSlots - 1>();  // for the group before them: q
    simt::sync_block();
    SplitState<kDim> state;
    AttendSplit(walk, memory.q, own, state);
    if (!is_alone) {
      if (has_split) StorePartial(state, item.num_pairs, 0, partials[split - first_split]);
      continue;
    }
    StorePartial(state, item.num_pairs, 0, own.partial);
    simt::sync_block();
    for (uint32_t i = 0; i < kWarps && round + i < item.num_splits; ++i) {
      FoldPartial(memory.warps[i].partial, item.num_pairs, totals, memory);
    }
    simt::sync_block();  // the next round fills the rings
  }
  if (is_alone) {
    StoreTotals(params, item, totals, memory);
  } else if (ArrivesLast(params, item, memory.is_last)) {
    constexpr uint32_t kCount = kDim / 8 / kWarps;
    const uint32_t end_split = (seen.end + kSplitKeys - 1) / kSplitKeys;
    MergePartials<kDim, kCount>(params, item, {partials, end_split - first_split},
                                simt::warp() * kCount);
  }
}

template <KvElement kElement, uint32_t kDim, uint32_t kWarps>
BATON_DEVICE void AttendItems(const AttentionParams& params) {
  auto& memory = simt::shared<DecodeShared<kElement, kDim, kWarps>>();
  simt::wait_for_previous();
  const uint32_t num_items = *params.num_items;
  for (uint32_t i = simt::block().x; i < num_items; i += simt::grid().x) {
    // Not a copy: its fields are read again where registers are short.
    const AttentionItem& item = params.items[i];
    AttendItem(params, item, memory);
  }
}

BATON_KERNEL(ThreadsOf(kMostWarps)) AttentionDecode64Kernel(AttentionParams params) {
  AttendItems<KvElement::kBf16, 64, kMostWarps>(params);
}
BATON_KERNEL(ThreadsOf(kMostWarps)) AttentionDecode128Kernel(AttentionParams params) {
  AttendItems<KvElement::kBf16, 128, kMostWarps>(params);
}
BATON_KERNEL(ThreadsOf(kMostWarps)) AttentionDecode256Kernel(AttentionParams params) {
  AttendItems<KvElement::kBf16, 256, kMostWarps>(params);
}
BATON_KERNEL(ThreadsOf(kMostWarps)) AttentionDecode64Fp8Kernel(AttentionParams params) {
  AttendItems<KvElement::kFp8, 64, kMostWarps>(params);
}
BATON_KERNEL(ThreadsOf(kMostWarps)) AttentionDecode128Fp8Kernel(AttentionParams params) {
  AttendItems<KvElement::kFp8, 128, kMostWarps>(params);
}
BATON_KERNEL(ThreadsOf(kMostWarps)) AttentionDecode256Fp8Kernel(AttentionParams params) {
  AttendItems<KvElement::kFp8, 256, kMostWarps>(params);
}
BATON_KERNEL(ThreadsOf(kFewWarps)) AttentionDecodeFew64Kernel(AttentionParams params) {
  AttendItems<KvElement::kBf16, 64, kFewWarps>(params);
}
BATON_KERNEL(ThreadsOf(kFewWarps)) AttentionDecodeFew128Kernel(AttentionParams params) {
  AttendItems<KvElement::kBf16, 128, kFewWarps>(params);
}
BATON_KERNEL(ThreadsOf(kFewWarps)) AttentionDecodeFew256Kernel(AttentionParams params) {
  AttendItems<KvElement::kBf16, 256, kFewWarps>(params);
}
BATON_KERNEL(ThreadsOf(kFewWarps)) AttentionDecodeFew128Fp8Kernel(AttentionParams params) {
  AttendItems<KvElement::kFp8, 128, kFewWarps>(params);
}
BATON_KERNEL(ThreadsOf(kFewWarps)) AttentionDecodeFew256Fp8Kernel(AttentionParams params) {
  AttendItems<KvElement::kFp8, 256, kFewWarps>(params);
}

using Kernel = void (*)(AttentionParams);
constexpr Kernel kKernels[kNumAttentionDecode] = {
    AttentionDecode64Kernel,        AttentionDecode128Kernel,      AttentionDecode256Kernel,
    AttentionDecode64Fp8Kernel,     AttentionDecode128Fp8Kernel,   AttentionDecode256Fp8Kernel,
    AttentionDecodeFew64Kernel,     AttentionDecodeFew128Kernel,   AttentionDecodeFew256Kernel,
    AttentionDecodeFew128Fp8Kernel, AttentionDecodeFew256Fp8Kernel};

// Which kernel takes these blocks on the current device: with all warps if there is room.
uint32_t DecodeKernel(const KvBlocks& kv) {
  // With 64 dims of fp8, all warps fit everywhere.
  static constexpr uint32_t kFew[6] = {6, 7, 8, 3, 9, 10};
  const uint32_t index = KernelIndex(kv);
  return kAttentionDecodeInfos[index].shared_bytes <= simt::max_shared_bytes() ? index
                                                                               : kFew[index];
}

}  // namespace

const KernelInfo kAttentionDecodeInfos[kNumAttentionDecode] = {
    {"AttentionDecode64Kernel", ThreadsOf(kMostWarps),
     sizeof(DecodeShared<KvElement::kBf16, 64, kMostWarps>)},
    {"AttentionDecode128Kernel", ThreadsOf(kMostWarps),
     sizeof(DecodeShared<KvElement::kBf16, 128, kMostWarps>)},
    {"AttentionDecode256Kernel", ThreadsOf(kMostWarps),
     sizeof(DecodeShared<KvElement::kBf16, 256, kMostWarps>)},
    {"AttentionDecode64Fp8Kernel", ThreadsOf(kMostWarps),
     sizeof(DecodeShared<KvElement::kFp8, 64, kMostWarps>)},
    {"AttentionDecode128Fp8Kernel", ThreadsOf(kMostWarps),
     sizeof(DecodeShared<KvElement::kFp8, 128, kMostWarps>)},
    {"AttentionDecode256Fp8Kernel", ThreadsOf(kMostWarps),
     sizeof(DecodeShared<KvElement::kFp8, 256, kMostWarps>)},
    {"AttentionDecodeFew64Kernel", ThreadsOf(kFewWarps),
     sizeof(DecodeShared<KvElement::kBf16, 64, kFewWarps>)},
    {"AttentionDecodeFew128Kernel", ThreadsOf(kFewWarps),
     sizeof(DecodeShared<KvElement::kBf16, 128, kFewWarps>)},
    {"AttentionDecodeFew256Kernel", ThreadsOf(kFewWarps),
     sizeof(DecodeShared<KvElement::kBf16, 256, kFewWarps>)},
    {"AttentionDecodeFew128Fp8Kernel", ThreadsOf(kFewWarps),
     sizeof(DecodeShared<KvElement::kFp8, 128, kFewWarps>)},
    {"AttentionDecodeFew256Fp8Kernel", ThreadsOf(kFewWarps),
     sizeof(DecodeShared<KvElement::kFp8, 256, kFewWarps>)}};

absl::Status AttentionDecode(const AttentionParams& params, void* stream) {
  if (absl::Status status = CheckAttention("AttentionDecode", params); !status.ok()) return status;
  if (params.is_spread && HasSpread(params.kv.head_dim, params.kv.element)) {
    return LaunchAttentionSpread(params, stream);
  }
  const uint32_t index = DecodeKernel(params.kv);
  return simt::launch({.name = "AttentionDecode",
                       .grid = {params.num_ctas, 1, 1},
                       .num_threads = kAttentionDecodeInfos[index].max_threads,
                       .shared_bytes = kAttentionDecodeInfos[index].shared_bytes,
                       .overlaps = true,
                       .stream = stream},
                      kKernels[index], params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
