#include "src/engine/prefix_journal.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "gtest/gtest.h"

namespace baton {
namespace {

ChainLink Link(uint64_t i) { return {i, ~i}; }

TEST(PrefixJournalTest, GivesEveryChangeOnceInOrder) {
  PrefixJournal journal(4, 8);
  journal.OnPrefixChange({.link = Link(1), .added = true});
  journal.OnPrefixChange({.link = Link(2), .added = true});
  journal.OnPrefixChange({.link = Link(1), .added = false});
  const PrefixJournal::News news = journal.Take(/*want_held=*/false);
  EXPECT_FALSE(news.lost);
  EXPECT_EQ(news.changes,
            (std::vector<PrefixChange>{{Link(1), true}, {Link(2), true}, {Link(1), false}}));
  EXPECT_TRUE(news.held.empty());
  const PrefixJournal::News later = journal.Take(/*want_held=*/true);
  EXPECT_TRUE(later.changes.empty());
  EXPECT_EQ(later.held, std::vector<ChainLink>{Link(2)});
}

TEST(PrefixJournalTest, AReaderThatSleptHearsOfTheLossAndOfTheWhole) {
  PrefixJournal journal(4, 3);
  for (uint64_t i = 0; i < 4; ++i) journal.OnPrefixChange({.link = Link(i), .added = true});
  journal.OnPrefixChange({.link = Link(0), .added = false});
  PrefixJournal::News news = journal.Take(/*want_held=*/false);
  EXPECT_TRUE(news.lost);
  EXPECT_TRUE(news.changes.empty());
  std::sort(news.held.begin(), news.held.end());
  EXPECT_EQ(news.held, (std::vector<ChainLink>{Link(1), Link(2), Link(3)}));
  journal.OnPrefixChange({.link = Link(9), .added = true});
  const PrefixJournal::News next = journal.Take(/*want_held=*/false);
  EXPECT_FALSE(next.lost);
  EXPECT_EQ(next.changes.size(), 1u);
}

// One thread records while another takes: the copy ends as the original.
TEST(PrefixJournalTest, TheCopyOfAnotherThreadEndsAsTheOriginal) {
  PrefixJournal journal(64, 100);
  std::atomic<bool> done{false};
  std::thread recorder([&] {
    for (uint64_t i = 0; i < 20'000; ++i) {
      journal.OnPrefixChange({.link = Link(i), .added = true});
      if (i >= 50) journal.OnPrefixChange({.link = Link(i - 50), .added = false});
    }
    done = true;
  });
  std::set<ChainLink> copy;
  for (bool last = false; !last;) {
    last = done;
    const PrefixJournal::News news = journal.Take(/*want_held=*/false);
    if (news.lost) copy = {news.held.begin(), news.held.end()};
    for (const PrefixChange& change : news.changes) {
      ASSERT_TRUE(change.added ? copy.insert(change.link).second : copy.erase(change.link) == 1);
    }
  }
  recorder.join();
  EXPECT_EQ(copy.size(), 50u);
  for (uint64_t i = 19'950; i < 20'000; ++i) EXPECT_TRUE(copy.contains(Link(i))) << i;
}

}  // namespace
}  // namespace baton
