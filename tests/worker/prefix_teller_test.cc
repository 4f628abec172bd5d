#include "src/worker/prefix_teller.h"

#include <set>

#include "gtest/gtest.h"

#include "kvcache/hash_chain.h"
#include "src/base/limits.h"

namespace baton::worker {

using kv::ChainFromBytes;
using kv::ChainLink;
using kv::PrefixChange;

namespace {

ChainLink Link(uint64_t i) { return {i, 7}; }

std::vector<PrefixChange> Changes(uint64_t first, uint32_t count, bool added = true) {
  std::vector<PrefixChange> changes;
  for (uint32_t i = 0; i < count; ++i) changes.push_back({Link(first + i), added, i});
  return changes;
}

std::vector<ChainLink> LinksOf(const v1::PrefixEvents& events) {
  return *ChainFromBytes(events.links());
}

// Applies a batch as the router does.
void Apply(const v1::PrefixEvents& batch, std::set<ChainLink>* heard) {
  if (batch.reset()) heard->clear();
  const std::vector<ChainLink> links = LinksOf(batch);
  for (size_t i = 0; i < links.size(); ++i) {
    const bool removed =
        i / 8 < batch.removed().size() && (batch.removed()[i / 8] >> i % 8 & 1) != 0;
    if (removed) {
      heard->erase(links[i]);
    } else {
      heard->insert(links[i]);
    }
  }
}

// A cache, and the teller of one router that has heard that it is empty.
struct Told {
  Told() {
    teller.TellAll();
    Change({});
    EXPECT_TRUE(teller.NextBatch().reset());
  }
  void Change(const std::vector<PrefixChange>& changes) {
    copy.Apply(changes);
    teller.Take(changes, copy);
  }
  PrefixCopy copy;
  PrefixTeller teller;
};

TEST(PrefixTellerTest, ALeaseBeginsWithAllThatIsHeldThoughItBeNothing) {
  Told empty;
  EXPECT_FALSE(empty.teller.has_batch());

  Told told;
  told.Change(Changes(1, 3));
  told.teller.TellAll();
  told.Change(Changes(1, 2, /*added=*/false));
  const v1::PrefixEvents all = told.teller.NextBatch();
  EXPECT_TRUE(all.reset());
  EXPECT_EQ(LinksOf(all), std::vector<ChainLink>{Link(3)});
  EXPECT_FALSE(told.teller.has_batch());
}

TEST(PrefixTellerTest, NumbersEveryChangeAndSaysWhichLeft) {
  Told told;
  told.Change(Changes(1, 9));
  told.Change(Changes(1, 2, /*added=*/false));
  const v1::PrefixEvents batch = told.teller.NextBatch();
  EXPECT_FALSE(batch.reset());
  EXPECT_EQ(batch.removed(), std::string("\0\x06", 2));
  EXPECT_EQ(LinksOf(batch).size(), 11u);
  told.Change(Changes(20, 1));
  EXPECT_EQ(told.teller.NextBatch().first_sequence(), batch.first_sequence() + 11);
}

TEST(PrefixTellerTest, ALargeCacheFollowsInMoreBatchesBeginningsFirst) {
  constexpr uint32_t kCount = limits::kMaxPrefixChanges / 2 + 5;
  Told told;
  told.Change(Changes(1, kCount));
  told.Change(Changes(100'000, kCount));
  told.teller.TellAll();
  told.Change({});
  const v1::PrefixEvents one = told.teller.NextBatch();
  const v1::PrefixEvents two = told.teller.NextBatch();
  EXPECT_TRUE(one.reset());
  EXPECT_FALSE(two.reset());
  EXPECT_EQ(two.first_sequence(), one.first_sequence() + limits::kMaxPrefixChanges);
  EXPECT_FALSE(told.teller.has_batch());
  for (const ChainLink& link : LinksOf(two)) EXPECT_GT(link.hi % 100'000, kCount - 7);
  EXPECT_EQ(LinksOf(two).size(), 10u);
}

// However long it takes nothing, what waits is bounded, and it ends with the truth.
TEST(PrefixTellerTest, ARouterThatTakesNothingHearsEverythingAnew) {
  Told told;
  told.Change(Changes(0, 10));
  for (uint64_t i = 0; i < 4 * limits::kMaxPrefixChanges; ++i) {
    told.Change({{Link(i), false, 0}, {Link(i + 10), true, 0}});
  }
  std::vector<v1::PrefixEvents> batches;
  while (told.teller.has_batch()) batches.push_back(told.teller.NextBatch());
  EXPECT_LE(batches.size(), 2u);
  EXPECT_TRUE(batches[0].reset());
  std::set<ChainLink> heard;
  for (const v1::PrefixEvents& batch : batches) Apply(batch, &heard);
  std::set<ChainLink> held;
  for (uint64_t i = 0; i < 10; ++i) held.insert(Link(4 * limits::kMaxPrefixChanges + i));
  EXPECT_EQ(heard, held);
}

}  // namespace
}  // namespace baton::worker
