#include "src/router/router_prefix_index.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace baton::router {

using kv::ChainLink;
using kv::ChainLinks;
using kv::DeriveChainKey;
using kv::StateLink;

namespace {

constexpr LeaseId kA(1);
constexpr LeaseId kB(2);

// Links of a chain that is named by a number; those of two chains have nothing in common.
std::vector<ChainLink> Chain(uint32_t name, size_t num_links) {
  const std::vector<TokenId> tokens(num_links, static_cast<TokenId>(name));
  return ChainLinks(DeriveChainKey("secret", "default"), 1, tokens);
}

PrefixBatch Batch(uint64_t first, const std::vector<ChainLink>& links, bool added = true) {
  PrefixBatch batch;
  batch.first_sequence = first;
  for (const ChainLink& link : links) batch.changes.push_back({link, added});
  return batch;
}
PrefixBatch Snapshot(uint64_t first, const std::vector<ChainLink>& links) {
  PrefixBatch batch = Batch(first, links);
  batch.reset = true;
  return batch;
}

uint32_t HeldBy(const RouterPrefixIndex& index, LeaseId worker,
                const std::vector<ChainLink>& links) {
  for (const RouterPrefixIndex::Hit& hit : index.Find(links)) {
    if (hit.worker == worker) return hit.num_blocks;
  }
  return 0;
}

TEST(RouterPrefixIndexTest, FindsTheLongestPrefixWithoutAGapOfEachWorker) {
  RouterPrefixIndex index(1000);
  index.AddWorker(kA, 0);
  index.AddWorker(kB, 0);
  const std::vector<ChainLink> chain = Chain(1, 8);
  index.Apply(kA, Snapshot(1, {chain.begin(), chain.begin() + 5}), 0);
  // B lacks the third link, so the links that it holds after the third help nobody.
  index.Apply(kB, Snapshot(1, {chain[0], chain[1], chain[3], chain[4], chain[5]}), 0);
  EXPECT_EQ(HeldBy(index, kA, chain), 5u);
  EXPECT_EQ(HeldBy(index, kB, chain), 2u);
  EXPECT_TRUE(index.Find(Chain(2, 8)).empty());
  EXPECT_TRUE(index.Find({}).empty());
  index.Apply(kB, Batch(6, {chain[2]}), 0);
  EXPECT_EQ(HeldBy(index, kB, chain), 6u);
  index.Apply(kB, Batch(7, {chain[0]}, false), 0);
  EXPECT_EQ(HeldBy(index, kB, chain), 0u);
  EXPECT_EQ(index.num_entries(), 10u);
}

TEST(RouterPrefixIndexTest, WhereSequencesHaveAStateAPrefixEndsAtTheLastOne) {
  RouterPrefixIndex index(1000);
  index.AddWorker(kA, 0);
  index.AddWorker(kB, 0);
  const std::vector<ChainLink> chain = Chain(1, 8);
  index.Apply(kA, Snapshot(1, chain), 0);
  index.Apply(kA, Batch(9, {StateLink(chain[1]), StateLink(chain[5])}), 0);
  index.Apply(kB, Snapshot(1, {chain[0], chain[1], chain[2], StateLink(chain[5])}), 0);
  const auto hit_of = [&](LeaseId worker, size_t num_links) {
    const std::span<const ChainLink> links = std::span(chain).first(num_links);
    for (const RouterPrefixIndex::Hit& hit : index.Find(links, /*has_states=*/true)) {
      if (hit.worker == worker) return hit;
    }
    return RouterPrefixIndex::Hit();
  };
  const auto held_by = [&](LeaseId worker, size_t num_links) {
    return hit_of(worker, num_links).num_whole;
  };
  EXPECT_EQ(hit_of(kA, 8).num_blocks, 8u) << "the KV is there, whether it can go on or not";
  EXPECT_EQ(hit_of(kB, 8).num_blocks, 3u);
  EXPECT_EQ(held_by(kA, 8), 6u);
  EXPECT_EQ(held_by(kA, 5), 2u);
  EXPECT_EQ(held_by(kA, 1), 0u);
  EXPECT_EQ(held_by(kB, 8), 0u) << "it lacks blocks before its state";
  EXPECT_EQ(HeldBy(index, kB, chain), 3u);
  EXPECT_EQ(index.Find(chain).front().num_whole, index.Find(chain).front().num_blocks)
      << "without states";
  index.Apply(kA, Batch(11, {StateLink(chain[5])}, false), 0);
  EXPECT_EQ(held_by(kA, 8), 2u);
  EXPECT_TRUE(index.Find({}, /*has_states=*/true).empty());
}

TEST(RouterPrefixIndexTest, KnowsNothingOfAWorkerBeforeItsFirstReset) {
  RouterPrefixIndex index(1000);
  index.AddWorker(kA, 0);
  const std::vector<ChainLink> chain = Chain(1, 4);
  EXPECT_EQ(index.Apply(kA, Batch(1, chain), 0), PrefixOutcome::kUnsynced);
  EXPECT_EQ(HeldBy(index, kA, chain), 0u);
  EXPECT_TRUE(index.TakeDueResyncs(999'999).empty()) << "it gets a second to begin by itself";
  EXPECT_EQ(index.TakeDueResyncs(1'000'000), std::vector<LeaseId>{kA});
  EXPECT_EQ(index.Apply(kA, Snapshot(5, chain), 1'000'000), PrefixOutcome::kApplied);
  EXPECT_EQ(HeldBy(index, kA, chain), 4u);
  EXPECT_TRUE(index.TakeDueResyncs(100'000'000).empty());
  EXPECT_EQ(index.Apply(kB, Snapshot(1, chain), 0), PrefixOutcome::kNoWorker);
}

TEST(RouterPrefixIndexTest, AGapEmptiesThePartUntilAReset) {
  RouterPrefixIndex index(1000);
  index.AddWorker(kA, 0);
  index.AddWorker(kB, 0);
  const std::vector<ChainLink> chain = Chain(1, 6);
  index.Apply(kA, Snapshot(1, chain), 0);
  index.Apply(kB, Snapshot(1, chain), 0);
  EXPECT_EQ(index.Apply(kA, Batch(8, Chain(2, 1)), 0), PrefixOutcome::kGap) << "7 is missing";
  EXPECT_EQ(HeldBy(index, kA, chain), 0u);
  EXPECT_EQ(HeldBy(index, kB, chain), 6u) << "another worker's part is its own";
  EXPECT_EQ(index.Apply(kA, Batch(9, chain), 0), PrefixOutcome::kUnsynced);
  EXPECT_EQ(HeldBy(index, kA, chain), 0u);
  EXPECT_EQ(index.TakeDueResyncs(0), std::vector<LeaseId>{kA}) << "at once after a quiet time";
  EXPECT_EQ(index.Apply(kA, Snapshot(100, {chain[0], chain[1]}), 0), PrefixOutcome::kApplied);
  EXPECT_EQ(index.Apply(kA, Batch(102, {chain[2]}), 0), PrefixOutcome::kApplied);
  EXPECT_EQ(HeldBy(index, kA, chain), 3u);
}

TEST(RouterPrefixIndexTest, ResyncsAreAskedForEverMoreSeldomWhileGapsGoOn) {
  RouterPrefixIndex index(1000);
  index.AddWorker(kA, 0);
  std::vector<int64_t> asked_s;
  uint64_t next = 1;
  constexpr int64_t kSecond = 1'000'000;
  // The worker answers each question at once and loses an event again 0.1 s later.
  for (int64_t now_us = 0; now_us <= 400 * kSecond; now_us += kSecond / 10) {
    index.Apply(kA, Batch(next + 1, Chain(1, 1)), now_us);
    if (index.TakeDueResyncs(now_us).empty()) continue;
    asked_s.push_back(now_us / kSecond);
    index.Apply(kA, Snapshot(next, {}), now_us);
  }
  EXPECT_EQ(asked_s, (std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 320, 384}));
  EXPECT_EQ(index.TakeDueResyncs(450 * kSecond).size(), 1u);
  index.Apply(kA, Snapshot(next, {}), 450 * kSecond);
  // In order for two minutes: asked at once after the next gap.
  EXPECT_EQ(index.Apply(kA, Batch(next + 1, Chain(1, 1)), 600 * kSecond), PrefixOutcome::kGap);
  EXPECT_EQ(index.TakeDueResyncs(600 * kSecond).size(), 1u);
}

TEST(RouterPrefixIndexTest, WhatIsKnownAlreadyIsSkipped) {
  RouterPrefixIndex index(1000);
  index.AddWorker(kA, 0);
  const std::vector<ChainLink> chain = Chain(1, 6);
  index.Apply(kA, Snapshot(1, {}), 0);
  EXPECT_EQ(index.Apply(kA, Batch(1, {chain[0], chain[1]}), 0), PrefixOutcome::kApplied);
  EXPECT_EQ(index.Apply(kA, Batch(3, {chain[1]}, false), 0), PrefixOutcome::kApplied);
  EXPECT_EQ(index.Apply(kA, Batch(1, {chain[0], chain[1]}), 0), PrefixOutcome::kDuplicate);
  EXPECT_EQ(HeldBy(index, kA, chain), 1u) << "the removal stands";
  // Number 3 comes again, and a new 4 after it.
  EXPECT_EQ(index.Apply(kA, Batch(3, {chain[3], chain[1]}), 0), PrefixOutcome::kApplied);
  EXPECT_EQ(HeldBy(index, kA, chain), 2u);
  EXPECT_EQ(index.num_links(kA), 2u) << "chain[3] was the old 3";
}

TEST(RouterPrefixIndexTest, NumbersMayWrap) {
  RouterPrefixIndex index(1000);
  index.AddWorker(kA, 0);
  const std::vector<ChainLink> chain = Chain(1, 6);
  const uint64_t last = ~uint64_t{0};
  EXPECT_EQ(index.Apply(kA, Snapshot(last, {chain[0], chain[1]}), 0), PrefixOutcome::kApplied);
  EXPECT_EQ(index.Apply(kA, Batch(1, {chain[2]}), 0), PrefixOutcome::kApplied);
  EXPECT_EQ(index.Apply(kA, Batch(last, {chain[5]}), 0), PrefixOutcome::kDuplicate);
  EXPECT_EQ(HeldBy(index, kA, chain), 3u);
}

TEST(RouterPrefixIndexTest, ARemovedWorkerIsForgottenAtOnceAndItsRoomIsSwept) {
  RouterPrefixIndex index(1000);
  index.AddWorker(kA, 0);
  index.AddWorker(kB, 0);
  const std::vector<ChainLink> chain = Chain(1, 200);
  index.Apply(kA, Snapshot(1, chain), 0);
  index.Apply(kB, Snapshot(1, {chain[0]}), 0);
  index.RemoveWorker(kA);
  index.RemoveWorker(LeaseId(77));
  EXPECT_EQ(HeldBy(index, kA, chain), 0u);
  EXPECT_EQ(HeldBy(index, kB, chain), 1u);
  EXPECT_EQ(index.num_entries(), 1u);
  EXPECT_EQ(index.num_stale(), 200u);
  index.Sweep(4096);
  EXPECT_EQ(index.num_stale(), 0u);
  EXPECT_EQ(HeldBy(index, kB, chain), 1u);
  // A process that gets a new lease starts empty.
  index.AddWorker(LeaseId(3), 0);
  EXPECT_EQ(HeldBy(index, LeaseId(3), chain), 0u);
}

TEST(RouterPrefixIndexTest, MemoryFollowsTheEntriesUpTo32MiB) {
  RouterPrefixIndex index;
  index.AddWorker(kA, 0);
  EXPECT_LE(index.memory_bytes(), 2u << 10) << "of an empty index";
  std::mt19937_64 random(1);
  PrefixBatch batch = Snapshot(1, {});
  size_t num_told = 0;
  for (const size_t num_entries : {48u, 49u, 1'152u, 100'000u, kMaxPrefixEntries + 1'000u}) {
    batch.changes.clear();
    for (; num_told < num_entries; ++num_told) {
      batch.changes.push_back({ChainLink{random(), random()}, /*added=*/true});
    }
    index.Apply(kA, batch, 0);
    batch.first_sequence += batch.changes.size();
    batch.reset = false;
    const size_t num_kept = std::min<size_t>(num_entries, kMaxPrefixEntries);
    EXPECT_NEAR(static_cast<double>(index.num_entries()), static_cast<double>(num_kept), 2)
        << "a tag may have been drawn twice";
    EXPECT_LE(index.memory_bytes(), num_kept * 8 * 8 / 3 + (2u << 10)) << num_entries;
    EXPECT_LE(index.memory_bytes(), (32u << 20) + (1u << 10)) << num_entries;
  }
}

TEST(RouterPrefixIndexTest, ADoublingKeepsWhatIsHeldAndDropsWhatIsStale) {
  RouterPrefixIndex index(100'000);
  index.AddWorker(kA, 0);
  index.AddWorker(kB, 0);
  const std::vector<ChainLink> chain = Chain(1, 40);
  index.Apply(kA, Snapshot(1, chain), 0);
  index.Apply(kB, Snapshot(1, {}), 0);
  index.RemoveWorker(kA);
  EXPECT_EQ(index.num_stale(), 40u);
  const std::vector<ChainLink> others = Chain(2, 10'000);
  for (size_t i = 0; i < others.size(); ++i) {
    index.Apply(kB, Batch(i + 1, {others[i]}), 0);
    if (i % 512 != 0) continue;
    ASSERT_EQ(HeldBy(index, kB, others), i + 1);
  }
  EXPECT_EQ(HeldBy(index, kB, others), 10'000u);
  EXPECT_EQ(index.num_stale(), 0u) << "the first doubling left them out";
  EXPECT_TRUE(index.Find(chain).empty());
  // The number of the dropped part is free, so a third worker has it.
  index.AddWorker(LeaseId(3), 0);
  index.Apply(LeaseId(3), Snapshot(1, chain), 0);
  EXPECT_EQ(HeldBy(index, LeaseId(3), chain), 40u);
  EXPECT_EQ(index.num_entries(), 10'040u);
}

TEST(RouterPrefixIndexTest, AWorkerKeepsWhatItKnewWhenItsShareIsFull) {
  RouterPrefixIndex index(100);
  index.AddWorker(kA, 0);
  const std::vector<ChainLink> old = Chain(1, 100);
  const std::vector<ChainLink> young = Chain(2, 50);
  index.Apply(kA, Snapshot(1, old), 0);
  index.Apply(kA, Batch(101, young), 0);
  EXPECT_EQ(HeldBy(index, kA, old), 100u);
  EXPECT_EQ(HeldBy(index, kA, young), 0u);
  EXPECT_EQ(index.num_not_kept(), 50u);
  // Links that leave the cache make room.
  index.Apply(kA, Batch(151, {old.begin() + 50, old.end()}, false), 0);
  index.Apply(kA, Batch(201, young), 0);
  EXPECT_EQ(HeldBy(index, kA, old), 50u);
  EXPECT_EQ(HeldBy(index, kA, young), 50u);
}

TEST(RouterPrefixIndexTest, AJoiningWorkerGetsItsShare) {
  RouterPrefixIndex index(100);
  index.AddWorker(kA, 0);
  const std::vector<ChainLink> chain = Chain(1, 90);
  index.Apply(kA, Snapshot(1, chain), 0);
  index.AddWorker(kB, 0);
  EXPECT_EQ(index.share(), 50u);
  EXPECT_EQ(HeldBy(index, kA, chain), 0u) << "above its new share";
  EXPECT_EQ(index.TakeDueResyncs(0), std::vector<LeaseId>{kA});
  index.Apply(kA, Snapshot(91, chain), 0);
  EXPECT_EQ(HeldBy(index, kA, chain), 50u) << "the beginning, whose room the stale entries held";
  index.Apply(kB, Snapshot(1, chain), 0);
  EXPECT_EQ(HeldBy(index, kB, chain), 50u);
  EXPECT_EQ(index.num_entries(), 100u);
  // A part below the new share stays when a third worker joins.
  index.Apply(kB, Snapshot(91, {chain[0]}), 0);
  index.AddWorker(LeaseId(3), 0);
  EXPECT_EQ(HeldBy(index, kA, chain), 0u);
  EXPECT_EQ(HeldBy(index, kB, chain), 1u);
}

// The truth that the index follows: what each worker holds, whether in order, the next number.
struct NaiveWorker {
  std::set<uint64_t> held;  // hi of the links
  bool synced = false;
  uint64_t next = 1;
};

// A link whose home is the first or the last slot of a table of less than 2^20, so that runs of
// equal homes cross the table's end.
ChainLink CrowdedLink(uint64_t number) {
  const uint64_t homes[] = {~uint64_t{0}, 0, 1, ~uint64_t{0} - 1};
  const uint64_t tag = (homes[number % 4] & 0xfffff) << 28 | number;
  return {tag << 16, number};
}

// Random batches with losses and repetitions against the naive model, in a crowded table.
class PrefixIndexAgainstNaive {
 public:
  explicit PrefixIndexAgainstNaive(uint32_t seed) : random_(seed), index_(4096) {
    for (uint64_t i = 0; i < 60; ++i) links_.push_back(CrowdedLink(i));
  }

  void Step() {
    const LeaseId lease(1 + random_() % 5);
    const auto it = workers_.find(lease);
    const uint32_t kind = random_() % 100;
    if (it == workers_.end()) {
      workers_[lease];
      index_.AddWorker(lease, 0);
    } else if (kind < 3) {
      workers_.erase(it);
      index_.RemoveWorker(lease);
    } else if (kind < 10) {
      index_.Sweep(random_() % 300);
    } else {
      SendBatch(lease, it->second, kind);
    }
  }

  void Check() {
    // A prompt is any order of links here; what matters is where each worker's first hole is.
    std::shuffle(links_.begin(), links_.end(), random_);
    size_t entries = 0;
    for (const auto& [lease, worker] : workers_) {
      entries += worker.held.size();
      uint32_t length = 0;
      while (length < links_.size() && worker.held.count(links_[length].hi) > 0) ++length;
      ASSERT_EQ(HeldBy(index_, lease, links_), length);
      ASSERT_EQ(index_.num_links(lease), worker.held.size());
    }
    ASSERT_EQ(index_.num_entries(), entries);
  }

 private:
  void SendBatch(LeaseId lease, NaiveWorker& worker, uint32_t kind) {
    PrefixBatch batch;
    batch.reset = kind < 14 || (!worker.synced && kind < 60);
    batch.first_sequence = worker.next;
    const bool is_gap = !batch.reset && kind >= 14 && kind < 17;
    if (is_gap) batch.first_sequence += 1 + random_() % 5;
    const bool is_old = !batch.reset && kind >= 17 && kind < 25;
    const uint64_t behind = is_old ? random_() % 4 : 0;
    batch.first_sequence -= behind;
    const size_t size = random_() % 12;
    for (size_t i = 0; i < size; ++i) {
      // More is held than not, so that prefixes are long.
      batch.changes.push_back({links_[random_() % links_.size()], random_() % 5 != 0});
    }
    index_.Apply(lease, batch, 0);
    if (batch.reset) {
      worker.held.clear();
      worker.synced = true;
    } else if (is_gap && worker.synced) {
      worker.held.clear();
      worker.synced = false;
    }
    if (!worker.synced) return;
    for (size_t i = behind; i < size; ++i) {
      const uint64_t link = batch.changes[i].link.hi;
      if (batch.changes[i].added) {
        worker.held.insert(link);
      } else {
        worker.held.erase(link);
      }
    }
    if (size >= behind) worker.next = batch.first_sequence + size;
  }

  std::mt19937 random_;
  RouterPrefixIndex index_;
  std::vector<ChainLink> links_;
  std::map<LeaseId, NaiveWorker> workers_;
};

TEST(RouterPrefixIndexTest, AgreesWithANaiveModelOverRandomEvents) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    PrefixIndexAgainstNaive both(seed);
    for (int step = 0; step < 600; ++step) {
      both.Step();
      if (step % 4 != 0) continue;  // a check costs as much as many steps
      ASSERT_NO_FATAL_FAILURE(both.Check()) << "step " << step;
    }
  }
}

// Whatever is added, removed, dropped and joined: never more entries than the limit, nothing that
// was not told, and no worker above its share once it was told anew.
TEST(RouterPrefixIndexTest, StaysWithinItsLimitUnderChurn) {
  std::mt19937 random(7);
  RouterPrefixIndex index(300);
  const size_t bytes = index.memory_bytes();
  std::map<LeaseId, uint64_t> next;
  uint64_t lease = 0;
  for (int step = 0; step < 5'000; ++step) {
    const uint32_t kind = random() % 100;
    if (next.empty() || (kind < 5 && next.size() < 12)) {
      index.AddWorker(LeaseId(++lease), 0);
      index.Apply(LeaseId(lease), Snapshot(1, {}), 0);
      next[LeaseId(lease)] = 1;
      continue;
    }
    const auto it = std::next(next.begin(), random() % next.size());
    if (kind < 10) {
      index.RemoveWorker(it->first);
      next.erase(it);
      continue;
    }
    const std::vector<ChainLink> chain = Chain(random() % 40, random() % 60);
    if (kind < 20) {
      index.Apply(it->first, Snapshot(it->second, chain), 0);
      ASSERT_LE(index.num_links(it->first), index.share());
    } else {
      index.Apply(it->first, Batch(it->second, chain, kind < 85), 0);
    }
    it->second += chain.size();
    ASSERT_LE(index.num_entries() + index.num_stale(), 300u);
    for (const RouterPrefixIndex::Hit& hit : index.Find(Chain(random() % 40, 60))) {
      ASSERT_TRUE(next.count(hit.worker)) << "a worker that is gone";
    }
  }
  EXPECT_GT(index.num_not_kept(), 0u) << "the limit was reached";
  EXPECT_LE(index.memory_bytes(), bytes + 64 * 1024) << "the table has a largest size";
}

}  // namespace
}  // namespace baton::router
