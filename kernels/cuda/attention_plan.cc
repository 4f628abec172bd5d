#include "kernels/cuda/attention_plan.h"

#include <algorithm>

#include "src/base/status.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kPrefillPairs = 64;
constexpr uint32_t kDecodePairs = 16;
constexpr uint32_t kSplitKeys = 256;
constexpr uint32_t kWarps = 4;  // of a decode cta: as many splits at a time

constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Splits [first, first + count) of some pairs.
struct SplitRange {
  uint32_t first;
  uint32_t count;
};

// Up to kDecodePairs pairs of a span, from `first` on, and the splits that they see.
struct DecodePairs {
  uint32_t first;
  uint32_t count;
  SplitRange splits;
};

uint64_t PairsOf(const AttentionShape& shape, const AttentionRows& span) {
  return uint64_t{span.num_rows} * (shape.num_heads / shape.num_kv_heads);
}

bool IsPrefill(const AttentionShape& shape, const AttentionPlanLimits& limits,
               const AttentionRows& span) {
  return limits.has_prefill && PairsOf(shape, span) > kPrefillPairs;
}

DecodePairs PairsFrom(const AttentionShape& shape, const AttentionRows& span, uint32_t first) {
  const uint32_t group = shape.num_heads / shape.num_kv_heads;
  const auto left = static_cast<uint32_t>(PairsOf(shape, span)) - first;
  const uint32_t count = std::min(left, kDecodePairs);
  const uint32_t position = span.first_position + first / group;
  const uint32_t end = span.first_position + (first + count - 1) / group + 1;
  const bool is_cut = shape.window > 0 && position >= shape.window;
  const uint32_t begin = is_cut ? position - shape.window + 1 : 0;
  const uint32_t first_split = begin / kSplitKeys;
  return {first, count, {first_split, (end + kSplitKeys - 1) / kSplitKeys - first_split}};
}

absl::Status Check(const AttentionShape& shape, const AttentionPlanLimits& limits,
                   std::span<const AttentionRows> spans) {
  if (shape.num_kv_heads == 0 || shape.num_heads == 0 ||
      shape.num_heads % shape.num_kv_heads != 0 ||
      shape.num_heads / shape.num_kv_heads > kMaxGroup) {
    return InvalidArgument("attention: {} heads on {} kv heads: the range is [1, {}] for each",
                           shape.num_heads, shape.num_kv_heads, kMaxGroup);
  }
  if (limits.num_decode_ctas == 0) return InvalidArgument("attention: a grid of 0 ctas");
  for (const AttentionRows& span : spans) {
    if (span.num_rows == 0 ||
        uint64_t{span.first_position} + span.num_rows > kMaxAttentionPosition) {
      return InvalidArgument(
          "attention: {} rows from position {} on; at least 1, and positions below {}",
          span.num_rows, span.first_position, kMaxAttentionPosition);
    }
  }
  return absl::OkStatus();
}

// Later rows first: they have more keys, and short items then fill the ends of the grid's walk.
void AddPrefill(const AttentionShape& shape, const AttentionRows& span,
                std::vector<AttentionItem>& items) {
  const auto num_pairs = static_cast<uint32_t>(PairsOf(shape, span));
  const uint32_t num_tiles = (num_pairs + kPrefillPairs - 1) / kPrefillPairs;
  for (uint32_t tile = num_tiles; tile-- > 0;) {
    const uint32_t first = tile * kPrefillPairs;
    for (uint32_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      items.push_back({.sequence = span.sequence,
                       .kv_head = kv_head,
                       .first_row = span.first_row,
                       .first_position = span.first_position,
                       .first_pair = first,
                       .num_pairs = std::min(num_pairs - first, kPrefillPairs),
                       .num_parts = 1});
    }
  }
}

// Adds the items of decode spans.
class DecodeItems {
 public:
  DecodeItems(const AttentionShape& shape, uint64_t splits_an_item, uint32_t max_partials,
              AttentionPlan& plan)
      : shape_(shape), splits_an_item_(splits_an_item), max_partials_(max_partials), plan_(plan) {}

  void Add(const AttentionRows& span) {
    const auto num_pairs = static_cast<uint32_t>(PairsOf(shape_, span));
    for (uint32_t first = 0; first < num_pairs; first += kDecodePairs) {
      const DecodePairs pairs = PairsFrom(shape_, span, first);
      for (uint32_t kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
        AddPairs(span, pairs, kv_head);
      }
    }
  }

 private:
  void AddPairs(const AttentionRows& span, const DecodePairs& pairs, uint32_t kv_head) {
    const SplitRange& splits = pairs.splits;
    AttentionItem item = {.sequence = span.sequence,
                          .kv_head = kv_head,
                          .first_row = span.first_row,
                          .first_position = span.first_position,
                          .first_pair = pairs.first,
                          .num_pairs = pairs.count,
                          .first_split = splits.first,
                          .num_splits = splits.count,
                          .num_parts = 1};
    if (splits.count <= splits_an_item_ || splits.count > max_partials_ - plan_.num_partials) {
      plan_.decode.push_back(item);
      return;
    }
    const auto run = static_cast<uint32_t>(splits_an_item_);
    item.num_parts = (splits.count + run - 1) / run;
    item.first_partial = plan_.num_partials;
    item.arrival = plan_.num_arrivals++;
    plan_.num_partials += splits.count;
    for (uint32_t done = 0; done < splits.count; done += run) {
      item.first_split = splits.first + done;
      item.num_splits = std::min(run, splits.count - done);
      plan_.decode.push_back(item);
    }
  }

  const AttentionShape& shape_;
  const uint64_t splits_an_item_;
  const uint32_t max_partials_;
  AttentionPlan& plan_;
};

}  // namespace

AttentionPlanBounds BoundAttentionPlan(const AttentionShape& shape,
                                       const AttentionPlanLimits& limits, size_t max_rows,
                                       size_t max_spans) {
  const size_t pairs = max_rows * (shape.num_heads / shape.num_kv_heads);
  return {shape.num_kv_heads * (pairs / kPrefillPairs + max_spans),
          limits.num_decode_ctas + shape.num_kv_heads * (pairs / kDecodePairs + max_spans)};
}

absl::Status PlanAttention(const AttentionShape& shape, const AttentionPlanLimits& limits,
                           std::span<const AttentionRows> spans, AttentionPlan& plan) {
  plan.prefill.clear();
  plan.decode.clear();
  plan.num_partials = plan.num_arrivals = 0;
  plan.is_spread = false;
  BATON_RETURN_IF_ERROR(Check(shape, limits, spans));
  uint64_t num_splits = 0;
  for (const AttentionRows& span : spans) {
    if (IsPrefill(shape, limits, span)) continue;
    for (uint32_t first = 0; first < PairsOf(shape, span); first += kDecodePairs) {
      num_splits += uint64_t{PairsFrom(shape, span, first).splits.count} * shape.num_kv_heads;
    }
  }
  const uint64_t aim = (num_splits + limits.num_decode_ctas - 1) / limits.num_decode_ctas;
  plan.is_spread =
      num_splits > 0 && num_splits <= std::min(limits.num_spread_ctas, limits.num_decode_ctas);
  const uint64_t run = plan.is_spread ? 1 : std::max<uint64_t>(kWarps, RoundUp(aim, kWarps));
  DecodeItems decode(shape, run, limits.max_partials, plan);
  for (const AttentionRows& span : spans) {
    if (IsPrefill(shape, limits, span)) {
      AddPrefill(shape, span, plan.prefill);
    } else {
      decode.Add(span);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::cuda
