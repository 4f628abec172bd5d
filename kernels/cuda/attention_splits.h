// Splits of 256 keys that are walked apart and meet: which tiles one has, the state in which it is
// left (in shared memory, or in the workspace between ctas), and the fold of all in ascending
// order. Included by the kernels of few rows.
#ifndef BATON_KERNELS_CUDA_ATTENTION_SPLITS_H_
#define BATON_KERNELS_CUDA_ATTENTION_SPLITS_H_

#include <cstdint>

#include "kernels/cuda/attention_fold.h"
#include "kernels/cuda/attention_items.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// The tiles of a split that the item sees.
BATON_DEVICE Tiles TilesOfSplit(uint32_t split, const KeyRange& seen) {
  const uint32_t first = seen.begin / kTileKeys;
  const uint32_t end = (seen.end + kTileKeys - 1) / kTileKeys;
  const uint32_t split_first = split * kSplitTiles;
  const uint32_t split_end = split_first + kSplitTiles;
  return {first > split_first ? first : split_first, end < split_end ? end : split_end};
}

// Two neighbouring dims of one pair.
struct alignas(8) SumPair {
  float low;
  float high;
};

// The state after one split: sums [n8 of head_dim][rows 0..7 | 8..15][lane].
template <uint32_t kDim>
struct Partial {
  SumPair sums[kDim / 8][2][simt::kWarpSize];
  RowTotal rows[kWarpPairs];
};
static_assert(sizeof(Partial<128>) == AttentionPartialBytes(128));

// The sums of kSums dims, from `first_n` eights on; with the first of them the rows.
template <uint32_t kDim, uint32_t kSums>
BATON_DEVICE void StorePartial(const SplitState<kSums>& split, uint32_t num_pairs, uint32_t first_n,
                               Partial<kDim>& to) {
  BATON_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t pair = simt::lane() / 4 + 8 * half;
    if (pair >= num_pairs) continue;  // nobody would read it
    BATON_UNROLL
    for (uint32_t n = 0; n < kSums / 8; ++n) {
      const FragmentC& c = split.sums[n];
      to.sums[first_n + n][half][simt::lane()] = {c.values[2 * half], c.values[2 * half + 1]};
    }
    if (first_n == 0 && simt::lane() % 4 == 0) {
      to.rows[pair] = {split.largest[half], split.weight[half]};
    }
  }
}

// True in the cta that arrives last of the item's parts; it then sees the partials of all.
// `is_last` is the cta's.
BATON_DEVICE bool ArrivesLast(const AttentionParams& params, const AttentionItem& item,
                              uint32_t& is_last) {
  simt::sync_block();
  if (simt::thread() == 0) {
    uint32_t* const arrivals = params.arrivals + item.arrival;
    simt::fence();
    const uint32_t before = simt::atomic_add(arrivals, 1);
    simt::fence();
    is_last = simt::guard(before + 1 == item.num_parts) ? 1 : 0;
    // Everyone has arrived: the next launch finds zero again.
    if (is_last == 1) simt::atomic_exchange(arrivals, 0);
  }
  simt::sync_block();
  return is_last == 1;
}

// The partials of an item's pairs, of all their splits.
template <uint32_t kDim>
struct Partials {
  const Partial<kDim>* first;
  uint32_t count;
};

// Folds them in ascending order and stores the rows: kCount eights of dims, from `first_n` on, by
// the warp. Some are under way at once: one after the other, the way to L2 would be waited for as
// often as there are splits.
template <uint32_t kDim, uint32_t kCount>
BATON_DEVICE void MergePartials(const AttentionParams& params, const AttentionItem& item,
                                const Partials<kDim>& partials, uint32_t first_n) {
  constexpr uint32_t kBatch = kCount <= 4 ? 8 : 32 / kCount;
  BATON_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t pair = simt::lane() / 4 + 8 * half;
    if (!simt::guard(pair < item.num_pairs)) continue;
    RowTotal total = {kNothing, 0.0f};
    SumPair totals[kCount];
    BATON_UNROLL
    for (SumPair& sums : totals) sums = {0.0f, 0.0f};
    for (uint32_t first = 0; first < partials.count; first += kBatch) {
      RowTotal rows[kBatch];
      SumPair sums[kBatch][kCount];
      BATON_UNROLL
      for (uint32_t i = 0; i < kBatch; ++i) {
        // Past the last one, that one is read again and not used.
        const uint32_t at = first + i < partials.count ? first + i : partials.count - 1;
        const Partial<kDim>& from = partials.first[at];
        rows[i] = from.rows[pair];
        BATON_UNROLL
        for (uint32_t n = 0; n < kCount; ++n) {
          sums[i][n] = from.sums[first_n + n][half][simt::lane()];
        }
      }
      BATON_UNROLL
      for (uint32_t i = 0; i < kBatch; ++i) {
        if (first + i >= partials.count) break;
        const Fold fold = FoldRow(rows[i], total);
        BATON_UNROLL
        for (uint32_t n = 0; n < kCount; ++n) {
          totals[n] = {fold.Join(totals[n].low, sums[i][n].low),
                       fold.Join(totals[n].high, sums[i][n].high)};
        }
      }
    }
    Bf16* const out = params.out + PairOffset(params, item, pair);
    const float scale = 1.0f / total.weight;
    BATON_UNROLL
    for (uint32_t n = 0; n < kCount; ++n) {
      StorePair(out, 8 * (first_n + n) + simt::lane() % 4 * 2, totals[n].low * scale,
                totals[n].high * scale);
    }
  }
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_SPLITS_H_
