// The weighted values of one 64-key tile; see attention_tile.h. Included by one translation unit
// per instruction set.
#ifndef BATON_KERNELS_CPU_ATTENTION_VALUES_H_
#define BATON_KERNELS_CPU_ATTENTION_VALUES_H_

#include "kernels/cpu/attention_tile.h"

namespace baton::kernels::BATON_ISA {

// One key j of the values: acc[r][c] = fma(e[r][j], v[j][16 (column + c) ..], acc[r][c]).
template <int kRows, int kColumns>
BATON_INLINE void ValueStep(F32x16 (&acc)[kRows][kColumns], const float (*e)[kTileKeys], uint32_t j,
                            const F32x16 (&v)[kColumns]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const F32x16 weight = Set1(e[r][j]);
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) acc[r][c] = Fma(weight, v[c], acc[r][c]);
  }
}

// Where the columns of values of one 16-key group lie, and the lines to ask for beside them: of
// group `g`, `line` is the first for these columns.
struct ValueSource {
  const std::byte* v;
  size_t step;  // bytes from one unit of keys to the next
  const FetchAhead& ahead;
  uint32_t g;
  uint32_t line;
};

// Keys [begin, end) of one 16-key group, from pairs.
template <int kRows, int kColumns>
BATON_INLINE void ValuePairs(F32x16 (&acc)[kRows][kColumns], const float (*e)[kTileKeys],
                             const ValueSource& from, device::TaskRange keys) {
  const std::byte* const v = from.v;
  const size_t step = from.step;
  uint32_t j = keys.begin;
  F32x16 values[kColumns];
  if (j % 2 == 1 && j < keys.end) {
    const std::byte* p = v + j % kGroupKeys / 2 * step;
    for (int c = 0; c < kColumns; ++c) values[c] = PairHigh(LoadPairs(p + c * 64));
    ValueStep<kRows, kColumns>(acc, e, j, values);
    ++j;
  }
  for (; j + 1 < keys.end; j += 2) {
    const uint32_t pair = j % kGroupKeys / 2;
    const std::byte* p = v + pair * step;
    for (uint32_t c = 0; kRows < kAttentionRows && c < kColumns; ++c) {
      from.ahead.Line(from.g, from.line + pair * kColumns + c);
    }
    for (int c = 0; c < kColumns; ++c) values[c] = PairLow(LoadPairs(p + c * 64));
    ValueStep<kRows, kColumns>(acc, e, j, values);
    for (int c = 0; c < kColumns; ++c) values[c] = PairHigh(LoadPairs(p + c * 64));
    ValueStep<kRows, kColumns>(acc, e, j + 1, values);
  }
  if (j < keys.end) {
    const std::byte* p = v + j % kGroupKeys / 2 * step;
    for (int c = 0; c < kColumns; ++c) values[c] = PairLow(LoadPairs(p + c * 64));
    ValueStep<kRows, kColumns>(acc, e, j, values);
  }
}

// Keys [begin, end) of one 16-key group, from codes.
template <int kRows, int kColumns>
BATON_INLINE void ValueCodes(F32x16 (&acc)[kRows][kColumns], const float (*e)[kTileKeys],
                             const ValueSource& from, device::TaskRange keys) {
  for (uint32_t j = keys.begin; j < keys.end; ++j) {
    const std::byte* p = from.v + j % kGroupKeys * from.step;
    // A line of keys is 64 codes; kColumns columns have 16 kColumns codes of each of 16 keys.
    if (kRows < kAttentionRows && j % 4 == 0) {
      for (uint32_t c = 0; c < kColumns; ++c) {
        from.ahead.Line(from.g, from.line + j % kGroupKeys / 4 * kColumns + c);
      }
    }
    F32x16 values[kColumns];
    for (int c = 0; c < kColumns; ++c) values[c] = LoadCodes(p + c * 16);
    ValueStep<kRows, kColumns>(acc, e, j, values);
  }
}

// Rows of weighted sums and the weights that they take the values of a tile with.
struct ValueRows {
  const float (*e)[kTileKeys];  // weights of row r: e[r]
  float* sums;                  // row r at sums + r * stride: [padded values]
  size_t stride;                // floats
};

// Adds the tile's keys `keys` to dims [16 column, 16 (column + kColumns)) of kRows rows.
template <int kRows, int kColumns>
BATON_INLINE void Values(const TileSource& tile, uint32_t column, device::TaskRange keys,
                         const ValueRows& rows) {
  const float(*e)[kTileKeys] = rows.e;
  float* const acc = rows.sums + column * 16;
  F32x16 sums[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) sums[r][c] = Load(acc + r * rows.stride + c * 16);
  }
  if (tile.form != TileForm::kFloats) {
    for (uint32_t g = keys.begin / kGroupKeys; g * kGroupKeys < keys.end; ++g) {
      const uint32_t begin = keys.begin > g * kGroupKeys ? keys.begin : g * kGroupKeys;
      const uint32_t end = keys.end < (g + 1) * kGroupKeys ? keys.end : (g + 1) * kGroupKeys;
      if (tile.form == TileForm::kPairs) {
        ValuePairs<kRows, kColumns>(sums, e,
                                    {tile.v[g] + size_t{column} * 64, tile.v_step, tile.with_values,
                                     g, column * kGroupKeys / 2},
                                    {begin, end});
      } else {
        ValueCodes<kRows, kColumns>(sums, e,
                                    {tile.v[g] + size_t{column} * 16, tile.v_step, tile.with_values,
                                     g, column * kGroupKeys / 4},
                                    {begin, end});
      }
    }
  } else {
    for (uint32_t j = keys.begin; j < keys.end; ++j) {
      F32x16 values[kColumns];
      for (int c = 0; c < kColumns; ++c) {
        values[c] = Load(tile.v_tile + size_t{j} * tile.padded_values + (column + c) * 16);
      }
      ValueStep<kRows, kColumns>(sums, e, j, values);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) Store(acc + r * rows.stride + c * 16, sums[r][c]);
  }
}

// Dims [16 columns.begin, 16 columns.end).
template <int kRows>
inline void ValueColumns(const TileSource& tile, device::TaskRange columns, device::TaskRange keys,
                         const ValueRows& rows) {
  constexpr uint32_t kColumns = NumAtOnce<kRows>();
  uint32_t c = columns.begin;
  for (; c + kColumns <= columns.end; c += kColumns) {
    Values<kRows, kColumns>(tile, c, keys, rows);
  }
  if constexpr (kColumns > 2) {
    for (; c + 2 <= columns.end; c += 2) {
      Values<kRows, 2>(tile, c, keys, rows);
    }
  }
  for (; c < columns.end; ++c) {
    Values<kRows, 1>(tile, c, keys, rows);
  }
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_ATTENTION_VALUES_H_
