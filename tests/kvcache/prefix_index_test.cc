#include "kvcache/prefix_index.h"

#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::kv {
namespace {

constexpr uint32_t kBlockSize = 2;
const RequestUid kUid{1, 2};

// The links that a listener collects from what it hears.
struct Copy final : PrefixListener {
  void OnPrefixChange(const PrefixChange& change) override {
    EXPECT_TRUE(change.added ? links.insert(change.link).second : links.erase(change.link) == 1);
  }
  std::set<ChainLink> links;
};

// An index with its pool, and an arena in which a block's KV is the text of all tokens up to it.
class Cache {
 public:
  explicit Cache(uint32_t num_blocks, std::string_view tenant = "default")
      : key_(DeriveChainKey("secret", tenant)),
        pool_(num_blocks),
        index_(&pool_, kBlockSize, &copy_),
        kv_(num_blocks) {}

  // The blocks of one running prompt.
  struct Run {
    std::vector<TokenId> tokens;
    std::vector<BlockHandle> blocks;
    uint32_t num_hits = 0;
  };

  static std::string TextOf(std::span<const TokenId> tokens, uint32_t num_blocks) {
    std::string text;
    for (uint32_t i = 0; i < num_blocks * kBlockSize; ++i) {
      text += static_cast<char>('a' + tokens[i]);
    }
    return text;
  }

  // Takes hits and new blocks, "computes" the new ones and inserts them. Only full blocks.
  // Nothing, and nothing held, when the pool has too few.
  std::optional<Run> Start(std::vector<TokenId> tokens) {
    Run run;
    run.tokens = std::move(tokens);
    const std::vector<ChainLink> links = ChainLinks(key_, kBlockSize, run.tokens);
    const auto num_blocks = static_cast<uint32_t>(run.tokens.size() / kBlockSize);
    run.num_hits =
        index_.Acquire({links, run.tokens}, num_blocks, BlockState::kComputing, kUid, &run.blocks);
    if (!pool_.Allocate(num_blocks - run.num_hits, BlockState::kComputing, kUid, &run.blocks)) {
      Stop(&run);
      return std::nullopt;
    }
    for (uint32_t i = 0; i < num_blocks; ++i) {
      std::string& kv = kv_[run.blocks[i].index.value()];
      if (i < run.num_hits) {
        EXPECT_EQ(kv, TextOf(run.tokens, i + 1)) << "a hit holds the KV of its own prefix";
        continue;
      }
      kv = TextOf(run.tokens, i + 1);
      index_.Insert({.link = links[i],
                     .parent = i > 0 ? links[i - 1] : ChainLink{},
                     .ordinal = i,
                     .tokens = std::span(run.tokens).subspan(i * kBlockSize, kBlockSize),
                     .block = run.blocks[i]});
    }
    return run;
  }
  void Stop(Run* run) {
    for (const BlockHandle block : run->blocks) pool_.DropRequestRef(block);
    run->blocks.clear();
  }
  // Runs a prompt alone; how many blocks it found.
  uint32_t Use(std::vector<TokenId> tokens) {
    auto run = Start(std::move(tokens));
    EXPECT_TRUE(run.has_value());
    Stop(&*run);
    return run->num_hits;
  }
  uint32_t Match(const std::vector<TokenId>& tokens) const {
    return index_.Match({ChainLinks(key_, kBlockSize, tokens), tokens}, 1000);
  }
  void Audit() const {
    ASSERT_TRUE(pool_.Audit().ok()) << pool_.Audit();
    ASSERT_TRUE(index_.Audit().ok()) << index_.Audit();
    const PrefixStats& stats = index_.stats();
    ASSERT_EQ(copy_.links.size(), stats.num_inserted - stats.num_evicted);
  }

  BlockPool& pool() { return pool_; }
  PrefixIndex& index() { return index_; }

 private:
  const ChainKey key_;
  BlockPool pool_;
  Copy copy_;
  PrefixIndex index_;
  std::vector<std::string> kv_;
};

TEST(PrefixIndexTest, ASecondPromptFindsWhatItShares) {
  Cache cache(16);
  EXPECT_EQ(cache.Use({1, 2, 3, 4, 5, 6}), 0u);
  EXPECT_EQ(cache.pool().Counts().of(BlockState::kCached), 3u);
  EXPECT_EQ(cache.Use({1, 2, 3, 4, 5, 6}), 3u);
  EXPECT_EQ(cache.Use({1, 2, 3, 4, 9, 6}), 2u);
  EXPECT_EQ(cache.Use({9, 2, 3, 4, 5, 6}), 0u) << "same blocks after another beginning";
  cache.Audit();
}

TEST(PrefixIndexTest, TenantsShareNothing) {
  // One index, two keys: what one tenant cached is no hit for the other.
  BlockPool pool(8);
  PrefixIndex index(&pool, kBlockSize);
  const std::vector<TokenId> tokens = {1, 2};
  const auto a = ChainLinks(DeriveChainKey("s", "a"), kBlockSize, tokens);
  const auto b = ChainLinks(DeriveChainKey("s", "b"), kBlockSize, tokens);
  std::vector<BlockHandle> blocks;
  ASSERT_TRUE(pool.Allocate(1, BlockState::kComputing, kUid, &blocks));
  EXPECT_TRUE(index.Insert({.link = a[0], .tokens = tokens, .block = blocks[0]}));
  EXPECT_EQ(index.Match({a, tokens}, 8), 1u);
  EXPECT_EQ(index.Match({b, tokens}, 8), 0u);
  pool.DropRequestRef(blocks[0]);
}

TEST(PrefixIndexTest, EqualLinksOfOtherTokensAreNoHit) {
  BlockPool pool(8);
  PrefixIndex index(&pool, kBlockSize);
  const std::vector<TokenId> tokens = {1, 2};
  const std::vector<TokenId> others = {3, 4};
  const std::vector<ChainLink> link = {{7, 7}};  // as if two prefixes had one hash
  std::vector<BlockHandle> blocks;
  ASSERT_TRUE(pool.Allocate(2, BlockState::kComputing, kUid, &blocks));
  EXPECT_TRUE(index.Insert({.link = link[0], .tokens = tokens, .block = blocks[0]}));
  EXPECT_EQ(index.Match({link, others}, 8), 0u);
  EXPECT_FALSE(index.Insert({.link = link[0], .tokens = others, .block = blocks[1]}));
  for (const BlockHandle block : blocks) pool.DropRequestRef(block);
}

TEST(PrefixIndexTest, ThePrefixOfOthersGoesLast) {
  Cache cache(4);
  cache.Use({1, 2, 3, 4, 5, 6});  // three blocks; the last has no child
  cache.Use({7, 8});
  EXPECT_EQ(cache.pool().num_free(), 0u);
  cache.Use({9, 9});
  EXPECT_EQ(cache.Match({1, 2, 3, 4, 5, 6}), 3u) << "deeper blocks cost more to compute again";
  EXPECT_EQ(cache.Match({7, 8}), 0u);
  cache.Use({8, 8, 8, 8});
  EXPECT_EQ(cache.Match({9, 9}), 1u) << "newer";
  EXPECT_EQ(cache.Match({1, 2, 3, 4, 5, 6}), 1u) << "a prefix goes from its end to its beginning";
  cache.Audit();
}

TEST(PrefixIndexTest, WhatIsUsedStays) {
  Cache cache(4);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(cache.Use({1, 2}), i == 0 ? 0u : 1u);
    cache.Use({3, static_cast<TokenId>(10 + i)});
  }
  EXPECT_GT(cache.index().stats().num_evicted, 40u);
}

TEST(PrefixIndexTest, HeldBlocksAreNeverGivenUp) {
  Cache cache(3);
  auto held = cache.Start({1, 2, 3, 4});
  ASSERT_TRUE(held.has_value());
  EXPECT_EQ(cache.pool().num_available(), 1u);
  EXPECT_FALSE(cache.Start({5, 6, 7, 8}).has_value());
  cache.Audit();
  EXPECT_EQ(cache.Use({5, 6}), 0u);
  EXPECT_EQ(cache.Match({1, 2, 3, 4}), 2u);
  cache.Stop(&*held);
  auto whole = cache.Start({5, 6, 7, 8, 9, 9});
  ASSERT_TRUE(whole.has_value()) << "cached blocks never stand in the way";
  cache.Stop(&*whole);
  EXPECT_EQ(cache.pool().num_available(), 3u);
  cache.Audit();
}

// Prompts over a tiny alphabet in a small pool, started and stopped in any order: every hit holds
// the KV of its prefix (checked in Start), and the books balance after every call.
void RunRandomPrompts(uint64_t seed) {
  TestRandom random(seed);
  Cache cache(24);
  std::vector<Cache::Run> running;
  uint64_t num_hits = 0;
  for (int i = 0; i < 5'000; ++i) {
    if (!running.empty() && random.Below(2) == 0) {
      const size_t victim = random.Below(static_cast<uint32_t>(running.size()));
      cache.Stop(&running[victim]);
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(victim));
    } else {
      std::vector<TokenId> tokens(kBlockSize * (1 + random.Below(6)));
      for (TokenId& token : tokens) token = static_cast<TokenId>(random.Below(2));
      const uint32_t match = cache.Match(tokens);
      if (auto run = cache.Start(tokens)) {
        EXPECT_EQ(run->num_hits, match);
        num_hits += match;
        running.push_back(std::move(*run));
      }
    }
    ASSERT_NO_FATAL_FAILURE(cache.Audit());
  }
  EXPECT_GT(num_hits, 1000u);
  EXPECT_GT(cache.index().stats().num_evicted, 1000u);
  for (Cache::Run& run : running) cache.Stop(&run);
  EXPECT_EQ(cache.pool().num_available(), 24u);
}

TEST(PrefixIndexTest, RandomPromptsFindOnlyTheirOwnPrefix) {
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(seed);
    RunRandomPrompts(seed);
  }
}

}  // namespace
}  // namespace baton::kv
