// The plan: every pair meets every split that it sees exactly once, within the stated bounds.
#include "kernels/cuda/attention_plan.h"

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::kernels::cuda {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint32_t kSplitKeys = 256;

uint32_t GroupOf(const AttentionShape& shape) { return shape.num_heads / shape.num_kv_heads; }

// Splits [first, end) that pairs [first_pair, first_pair + num_pairs) of an item see.
std::pair<uint32_t, uint32_t> SplitsOf(const AttentionShape& shape, const AttentionItem& item) {
  const uint32_t first = item.first_position + item.first_pair / GroupOf(shape);
  const uint32_t last =
      item.first_position + (item.first_pair + item.num_pairs - 1) / GroupOf(shape);
  const uint32_t begin = shape.window > 0 && first >= shape.window ? first - shape.window + 1 : 0;
  return {begin / kSplitKeys, last / kSplitKeys + 1};
}

// (first row of the span, kv head, first pair).
using Pairs = std::tuple<uint32_t, uint32_t, uint32_t>;

// The first thing that is wrong with the decode items, or "".
std::string CheckDecode(const AttentionShape& shape, const AttentionPlan& plan) {
  std::map<Pairs, std::vector<AttentionItem>> units;
  for (const AttentionItem& item : plan.decode) {
    units[{item.first_row, item.kv_head, item.first_pair}].push_back(item);
  }
  std::vector<uint32_t> used(plan.num_partials, 0);
  std::vector<uint32_t> arrivals(plan.num_arrivals, 0);
  for (const auto& [key, items] : units) {
    auto [next, end] = SplitsOf(shape, items[0]);
    const uint32_t first = next;
    for (const AttentionItem& item : items) {
      if (item.first_split != next || item.num_splits == 0) return "splits out of order";
      if (item.num_parts != items.size()) return "wrong number of parts";
      if (item.num_pairs > 16 || item.num_pairs != items[0].num_pairs) return "pairs";
      next += item.num_splits;
    }
    if (next != end) return "splits missing";
    if (items.size() == 1) continue;
    if (items[0].arrival >= plan.num_arrivals || ++arrivals[items[0].arrival] > 1) return "arrival";
    for (uint32_t split = first; split < end; ++split) {
      const uint32_t at = items[0].first_partial + split - first;
      if (at >= plan.num_partials || ++used[at] > 1) return "partial used twice";
    }
  }
  return "";
}

using Units = std::map<Pairs, AttentionItem>;

// Takes the items of one span and kv head out of `units`: together they are its pairs, once each.
std::string TakeSpan(const AttentionShape& shape, const AttentionRows& span, uint32_t head,
                     Units& units) {
  const uint32_t num_pairs = span.num_rows * GroupOf(shape);
  uint32_t pair = 0;
  while (pair < num_pairs) {
    const auto found = units.find({span.first_row, head, pair});
    if (found == units.end()) return "pairs missing";
    const AttentionItem& item = found->second;
    if (item.sequence != span.sequence || item.first_position != span.first_position) {
      return "another span's numbers";
    }
    pair += item.num_pairs;
    units.erase(found);
  }
  return pair == num_pairs ? "" : "too many pairs";
}

// Every pair of every span stands in exactly one unit of a kv head.
std::string CheckPairs(const AttentionShape& shape, std::span<const AttentionRows> spans,
                       const AttentionPlan& plan) {
  Units units;
  for (const AttentionItem& item : plan.prefill) {
    if (item.num_pairs == 0 || item.num_pairs > 64) return "prefill pairs";
    if (!units.emplace(Pairs{item.first_row, item.kv_head, item.first_pair}, item).second) {
      return "a prefill item twice";
    }
  }
  for (const AttentionItem& item : plan.decode) {
    units.emplace(Pairs{item.first_row, item.kv_head, item.first_pair}, item);
  }
  for (const AttentionRows& span : spans) {
    for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
      std::string problem = TakeSpan(shape, span, head, units);
      if (!problem.empty()) return problem;
    }
  }
  return units.empty() ? "" : "items of no span";
}

TEST(AttentionPlan, RandomBatchesAreCoveredOnceWithinTheBounds) {
  for (const uint64_t seed : TestSeeds(3)) {
    TestRandom random(seed);
    AttentionPlan plan;
    for (int round = 0; round < 300; ++round) {
      const uint32_t kv_heads = random.Between(1, 8);
      const AttentionShape shape = {kv_heads * random.Between(1, 16), kv_heads,
                                    random.OneIn(3) ? random.Between(1, 5000) : 0};
      const AttentionPlanLimits limits = {.num_decode_ctas = random.Between(1, 300),
                                          .max_partials = random.Below(2000),
                                          .num_spread_ctas = random.Below(400)};
      std::vector<AttentionRows> spans;
      uint32_t rows = 0;
      for (uint32_t i = random.Below(20); i > 0; --i) {
        const uint32_t count = random.OneIn(2) ? 1 : random.Between(1, 200);
        spans.push_back({i, rows, count, random.Below(random.OneIn(4) ? 100000 : 1000)});
        rows += count;
      }
      ASSERT_TRUE(PlanAttention(shape, limits, spans, plan).ok());
      ASSERT_EQ(CheckPairs(shape, spans, plan), "") << "seed " << seed << " round " << round;
      ASSERT_EQ(CheckDecode(shape, plan), "") << "seed " << seed << " round " << round;
      const AttentionPlanBounds bounds = BoundAttentionPlan(shape, limits, rows, spans.size());
      EXPECT_LE(plan.prefill.size(), bounds.num_prefill_items);
      EXPECT_LE(plan.decode.size(), bounds.num_decode_items);
      EXPECT_LE(plan.num_partials, limits.max_partials);
      EXPECT_LE(plan.num_arrivals, limits.num_decode_ctas);
      if (plan.is_spread) {
        EXPECT_LE(plan.decode.size(), limits.num_spread_ctas);
      }
    }
  }
}

TEST(AttentionPlan, OneLongContextFillsTheGrid) {
  const std::vector<AttentionRows> spans = {{0, 0, 1, 131071}};
  AttentionPlan plan;
  ASSERT_TRUE(PlanAttention({32, 8, 0}, {264, 5000}, spans, plan).ok());
  EXPECT_EQ(plan.decode.size(), 8u * 32);  // 512 splits a head in runs of 16
  EXPECT_EQ(plan.num_partials, 8u * 512);
  EXPECT_EQ(plan.num_arrivals, 8u);
  // Places for five heads: the others stay whole.
  ASSERT_TRUE(PlanAttention({32, 8, 0}, {264, 5 * 512}, spans, plan).ok());
  EXPECT_EQ(plan.decode.size(), 5u * 32 + 3);
}

TEST(AttentionPlan, AFullBatchCutsNothing) {
  std::vector<AttentionRows> spans;
  for (uint32_t i = 0; i < 64; ++i) spans.push_back({i, i, 1, 1023});
  AttentionPlan plan;
  ASSERT_TRUE(PlanAttention({32, 8, 0}, {264, 5000}, spans, plan).ok());
  EXPECT_EQ(plan.decode.size(), 64u * 8);
  EXPECT_EQ(plan.num_partials, 0u);
  EXPECT_THAT(plan.prefill, IsEmpty());
}

TEST(AttentionPlan, FewSplitsAreAnItemEach) {
  std::vector<AttentionRows> spans;
  for (uint32_t i = 0; i < 8; ++i) spans.push_back({i, i, 1, 1023});
  AttentionPlan plan;
  const AttentionPlanLimits limits = {
      .num_decode_ctas = 528, .max_partials = 2112, .num_spread_ctas = 264};
  ASSERT_TRUE(PlanAttention({32, 8, 0}, limits, spans, plan).ok());
  EXPECT_TRUE(plan.is_spread);
  EXPECT_EQ(plan.decode.size(), 8u * 8 * 4);
  EXPECT_EQ(plan.num_partials, 8u * 8 * 4);
  EXPECT_EQ(plan.num_arrivals, 8u * 8);
  // A row with one split more than there are ctas.
  spans.push_back({8, 8, 1, 256});
  ASSERT_TRUE(PlanAttention({32, 8, 0}, limits, spans, plan).ok());
  EXPECT_FALSE(plan.is_spread);
  EXPECT_EQ(plan.decode.size(), 9u * 8);
  // No more than the grid, for which there are arrivals; and none where nothing decodes.
  spans.resize(1);
  ASSERT_TRUE(PlanAttention({32, 8, 0}, {31, 2112, true, 264}, spans, plan).ok());
  EXPECT_FALSE(plan.is_spread);
  ASSERT_TRUE(PlanAttention({32, 8, 0}, {32, 2112, true, 264}, spans, plan).ok());
  EXPECT_TRUE(plan.is_spread);
  ASSERT_TRUE(PlanAttention({32, 8, 0}, limits, {}, plan).ok());
  EXPECT_FALSE(plan.is_spread);
}

TEST(AttentionPlan, PrefillStartsWithTheRowsThatSeeMost) {
  const std::vector<AttentionRows> spans = {{3, 0, 40, 100}};
  AttentionPlan plan;
  ASSERT_TRUE(PlanAttention({4, 1, 0}, {264, 0}, spans, plan).ok());
  ASSERT_EQ(plan.prefill.size(), 3u);
  EXPECT_EQ(plan.prefill[0].first_pair, 128u);
  EXPECT_EQ(plan.prefill[0].num_pairs, 32u);
  EXPECT_EQ(plan.prefill[2].first_pair, 0u);
}

TEST(AttentionPlan, RefusesWithTheNumbers) {
  AttentionPlan plan;
  plan.decode.resize(1);
  const auto message = [&](const AttentionShape& shape, const AttentionPlanLimits& limits,
                           const AttentionRows& rows) {
    return std::string(
        PlanAttention(shape, limits, std::vector<AttentionRows>{rows}, plan).message());
  };
  EXPECT_THAT(message({34, 2, 0}, {1, 0}, {0, 0, 1, 0}), HasSubstr("34 heads on 2 kv heads"));
  EXPECT_THAT(plan.decode, IsEmpty());
  EXPECT_THAT(message({2, 2, 0}, {0, 0}, {0, 0, 1, 0}), HasSubstr("0 ctas"));
  EXPECT_THAT(message({2, 2, 0}, {1, 0}, {0, 0, 0, 9}), HasSubstr("0 rows from position 9"));
  EXPECT_THAT(message({2, 2, 0}, {1, 0}, {0, 0, 2, kMaxAttentionPosition - 1}),
              HasSubstr("2 rows from position 1073741823"));
}

}  // namespace
}  // namespace baton::kernels::cuda
