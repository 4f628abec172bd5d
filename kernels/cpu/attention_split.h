// One split of 256 keys for the rows of one item: rules (2) and (3) of ARITHMETIC.md ("Attention").
// Included by one translation unit per instruction set.
#ifndef BATON_KERNELS_CPU_ATTENTION_SPLIT_H_
#define BATON_KERNELS_CPU_ATTENTION_SPLIT_H_

#include "kernels/cpu/attention_softmax.h"
#include "kernels/cpu/attention_source.h"

namespace baton::kernels::BATON_ISA {

// Adds some columns of values of kRows rows whose visible keys may differ: what all see together,
// the rest row by row, so that every row's chain ascends and no masked value is multiplied.
template <int kRows>
inline void ColumnsOfRows(const TileSource& tile, device::TaskRange columns,
                          const device::TaskRange* keys, const ValueRows& rows) {
  const float(*e)[kTileKeys] = rows.e;
  float* const sums = rows.sums;
  const size_t stride = rows.stride;
  device::TaskRange common = keys[0];
  for (int r = 1; r < kRows; ++r) {
    if (keys[r].begin > common.begin) common.begin = keys[r].begin;
    if (keys[r].end < common.end) common.end = keys[r].end;
  }
  const bool shared = kRows > 1 && common.begin < common.end;
  for (int r = 0; r < kRows; ++r) {
    const uint32_t end = shared ? common.begin : keys[r].end;
    if (keys[r].begin < end) {
      ValueColumns<1>(tile, columns, {keys[r].begin, end}, {e + r, sums + r * stride, stride});
    }
  }
  if (!shared) return;
  ValueColumns<kRows>(tile, columns, common, rows);
  for (int r = 0; r < kRows; ++r) {
    if (common.end < keys[r].end) {
      ValueColumns<1>(tile, columns, {common.end, keys[r].end}, {e + r, sums + r * stride, stride});
    }
  }
}

// Values of kRows rows. In q8 a weight is multiplied by the key's scale, segment by segment.
template <int kRows>
inline void ValuesOfRows(const ItemRun& run, const TileSource& tile, const device::TaskRange* keys,
                         float* sums) {
  const uint32_t num_columns = tile.padded_values / 16;
  const size_t stride = run.shape.state_stride;
  if (tile.v_scales == nullptr) {
    return ColumnsOfRows<kRows>(tile, {0, num_columns}, keys, {run.area.scores, sums, stride});
  }
  constexpr uint32_t kColumns = kv::kQ8SegmentDims / 16;
  for (uint32_t begin = 0; begin < num_columns; begin += kColumns) {
    const float* scales = tile.v_scales + begin / kColumns * kTileKeys;
    for (int r = 0; r < kRows; ++r) {
      for (uint32_t j = 0; j < kTileKeys; j += 16) {
        Store(run.area.weights[r] + j, Mul(Load(run.area.scores[r] + j), Load(scales + j)));
      }
    }
    const uint32_t end = num_columns - begin < kColumns ? num_columns : begin + kColumns;
    ColumnsOfRows<kRows>(tile, {begin, end}, keys, {run.area.weights, sums, stride});
  }
}

// Each of the queries [query, query + num_queries) sees all keys of the tile.
BATON_INLINE bool SeesWholeTile(const ItemRun& run, uint32_t tile_begin, uint32_t query,
                                uint32_t num_queries) {
  const uint32_t window = run.args.window;
  if (run.Position(query) < tile_begin + kTileKeys - 1) return false;
  return window == 0 || run.Position(query + num_queries - 1) < tile_begin + window;
}

// One tile for queries [query, query + kRows) of the item.
template <int kRows>
inline void TileRows(const ItemRun& run, const TileSource& tile, uint32_t tile_begin,
                     uint32_t query) {
  device::TaskRange keys[kRows];
  const float* q = run.area.q + size_t{query} * run.shape.padded_dim;
  float* const sums = run.area.current + query * run.shape.state_stride;
  if constexpr (kRows == kAttentionRows) {
    if (SeesWholeTile(run, tile_begin, query, kRows)) {
      for (device::TaskRange& range : keys) range = {0, kTileKeys};
      ScoreGroups<kRows>(tile, {0, kTileGroups}, q, run.area.scores);
      SoftmaxWholeTile<kRows>(run, query);
      return ValuesOfRows<kRows>(run, tile, keys, sums);
    }
  }
  uint32_t first = kTileKeys;
  uint32_t last = 0;
  for (int r = 0; r < kRows; ++r) {
    keys[r] = VisibleKeys(run.Position(query + static_cast<uint32_t>(r)), run.args.window,
                          tile_begin, kTileKeys);
    if (keys[r].size() == 0) continue;
    if (keys[r].begin < first) first = keys[r].begin;
    if (keys[r].end > last) last = keys[r].end;
  }
  if (first >= last) return;
  ScoreGroups<kRows>(tile, {first / kGroupKeys, (last + kGroupKeys - 1) / kGroupKeys}, q,
                     run.area.scores);
  SoftmaxRows<kRows>(run, query, keys);
  ValuesOfRows<kRows>(run, tile, keys, sums);
}

template <int kRows>
inline void TileRowsRest(const ItemRun& run, const TileSource& tile, uint32_t tile_begin,
                         uint32_t query, uint32_t num_rows) {
  if constexpr (kRows > 0) {
    if (num_rows == kRows) {
      TileRows<kRows>(run, tile, tile_begin, query);
    } else {
      TileRowsRest<kRows - 1>(run, tile, tile_begin, query, num_rows);
    }
  }
}

// One split of an item into area.current; `goes_on`: this thread takes the next split afterwards.
inline void RunSplit(const ItemRun& run, uint32_t split, bool goes_on) {
  const uint32_t num_queries = run.item.num_rows * run.shape.group;
  const uint32_t last = run.Position(num_queries - 1);
  const device::TaskRange seen = VisibleKeys(run.Position(0), run.args.window, 0, UINT32_MAX);
  const auto num_keys = [&](uint32_t begin) {
    return last + 1 - begin < kTileKeys ? last + 1 - begin : kTileKeys;
  };
  const uint32_t end = (split + 1) * kSplitKeys <= last ? (split + 1) * kSplitKeys : last + 1;
  uint32_t begin = split * kSplitKeys;
  while (begin + kTileKeys <= seen.begin) begin += kTileKeys;
  if (begin < end && (!goes_on || split == seen.begin / kSplitKeys)) {
    LinesOf(run, 0, begin, num_keys(begin)).All();
  }
  for (uint32_t i = 0; i < num_queries; ++i) {
    ResetState(run.shape, StateAt(run.shape, run.area.current, i));
  }
  const bool asks_ahead = num_queries % kAttentionRows != 0;  // whole passes ask for no lines
  for (; begin < end; begin += kTileKeys) {
    TileSource tile = SourceOf(run, begin, num_keys(begin));
    if (asks_ahead) {
      const uint32_t next = begin + kTileKeys;
      const bool has_next = next < end || (goes_on && next <= last);
      tile.with_keys = LinesOf(run, 1, begin, num_keys(begin));
      tile.with_values = has_next ? LinesOf(run, 0, next, num_keys(next)) : tile.with_keys;
    }
    uint32_t query = 0;
    for (; query + kAttentionRows <= num_queries; query += kAttentionRows) {
      TileRows<kAttentionRows>(run, tile, begin, query);
    }
    TileRowsRest<kAttentionRows - 1>(run, tile, begin, query, num_queries - query);
  }
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_ATTENTION_SPLIT_H_
