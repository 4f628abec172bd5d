#include "kvcache/eviction_queue.h"

#include <set>
#include <tuple>

#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::kv {
namespace {

TEST(EvictionQueueTest, ChildlessThenValueThenUseThenIndex) {
  EvictionQueue queue(5);
  queue.SetKey(0, {1, 0.0, 0});
  queue.SetKey(1, {0, 2.0, 1});
  queue.SetKey(2, {0, 1.0, 9});
  queue.SetKey(3, {0, 1.0, 8});
  queue.SetKey(4, {0, 1.0, 8});
  for (const uint32_t block : {0, 1, 2, 3, 4}) queue.Add(block);
  for (const uint32_t expected : {3, 4, 2, 1, 0}) {
    EXPECT_EQ(queue.First(), expected);
    queue.Remove(expected);
  }
  EXPECT_EQ(queue.size(), 0u);
}

// Against a sorted set.
TEST(EvictionQueueTest, RandomChangesKeepTheOrder) {
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(seed);
    constexpr uint32_t kBlocks = 64;
    TestRandom random(seed);
    EvictionQueue queue(kBlocks);
    std::vector<EvictionKey> keys(kBlocks);
    using Row = std::tuple<uint32_t, double, uint64_t, uint32_t>;
    const auto row = [&](uint32_t b) {
      return Row{keys[b].rank, keys[b].value, keys[b].last_use, b};
    };
    std::set<Row> naive;
    for (int i = 0; i < 5'000; ++i) {
      const uint32_t block = random.Below(kBlocks);
      const bool present = naive.contains(row(block));
      ASSERT_EQ(queue.Contains(block), present);
      if (random.Below(2) == 0) {
        if (present) naive.erase(row(block));
        keys[block] = {random.Below(3), static_cast<double>(random.Below(5)), random.Below(7)};
        queue.SetKey(block, keys[block]);
        if (present) naive.insert(row(block));
      } else if (present) {
        queue.Remove(block);
        naive.erase(row(block));
      } else {
        queue.Add(block);
        naive.insert(row(block));
      }
      ASSERT_EQ(queue.size(), naive.size());
      if (!naive.empty()) {
        ASSERT_EQ(queue.First(), std::get<3>(*naive.begin()));
      }
    }
  }
}

}  // namespace
}  // namespace baton::kv
