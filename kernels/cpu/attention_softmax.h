// From the scores of a tile to weights: the maxima, exp, and the lanes of the denominator, rule (3)
// of ARITHMETIC.md ("Attention"). Included by one translation unit per instruction set.
#ifndef BATON_KERNELS_CPU_ATTENTION_SOFTMAX_H_
#define BATON_KERNELS_CPU_ATTENTION_SOFTMAX_H_

#include "kernels/cpu/attention_state.h"

namespace baton::kernels::BATON_ISA {

// The largest score of each lane of one row and tile. Scores of masked keys become -infinity.
BATON_INLINE F32x16 LargestScores(device::TaskRange keys, float* scores) {
  const F32x16 minus_infinity = Set1(-std::numeric_limits<float>::infinity());
  F32x16 best = minus_infinity;
  for (uint32_t base = keys.begin & ~(kGroupKeys - 1); base < keys.end; base += kGroupKeys) {
    F32x16 s = Load(scores + base);
    if (base < keys.begin || base + kGroupKeys > keys.end) {
      s = KeepLanes(s, static_cast<int32_t>(keys.begin) - static_cast<int32_t>(base),
                    static_cast<int32_t>(keys.end) - static_cast<int32_t>(base), minus_infinity);
      Store(scores + base, s);
    }
    best = Max(best, s);
  }
  return best;
}

// The maxima of kRows rows after the scores of a tile.
struct TileMaxima {
  float largest[16];  // after the tile
  float factors[16];  // exp(before - after), of rows whose maximum rises
  bool rises[16];
};

// The maxima of kRows rows after a tile. One exp gives the factors of all rows.
template <int kRows>
BATON_INLINE void RaiseMaxima(const ItemRun& run, uint32_t query, const device::TaskRange* keys,
                              TileMaxima* maxima) {
  static_assert(kRows <= 16);
  constexpr int kPadded = (kRows + 3) / 4 * 4;
  F32x16 best[kPadded];
  for (int r = 0; r < kPadded; ++r) {
    best[r] = LargestScores(r < kRows ? keys[r] : device::TaskRange{0, 0},
                            run.area.scores[r < kRows ? r : 0]);
  }
  if constexpr (kRows >= 4) {
    for (int r = 0; r < kPadded; r += 4) {
      StoreQuarter(maxima->largest + r,
                   FoldFour(best + r, [](F32x16 a, F32x16 b) { return Max(a, b); }));
    }
  } else {
    for (int r = 0; r < kRows; ++r) maxima->largest[r] = MaxAll(best[r]);
  }
  alignas(64) float change[16] = {};
  bool any = false;
  for (int r = 0; r < kRows; ++r) {
    float* max = StateAt(run.shape, run.area.current, query + static_cast<uint32_t>(r)).max;
    const float before = *max;
    maxima->rises[r] = maxima->largest[r] > before;
    if (!maxima->rises[r]) maxima->largest[r] = before;
    any |= maxima->rises[r];
    change[r] = before - maxima->largest[r];
    *max = maxima->largest[r];
  }
  if (any) Store(maxima->factors, Exp(Load(change)));
}

// Rule (3) for kRows rows and a tile: the maxima, the weights (in place of the scores) and the
// lanes. Rows take each step together, so that the chain of one does not wait for that of another.
template <int kRows>
inline void SoftmaxRows(const ItemRun& run, uint32_t query, const device::TaskRange* keys) {
  TileMaxima maxima;
  RaiseMaxima<kRows>(run, query, keys, &maxima);
  for (int r = 0; r < kRows; ++r) {
    if (keys[r].size() == 0) continue;
    const QueryState state = StateAt(run.shape, run.area.current, query + static_cast<uint32_t>(r));
    if (maxima.rises[r]) {
      const F32x16 factor = Set1(maxima.factors[r]);
      for (uint32_t i = 0; i < run.shape.padded_values + 16; i += 16) {
        Store(state.sums + i, Mul(Load(state.sums + i), factor));
      }
    }
    const F32x16 max = Set1(maxima.largest[r]);
    float* scores = run.area.scores[r];
    F32x16 lanes = Load(state.lanes);
    for (uint32_t base = keys[r].begin & ~(kGroupKeys - 1); base < keys[r].end;
         base += kGroupKeys) {
      const F32x16 e = Exp(Sub(Load(scores + base), max));
      Store(scores + base, e);
      lanes = Add(lanes, e);
    }
    Store(state.lanes, lanes);
  }
}

// The maxima, weights and lanes of kRows rows, as SoftmaxRows, where every row sees the whole tile.
template <int kRows>
inline void SoftmaxWholeTile(const ItemRun& run, uint32_t query) {
  static_assert(kTileGroups == 4 && kRows <= 16);
  constexpr int kPadded = (kRows + 3) / 4 * 4;
  float(*scores)[kTileKeys] = run.area.scores;
  alignas(64) float before[16] = {};
  alignas(64) float largest[16] = {};
  F32x16 best[kPadded];
  for (int r = 0; r < kPadded; ++r) {
    const float* s = scores[r < kRows ? r : 0];
    best[r] = Max(Max(Max(Load(s), Load(s + 16)), Load(s + 32)), Load(s + 48));
  }
  for (int r = 0; r < kPadded; r += 4) {
    StoreQuarter(largest + r, FoldFour(best + r, [](F32x16 a, F32x16 b) { return Max(a, b); }));
  }
  const QueryState first = StateAt(run.shape, run.area.current, query);
  const size_t stride = run.shape.state_stride;
  for (int r = 0; r < kRows; ++r) before[r] = first.max[r * stride];
  bool any = false;
  for (int r = 0; r < kRows; ++r) any |= largest[r] > before[r];
  if (any) {
    const F32x16 after = Max(Load(largest), Load(before));
    alignas(64) float factors[16];  // 1 where the maximum stays
    Store(factors, Exp(Sub(Load(before), after)));
    Store(before, after);
    for (int r = 0; r < kRows; ++r) {
      first.max[r * stride] = before[r];
      const F32x16 factor = Set1(factors[r]);
      float* sums = first.sums + r * stride;
      for (uint32_t i = 0; i < run.shape.padded_values + 16; i += 16) {
        Store(sums + i, Mul(Load(sums + i), factor));
      }
    }
  }
#pragma GCC unroll 1
  for (int r = 0; r < kRows; ++r) {
    const F32x16 max = Set1(before[r]);
    float* s = scores[r];
    F32x16 e[kTileGroups];
#pragma GCC unroll 4
    for (uint32_t g = 0; g < kTileGroups; ++g) e[g] = Exp(Sub(Load(s + 16 * g), max));
    F32x16 lanes = Load(first.lanes + r * stride);
#pragma GCC unroll 4
    for (uint32_t g = 0; g < kTileGroups; ++g) {
      Store(s + 16 * g, e[g]);
      lanes = Add(lanes, e[g]);
    }
    Store(first.lanes + r * stride, lanes);
  }
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_ATTENTION_SOFTMAX_H_
