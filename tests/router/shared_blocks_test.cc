#include "src/router/shared_blocks.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::router {

using kv::ChainLink;

namespace {

std::vector<ChainLink> Links(std::initializer_list<uint64_t> names) {
  std::vector<ChainLink> links;
  for (const uint64_t name : names) links.push_back({name, 1});
  return links;
}

TEST(SharedBlocksTest, AFoundBlockThatIsInUseIsCountedOnce) {
  SharedBlocks blocks;
  EXPECT_EQ(blocks.Add(Links({1, 2, 3}), 0), 3u);
  EXPECT_EQ(blocks.NumShared(Links({1, 2, 9}), 3), 2u);
  EXPECT_EQ(blocks.Add(Links({1, 2, 9}), 2), 1u);
  EXPECT_EQ(blocks.Remove(Links({1, 2, 3})), 1u) << "the other one still uses the first two";
  EXPECT_EQ(blocks.Remove(Links({1, 2, 9})), 3u);
  EXPECT_TRUE(blocks.empty());
}

TEST(SharedBlocksTest, RequestsThatCameTogetherHaveACopyEach) {
  SharedBlocks blocks;
  EXPECT_EQ(blocks.Add(Links({1, 2}), 0), 2u);
  EXPECT_EQ(blocks.Add(Links({1, 2}), 0), 2u) << "nothing was computed yet";
  EXPECT_EQ(blocks.Remove(Links({1, 2})), 2u);
  EXPECT_EQ(blocks.Remove(Links({1, 2})), 2u);
}

TEST(SharedBlocksTest, ACachedBlockThatNobodyUsesIsTakenFromTheFreeOnes) {
  SharedBlocks blocks;
  EXPECT_EQ(blocks.NumShared(Links({1, 2}), 2), 0u);
  EXPECT_EQ(blocks.Add(Links({1, 2}), 2), 2u);
}

// Requests over few prefixes that come and go.
struct Traffic {
  explicit Traffic(uint64_t seed) : random(seed) {}

  void Come() {
    std::vector<ChainLink> links;
    uint64_t name = 1;
    for (uint32_t n = random.Below(6); n > 0; --n) {
      name = 3 * name + random.Below(3);
      links.push_back({name, 1});
    }
    counted += blocks.Add(links, random.Below(7));
    live.push_back(std::move(links));
  }
  void Leave(size_t victim) {
    counted -= blocks.Remove(live[victim]);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
  }
  // Never less than the distinct blocks in use, never more than all of them.
  void Check() const {
    std::set<ChainLink> distinct;
    size_t all = 0;
    for (const auto& links : live) {
      all += links.size();
      distinct.insert(links.begin(), links.end());
    }
    ASSERT_GE(counted, distinct.size());
    ASSERT_LE(counted, all);
  }

  TestRandom random;
  SharedBlocks blocks;
  std::vector<std::vector<ChainLink>> live;
  uint32_t counted = 0;
};

TEST(SharedBlocksTest, WhatComesInGoesOut) {
  for (const uint64_t seed : TestSeeds(5)) {
    SCOPED_TRACE(seed);
    Traffic traffic(seed);
    for (int i = 0; i < 2'000; ++i) {
      const auto num_live = static_cast<uint32_t>(traffic.live.size());
      if (num_live > 0 && traffic.random.Below(2) == 0) {
        traffic.Leave(traffic.random.Below(num_live));
      } else {
        traffic.Come();
      }
      ASSERT_NO_FATAL_FAILURE(traffic.Check());
    }
    while (!traffic.live.empty()) traffic.Leave(0);
    EXPECT_EQ(traffic.counted, 0u);
    EXPECT_TRUE(traffic.blocks.empty());
  }
}

}  // namespace
}  // namespace baton::router
