#include "kvcache/block_pool.h"

#include <algorithm>
#include <map>
#include <vector>

#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::kv {
namespace {

const RequestUid kUid{1, 2};

BlockHandle AllocateOne(BlockPool* pool, BlockState phase) {
  std::vector<BlockHandle> out;
  EXPECT_TRUE(pool->Allocate(1, phase, kUid, &out));
  return out.at(0);
}

TEST(BlockPoolTest, AllocateGivesAllOrNothing) {
  BlockPool pool(4);
  std::vector<BlockHandle> out;
  EXPECT_FALSE(pool.Allocate(5, BlockState::kComputing, kUid, &out));
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(pool.num_free(), 4u);
  EXPECT_TRUE(pool.Allocate(3, BlockState::kReserved, kUid, &out));
  EXPECT_EQ(pool.Counts().of(BlockState::kReserved), 3u);
  EXPECT_FALSE(pool.Allocate(2, BlockState::kComputing, kUid, &out));
  EXPECT_EQ(out.size(), 3u);
  EXPECT_TRUE(pool.Allocate(0, BlockState::kComputing, kUid, &out));
  EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
}

TEST(BlockPoolTest, GenerationRisesAtEveryAllocation) {
  BlockPool pool(1);
  uint32_t last = 0;
  for (int i = 0; i < 5; ++i) {
    const BlockHandle handle = AllocateOne(&pool, BlockState::kComputing);
    EXPECT_GT(handle.generation, last);
    last = handle.generation;
    EXPECT_TRUE(pool.IsCurrent(handle));
    pool.DropRequestRef(handle);
    EXPECT_FALSE(pool.IsCurrent(handle)) << "freed";
  }
}

TEST(BlockPoolTest, FreeOnlyWhenBothKindsOfReferenceAreGone) {
  BlockPool pool(2);
  const BlockHandle handle = AllocateOne(&pool, BlockState::kReserved);
  pool.AddTransferRef(handle);
  pool.SetState(handle, BlockState::kReceiving);
  pool.DropRequestRef(handle);
  EXPECT_EQ(pool.StateOf(handle), BlockState::kDraining);
  EXPECT_EQ(pool.num_free(), 1u);
  pool.DropTransferRef(handle);
  EXPECT_EQ(pool.num_free(), 2u);

  const BlockHandle shared = AllocateOne(&pool, BlockState::kBound);
  pool.AddRequestRef(shared);
  pool.DropRequestRef(shared);
  EXPECT_EQ(pool.StateOf(shared), BlockState::kBound);
  pool.DropRequestRef(shared);
  EXPECT_EQ(pool.num_free(), 2u);
}

TEST(BlockPoolTest, TransitionTableIsTheOneInTheHandoffSpecification) {
  using S = BlockState;
  const std::vector<std::pair<S, S>> allowed = {
      {S::kComputing, S::kExported}, {S::kComputing, S::kBound},    {S::kExported, S::kBound},
      {S::kBound, S::kExported},     {S::kReserved, S::kReceiving}, {S::kReserved, S::kBound},
      {S::kReceiving, S::kBound}};
  for (size_t from = 0; from < kNumBlockStates; ++from) {
    for (size_t to = 0; to < kNumBlockStates; ++to) {
      const bool listed =
          std::find(allowed.begin(), allowed.end(), std::pair(S(from), S(to))) != allowed.end();
      EXPECT_EQ(IsAllowedTransition(S(from), S(to)), listed)
          << BlockStateName(S(from)) << " -> " << BlockStateName(S(to));
    }
  }
}

TEST(BlockPoolTest, ForeignHandlesAreNotCurrent) {
  BlockPool pool(2);
  const BlockHandle handle = AllocateOne(&pool, BlockState::kComputing);
  EXPECT_FALSE(pool.IsCurrent({BlockIndex(7), 1}));
  EXPECT_FALSE(pool.IsCurrent({BlockIndex(0xffffffff), 0}));
  EXPECT_FALSE(pool.IsCurrent({handle.index, handle.generation + 1}));
  EXPECT_FALSE(pool.IsCurrent({BlockIndex(1), 0})) << "never allocated";
}

TEST(BlockPoolTest, GivesOnlyBlocksThatHaveMemory) {
  BlockPool pool(8, {.num_ready = 3, .limit = 8});
  EXPECT_EQ(pool.num_free(), 8u) << "the others will have it";
  EXPECT_EQ(pool.num_available(), 3u);
  std::vector<BlockHandle> out;
  EXPECT_FALSE(pool.Allocate(4, BlockState::kComputing, kUid, &out));
  ASSERT_TRUE(pool.Allocate(3, BlockState::kComputing, kUid, &out));
  EXPECT_FALSE(pool.Allocate(1, BlockState::kComputing, kUid, &out));
  pool.DropRequestRef(out[1]);
  pool.SetReady({.num_ready = 5, .limit = 8});
  EXPECT_EQ(pool.num_available(), 3u);
  std::vector<BlockHandle> more;
  ASSERT_TRUE(pool.Allocate(3, BlockState::kComputing, kUid, &more));
  EXPECT_EQ(more[0].index, out[1].index) << "one that was used before";
  EXPECT_EQ(more[1].index, BlockIndex(3));
  EXPECT_EQ(more[2].index, BlockIndex(4));
  pool.SetReady({.num_ready = 8, .limit = 8});
  EXPECT_EQ(pool.num_available(), 3u);
  EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
}

TEST(BlockPoolTest, ACachedBlockMakesRoomWhileOthersHaveNoMemory) {
  BlockPool pool(4, {.num_ready = 1, .limit = 4});
  const BlockHandle cached = AllocateOne(&pool, BlockState::kComputing);
  pool.KeepCached(cached, {});
  pool.DropRequestRef(cached);
  EXPECT_EQ(pool.num_available(), 1u);
  EXPECT_EQ(AllocateOne(&pool, BlockState::kComputing).index, cached.index);
  EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
}

TEST(BlockPoolTest, BlocksThatWillNeverHaveMemoryAreQuarantined) {
  BlockPool pool(8, {.num_ready = 2, .limit = 8});
  const BlockHandle used = AllocateOne(&pool, BlockState::kComputing);
  pool.SetReady({.num_ready = 5, .limit = 5});
  EXPECT_EQ(pool.Counts().of(BlockState::kQuarantined), 3u);
  EXPECT_EQ(pool.num_free(), 4u);
  EXPECT_EQ(pool.num_available(), 4u);
  EXPECT_EQ(pool.num_usable(), 5u);
  EXPECT_EQ(pool.num_blocks(), 8u);
  EXPECT_EQ(pool.Info(BlockIndex(5)).state, BlockState::kQuarantined);
  EXPECT_FALSE(pool.IsCurrent({BlockIndex(5), 0}));
  std::vector<BlockHandle> out;
  EXPECT_FALSE(pool.Allocate(5, BlockState::kBound, kUid, &out));
  ASSERT_TRUE(pool.Allocate(4, BlockState::kBound, kUid, &out));
  for (const BlockHandle& handle : out) EXPECT_LT(handle.index.value(), 5u);
  pool.DropRequestRef(used);
  EXPECT_TRUE(pool.Audit().ok()) << pool.Audit();
}

TEST(BlockPoolDeathTest, MemoryIsNeverTakenBack) {
  BlockPool pool(8, {.num_ready = 4, .limit = 6});
  EXPECT_DEATH(pool.SetReady({.num_ready = 3, .limit = 6}), "pool of 8: 4 of 6, then 3 of 6");
  EXPECT_DEATH(pool.SetReady({.num_ready = 4, .limit = 7}), "4 of 6, then 4 of 7");
  EXPECT_DEATH(pool.SetReady({.num_ready = 5, .limit = 4}), "4 of 6, then 5 of 4");
}

TEST(BlockPoolDeathTest, MisuseStopsTheProcessWithTheNumbers) {
  BlockPool pool(2);
  const BlockHandle old = AllocateOne(&pool, BlockState::kComputing);
  pool.DropRequestRef(old);
  EXPECT_DEATH(pool.DropRequestRef(old), "handle of generation 1, block of generation 1 is free");
  const BlockHandle now = AllocateOne(&pool, BlockState::kComputing);
  ASSERT_EQ(now.index, old.index);
  EXPECT_DEATH(pool.AddRequestRef(old), "handle of generation 1, block of generation 2");
  EXPECT_DEATH(pool.DropTransferRef(now), "no transfer reference");
  EXPECT_DEATH(pool.SetState(now, BlockState::kReceiving), "computing -> receiving");
  EXPECT_DEATH(pool.AddRequestRef({BlockIndex(9), 1}), "block 9 of a pool of 2");
  std::vector<BlockHandle> out;
  EXPECT_DEATH(pool.Allocate(1, BlockState::kDraining, kUid, &out), "not allocated as draining");
  pool.AddTransferRef(now);
  pool.DropRequestRef(now);
  EXPECT_DEATH(pool.AddTransferRef(now), "no new transfer may start");
  EXPECT_DEATH(pool.SetState(now, BlockState::kBound), "draining -> bound");
}

// The entry that a naive reader of the rules would keep for each block in use.
struct ModelBlock {
  uint32_t generation = 0;
  uint32_t request_refs = 0;
  uint32_t transfer_refs = 0;
  BlockState phase = BlockState::kFree;

  BlockState Label() const { return request_refs > 0 ? phase : BlockState::kDraining; }
  bool Gone() const { return request_refs == 0 && transfer_refs == 0; }
};

// Random legal operations on a pool and on a std::map of the blocks in use.
class PoolAgainstModel {
 public:
  PoolAgainstModel(uint32_t num_blocks, uint64_t seed)
      : pool_(num_blocks, ReadyBlocks{.num_ready = 0, .limit = num_blocks}),
        generations_(num_blocks),
        random_(seed) {}

  void Step() {
    if (random_.Below(1000) == 0) MoreMemory();
    switch (random_.Below(7)) {
      case 0:
        return Allocate();
      case 1:
        return Change([&](BlockHandle h, ModelBlock& b) {
          if (b.request_refs == 0) return;
          pool_.AddRequestRef(h);
          ++b.request_refs;
        });
      case 2:
        return Change([&](BlockHandle h, ModelBlock& b) {
          if (b.request_refs == 0) return;
          pool_.AddTransferRef(h);
          ++b.transfer_refs;
        });
      case 3:
      case 4:
        return Change([&](BlockHandle h, ModelBlock& b) {
          if (b.request_refs == 0) return;
          pool_.DropRequestRef(h);
          --b.request_refs;
        });
      case 5:
        return Change([&](BlockHandle h, ModelBlock& b) {
          if (b.transfer_refs == 0) return;
          pool_.DropTransferRef(h);
          --b.transfer_refs;
        });
      default:
        return Change([&](BlockHandle h, ModelBlock& b) {
          const auto to = static_cast<BlockState>(random_.Below(kNumBlockStates));
          if (!IsAllowedTransition(b.Label(), to)) return;
          pool_.SetState(h, to);
          b.phase = to;
        });
    }
  }

  void Check() const {
    ASSERT_TRUE(pool_.Audit().ok()) << pool_.Audit();
    BlockCounts expected;
    expected.total = pool_.num_blocks();
    for (const auto& [index, block] : model_) {
      ++expected.by_state[static_cast<size_t>(block.Label())];
      const BlockInfo info = pool_.Info(BlockIndex(index));
      ASSERT_EQ(info.handle.generation, block.generation);
      ASSERT_EQ(info.state, block.Label());
      ASSERT_EQ(info.request_refs, block.request_refs);
      ASSERT_EQ(info.transfer_refs, block.transfer_refs);
    }
    expected.by_state[0] = pool_.ready().limit - static_cast<uint32_t>(model_.size());
    expected.by_state[8] = pool_.num_blocks() - pool_.ready().limit;
    ASSERT_EQ(pool_.Counts(), expected);
  }

 private:
  // One time in eight the system has no more of it.
  void MoreMemory() {
    ReadyBlocks ready = pool_.ready();
    ready.num_ready += random_.Below(ready.limit - ready.num_ready + 1);
    if (random_.Below(8) == 0) ready.limit = ready.num_ready;
    pool_.SetReady(ready);
  }

  void Allocate() {
    constexpr BlockState kPhases[] = {BlockState::kComputing, BlockState::kReserved,
                                      BlockState::kBound};
    const uint32_t count = random_.Below(5);
    const BlockState phase = kPhases[random_.Below(3)];
    std::vector<BlockHandle> out;
    const bool fits = count <= pool_.ready().num_ready - model_.size();
    ASSERT_EQ(pool_.Allocate(count, phase, kUid, &out), fits);
    ASSERT_EQ(out.size(), fits ? count : 0);
    for (const BlockHandle& handle : out) {
      ASSERT_FALSE(model_.contains(handle.index.value())) << "given out twice";
      ASSERT_LT(handle.index.value(), pool_.ready().num_ready) << "without memory";
      ASSERT_EQ(handle.generation, ++generations_[handle.index.value()]);
      model_[handle.index.value()] = {handle.generation, 1, 0, phase};
    }
  }

  template <typename Op>
  void Change(Op&& op) {
    if (model_.empty()) return;
    auto it = model_.begin();
    std::advance(it, random_.Below(static_cast<uint32_t>(model_.size())));
    const BlockHandle handle{BlockIndex(it->first), it->second.generation};
    ASSERT_TRUE(pool_.IsCurrent(handle));
    op(handle, it->second);
    const bool gone = it->second.Gone();
    if (gone) model_.erase(it);
    ASSERT_EQ(pool_.IsCurrent(handle), !gone);
  }

  BlockPool pool_;
  std::map<uint32_t, ModelBlock> model_;  // blocks in use
  std::vector<uint32_t> generations_;     // of every block
  TestRandom random_;
};

TEST(BlockPoolPropertyTest, AgreesWithANaiveModelUnderRandomOperations) {
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(testing::Message() << "BATON_TEST_SEED=" << seed);
    PoolAgainstModel run(1 + static_cast<uint32_t>(seed * 13 % 48), seed);
    for (int i = 0; i < 40'000; ++i) {
      run.Step();
      if (testing::Test::HasFatalFailure()) return;
      if (i % 16 == 0) run.Check();
      if (testing::Test::HasFatalFailure()) return;
    }
    run.Check();
  }
}

}  // namespace
}  // namespace baton::kv
