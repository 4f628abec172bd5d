// Attention over blocks of KV, for prefill chunks and decode steps alike. Included by one translation
// unit per instruction set. The order of every operation is numbered in README.md ("Attention").
//
// Work split: an item is some consecutive rows of a span and one KV head; the query heads that share the
// KV head go through each K and V load together. With few items (decode) an item is cut further into
// splits, whose partial results meet in scratch. Reads K and V once per item (2 * keys * dim * 2 bytes
// per KV head); 4 * rows * heads * keys * dim operations. Decode: memory should bind; prefill: fma.
#ifndef BATON_KERNELS_CPU_ATTENTION_H_
#define BATON_KERNELS_CPU_ATTENTION_H_

#include <limits>

#include "kernels/cpu/attention_tile.h"

namespace baton::BATON_ISA {

inline constexpr uint32_t kSplitKeys = 256;
static_assert(kSplitKeys % kTileKeys == 0);
// Query rows times heads of one item: K and V tiles (16 KiB at dim 64) are shared by this many.
inline constexpr uint32_t kItemQueries = 64;
// Items below which a step is cut into splits, per thread.
inline constexpr uint32_t kMinItemsPerThread = 4;
// Partial results held at a time, per thread, in (item, split) pairs.
inline constexpr uint32_t kPartialsPerThread = 64;

// Consecutive rows of one span and one KV head.
struct AttentionItem {
  const AttentionSpan* span;
  uint32_t first;     // row of the span
  uint32_t num_rows;  // >= 1
  uint32_t kv_head;
};

// Sizes that the whole call shares.
struct AttentionShape {
  uint32_t dim;
  uint32_t padded_dim;
  uint32_t group;          // query heads per KV head
  uint32_t max_queries;    // of one item
  size_t state_stride;     // floats of one state: sums [padded_dim], lanes [16], max, 15 unused
  size_t thread_floats;    // working memory of one thread
};

inline AttentionShape ShapeOf(uint32_t num_heads, uint32_t num_kv_heads, uint32_t head_dim) {
  AttentionShape shape;
  shape.dim = head_dim;
  shape.padded_dim = (head_dim + 15) / 16 * 16;
  shape.group = num_heads / num_kv_heads;
  shape.max_queries = shape.group > kItemQueries ? shape.group : kItemQueries;
  shape.state_stride = shape.padded_dim + 32;
  shape.thread_floats = size_t{shape.max_queries} * (shape.padded_dim + 2 * shape.state_stride) +
                        size_t{kAttentionRows} * kTileKeys + 2 * size_t{kTileKeys} * shape.padded_dim;
  return shape;
}

// The running result of one query row: sums, lanes of the denominator, and the maximum.
struct QueryState {
  float* sums;   // [padded_dim]
  float* lanes;  // [16]
  float* max;
};

BATON_INLINE QueryState StateAt(const AttentionShape& shape, float* states, size_t index) {
  float* sums = states + index * shape.state_stride;
  return {sums, sums + shape.padded_dim, sums + shape.padded_dim + 16};
}

BATON_INLINE void ResetState(const AttentionShape& shape, QueryState state) {
  for (uint32_t i = 0; i < shape.padded_dim + 16; i += 16) Store(state.sums + i, Zero());
  *state.max = -std::numeric_limits<float>::infinity();
}

// Working memory of one thread.
struct ThreadArea {
  float* q;       // [queries][padded_dim], scaled
  float* current;  // states of the current split
  float* total;   // states of the splits so far
  float (*scores)[kTileKeys];  // [kAttentionRows]
  float* k_tile;
  float* v_tile;
};

inline ThreadArea AreaOf(const AttentionShape& shape, std::span<std::byte> scratch, uint32_t thread) {
  float* base = reinterpret_cast<float*>(scratch.data()) + thread * shape.thread_floats;
  ThreadArea area;
  area.q = base;
  area.current = area.q + size_t{shape.max_queries} * shape.padded_dim;
  area.total = area.current + shape.max_queries * shape.state_stride;
  area.scores = reinterpret_cast<float(*)[kTileKeys]>(area.total +
                                                      shape.max_queries * shape.state_stride);
  area.k_tile = area.scores[kAttentionRows];
  area.v_tile = area.k_tile + size_t{kTileKeys} * shape.padded_dim;
  return area;
}

// The keys that a row at `position` sees, cut to [begin, begin + size), relative to begin.
BATON_INLINE TaskRange VisibleKeys(uint32_t position, uint32_t window, uint32_t begin, uint32_t size) {
  const uint32_t first = window != 0 && position >= window ? position - window + 1 : 0;
  const uint32_t low = first > begin ? first - begin : 0;
  const uint32_t high = position + 1 > begin ? position + 1 - begin : 0;
  const uint32_t end = high < size ? high : size;
  return {low < end ? low : end, end};
}

// What an item's inner functions share.
struct ItemRun {
  const AttentionArgs& args;
  const AttentionShape& shape;
  const AttentionItem& item;
  const ThreadArea& area;
  uint32_t Position(uint32_t query) const {
    return item.span->first_pos + item.first + query / shape.group;
  }
};

// Points at keys [begin, begin + 64) of the item, of which `num_keys` exist.
inline TileSource SourceOf(const ItemRun& run, uint32_t begin, uint32_t num_keys) {
  const KvView& kv = run.args.kv;
  const KvLayout& layout = *kv.layout;
  TileSource tile = {};
  tile.dim = run.shape.dim;
  tile.padded_dim = run.shape.padded_dim;
  tile.paired = layout.dtype == KvDtype::kBf16 && layout.encoding == KvEncoding::kPaired &&
                layout.block_size % kGroupKeys == 0 && tile.dim == tile.padded_dim;
  if (!tile.paired) {
    ConvertTile(kv, run.args.layer, *run.item.span, run.item.kv_head, {begin, begin + num_keys},
                run.area.k_tile, run.area.v_tile);
    tile.k_tile = run.area.k_tile;
    tile.v_tile = run.area.v_tile;
    return tile;
  }
  tile.k_step = size_t{layout.block_size} * 4;
  tile.v_step = size_t{layout.head_dim} * 4;
  for (uint32_t g = 0; g * kGroupKeys < num_keys; ++g) {
    const uint32_t key = begin + g * kGroupKeys;
    const uint32_t block = run.item.span->kv.blocks[key / layout.block_size];
    const uint32_t token = key % layout.block_size;
    tile.k[g] = kv.Piece(block, run.args.layer, 0, run.item.kv_head) + size_t{token} * 4;
    tile.v[g] = kv.Piece(block, run.args.layer, 1, run.item.kv_head) + token / 2 * tile.v_step;
  }
  return tile;
}

// Rule (3) for one row and tile: the maximum, the weights e (in place of the scores) and the lanes.
inline void SoftmaxRow(const AttentionShape& shape, QueryState state, TaskRange keys, float* scores) {
  const F32x16 minus_infinity = Set1(-std::numeric_limits<float>::infinity());
  const uint32_t first = keys.begin / kGroupKeys;
  const uint32_t end = (keys.end + kGroupKeys - 1) / kGroupKeys;
  F32x16 best = minus_infinity;
  for (uint32_t g = first; g < end; ++g) {
    const int32_t base = static_cast<int32_t>(g * kGroupKeys);
    const F32x16 s = KeepLanes(Load(scores + base), static_cast<int32_t>(keys.begin) - base,
                               static_cast<int32_t>(keys.end) - base, minus_infinity);
    Store(scores + base, s);
    best = Max(best, s);
  }
  const float old_max = *state.max;
  const float tile_max = MaxAll(best);
  const float new_max = tile_max > old_max ? tile_max : old_max;
  if (new_max > old_max) {
    const F32x16 factor = Exp(Set1(old_max - new_max));
    for (uint32_t i = 0; i < shape.padded_dim + 16; i += 16) {
      Store(state.sums + i, Mul(Load(state.sums + i), factor));
    }
    *state.max = new_max;
  }
  const F32x16 max = Set1(new_max);
  F32x16 lanes = Load(state.lanes);
  for (uint32_t g = first; g < end; ++g) {
    const F32x16 e = Exp(Sub(Load(scores + g * kGroupKeys), max));
    Store(scores + g * kGroupKeys, e);
    lanes = Add(lanes, e);
  }
  Store(state.lanes, lanes);
}

// Values of kRows rows whose visible keys may differ: what all see together, the rest row by row, so
// that every row's chain ascends and no masked value is multiplied.
template <int kRows>
inline void ValuesOfRows(const ItemRun& run, const TileSource& tile, const TaskRange* keys,
                         float* sums) {
  const size_t stride = run.shape.state_stride;
  const float(*e)[kTileKeys] = run.area.scores;
  TaskRange common = keys[0];
  for (int r = 1; r < kRows; ++r) {
    if (keys[r].begin > common.begin) common.begin = keys[r].begin;
    if (keys[r].end < common.end) common.end = keys[r].end;
  }
  const bool shared = kRows > 1 && common.begin < common.end;
  for (int r = 0; r < kRows; ++r) {
    const uint32_t end = shared ? common.begin : keys[r].end;
    if (keys[r].begin < end) {
      ValueColumns<1>(tile, e + r, {keys[r].begin, end}, sums + r * stride, stride);
    }
  }
  if (!shared) return;
  ValueColumns<kRows>(tile, e, common, sums, stride);
  for (int r = 0; r < kRows; ++r) {
    if (common.end < keys[r].end) {
      ValueColumns<1>(tile, e + r, {common.end, keys[r].end}, sums + r * stride, stride);
    }
  }
}

// One tile for queries [query, query + kRows) of the item.
template <int kRows>
inline void TileRows(const ItemRun& run, const TileSource& tile, uint32_t tile_begin, uint32_t query) {
  TaskRange keys[kRows];
  uint32_t first = kTileKeys;
  uint32_t last = 0;
  for (int r = 0; r < kRows; ++r) {
    keys[r] = VisibleKeys(run.Position(query + static_cast<uint32_t>(r)), run.args.window, tile_begin,
                          kTileKeys);
    if (keys[r].size() == 0) continue;
    if (keys[r].begin < first) first = keys[r].begin;
    if (keys[r].end > last) last = keys[r].end;
  }
  if (first >= last) return;
  const float* q = run.area.q + size_t{query} * run.shape.padded_dim;
  ScoreGroups<kRows>(tile, {first / kGroupKeys, (last + kGroupKeys - 1) / kGroupKeys}, q,
                     run.area.scores);
  for (int r = 0; r < kRows; ++r) {
    if (keys[r].size() == 0) continue;
    SoftmaxRow(run.shape, StateAt(run.shape, run.area.current, query + static_cast<uint32_t>(r)),
               keys[r], run.area.scores[r]);
  }
  ValuesOfRows<kRows>(run, tile, keys, run.area.current + query * run.shape.state_stride);
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

// One split of an item into area.current.
inline void RunSplit(const ItemRun& run, uint32_t split) {
  const uint32_t num_queries = run.item.num_rows * run.shape.group;
  for (uint32_t i = 0; i < num_queries; ++i) {
    ResetState(run.shape, StateAt(run.shape, run.area.current, i));
  }
  const uint32_t last = run.Position(num_queries - 1);
  const TaskRange seen = VisibleKeys(run.Position(0), run.args.window, 0, UINT32_MAX);
  for (uint32_t t = 0; t < kSplitKeys / kTileKeys; ++t) {
    const uint32_t begin = split * kSplitKeys + t * kTileKeys;
    if (begin > last) break;
    if (begin + kTileKeys <= seen.begin) continue;
    const uint32_t exist = last + 1 - begin;
    const TileSource tile = SourceOf(run, begin, exist < kTileKeys ? exist : kTileKeys);
    uint32_t query = 0;
    for (; query + kAttentionRows <= num_queries; query += kAttentionRows) {
      TileRows<kAttentionRows>(run, tile, begin, query);
    }
    TileRowsRest<kAttentionRows - 1>(run, tile, begin, query, num_queries - query);
  }
}

// Rule (4): adds a split's state to the total; the first is copied.
inline void FoldState(const AttentionShape& shape, bool first, QueryState split, QueryState total) {
  if (first) {
    for (uint32_t i = 0; i < shape.padded_dim + 16; i += 16) Store(total.sums + i, Load(split.sums + i));
    *total.max = *split.max;
    return;
  }
  const float max = *split.max > *total.max ? *split.max : *total.max;
  const F32x16 old_factor = Exp(Set1(*total.max - max));
  const F32x16 new_factor = Exp(Set1(*split.max - max));
  for (uint32_t i = 0; i < shape.padded_dim + 16; i += 16) {
    Store(total.sums + i,
          Fma(Load(split.sums + i), new_factor, Mul(Load(total.sums + i), old_factor)));
  }
  *total.max = max;
}

// Rule (5).
inline void WriteOutput(const ItemRun& run, uint32_t query, QueryState total) {
  const uint32_t dim = run.shape.dim;
  const uint32_t row = run.item.span->first_row + run.item.first + query / run.shape.group;
  const uint32_t head = run.item.kv_head * run.shape.group + query % run.shape.group;
  float* out = run.args.out + (size_t{row} * run.args.num_heads + head) * dim;
  const F32x16 denominator = Set1(SumTree(Load(total.lanes)));
  for (uint32_t d = 0; d < dim; d += 16) {
    const F32x16 y = Div(Load(total.sums + d), denominator);
    if (d + 16 <= dim) {
      Store(out + d, y);
    } else {
      StoreN(out + d, y, dim - d);
    }
  }
}

// Copies the queries of an item, times the scale.
inline void LoadQueries(const ItemRun& run) {
  const uint32_t num_queries = run.item.num_rows * run.shape.group;
  const F32x16 scale = Set1(run.args.scale);
  const uint32_t dim = run.shape.dim;
  for (uint32_t i = 0; i < num_queries; ++i) {
    const uint32_t row = run.item.span->first_row + run.item.first + i / run.shape.group;
    const uint32_t head = run.item.kv_head * run.shape.group + i % run.shape.group;
    const float* q = run.args.q + size_t{row} * run.args.q_stride + size_t{head} * dim;
    float* out = run.area.q + size_t{i} * run.shape.padded_dim;
    for (uint32_t d = 0; d < dim; d += 16) {
      const uint32_t n = dim - d < 16 ? dim - d : 16;
      Store(out + d, Mul(LoadN(q + d, n), scale));
    }
  }
}

// The splits that any row of an item sees.
inline TaskRange SplitsOf(const ItemRun& run) {
  const uint32_t last = run.Position(run.item.num_rows * run.shape.group - 1);
  const TaskRange seen = VisibleKeys(run.Position(0), run.args.window, 0, UINT32_MAX);
  return {seen.begin / kSplitKeys, last / kSplitKeys + 1};
}

// A whole item on one thread: splits in ascending order.
inline void RunItem(const ItemRun& run) {
  LoadQueries(run);
  const uint32_t num_queries = run.item.num_rows * run.shape.group;
  const TaskRange splits = SplitsOf(run);
  for (uint32_t split = splits.begin; split < splits.end; ++split) {
    RunSplit(run, split);
    for (uint32_t i = 0; i < num_queries; ++i) {
      const TaskRange seen = VisibleKeys(run.Position(i), run.args.window, 0, UINT32_MAX);
      const uint32_t begin = split * kSplitKeys;
      if (seen.end <= begin || seen.begin >= begin + kSplitKeys) continue;
      FoldState(run.shape, seen.begin / kSplitKeys == split, StateAt(run.shape, run.area.current, i),
                StateAt(run.shape, run.area.total, i));
    }
  }
  for (uint32_t i = 0; i < num_queries; ++i) {
    WriteOutput(run, i, StateAt(run.shape, run.area.total, i));
  }
}

// How a call is cut: every item has rows_per_item rows of a span (the last of a span may have fewer).
struct AttentionPlan {
  uint32_t rows_per_item;
  uint32_t num_items;
};

inline uint32_t CountItems(const AttentionArgs& args, uint32_t rows_per_item) {
  uint32_t count = 0;
  for (const AttentionSpan& span : args.spans) {
    count += (span.num_rows + rows_per_item - 1) / rows_per_item;
  }
  return count * args.kv.layout->num_kv_heads;
}

inline AttentionPlan PlanOf(const AttentionArgs& args, const AttentionShape& shape,
                            uint32_t num_threads) {
  AttentionPlan plan;
  plan.rows_per_item = shape.max_queries / shape.group;
  plan.num_items = CountItems(args, plan.rows_per_item);
  while (num_threads > 1 && plan.num_items < kMinItemsPerThread * num_threads &&
         plan.rows_per_item > 1) {
    plan.rows_per_item /= 2;
    plan.num_items = CountItems(args, plan.rows_per_item);
  }
  return plan;
}

// Items are numbered from the end of the batch, so that the longest rows of a chunk start first.
inline AttentionItem ItemAt(const AttentionArgs& args, const AttentionPlan& plan, uint32_t index) {
  const uint32_t num_kv_heads = args.kv.layout->num_kv_heads;
  const uint32_t from_start = plan.num_items - 1 - index;
  uint32_t row_block = from_start / num_kv_heads;
  for (const AttentionSpan& span : args.spans) {
    const uint32_t count = (span.num_rows + plan.rows_per_item - 1) / plan.rows_per_item;
    if (row_block < count) {
      const uint32_t first = row_block * plan.rows_per_item;
      const uint32_t rest = span.num_rows - first;
      return {&span, first, rest < plan.rows_per_item ? rest : plan.rows_per_item,
              from_start % num_kv_heads};
    }
    row_block -= count;
  }
  return {};
}

// Few items of one row each: (item, split) pairs are the tasks; their states meet in scratch and are
// folded in ascending order. Long contexts take several waves, so that scratch is bounded.
inline void RunSplitsApart(ThreadPool& pool, const AttentionArgs& args, const AttentionShape& shape,
                           const AttentionPlan& plan) {
  const uint32_t num_threads = pool.num_threads();
  float* totals = reinterpret_cast<float*>(args.scratch.data()) + num_threads * shape.thread_floats;
  float* partials = totals + size_t{kMinItemsPerThread} * num_threads * shape.group * shape.state_stride;
  const uint32_t wave_splits = kPartialsPerThread * num_threads / plan.num_items;
  TaskRange all = {UINT32_MAX, 0};
  for (uint32_t i = 0; i < plan.num_items; ++i) {
    const AttentionItem item = ItemAt(args, plan, i);
    const TaskRange splits = SplitsOf({args, shape, item, AreaOf(shape, args.scratch, 0)});
    if (splits.begin < all.begin) all.begin = splits.begin;
    if (splits.end > all.end) all.end = splits.end;
  }
  for (uint32_t wave = all.begin; wave < all.end; wave += wave_splits) {
    const uint32_t count = all.end - wave < wave_splits ? all.end - wave : wave_splits;
    pool.Run(plan.num_items * count, [&](uint32_t task, uint32_t thread) {
      const AttentionItem item = ItemAt(args, plan, task % plan.num_items);
      ThreadArea area = AreaOf(shape, args.scratch, thread);
      area.current = partials + size_t{task} * shape.group * shape.state_stride;
      const ItemRun run = {args, shape, item, area};
      const uint32_t split = wave + task / plan.num_items;
      const TaskRange splits = SplitsOf(run);
      if (split < splits.begin || split >= splits.end) return;
      LoadQueries(run);
      RunSplit(run, split);
    });
    pool.Run(plan.num_items, [&](uint32_t task, uint32_t thread) {
      const AttentionItem item = ItemAt(args, plan, task);
      const ThreadArea area = AreaOf(shape, args.scratch, thread);
      const ItemRun run = {args, shape, item, area};
      const TaskRange splits = SplitsOf(run);
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t split = wave + i;
        if (split < splits.begin || split >= splits.end) continue;
        for (uint32_t query = 0; query < shape.group; ++query) {
          const QueryState total = StateAt(shape, totals, size_t{task} * shape.group + query);
          const size_t partial = (size_t{i} * plan.num_items + task) * shape.group + query;
          FoldState(shape, split == splits.begin, StateAt(shape, partials, partial), total);
          if (split + 1 == splits.end) WriteOutput(run, query, total);
        }
      }
    });
  }
}

inline void Attention(ThreadPool& pool, const AttentionArgs& args) {
  const KvLayout& layout = *args.kv.layout;
  if (args.spans.empty()) return;
  const AttentionShape shape = ShapeOf(args.num_heads, layout.num_kv_heads, layout.head_dim);
  const AttentionPlan plan = PlanOf(args, shape, pool.num_threads());
  if (pool.num_threads() > 1 && plan.rows_per_item == 1 &&
      plan.num_items < kMinItemsPerThread * pool.num_threads()) {
    return RunSplitsApart(pool, args, shape, plan);
  }
  pool.Run(plan.num_items, [&](uint32_t task, uint32_t thread) {
    const AttentionItem item = ItemAt(args, plan, task);
    const ThreadArea area = AreaOf(shape, args.scratch, thread);
    RunItem({args, shape, item, area});
  });
}

inline size_t AttentionScratchBytes(uint32_t num_threads, uint32_t num_heads, uint32_t num_kv_heads,
                                    uint32_t head_dim) {
  const AttentionShape shape = ShapeOf(num_heads, num_kv_heads, head_dim);
  const size_t states = size_t{kMinItemsPerThread + kPartialsPerThread} * num_threads * shape.group;
  return (num_threads * shape.thread_floats + states * shape.state_stride) * sizeof(float);
}

}  // namespace baton::BATON_ISA

#endif  // BATON_KERNELS_CPU_ATTENTION_H_
