#include "kvcache/prefix_index.h"

#include <algorithm>
#include <map>
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
    uint32_t num_released = 0;
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
    const uint32_t num_new = num_blocks - run.num_hits;
    const uint32_t num_free = pool_.num_free();
    if (!pool_.Allocate(num_new, BlockState::kComputing, kUid, &run.blocks)) {
      Stop(&run);
      return std::nullopt;
    }
    EXPECT_EQ(pool_.num_free(), num_free - std::min(num_free, num_new))
        << "no block that is idle leaves with the one that is given up";
    for (uint32_t i = 0; i < num_blocks; ++i) {
      std::string& kv = kv_[run.blocks[i].index.value()];
      if (i < run.num_hits) {
        EXPECT_EQ(kv, TextOf(run.tokens, i + 1)) << "a hit holds the KV of its own prefix";
        continue;
      }
      kv = TextOf(run.tokens, i + 1);
      if (i > 0) parents_[links[i]] = links[i - 1];
      index_.Insert({.link = links[i],
                     .parent = i > 0 ? links[i - 1] : ChainLink{},
                     .ordinal = i,
                     .tokens = std::span(run.tokens).subspan(i * kBlockSize, kBlockSize),
                     .block = run.blocks[i]});
    }
    return run;
  }
  // As a sequence does whose later rows do not see its first blocks.
  void ReleaseFront(Run* run, uint32_t num_blocks) {
    for (uint32_t i = num_blocks; i-- > run->num_released;) pool_.DropRequestRef(run->blocks[i]);
    run->num_released = std::max(run->num_released, num_blocks);
  }
  void Stop(Run* run) {
    ReleaseFront(run, static_cast<uint32_t>(run->blocks.size()));
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
    for (const ChainLink& link : copy_.links) {
      const auto parent = parents_.find(link);
      ASSERT_TRUE(parent == parents_.end() || copy_.links.contains(parent->second))
          << "a block is kept that no lookup finds";
    }
  }

  BlockPool& pool() { return pool_; }
  PrefixIndex& index() { return index_; }

 private:
  const ChainKey key_;
  BlockPool pool_;
  Copy copy_;
  PrefixIndex index_;
  std::vector<std::string> kv_;
  std::map<ChainLink, ChainLink> parents_;  // of all links but those of roots
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

// A sequence with a window holds its last blocks alone. What it released has a child each.
TEST(PrefixIndexTest, AReleasedFrontGoesFromItsEnd) {
  Cache cache(6);
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 9};
  auto run = cache.Start(tokens);
  ASSERT_TRUE(run.has_value());
  cache.ReleaseFront(&*run, 3);
  EXPECT_EQ(cache.Match(tokens), 5u);
  auto other = cache.Start({7, 7, 7, 7});  // the free block and one of the released
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(cache.Match(tokens), 2u);
  cache.Audit();
  cache.Stop(&*run);
  EXPECT_EQ(cache.pool().num_free(), 2u) << "no lookup finds what came after the gap";
  EXPECT_EQ(cache.Match(tokens), 2u);
  auto third = cache.Start({8, 8, 8, 8, 8, 8});
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(cache.Match(tokens), 1u);
  cache.Audit();
  cache.Stop(&*other);
  cache.Stop(&*third);
}

TEST(PrefixIndexTest, DroppingWhatIsNotHereChangesNothing) {
  Cache cache(8);
  auto run = cache.Start({1, 2, 3, 4});
  ASSERT_TRUE(run.has_value());
  for (uint32_t i = 0; i < cache.pool().num_blocks(); ++i) {
    cache.index().Drop({BlockIndex(i), 0});  // no block
    cache.index().Drop({BlockIndex(i), 7});  // of another life
  }
  EXPECT_EQ(cache.Match({1, 2, 3, 4}), 2u);
  cache.Audit();
  cache.index().Drop(run->blocks[0]);
  EXPECT_EQ(cache.Match({1, 2, 3, 4}), 0u) << "the second block goes on from the first one";
  cache.Stop(&*run);
  EXPECT_EQ(cache.pool().num_free(), 8u);
}

TEST(PrefixIndexTest, ABlockIsNotKeptWithoutTheOneBeforeIt) {
  BlockPool pool(4);
  PrefixIndex index(&pool, kBlockSize);
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6};
  const auto links = ChainLinks(DeriveChainKey("s", "a"), kBlockSize, tokens);
  std::vector<BlockHandle> blocks;
  ASSERT_TRUE(pool.Allocate(3, BlockState::kComputing, kUid, &blocks));
  const auto insert = [&](uint32_t i) {
    return index.Insert({.link = links[i],
                         .parent = i > 0 ? links[i - 1] : ChainLink{},
                         .ordinal = i,
                         .tokens = std::span(tokens).subspan(i * kBlockSize, kBlockSize),
                         .block = blocks[i]});
  };
  EXPECT_FALSE(insert(1));
  for (const uint32_t i : {0u, 1u, 2u}) EXPECT_TRUE(insert(i));
  index.Drop(blocks[1]);
  EXPECT_EQ(index.Match({links, tokens}, 3), 1u);
  EXPECT_FALSE(insert(2));
  ASSERT_TRUE(index.Audit().ok()) << index.Audit();
  for (const BlockHandle block : blocks) pool.DropRequestRef(block);
  EXPECT_EQ(pool.num_free(), 3u) << "the root alone is cached";
}

// Two prompts with equal blocks 0 and 1 that were computed apart; then each has a block of its own.
TEST(PrefixIndexTest, ABlockThatIsHeldTakesThePlaceOfAnEqualOneThatIsNot) {
  BlockPool pool(6);
  Copy copy;
  PrefixIndex index(&pool, kBlockSize, &copy);
  const ChainKey key = DeriveChainKey("s", "a");
  const std::vector<std::vector<TokenId>> tokens = {{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 7, 8}};
  std::vector<std::vector<ChainLink>> links;
  std::vector<std::vector<BlockHandle>> blocks(2);
  for (size_t i = 0; i < 2; ++i) {
    links.push_back(ChainLinks(key, kBlockSize, tokens[i]));
    ASSERT_TRUE(pool.Allocate(3, BlockState::kComputing, kUid, &blocks[i]));
  }
  const auto insert = [&](size_t prompt, uint32_t i) {
    return index.Insert({.link = links[prompt][i],
                         .parent = i > 0 ? links[prompt][i - 1] : ChainLink{},
                         .ordinal = i,
                         .tokens = std::span(tokens[prompt]).subspan(i * kBlockSize, kBlockSize),
                         .block = blocks[prompt][i]});
  };
  const auto match = [&](size_t prompt) { return index.Match({links[prompt], tokens[prompt]}, 3); };
  for (const uint32_t i : {0u, 1u, 2u}) EXPECT_TRUE(insert(0, i));
  EXPECT_FALSE(insert(1, 0)) << "the other prompt holds that block";
  EXPECT_FALSE(insert(1, 1));
  EXPECT_TRUE(insert(1, 2));
  for (const BlockHandle block : blocks[0]) pool.DropRequestRef(block);
  const uint64_t num_inserted = index.stats().num_inserted;
  for (const uint32_t i : {1u, 0u}) {  // in any order
    EXPECT_TRUE(insert(1, i));
    EXPECT_FALSE(insert(1, i)) << "it is there";
    EXPECT_FALSE(pool.IsCurrent(blocks[0][i])) << "one block is enough";
    ASSERT_TRUE(index.Audit().ok()) << index.Audit();
    ASSERT_TRUE(pool.Audit().ok()) << pool.Audit();
    EXPECT_EQ(match(0), 3u) << "its own last block goes on from the other prompt's";
    EXPECT_EQ(match(1), 3u);
  }
  EXPECT_EQ(index.stats().num_inserted, num_inserted);
  EXPECT_EQ(copy.links.size(), 4u) << "routers hear of no change";
  std::vector<BlockHandle> all;
  ASSERT_TRUE(pool.Allocate(pool.num_available(), BlockState::kComputing, kUid, &all));
  EXPECT_EQ(match(1), 3u) << "what is held stays";
  EXPECT_EQ(match(0), 2u);
  ASSERT_TRUE(index.Audit().ok()) << index.Audit();
  for (const BlockHandle block : blocks[1]) pool.DropRequestRef(block);
  for (const BlockHandle block : all) pool.DropRequestRef(block);
}

// Prompts over a tiny alphabet in a small pool, started and stopped in any order, their fronts
// released before: every hit holds the KV of its prefix (checked in Start), every block that is
// kept is found from its root, and the books balance after every call.
void RunRandomPrompts(uint64_t seed) {
  TestRandom random(seed);
  Cache cache(24);
  std::vector<Cache::Run> running;
  uint64_t num_hits = 0;
  for (int i = 0; i < 10'000; ++i) {
    if (!running.empty() && random.Below(2) == 0) {
      const size_t victim = random.Below(static_cast<uint32_t>(running.size()));
      if (random.Below(2) == 0) {
        const auto num_blocks = static_cast<uint32_t>(running[victim].blocks.size());
        cache.ReleaseFront(&running[victim], random.Below(num_blocks));
      } else {
        cache.Stop(&running[victim]);
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(victim));
      }
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

// An index with checkpoints, and an arena in which a block of KV or of a state is the text of all
// tokens up to it.
class StateCache {
 public:
  static constexpr uint32_t kStateBlocks = 3;

  StateCache(uint32_t num_blocks, uint32_t max_checkpoint_blocks)
      : pool_(num_blocks),
        index_(&pool_, kBlockSize, nullptr, {kStateBlocks, max_checkpoint_blocks}),
        max_checkpoint_blocks_(max_checkpoint_blocks),
        arena_(num_blocks) {}
  ~StateCache() {
    for (const BlockHandle block : held_) pool_.DropRequestRef(block);
  }

  struct Prompt {
    explicit Prompt(std::vector<TokenId> t)
        : tokens(std::move(t)),
          links(ChainLinks(DeriveChainKey("secret", "default"), kBlockSize, tokens)) {}
    uint32_t num_blocks() const { return static_cast<uint32_t>(tokens.size() / kBlockSize); }
    PrefixQuery query() const { return {links, tokens}; }
    std::string Text(uint32_t n) const { return Cache::TextOf(tokens, n); }
    std::vector<TokenId> tokens;
    std::vector<ChainLink> links;
  };

  // Keeps the KV of the prompt's blocks. False when the pool has too few.
  bool KeepKv(const Prompt& prompt) {
    std::vector<BlockHandle> blocks;
    const uint32_t num_hits =
        index_.Acquire(prompt.query(), prompt.num_blocks(), BlockState::kComputing, kUid, &blocks);
    const bool fits =
        pool_.Allocate(prompt.num_blocks() - num_hits, BlockState::kComputing, kUid, &blocks);
    for (uint32_t i = 0; fits && i < prompt.num_blocks(); ++i) {
      TextAt(blocks[i]) = prompt.Text(i + 1);
      index_.Insert({.link = prompt.links[i],
                     .parent = i > 0 ? prompt.links[i - 1] : ChainLink{},
                     .ordinal = i,
                     .tokens = std::span(prompt.tokens).subspan(i * kBlockSize, kBlockSize),
                     .block = blocks[i]});
    }
    for (const BlockHandle block : blocks) pool_.DropRequestRef(block);
    return fits;
  }
  // Keeps the state behind so many blocks of it. False when it is not kept.
  bool KeepState(const Prompt& prompt, uint32_t num_blocks) {
    std::vector<BlockHandle> blocks;
    if (!index_.AllocateState(kUid, 0, &blocks)) return false;
    for (const BlockHandle block : blocks) TextAt(block) = prompt.Text(num_blocks);
    const bool kept = index_.InsertState(prompt.query(), num_blocks, blocks);
    for (const BlockHandle block : blocks) pool_.DropRequestRef(block);
    return kept;
  }
  // Goes on from the longest state of the prompt; behind how many blocks it is.
  uint32_t UseState(const Prompt& prompt, bool takes_it) {
    const uint32_t num_blocks = index_.MatchWhole(prompt.query(), prompt.num_blocks());
    if (num_blocks == 0) return 0;
    std::vector<BlockHandle> blocks;
    index_.AcquireState(prompt.query(), num_blocks, BlockState::kComputing, kUid, &blocks);
    EXPECT_EQ(blocks.size(), kStateBlocks);
    for (const BlockHandle block : blocks) EXPECT_EQ(TextAt(block), prompt.Text(num_blocks));
    if (takes_it) {
      index_.ForgetState(prompt.query(), num_blocks);
      EXPECT_FALSE(index_.HasState(prompt.query(), num_blocks));
      for (const BlockHandle block : blocks) TextAt(block) = "another's";
    }
    for (const BlockHandle block : blocks) pool_.DropRequestRef(block);
    return num_blocks;
  }
  // Holds blocks, so that others are given up, or lets go of one.
  void Hold() { (void)pool_.Allocate(1, BlockState::kBound, kUid, &held_); }
  void LetGo() {
    if (held_.empty()) return;
    pool_.DropRequestRef(held_.back());
    held_.pop_back();
  }
  void Audit() {
    ASSERT_TRUE(pool_.Audit().ok()) << pool_.Audit();
    ASSERT_TRUE(index_.Audit().ok()) << index_.Audit();
    ASSERT_LE(index_.num_checkpoint_blocks(), max_checkpoint_blocks_);
    ASSERT_EQ(pool_.num_available(), pool_.num_blocks() - held_.size());
  }

  PrefixIndex& index() { return index_; }
  BlockPool& pool() { return pool_; }

 private:
  std::string& TextAt(BlockHandle block) { return arena_[block.index.value()]; }

  BlockPool pool_;
  PrefixIndex index_;
  const uint32_t max_checkpoint_blocks_;
  std::vector<std::string> arena_;
  std::vector<BlockHandle> held_;
};

using StatePrompt = StateCache::Prompt;

TEST(StateCheckpointTest, AHitEndsAtTheLongestStateOfWhatIsHere) {
  StateCache cache(32, 32);
  const StatePrompt prompt({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_FALSE(cache.KeepState(prompt, 2)) << "a state without its KV is of no use";
  ASSERT_TRUE(cache.KeepKv(prompt));
  EXPECT_EQ(cache.index().MatchWhole(prompt.query(), 4), 0u) << "KV alone is no hit";
  EXPECT_TRUE(cache.KeepState(prompt, 1));
  EXPECT_TRUE(cache.KeepState(prompt, 3));
  EXPECT_FALSE(cache.KeepState(prompt, 3)) << "it is here";
  EXPECT_EQ(cache.UseState(prompt, false), 3u);
  EXPECT_EQ(cache.index().MatchWhole(prompt.query(), 2), 1u);
  EXPECT_EQ(cache.UseState(StatePrompt({1, 2, 3, 4, 9, 9}), false), 1u);
  EXPECT_EQ(cache.UseState(StatePrompt({9, 2, 3, 4, 5, 6}), false), 0u);
  EXPECT_EQ(cache.UseState(prompt, true), 3u);
  EXPECT_EQ(cache.UseState(prompt, false), 1u) << "the longer one was taken";
  cache.Audit();
}

TEST(StateCheckpointTest, TheBudgetKeepsThoseOfMostValue) {
  StateCache cache(64, 2 * StateCache::kStateBlocks + 1);
  const std::vector<StatePrompt> prompts = {StatePrompt({1, 1}), StatePrompt({2, 2, 2, 2}),
                                            StatePrompt({3, 3, 3, 3, 3, 3})};
  for (const StatePrompt& prompt : prompts) {
    ASSERT_TRUE(cache.KeepKv(prompt));
    EXPECT_TRUE(cache.KeepState(prompt, prompt.num_blocks()));
    cache.Audit();
  }
  EXPECT_EQ(cache.UseState(prompts[0], false), 0u) << "the shortest is computed soonest";
  EXPECT_EQ(cache.UseState(prompts[1], false), 2u);
  EXPECT_EQ(cache.UseState(prompts[2], false), 3u);
  StateCache none(64, StateCache::kStateBlocks - 1);
  ASSERT_TRUE(none.KeepKv(prompts[0]));
  EXPECT_FALSE(none.KeepState(prompts[0], 1)) << "the budget has no room for one";
  EXPECT_EQ(none.index().stats().checkpoints_skipped, 1u);
  EXPECT_EQ(cache.index().stats().checkpoints_skipped, 0u);
}

TEST(StateCheckpointTest, TheBudgetCountsStatesThatAreBeingMade) {
  StateCache cache(64, 3 * StateCache::kStateBlocks);
  const std::vector<StatePrompt> prompts = {StatePrompt({1, 1}), StatePrompt({2, 2, 2, 2})};
  for (const StatePrompt& prompt : prompts) {
    ASSERT_TRUE(cache.KeepKv(prompt));
    ASSERT_TRUE(cache.KeepState(prompt, prompt.num_blocks()));
  }
  std::vector<BlockHandle> pending;
  const std::vector<uint32_t> num_kept = {2, 1, 0};  // beside one, two and three that are made
  for (size_t i = 0; i < num_kept.size(); ++i) {
    EXPECT_TRUE(cache.index().AllocateState(kUid, i, &pending));
    EXPECT_EQ(cache.index().num_checkpoint_blocks(), num_kept[i] * StateCache::kStateBlocks);
    EXPECT_EQ(cache.index().HasState(prompts[1].query(), 2), i < 2) << "the less worth goes first";
  }
  EXPECT_FALSE(cache.index().AllocateState(kUid, num_kept.size(), &pending)) << "all are made";
  EXPECT_EQ(pending.size(), 3 * StateCache::kStateBlocks);
  EXPECT_EQ(cache.index().stats().checkpoints_skipped, 1u);
  for (const BlockHandle block : pending) cache.pool().DropRequestRef(block);
  cache.Audit();
}

TEST(StateCheckpointTest, AStateIsGivenUpBeforeItsPrefixAndWhole) {
  StateCache cache(8, 8);
  const StatePrompt prompt({1, 2, 3, 4});
  ASSERT_TRUE(cache.KeepKv(prompt));
  ASSERT_TRUE(cache.KeepState(prompt, 2));
  for (int i = 0; i < 3; ++i) cache.Hold();  // what is free
  EXPECT_EQ(cache.UseState(prompt, false), 2u);
  cache.Hold();
  cache.Audit();
  EXPECT_EQ(cache.UseState(prompt, false), 0u);
  EXPECT_EQ(cache.index().Match(prompt.query(), 2), 2u) << "its KV is still here";
  EXPECT_EQ(cache.pool().num_free(), StateCache::kStateBlocks - 1);
  EXPECT_EQ(cache.index().stats().checkpoints_dropped, 1u);
}

// An equal prompt, computed beside it, still holds blocks of its own.
TEST(StateCheckpointTest, AStateStaysWithAPrefixThatMovesToAnEqualBlock) {
  StateCache cache(12, StateCache::kStateBlocks);
  const StatePrompt prompt({1, 2, 3, 4});
  ASSERT_TRUE(cache.KeepKv(prompt));
  ASSERT_TRUE(cache.KeepState(prompt, 2));
  std::vector<BlockHandle> own;
  ASSERT_TRUE(cache.pool().Allocate(2, BlockState::kComputing, kUid, &own));
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(cache.index().Insert(
        {.link = prompt.links[i],
         .parent = i > 0 ? prompt.links[i - 1] : ChainLink{},
         .ordinal = i,
         .tokens = std::span(prompt.tokens).subspan(i * kBlockSize, kBlockSize),
         .block = own[i]}));
  }
  ASSERT_TRUE(cache.index().Audit().ok()) << cache.index().Audit();
  EXPECT_EQ(cache.UseState(prompt, false), 2u);
  while (cache.pool().num_available() > 0) cache.Hold();
  EXPECT_EQ(cache.UseState(prompt, false), 0u) << "it is given up by its new place";
  EXPECT_EQ(cache.index().stats().checkpoints_dropped, 1u);
  EXPECT_EQ(cache.index().Match(prompt.query(), 2), 2u);
  for (const BlockHandle block : own) cache.pool().DropRequestRef(block);
  cache.Audit();
}

// Against a set of the states that were kept and not taken: where nothing is given up a hit is the
// longest of the set, and elsewhere it is one of the set, with the text of its own prefix.
void RunRandomStates(uint64_t seed, bool is_large) {
  TestRandom random(seed);
  StateCache cache(is_large ? 4'000 : 30, is_large ? 4'000 : 9);
  std::set<std::vector<TokenId>> kept;
  uint64_t num_used = 0;
  for (int i = 0; i < 4'000; ++i) {
    std::vector<TokenId> tokens(kBlockSize * (1 + random.Below(6)));
    for (TokenId& token : tokens) token = static_cast<TokenId>(random.Below(2));
    const StatePrompt prompt(std::move(tokens));
    const auto front = [&prompt](uint32_t num_blocks) {
      return std::vector<TokenId>(prompt.tokens.begin(),
                                  prompt.tokens.begin() + num_blocks * kBlockSize);
    };
    const uint32_t num_blocks = 1 + random.Below(prompt.num_blocks());
    switch (random.Below(5)) {
      case 0:
        EXPECT_TRUE(cache.KeepKv(prompt) || !is_large);
        break;
      case 1: {
        const bool has_kv = cache.index().Match(prompt.query(), num_blocks) == num_blocks;
        const bool was_here = cache.index().HasState(prompt.query(), num_blocks);
        const bool is_kept = cache.KeepState(prompt, num_blocks);
        EXPECT_TRUE(!is_large || is_kept == (has_kv && !was_here));
        if (is_kept) kept.insert(front(num_blocks));
        break;
      }
      case 2:
        if (!is_large) random.Below(2) == 0 ? cache.Hold() : cache.LetGo();
        break;
      default: {
        const uint32_t limit = cache.index().Match(prompt.query(), prompt.num_blocks());
        const auto is_here = [&](uint32_t n) {
          return kept.contains(front(n)) && (is_large || cache.index().HasState(prompt.query(), n));
        };
        uint32_t longest = limit;
        while (longest > 0 && !is_here(longest)) --longest;
        const bool takes_it = random.Below(4) == 0;
        const uint32_t used = cache.UseState(prompt, takes_it);
        EXPECT_EQ(used, longest);
        if (takes_it && used > 0) kept.erase(front(used));
        num_used += used > 0 ? 1 : 0;
      }
    }
    ASSERT_NO_FATAL_FAILURE(cache.Audit());
    ASSERT_FALSE(testing::Test::HasFailure()) << "operation " << i;
  }
  EXPECT_GT(num_used, 50u);
  EXPECT_GT(cache.index().stats().checkpoints_dropped, 50u);
}

TEST(StateCheckpointTest, RandomStatesFollowANaiveModel) {
  for (const uint64_t seed : TestSeeds(3)) {
    for (const bool is_large : {true, false}) {
      SCOPED_TRACE(testing::Message() << "BATON_TEST_SEED=" << seed << " large " << is_large);
      RunRandomStates(seed, is_large);
    }
  }
}

}  // namespace
}  // namespace baton::kv
