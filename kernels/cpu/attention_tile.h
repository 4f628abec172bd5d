// The inner loops of attention: scores and weighted values of one 64-key tile. Included by one
// translation unit per instruction set. Each output is one fma chain: a score over ascending dims,
// a value sum over ascending keys; lanes are keys (scores) or dims (values), so width changes no
// bit.
//
// In the default layout (bf16, paired, 16-token blocks) K and V are read straight from the blocks:
// 64 bytes hold 16 keys (or dims) times a pair of consecutive dims (or keys). kRows query rows
// share each load. Other layouts are converted to an fp32 tile first. Latent rows always are: their
// 64 * 576 elements serve 64 queries or more, of 1088 multiplications each.
#ifndef BATON_KERNELS_CPU_ATTENTION_TILE_H_
#define BATON_KERNELS_CPU_ATTENTION_TILE_H_

#include "kernels/cpu/simd_math.h"
#include "kernels/kv_piece.h"
#include "kernels/ops.h"

namespace baton::kernels::BATON_ISA {

inline constexpr uint32_t kTileKeys = 64;
inline constexpr uint32_t kGroupKeys = 16;
inline constexpr uint32_t kTileGroups = kTileKeys / kGroupKeys;

// Where the keys and values of one tile lie.
struct TileSource {
  bool paired;                      // true: bf16 pairs in the blocks; false: fp32 tiles below
  const std::byte* k[kTileGroups];  // pairs of dims 0, 1 of each 16-key group
  const std::byte* v[kTileGroups];  // pair of keys 0, 1, dim 0 of each 16-key group
  size_t k_step;                    // bytes from one pair of dims to the next
  size_t v_step;                    // bytes from one pair of keys to the next
  const float* k_tile;              // [dim][64]
  const float* v_tile;              // [64][padded values]
  uint32_t dim;
  uint32_t padded_dim;     // dim rounded up to 16
  uint32_t padded_values;  // elements of a value rounded up to 16
};

// scores[r][16 (first + g) ..] of kRows rows and kGroups groups of keys.
template <int kRows, int kGroups>
inline void Scores(const TileSource& tile, uint32_t first, const float* q,
                   float (*scores)[kTileKeys]) {
  F32x16 s[kRows][kGroups];
  for (int r = 0; r < kRows; ++r) {
    for (int g = 0; g < kGroups; ++g) s[r][g] = Zero();
  }
  const size_t stride = tile.padded_dim;
  if (tile.paired) {
    const std::byte* k[kGroups];
    for (int g = 0; g < kGroups; ++g) k[g] = tile.k[first + g];
    for (uint32_t d = 0; d < tile.dim; d += 2) {
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) {
        const I32x16 pair = LoadPairs(k[g] + d / 2 * tile.k_step);
        const F32x16 low = PairLow(pair);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) s[r][g] = Fma(Set1(q[r * stride + d]), low, s[r][g]);
        const F32x16 high = PairHigh(pair);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) s[r][g] = Fma(Set1(q[r * stride + d + 1]), high, s[r][g]);
      }
    }
  } else {
    for (uint32_t d = 0; d < tile.dim; ++d) {
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) {
        const F32x16 key = Load(tile.k_tile + d * kTileKeys + (first + g) * kGroupKeys);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) s[r][g] = Fma(Set1(q[r * stride + d]), key, s[r][g]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int g = 0; g < kGroups; ++g) Store(scores[r] + (first + g) * kGroupKeys, s[r][g]);
  }
}

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

// Keys [begin, end) of one 16-key group, from pairs.
template <int kRows, int kColumns>
BATON_INLINE void ValuePairs(F32x16 (&acc)[kRows][kColumns], const float (*e)[kTileKeys],
                             const std::byte* v, size_t step, device::TaskRange keys) {
  uint32_t j = keys.begin;
  F32x16 values[kColumns];
  if (j % 2 == 1 && j < keys.end) {
    const std::byte* p = v + j % kGroupKeys / 2 * step;
    for (int c = 0; c < kColumns; ++c) values[c] = PairHigh(LoadPairs(p + c * 64));
    ValueStep<kRows, kColumns>(acc, e, j, values);
    ++j;
  }
  for (; j + 1 < keys.end; j += 2) {
    const std::byte* p = v + j % kGroupKeys / 2 * step;
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

// Rows of weighted sums and the weights that they take the values of a tile with.
struct ValueRows {
  const float (*e)[kTileKeys];  // weights of row r: e[r]
  float* sums;                  // row r at sums + r * stride: [padded values]
  size_t stride;                // floats
};

// Adds the tile's keys `keys` to dims [16 column, 16 (column + kColumns)) of kRows rows.
template <int kRows, int kColumns>
inline void Values(const TileSource& tile, uint32_t column, device::TaskRange keys,
                   const ValueRows& rows) {
  const float(*e)[kTileKeys] = rows.e;
  float* const acc = rows.sums + column * 16;
  F32x16 sums[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) sums[r][c] = Load(acc + r * rows.stride + c * 16);
  }
  if (tile.paired) {
    for (uint32_t g = keys.begin / kGroupKeys; g * kGroupKeys < keys.end; ++g) {
      const uint32_t begin = keys.begin > g * kGroupKeys ? keys.begin : g * kGroupKeys;
      const uint32_t end = keys.end < (g + 1) * kGroupKeys ? keys.end : (g + 1) * kGroupKeys;
      ValuePairs<kRows, kColumns>(sums, e, tile.v[g] + size_t{column} * 64, tile.v_step,
                                  {begin, end});
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

// All key groups [first, end) for kRows rows; fewer rows take more groups at once, so that enough
// chains are in flight.
template <int kRows>
inline void ScoreGroups(const TileSource& tile, device::TaskRange groups, const float* q,
                        float (*scores)[kTileKeys]) {
  constexpr int kGroups = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;
  uint32_t g = groups.begin;
  for (; g + kGroups <= groups.end; g += kGroups) Scores<kRows, kGroups>(tile, g, q, scores);
  for (; g < groups.end; ++g) Scores<kRows, 1>(tile, g, q, scores);
}

template <int kRows>
inline void ValueColumns(const TileSource& tile, device::TaskRange keys, const ValueRows& rows) {
  constexpr uint32_t kColumns = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;
  const uint32_t columns = tile.padded_values / 16;
  uint32_t c = 0;
  for (; c + kColumns <= columns; c += kColumns) {
    Values<kRows, kColumns>(tile, c, keys, rows);
  }
  for (; c < columns; ++c) Values<kRows, 1>(tile, c, keys, rows);
}

// The keys of one KV head that a tile is made of.
struct TileKeys {
  const kv::KvView& kv;
  uint32_t layer;
  const AttentionSpan& span;
  uint32_t kv_head;
  device::TaskRange keys;  // absolute
};

// Converts keys to fp32; the rest of the tile is zero. For layouts without a direct path.
inline void ConvertTile(const TileKeys& from, float* k_tile, float* v_tile) {
  const kv::KvLayout& layout = *from.kv.layout;
  const uint32_t padded_dim = (layout.head_dim + 15) / 16 * 16;
  for (uint32_t i = 0; i < layout.head_dim * kTileKeys; ++i) k_tile[i] = 0.0f;
  for (uint32_t i = 0; i < padded_dim * kTileKeys; ++i) v_tile[i] = 0.0f;
  for (uint32_t key = from.keys.begin; key < from.keys.end; ++key) {
    const uint32_t block = from.span.kv.blocks[key / layout.block_size];
    const uint32_t token = key % layout.block_size;
    const std::byte* k_piece = from.kv.Piece(block, from.layer, 0, from.kv_head);
    const std::byte* v_piece = from.kv.Piece(block, from.layer, 1, from.kv_head);
    const uint32_t j = key % kTileKeys;
    for (uint32_t d = 0; d < layout.head_dim; ++d) {
      k_tile[d * kTileKeys + j] = LoadKv(layout.dtype, k_piece, KIndex(layout, token, d));
      v_tile[j * padded_dim + d] = LoadKv(layout.dtype, v_piece, VIndex(layout, token, d));
    }
  }
}

// Elements [i, i + 16) of a latent row, zeros beyond its `dim`.
BATON_INLINE F32x16 LatentElements(const kv::KvLayout& layout, const std::byte* row, uint32_t i) {
  const uint32_t rest = layout.head_dim - i;
  if (layout.dtype == kv::KvDtype::kF32) {
    return LoadN(reinterpret_cast<const float*>(row) + i, rest < 16 ? rest : 16);
  }
  if (rest >= 16) return LoadBf16(row + size_t{i} * 2);
  std::byte last[32] = {};
  std::memcpy(last, row + size_t{i} * 2, size_t{rest} * 2);
  return LoadBf16(last);
}

// Latent rows to fp32: all of them as keys, their beginnings as values; the rest of the tile is
// zero.
inline void ConvertLatents(const TileKeys& from, const TileSource& tile, float* k_tile,
                           float* v_tile) {
  const kv::KvLayout& layout = *from.kv.layout;
  const size_t row_bytes = layout.head_dim * layout.ElementBytes();
  for (uint32_t j = 0; j < kTileKeys; ++j) {
    const uint32_t key = from.keys.begin + j;
    const bool exists = key < from.keys.end;
    const std::byte* row = nullptr;
    if (exists) {
      const uint32_t block = from.span.kv.blocks[key / layout.block_size];
      row = from.kv.Piece(block, from.layer, 0, 0) + key % layout.block_size * row_bytes;
    }
    for (uint32_t i = 0; i < tile.dim; i += 16) {
      const F32x16 x = exists ? LatentElements(layout, row, i) : Zero();
      if (i < tile.padded_values) Store(v_tile + size_t{j} * tile.padded_values + i, x);
      float elements[16];
      Store(elements, x);
      const uint32_t n = tile.dim - i < 16 ? tile.dim - i : 16;
      for (uint32_t d = 0; d < n; ++d) k_tile[(i + d) * kTileKeys + j] = elements[d];
    }
  }
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_ATTENTION_TILE_H_
