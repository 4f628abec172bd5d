#include "src/engine/prefix_journal.h"

#include <atomic>
#include <set>
#include <thread>

#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::engine {

using kv::ChainLink;
using kv::PrefixChange;

namespace {

ChainLink Link(uint64_t i) { return {i, ~i}; }

std::vector<PrefixChange> Taken(PrefixJournal* journal) {
  std::vector<PrefixChange> changes;
  journal->Take(&changes);
  return changes;
}

void Apply(const std::vector<PrefixChange>& changes, std::set<ChainLink>* copy) {
  for (const PrefixChange& change : changes) {
    ASSERT_TRUE(change.added ? copy->insert(change.link).second : copy->erase(change.link) == 1);
  }
}

TEST(PrefixJournalTest, GivesEveryChangeOnceInOrder) {
  PrefixJournal journal(4);
  journal.OnPrefixChange({.link = Link(1), .added = true, .ordinal = 0});
  journal.OnPrefixChange({.link = Link(2), .added = true, .ordinal = 1});
  journal.OnPrefixChange({.link = Link(1), .added = false, .ordinal = 0});
  EXPECT_EQ(Taken(&journal), (std::vector<PrefixChange>{
                                 {Link(1), true, 0}, {Link(2), true, 1}, {Link(1), false, 0}}));
  EXPECT_TRUE(Taken(&journal).empty());
}

// The buffer that a reader brings is what the engine thread writes into next.
TEST(PrefixJournalTest, AFirstTakeLeavesRoomForTheEngineThread) {
  PrefixJournal journal(64);
  std::vector<PrefixChange> first;
  journal.Take(&first);
  std::vector<PrefixChange> second;
  journal.Take(&second);
  EXPECT_GE(second.capacity(), 4u * 64);
}

// An index of four blocks changes ten thousand times before its reader wakes, at random times.
TEST(PrefixJournalTest, AReaderThatSleepsHearsWhatIsLeftOfTheChanges) {
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(seed);
    TestRandom random(seed);
    PrefixJournal journal(4);
    std::set<ChainLink> held;
    std::set<ChainLink> copy;
    for (int i = 0; i < 10'000; ++i) {
      const bool add = held.size() < 4 && random.Below(2) == 0;
      ChainLink link = Link(random.Below(20));
      if (!add && !held.empty()) link = *held.begin();
      if (add ? !held.insert(link).second : held.erase(link) == 0) continue;
      journal.OnPrefixChange({.link = link, .added = add});
      if (random.Below(500) != 0) continue;
      const std::vector<PrefixChange> changes = Taken(&journal);
      EXPECT_LE(changes.size(), 16u);
      ASSERT_NO_FATAL_FAILURE(Apply(changes, &copy));
      ASSERT_EQ(copy, held);
    }
  }
}

TEST(PrefixJournalTest, TheCopyOfAnotherThreadEndsAsTheOriginal) {
  PrefixJournal journal(64);
  std::atomic<bool> done{false};
  std::thread teller([&] {
    for (uint64_t i = 0; i < 20'000; ++i) {
      journal.OnPrefixChange({.link = Link(i), .added = true});
      if (i >= 50) journal.OnPrefixChange({.link = Link(i - 50), .added = false});
    }
    done = true;
  });
  std::set<ChainLink> copy;
  for (bool last = false; !last;) {
    last = done;
    ASSERT_NO_FATAL_FAILURE(Apply(Taken(&journal), &copy));
  }
  teller.join();
  EXPECT_EQ(copy.size(), 50u);
  for (uint64_t i = 19'950; i < 20'000; ++i) EXPECT_TRUE(copy.contains(Link(i))) << i;
}

}  // namespace
}  // namespace baton::engine
