// The inner loops of attention: scores and weighted values of one 64-key tile. Included by one
// translation unit per instruction set. Each output is one fma chain: a score over ascending dims,
// a value sum over ascending keys; lanes are keys (scores) or dims (values), so width changes no
// bit.
//
// In the default layout (bf16, paired, 16-token blocks) K and V are read straight from the blocks:
// 64 bytes hold 16 keys (or dims) times a pair of consecutive dims (or keys). kRows query rows
// share each load. q8 is read so too where few rows share a tile (decode): 16 bytes hold the codes
// of 16 keys (or dims), and the scales of the keys multiply sums and weights, not elements. Other
// layouts, and q8 where many rows share a tile, are converted to an fp32 tile first. Latent rows
// always are: their 64 * 576 elements serve 64 queries or more, of 1088 multiplications each.
#ifndef BATON_KERNELS_CPU_ATTENTION_TILE_H_
#define BATON_KERNELS_CPU_ATTENTION_TILE_H_

#include "kernels/cpu/simd_math.h"
#include "kernels/kv_piece.h"
#include "kernels/ops.h"

namespace baton::kernels::BATON_ISA {

inline constexpr uint32_t kTileKeys = 64;
inline constexpr uint32_t kGroupKeys = 16;
inline constexpr uint32_t kTileGroups = kTileKeys / kGroupKeys;

// The form in which a tile is read.
enum class TileForm : uint8_t {
  kPairs,   // bf16 pairs in the blocks
  kCodes,   // q8 in the blocks
  kFloats,  // fp32 tiles
};

// The cache lines of keys or values that are read next: line i of group g is at[g] + i * step.
// Blocks lie apart in memory, so that the hardware's prefetching begins anew with each group. One
// line is asked for with each line that is read: more at once would hold up the reads. Passes of
// kAttentionRows rows ask for none: there arithmetic binds.
struct FetchAhead {
  const std::byte* at[kTileGroups];
  size_t step;
  uint32_t num_lines;  // of a group

  BATON_INLINE void Line(uint32_t g, uint32_t i) const { __builtin_prefetch(at[g] + i * step); }
  void All() const {
    for (uint32_t g = 0; g < kTileGroups; ++g) {
      for (uint32_t i = 0; i < num_lines; ++i) Line(g, i);
    }
  }
};

// Where the keys and values of one tile lie. A "unit" is a pair of dims or keys of kPairs, and one
// dim or key of kCodes.
struct TileSource {
  TileForm form;
  const std::byte* k[kTileGroups];  // first unit of dims of each 16-key group
  const std::byte* v[kTileGroups];  // first unit of keys, dim 0 of each 16-key group
  size_t k_step;                    // bytes from one unit of dims to the next
  size_t v_step;                    // bytes from one unit of keys to the next
  const float* k_tile;              // [dim][64]
  const float* v_tile;              // [64][padded values]
  const float* k_scales;            // [segments][64] of q8, else null
  const float* v_scales;            // [segments][64] of q8, else null
  uint32_t dim;
  uint32_t padded_dim;     // dim rounded up to 16
  uint32_t padded_values;  // elements of a value rounded up to 16
  FetchAhead with_keys;    // asked for while keys are read: the values of the tile
  FetchAhead with_values;  // asked for while values are read: the next tile's keys
};

// 16 codes of q8 as fp32; exact.
BATON_INLINE F32x16 LoadCodes(const std::byte* p) { return ToFloat(LoadSignedBytes(p)); }

// Groups of keys, or columns of values, that a pass of kRows rows takes at once: so many that its
// chains hide their latency.
template <int kRows>
constexpr int NumAtOnce() {
  if (4 * kRows <= kAttentionChains) return 4;
  return 2 * kRows <= kAttentionChains ? 2 : 1;
}

// One dim of the scores of groups [g, g + kSharing): s[r][g + i] = fma(q[r * stride], keys[i],
// s[r][g + i]).
template <int kRows, int kGroups, int kSharing>
BATON_INLINE void ScoreStep(const float* q, size_t stride, const F32x16 (&keys)[kSharing], int g,
                            F32x16 (&s)[kRows][kGroups]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const F32x16 x = Set1(q[r * stride]);
#pragma GCC unroll 4
    for (int i = 0; i < kSharing; ++i) s[r][g + i] = Fma(x, keys[i], s[r][g + i]);
  }
}

// Asks ahead for a line of the group's keys, where so few rows take a pass that memory is awaited.
template <int kRows>
BATON_INLINE void AskForKeys(const TileSource& tile, uint32_t group, uint32_t line) {
  if constexpr (kRows < kAttentionRows) tile.with_keys.Line(group, line);
}

// s[r][g] += dims `dims` of the products of kRows rows and kGroups groups of keys.
template <int kRows, int kGroups>
BATON_INLINE void AddProducts(const TileSource& tile, uint32_t first, const float* q,
                              device::TaskRange dims, F32x16 (&s)[kRows][kGroups]) {
  // Groups that share the broadcast of a query's element. On 16 registers their keys would spill.
  constexpr int kSharing = kAttentionChains >= 16 ? kGroups : 1;
  const size_t stride = tile.padded_dim;
  if (tile.form == TileForm::kFloats) {
    for (uint32_t d = dims.begin; d < dims.end; ++d) {
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; g += kSharing) {
        F32x16 keys[kSharing];
        const float* row =
            tile.k_tile + d * kTileKeys + (first + static_cast<uint32_t>(g)) * kGroupKeys;
#pragma GCC unroll 4
        for (int i = 0; i < kSharing; ++i) keys[i] = Load(row + i * kGroupKeys);
        ScoreStep(q + d, stride, keys, g, s);
      }
    }
    return;
  }
  const std::byte* k[kGroups];
  for (int g = 0; g < kGroups; ++g) k[g] = tile.k[first + g];
  if (tile.form == TileForm::kPairs) {
    for (uint32_t d = dims.begin; d < dims.end; d += 2) {
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; g += kSharing) {
        F32x16 low[kSharing];
        F32x16 high[kSharing];
#pragma GCC unroll 4
        for (int i = 0; i < kSharing; ++i) {
          AskForKeys<kRows>(tile, first + static_cast<uint32_t>(g + i), d / 2);
          const I32x16 pair = LoadPairs(k[g + i] + d / 2 * tile.k_step);
          low[i] = PairLow(pair);
          high[i] = PairHigh(pair);
        }
        ScoreStep(q + d, stride, low, g, s);
        ScoreStep(q + d + 1, stride, high, g, s);
      }
    }
    return;
  }
  for (uint32_t d = dims.begin; d < dims.end; ++d) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; g += kSharing) {
      F32x16 keys[kSharing];
#pragma GCC unroll 4
      for (int i = 0; i < kSharing; ++i) {
        if (d % 4 == 0) AskForKeys<kRows>(tile, first + static_cast<uint32_t>(g + i), d / 4);
        keys[i] = LoadCodes(k[g + i] + d * tile.k_step);
      }
      ScoreStep(q + d, stride, keys, g, s);
    }
  }
}

// scores[r][16 (first + g) ..] of kRows rows and kGroups groups of keys. In q8 the sum of each
// segment is multiplied by the keys' scales.
template <int kRows, int kGroups>
BATON_INLINE void Scores(const TileSource& tile, uint32_t first, const float* q,
                         float (*scores)[kTileKeys]) {
  const bool is_scaled = tile.k_scales != nullptr;
  const uint32_t step = is_scaled ? kv::kQ8SegmentDims : tile.dim;
  for (uint32_t begin = 0; begin < tile.dim; begin += step) {
    F32x16 s[kRows][kGroups];
    for (int r = 0; r < kRows; ++r) {
      for (int g = 0; g < kGroups; ++g) s[r][g] = Zero();
    }
    const uint32_t end = tile.dim - begin < step ? tile.dim : begin + step;
    AddProducts<kRows, kGroups>(tile, first, q, {begin, end}, s);
    for (int g = 0; g < kGroups; ++g) {
      const uint32_t key = (first + static_cast<uint32_t>(g)) * kGroupKeys;
      if (is_scaled) {
        const F32x16 scales = Load(tile.k_scales + begin / kv::kQ8SegmentDims * kTileKeys + key);
        for (int r = 0; r < kRows; ++r) {
          s[r][g] = Fma(s[r][g], scales, begin == 0 ? Zero() : Load(scores[r] + key));
        }
      }
      for (int r = 0; r < kRows; ++r) Store(scores[r] + key, s[r][g]);
    }
  }
}

// All key groups [first, end) for kRows rows.
template <int kRows>
inline void ScoreGroups(const TileSource& tile, device::TaskRange groups, const float* q,
                        float (*scores)[kTileKeys]) {
  constexpr int kGroups = NumAtOnce<kRows>();
  uint32_t g = groups.begin;
  for (; g + kGroups <= groups.end; g += kGroups) Scores<kRows, kGroups>(tile, g, q, scores);
  for (; g < groups.end; ++g) Scores<kRows, 1>(tile, g, q, scores);
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_ATTENTION_TILE_H_
