#include "kvcache/block_table.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace baton::kv {
namespace {

const RequestUid kUid{3, 4};
constexpr uint32_t kBlockSize = 4;

std::vector<uint32_t> Indices(const BlockTable& table) {
  return {table.indices().begin(), table.indices().end()};
}

TEST(BlockTableTest, IndicesFollowHandles) {
  BlockPool pool(8);
  BlockTable table;
  ASSERT_TRUE(table.Grow(&pool, 3, BlockState::kComputing, kUid));
  EXPECT_FALSE(table.Grow(&pool, 6, BlockState::kComputing, kUid));
  ASSERT_TRUE(table.Grow(&pool, 2, BlockState::kComputing, kUid));
  ASSERT_EQ(table.size(), 5u);
  for (uint32_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(table.indices()[i], table.handles()[i].index.value());
  }
  table.SetState(&pool, BlockState::kBound);
  EXPECT_EQ(pool.Counts().of(BlockState::kBound), 5u);

  BlockTable moved = std::move(table);
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(moved.size(), 5u);
  const std::vector<BlockHandle> handles = moved.Take();
  EXPECT_TRUE(moved.empty());
  for (const BlockHandle& handle : handles) table.Append(handle);
  table.Release(&pool);
  EXPECT_EQ(pool.num_free(), 8u);
}

TEST(BlockTableTest, ReleasedBlocksKeepTheirPlacesAndNameABlockOfTheTable) {
  BlockPool pool(8);
  BlockTable table;
  ASSERT_TRUE(table.Grow(&pool, 5, BlockState::kComputing, kUid));
  const std::vector<uint32_t> before = Indices(table);
  table.ReleaseFront(&pool, 2);
  table.ReleaseFront(&pool, 1);  // released already
  EXPECT_EQ(table.num_released(), 2u);
  EXPECT_EQ(table.size(), 5u);
  EXPECT_EQ(pool.num_free(), 5u);
  EXPECT_EQ(Indices(table),
            (std::vector<uint32_t>{before[2], before[2], before[2], before[3], before[4]}));
  table.ReleaseFront(&pool, 4);
  EXPECT_EQ(Indices(table), std::vector<uint32_t>(5, before[4]));
  EXPECT_EQ(pool.num_free(), 7u);

  // Others take the blocks; the table touches them no more.
  BlockTable other;
  ASSERT_TRUE(other.Grow(&pool, 7, BlockState::kComputing, kUid));
  BlockTable moved = std::move(table);
  EXPECT_EQ(moved.num_released(), 4u);
  moved.SetState(&pool, BlockState::kBound);
  EXPECT_EQ(pool.Counts().of(BlockState::kBound), 1u);
  ASSERT_TRUE(pool.Audit().ok()) << pool.Audit();
  moved.Release(&pool);
  EXPECT_EQ(moved.num_released(), 0u);
  EXPECT_EQ(pool.num_free(), 1u);
  other.Release(&pool);
  EXPECT_EQ(pool.num_free(), 8u);
}

TEST(BlockTableTest, ATableMayBeginWithPlacesWhoseBlocksWereNeverHere) {
  BlockPool pool(8);
  BlockTable table;
  ASSERT_TRUE(table.Grow(&pool, 2, BlockState::kComputing, kUid));
  const std::vector<uint32_t> before = Indices(table);
  table.PrependReleased(3);
  EXPECT_EQ(table.size(), 5u);
  EXPECT_EQ(table.num_released(), 3u);
  EXPECT_EQ(Indices(table),
            (std::vector<uint32_t>{before[0], before[0], before[0], before[0], before[1]}));
  EXPECT_EQ(pool.num_free(), 6u);
  table.ReleaseFront(&pool, 4);
  EXPECT_EQ(Indices(table), std::vector<uint32_t>(5, before[1]));
  table.Release(&pool);
  EXPECT_EQ(pool.num_free(), 8u);
}

TEST(BlockTableTest, ATakenTableGivesWhatItHolds) {
  BlockPool pool(4);
  BlockTable table;
  ASSERT_TRUE(table.Grow(&pool, 3, BlockState::kComputing, kUid));
  const std::vector<BlockHandle> all(table.handles().begin(), table.handles().end());
  table.ReleaseFront(&pool, 1);
  const std::vector<BlockHandle> taken = table.Take();
  EXPECT_EQ(taken, std::vector<BlockHandle>(all.begin() + 1, all.end()));
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(table.num_released(), 0u);
  for (const BlockHandle block : taken) pool.DropRequestRef(block);
  EXPECT_EQ(pool.num_free(), 4u);
}

TEST(BlockTableDeathTest, AReleasedTableIsNotSharedAndNotReleasedWhole) {
  BlockPool pool(4);
  BlockTable table;
  ASSERT_TRUE(table.Grow(&pool, 3, BlockState::kComputing, kUid));
  EXPECT_DEATH(table.ReleaseFront(&pool, 3), "3 blocks of a table of 3 leave none");
  table.ReleaseFront(&pool, 1);
  EXPECT_DEATH(table.PrependReleased(1), "1 of them released");
  BlockTable other;
  EXPECT_DEATH(other.ShareFrom(table, 2, &pool), "that released 1");
  table.Release(&pool);
}

TEST(BlockTableDeathTest, LosingReferencesStopsTheProcess) {
  BlockPool pool(2);
  EXPECT_DEATH(
      {
        BlockTable table;
        table.Grow(&pool, 1, BlockState::kComputing, kUid);
      },
      "a table of 1 blocks was dropped");
}

// Divides a prompt of `num_tokens` among `n` choices as after a hand-off: the prompt's blocks are
// receiving, the spare ones reserved.
class DivideTest : public testing::TestWithParam<std::tuple<uint32_t, uint32_t>> {};

TEST_P(DivideTest, EachChoiceOwnsWhatItWritesAndNothingLeaks) {
  const auto [num_tokens, n] = GetParam();
  const uint32_t num_data = (num_tokens + kBlockSize - 1) / kBlockSize;
  BlockPool pool(num_data + n);
  std::vector<BlockHandle> blocks;
  ASSERT_TRUE(pool.Allocate(num_data + n, BlockState::kReserved, kUid, &blocks));
  for (uint32_t i = 0; i < num_data; ++i) pool.SetState(blocks[i], BlockState::kReceiving);

  std::vector<BlockTable> tables(n);
  std::vector<BlockTable*> pointers;
  for (BlockTable& table : tables) pointers.push_back(&table);
  std::vector<BlockCopy> copies;
  const uint32_t last = num_tokens % kBlockSize;
  DivideAmongChoices({std::span(blocks).first(num_data), std::span(blocks).subspan(num_data), last},
                     pointers, &pool, &copies);

  ASSERT_TRUE(pool.Audit().ok()) << pool.Audit();
  EXPECT_EQ(pool.Counts().of(BlockState::kReceiving), 0u);
  EXPECT_EQ(pool.Counts().of(BlockState::kReserved), 0u);
  // The block of the next token is nobody else's; the full ones are everybody's.
  std::set<uint32_t> writable;
  for (const BlockTable& table : tables) {
    ASSERT_GE(table.size() * kBlockSize, num_tokens + 1) << "no room for the next token";
    writable.insert(table.indices()[num_tokens / kBlockSize]);
    for (uint32_t b = 0; b < num_tokens / kBlockSize; ++b) {
      EXPECT_EQ(table.indices()[b], blocks[b].index.value());
      EXPECT_EQ(pool.Info(blocks[b].index).request_refs, n);
    }
  }
  EXPECT_EQ(writable.size(), n);
  ASSERT_EQ(copies.size(), last > 0 ? n - 1 : 0);
  for (uint32_t i = 0; i < copies.size(); ++i) {
    EXPECT_EQ(copies[i].from, blocks[num_data - 1].index.value());
    EXPECT_EQ(copies[i].to, tables[i + 1].indices().back());
    EXPECT_EQ(copies[i].num_tokens, last);
  }
  for (BlockTable& table : tables) table.Release(&pool);
  EXPECT_EQ(pool.num_free(), pool.num_blocks());
}

INSTANTIATE_TEST_SUITE_P(Lengths, DivideTest,
                         testing::Combine(testing::Values(1, 3, 4, 5, 7, 8, 9, 40),
                                          testing::Values(1, 2, 3, 8)));

TEST(DivideTest, NoChoiceLeftReleasesEverything) {
  BlockPool pool(3);
  std::vector<BlockHandle> blocks;
  ASSERT_TRUE(pool.Allocate(3, BlockState::kReserved, kUid, &blocks));
  std::vector<BlockCopy> copies;
  DivideAmongChoices({std::span(blocks).first(2), std::span(blocks).subspan(2), 1}, {}, &pool,
                     &copies);
  EXPECT_EQ(pool.num_free(), 3u);
  EXPECT_TRUE(copies.empty());
}

TEST(BlockTableTest, SharedBlocksLiveUntilTheLastHolder) {
  BlockPool pool(4);
  BlockTable parent;
  BlockTable child;
  ASSERT_TRUE(parent.Grow(&pool, 3, BlockState::kBound, kUid));
  child.ShareFrom(parent, 2, &pool);
  EXPECT_EQ(Indices(child), (std::vector<uint32_t>{parent.indices()[0], parent.indices()[1]}));
  parent.Release(&pool);
  EXPECT_EQ(pool.num_free(), 2u);
  child.Release(&pool);
  EXPECT_EQ(pool.num_free(), 4u);
}

// Each choice writes its state, so none is shared.
TEST(DivideStateTest, EachChoiceOwnsACopyAndNothingLeaks) {
  constexpr uint32_t kState = 3;
  for (const uint32_t num_going_on : {0u, 1u, 2u, 4u}) {
    constexpr uint32_t kChoices = 4;
    BlockPool pool(kState * kChoices);
    std::vector<BlockHandle> blocks;
    ASSERT_TRUE(pool.Allocate(kState * kChoices, BlockState::kReserved, kUid, &blocks));
    std::vector<BlockTable> tables(num_going_on);
    std::vector<BlockTable*> pointers;
    for (BlockTable& table : tables) pointers.push_back(&table);
    std::vector<BlockCopy> copies;
    const std::span<const BlockHandle> all = blocks;
    DivideState({all.first(kState), all.subspan(kState), kBlockSize}, pointers, &pool, &copies);
    EXPECT_EQ(pool.num_free(), kState * (kChoices - num_going_on));
    EXPECT_EQ(pool.Counts().of(BlockState::kBound), kState * num_going_on);
    EXPECT_EQ(copies.size(), num_going_on == 0 ? 0 : kState * (num_going_on - 1));
    std::set<uint32_t> owned;
    for (size_t i = 0; i < tables.size(); ++i) {
      ASSERT_EQ(tables[i].size(), kState);
      for (uint32_t b = 0; b < kState; ++b) {
        EXPECT_TRUE(owned.insert(tables[i].indices()[b]).second) << "shared";
        if (i == 0) continue;
        const BlockCopy copy = copies[(i - 1) * kState + b];
        EXPECT_EQ(copy, (BlockCopy{tables[0].indices()[b], tables[i].indices()[b], kBlockSize}));
      }
      tables[i].Release(&pool);
    }
    EXPECT_EQ(pool.num_free(), pool.num_blocks());
  }
}

}  // namespace
}  // namespace baton::kv
