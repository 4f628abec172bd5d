// Attention over blocks of KV, for prefill chunks and decode steps alike. Included by one
// translation unit per instruction set. The order of every operation is numbered in ARITHMETIC.md
// ("Attention").
//
// Work split: an item is some consecutive rows of a span and one KV head; the query heads that
// share the KV head go through each K and V load together. With few items (decode) an item is cut
// further into splits, whose partial results meet in scratch. Reads K and V once per item (2 * keys
// * dim * 2 bytes per KV head); 4 * rows * heads * keys * dim operations. Decode: memory should
// bind; prefill: fma.
#ifndef BATON_KERNELS_CPU_ATTENTION_H_
#define BATON_KERNELS_CPU_ATTENTION_H_

#include "kernels/cpu/attention_split.h"
#include "kernels/cpu/turn_q8.h"

namespace baton::kernels::BATON_ISA {

// Rule (4): adds a split's state to the total; the first is copied.
inline void FoldState(const AttentionShape& shape, bool first, QueryState split, QueryState total) {
  if (first) {
    for (uint32_t i = 0; i < shape.padded_values + 16; i += 16)
      Store(total.sums + i, Load(split.sums + i));
    *total.max = *split.max;
    return;
  }
  const float max = *split.max > *total.max ? *split.max : *total.max;
  const F32x16 old_factor = Exp(Set1(*total.max - max));
  const F32x16 new_factor = Exp(Set1(*split.max - max));
  for (uint32_t i = 0; i < shape.padded_values + 16; i += 16) {
    Store(total.sums + i,
          Fma(Load(split.sums + i), new_factor, Mul(Load(total.sums + i), old_factor)));
  }
  *total.max = max;
}

// Rule (6): adds the sink of `head`, as one key more that has no value, after the last split.
inline void AddSink(const AttentionShape& shape, float sink, QueryState total) {
  const float max = sink > *total.max ? sink : *total.max;
  const F32x16 factor = Exp(Set1(*total.max - max));
  for (uint32_t i = 0; i < shape.padded_values + 16; i += 16) {
    Store(total.sums + i, Mul(Load(total.sums + i), factor));
  }
  float e[16];
  Store(e, Exp(Set1(sink - max)));
  total.lanes[0] += e[0];
  *total.max = max;
}

// Rule (5), after (6) where heads have sinks.
inline void WriteOutput(const ItemRun& run, uint32_t query, QueryState total) {
  const uint32_t dim = run.shape.value_dim;
  const uint32_t row = run.item.span->first_row + run.item.first + query / run.shape.group;
  const uint32_t head = run.item.kv_head * run.shape.group + query % run.shape.group;
  float* out = run.args.out + (size_t{row} * run.args.num_heads + head) * dim;
  if (run.args.sinks != nullptr) AddSink(run.shape, run.args.sinks[head], total);
  const F32x16 denominator = Set1(SumTree(Load(total.lanes)));
  if (run.args.kv.layout->dtype == kv::KvDtype::kQ8) TurnRow(total.sums, dim);
  for (uint32_t d = 0; d < dim; d += 16) {
    const F32x16 y = Div(Load(total.sums + d), denominator);
    if (d + 16 <= dim) {
      Store(out + d, y);
    } else {
      StoreN(out + d, y, dim - d);
    }
  }
}

// Copies the queries of an item, times the scale, and turns them where keys are turned.
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
      Store(out + d, Mul(dim - d < 16 ? LoadN(q + d, dim - d) : Load(q + d), scale));
    }
    if (run.args.kv.layout->dtype == kv::KvDtype::kQ8) TurnRow(out, dim);
  }
}

// The splits that any row of an item sees.
inline device::TaskRange SplitsOf(const ItemRun& run) {
  const uint32_t last = run.Position(run.item.num_rows * run.shape.group - 1);
  const device::TaskRange seen = VisibleKeys(run.Position(0), run.args.window, 0, UINT32_MAX);
  return {seen.begin / kSplitKeys, last / kSplitKeys + 1};
}

// A whole item on one thread: splits in ascending order.
inline void RunItem(const ItemRun& run) {
  LoadQueries(run);
  const uint32_t num_queries = run.item.num_rows * run.shape.group;
  const device::TaskRange splits = SplitsOf(run);
  for (uint32_t split = splits.begin; split < splits.end; ++split) {
    RunSplit(run, split, /*goes_on=*/true);
    for (uint32_t i = 0; i < num_queries; ++i) {
      const device::TaskRange seen = VisibleKeys(run.Position(i), run.args.window, 0, UINT32_MAX);
      const uint32_t begin = split * kSplitKeys;
      if (seen.end <= begin || seen.begin >= begin + kSplitKeys) continue;
      FoldState(run.shape, seen.begin / kSplitKeys == split,
                StateAt(run.shape, run.area.current, i), StateAt(run.shape, run.area.total, i));
    }
  }
  for (uint32_t i = 0; i < num_queries; ++i) {
    WriteOutput(run, i, StateAt(run.shape, run.area.total, i));
  }
}

// How a call is cut: every item has rows_per_item rows of a span (the last of a span may have
// fewer).
struct AttentionCut {
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

inline AttentionCut PlanOf(const AttentionArgs& args, const AttentionShape& shape,
                           uint32_t num_threads) {
  AttentionCut plan;
  plan.rows_per_item = shape.max_queries / shape.group;
  plan.num_items = CountItems(args, plan.rows_per_item);
  while (num_threads > 1 && plan.num_items < kMinItemsPerThread * num_threads &&
         plan.rows_per_item > 1) {
    plan.rows_per_item /= 2;
    plan.num_items = CountItems(args, plan.rows_per_item);
  }
  return plan;
}

// Items are numbered from the end of the batch, so that of each head the longest rows start first.
// All rows of a span and KV head follow one another: the second-level cache keeps that head's K and
// V (of 2000 tokens and 64 dims 0.5 MB), but not those of all heads.
inline AttentionItem ItemAt(const AttentionArgs& args, const AttentionCut& plan, uint32_t index) {
  const uint32_t num_kv_heads = args.kv.layout->num_kv_heads;
  uint32_t from_start = plan.num_items - 1 - index;
  for (const AttentionSpan& span : args.spans) {
    const uint32_t count = (span.num_rows + plan.rows_per_item - 1) / plan.rows_per_item;
    if (from_start < count * num_kv_heads) {
      const uint32_t first = from_start % count * plan.rows_per_item;
      const uint32_t rest = span.num_rows - first;
      return {&span, first, rest < plan.rows_per_item ? rest : plan.rows_per_item,
              from_start / count};
    }
    from_start -= count * num_kv_heads;
  }
  return {};
}

// Few items of one row each: (item, split) pairs are the tasks; their states meet in scratch and
// are folded in ascending order. Long contexts take several waves, so that scratch is bounded.
inline void RunSplitsApart(device::ThreadPool& pool, const AttentionArgs& args,
                           const AttentionShape& shape, const AttentionCut& plan) {
  const uint32_t num_threads = pool.num_threads();
  float* totals = reinterpret_cast<float*>(args.scratch.data()) + num_threads * shape.thread_floats;
  float* partials =
      totals + size_t{kMinItemsPerThread} * num_threads * shape.group * shape.state_stride;
  const uint32_t wave_splits = kPartialsPerThread * num_threads / plan.num_items;
  device::TaskRange all = {UINT32_MAX, 0};
  for (uint32_t i = 0; i < plan.num_items; ++i) {
    const AttentionItem item = ItemAt(args, plan, i);
    const device::TaskRange splits = SplitsOf({args, shape, item, AreaOf(shape, args.scratch, 0)});
    if (splits.begin < all.begin) all.begin = splits.begin;
    if (splits.end > all.end) all.end = splits.end;
  }
  if (all.size() == 1) {  // one split: no states to fold
    return pool.Run(plan.num_items, [&](uint32_t task, uint32_t thread) {
      const ThreadArea area = AreaOf(shape, args.scratch, thread);
      RunItem({args, shape, ItemAt(args, plan, task), area});
    });
  }
  for (uint32_t wave = all.begin; wave < all.end; wave += wave_splits) {
    const uint32_t count = all.end - wave < wave_splits ? all.end - wave : wave_splits;
    pool.Run(plan.num_items * count, [&](uint32_t task, uint32_t thread) {
      const AttentionItem item = ItemAt(args, plan, task % plan.num_items);
      ThreadArea area = AreaOf(shape, args.scratch, thread);
      area.current = partials + size_t{task} * shape.group * shape.state_stride;
      const ItemRun run = {args, shape, item, area};
      const uint32_t split = wave + task / plan.num_items;
      const device::TaskRange splits = SplitsOf(run);
      if (split < splits.begin || split >= splits.end) return;
      LoadQueries(run);
      RunSplit(run, split, /*goes_on=*/false);
    });
    pool.Run(plan.num_items, [&](uint32_t task, uint32_t thread) {
      const AttentionItem item = ItemAt(args, plan, task);
      const ThreadArea area = AreaOf(shape, args.scratch, thread);
      const ItemRun run = {args, shape, item, area};
      const device::TaskRange splits = SplitsOf(run);
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

inline void Attention(device::ThreadPool& pool, const AttentionArgs& args) {
  const kv::KvLayout& layout = *args.kv.layout;
  if (args.spans.empty()) return;
  const AttentionShape shape =
      ShapeOf(args.num_heads, layout.num_kv_heads, layout.head_dim, args.value_dim);
  const AttentionCut plan = PlanOf(args, shape, pool.num_threads());
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
  const AttentionShape shape = ShapeOf(num_heads, num_kv_heads, head_dim, head_dim);
  const size_t states = size_t{kMinItemsPerThread + kPartialsPerThread} * num_threads * shape.group;
  return (num_threads * shape.thread_floats + states * shape.state_stride) * sizeof(float);
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_ATTENTION_H_
