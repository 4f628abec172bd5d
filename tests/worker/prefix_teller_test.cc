#include "src/worker/prefix_teller.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

ChainLink Link(uint64_t i) { return {i, 7}; }

PrefixJournal::News Changes(uint64_t first, size_t count, bool added = true) {
  PrefixJournal::News news;
  for (size_t i = 0; i < count; ++i) news.changes.push_back({Link(first + i), added});
  return news;
}

TEST(PrefixTellerTest, ALeaseBeginsWithAllThatIsHeldThoughItBeNothing) {
  PrefixTeller teller;
  teller.TellAll();
  ASSERT_TRUE(teller.wants_held());
  PrefixJournal::News news = Changes(1, 3);  // part of what is held: not told twice
  news.held = {Link(3)};
  teller.Take(news);
  EXPECT_FALSE(teller.wants_held());
  const v1::PrefixEvents first = teller.NextBatch();
  EXPECT_TRUE(first.reset());
  EXPECT_EQ(*ChainFromBytes(first.links()), std::vector<ChainLink>{Link(3)});
  EXPECT_FALSE(teller.has_batch());

  PrefixTeller empty;
  empty.TellAll();
  empty.Take({});
  ASSERT_TRUE(empty.has_batch());
  EXPECT_TRUE(empty.NextBatch().reset());
  EXPECT_FALSE(empty.has_batch());
}

TEST(PrefixTellerTest, NumbersEveryChangeAndSaysWhichLeft) {
  PrefixTeller teller;
  teller.TellAll();
  teller.Take({});
  const uint64_t first = teller.NextBatch().first_sequence();
  teller.Take(Changes(1, 9));
  teller.Take(Changes(1, 2, /*added=*/false));
  const v1::PrefixEvents batch = teller.NextBatch();
  EXPECT_FALSE(batch.reset());
  EXPECT_EQ(batch.first_sequence(), first);
  EXPECT_EQ(batch.removed(), std::string("\0\x06", 2));
  EXPECT_EQ(ChainFromBytes(batch.links())->size(), 11u);
  teller.Take(Changes(20, 1));
  EXPECT_EQ(teller.NextBatch().first_sequence(), first + 11);
}

TEST(PrefixTellerTest, ALargeCacheFollowsInMoreBatches) {
  PrefixTeller teller;
  teller.TellAll();
  PrefixJournal::News news;
  for (uint64_t i = 0; i < PrefixTeller::kMaxBatchChanges + 5; ++i) news.held.push_back(Link(i));
  teller.Take(news);
  const v1::PrefixEvents one = teller.NextBatch();
  const v1::PrefixEvents two = teller.NextBatch();
  EXPECT_TRUE(one.reset());
  EXPECT_FALSE(two.reset());
  EXPECT_EQ(two.first_sequence(), one.first_sequence() + PrefixTeller::kMaxBatchChanges);
  EXPECT_EQ(ChainFromBytes(two.links())->size(), 5u);
  EXPECT_FALSE(teller.has_batch());
}

TEST(PrefixTellerTest, LossAndTooLongAQueueBeginAnew) {
  PrefixTeller teller;
  teller.Take(Changes(1, PrefixTeller::kMaxWaitingChanges));
  EXPECT_TRUE(teller.has_batch());
  teller.Take(Changes(1, 1));
  EXPECT_FALSE(teller.has_batch());
  EXPECT_TRUE(teller.wants_held());
  PrefixJournal::News lost;
  lost.lost = true;
  lost.held = {Link(5)};
  teller.Take(lost);
  EXPECT_TRUE(teller.NextBatch().reset());
}

}  // namespace
}  // namespace baton
