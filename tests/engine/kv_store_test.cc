// Where KV blocks lie: what is sealed and adopted is there with its checksums, and nothing else
// moves.
#include "src/engine/kv_store.h"

#include <cstring>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kvcache/transport/slice_copy.h"
#include "tests/device/fake_accelerator.h"
#include "tests/engine/hand_rig.h"
#include "tests/nccl/nccl_device.h"
#include "tests/test_seed.h"

namespace baton::engine {

using device::Accelerator;
using device::FakeAccelerator;
using namespace kv;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint32_t kNumBlocks = 5;

std::byte ByteOf(uint32_t block, uint32_t layer) {
  return static_cast<std::byte>(16 * block + layer + 1);
}

// An arena and its mirrored store; every slice of the device has a byte of its own.
struct Pair {
  Pair() : arena(*KvArena::Create(ToyLayout(), kNumBlocks)) {
    store = *KvStore::Mirrored(&device, arena.get());
    for (uint32_t b = 0; b < kNumBlocks; ++b) {
      for (uint32_t l = 0; l < kToyLayers; ++l) {
        std::memset(OnDevice(b, l), static_cast<int>(ByteOf(b, l)), slice_bytes);
      }
    }
  }
  std::byte* OnDevice(uint32_t block, uint32_t layer) const {
    return store->memory().Slice(BlockIndex(block), layer);
  }
  bool ArenaHolds(uint32_t block, uint32_t layer, std::byte byte) const {
    const std::vector<std::byte> expected(slice_bytes, byte);
    return std::memcmp(arena->Slice(BlockIndex(block), layer), expected.data(), slice_bytes) == 0;
  }
  bool DeviceHolds(uint32_t block, uint32_t layer, std::byte byte) const {
    const std::vector<std::byte> expected(slice_bytes, byte);
    return std::memcmp(OnDevice(block, layer), expected.data(), slice_bytes) == 0;
  }

  const size_t slice_bytes = ToyLayout().SliceBytes();
  FakeAccelerator device;
  std::unique_ptr<KvArena> arena;
  std::unique_ptr<KvStore> store;
};

BlockHandle Handle(uint32_t block) { return {BlockIndex(block), 1}; }

TEST(KvStoreTest, SealBringsOneLayerOfTheBlocksBesideWhatIsComputed) {
  Pair pair;
  // A kernel of a later layer, which is not waited for.
  bool has_run = false;
  pair.device.Put([&] { has_run = true; });
  const uint64_t num_waits = FakeAccelerator::num_waits();
  const BlockHandle blocks[] = {Handle(3), Handle(1)};
  uint64_t checksums[2];
  pair.store->Seal(blocks, 1, checksums);
  EXPECT_FALSE(has_run);
  EXPECT_EQ(FakeAccelerator::num_waits(), num_waits) << "the arena is pinned";
  EXPECT_TRUE(pair.ArenaHolds(3, 1, ByteOf(3, 1)));
  EXPECT_TRUE(pair.ArenaHolds(1, 1, ByteOf(1, 1)));
  for (const uint32_t other : {0u, 2u, 4u}) EXPECT_TRUE(pair.ArenaHolds(other, 1, std::byte{0}));
  for (const uint32_t block : {1u, 3u}) EXPECT_TRUE(pair.ArenaHolds(block, 0, std::byte{0}));
  EXPECT_EQ(checksums[0], SliceChecksum(pair.OnDevice(3, 1), pair.slice_bytes));
  EXPECT_EQ(checksums[1], SliceChecksum(pair.OnDevice(1, 1), pair.slice_bytes));
}

TEST(KvStoreTest, AdoptBringsAllLayersBehindWhatIsComputed) {
  Pair pair;
  bool has_run = false;
  pair.device.Put([&] { has_run = true; });
  for (uint32_t l = 0; l < kToyLayers; ++l) {
    std::memset(pair.arena->Slice(BlockIndex(2), l), 0x40 + static_cast<int>(l), pair.slice_bytes);
  }
  const BlockHandle blocks[] = {Handle(2)};
  pair.store->Adopt(blocks);
  EXPECT_FALSE(has_run);
  ASSERT_TRUE(pair.device.Wait().ok());
  for (uint32_t l = 0; l < kToyLayers; ++l) {
    EXPECT_TRUE(pair.DeviceHolds(2, l, static_cast<std::byte>(0x40 + l)));
    EXPECT_TRUE(pair.DeviceHolds(1, l, ByteOf(1, l)));
    EXPECT_TRUE(pair.DeviceHolds(3, l, ByteOf(3, l)));
  }
}

// As when a request moves on before any step: the bytes are those that the store itself brings.
TEST(KvStoreTest, SealIsBehindWhatWasAdoptedAndCopied) {
  Pair pair;
  const BlockHandle adopted[] = {Handle(2)};
  std::memset(pair.arena->Block(BlockIndex(2)), 0x51, ToyLayout().BlockBytes());
  pair.store->Adopt(adopted);
  uint64_t checksum = 0;
  pair.store->Seal(adopted, 1, {&checksum, 1});
  EXPECT_TRUE(pair.ArenaHolds(2, 1, std::byte{0x51}));
  EXPECT_TRUE(pair.DeviceHolds(2, 1, std::byte{0x51}));
  pair.store->Copy(2, 4);
  const BlockHandle copied[] = {Handle(4)};
  pair.store->Seal(copied, 0, {&checksum, 1});
  EXPECT_TRUE(pair.ArenaHolds(4, 0, std::byte{0x51}));
}

TEST(KvStoreTest, AnArenaThatIsNotPinnedIsSlowAndRight) {
  FakeAccelerator::refuses_pins = true;
  Pair pair;
  FakeAccelerator::refuses_pins = false;
  const uint64_t num_waits = FakeAccelerator::num_waits();
  const BlockHandle blocks[] = {Handle(3)};
  uint64_t checksum = 0;
  pair.store->Seal(blocks, 1, {&checksum, 1});
  EXPECT_TRUE(pair.ArenaHolds(3, 1, ByteOf(3, 1)));
  EXPECT_EQ(FakeAccelerator::num_waits(), num_waits + 1);
}

TEST(KvStoreTest, CopyStaysOnTheDevice) {
  Pair pair;
  pair.store->Copy(4, 0);
  ASSERT_TRUE(pair.device.Wait().ok());
  for (uint32_t l = 0; l < kToyLayers; ++l) {
    EXPECT_TRUE(pair.DeviceHolds(0, l, ByteOf(4, l)));
    EXPECT_TRUE(pair.DeviceHolds(4, l, ByteOf(4, l)));
    EXPECT_TRUE(pair.ArenaHolds(0, l, std::byte{0}));
  }
}

TEST(KvStoreTest, ThreadsExtendABlockStoreSideBySide) {
  constexpr uint32_t kMany = 4096;
  kv::KvArenaOptions options;
  options.num_ready = 1;
  const auto arena = *KvArena::Create(ToyLayout(), kMany, options);
  const auto store = KvStore::OnHost(arena.get());
  EXPECT_EQ(store->ready(), (kv::ReadyBlocks{1, kMany}));
  const auto extend = [&store] {
    for (uint32_t ready = 0; ready < kMany;) {
      ready = store->Extend(ready + 3).num_ready;
      std::memset(store->memory().Block(BlockIndex(ready - 1)), 1, 1);
    }
  };
  std::thread other(extend);
  extend();
  other.join();
  EXPECT_EQ(store->ready(), (kv::ReadyBlocks{kMany, kMany}));
}

TEST(KvStoreTest, OnHostKernelsAndTransportsUseTheArena) {
  const auto arena = *KvArena::Create(ToyLayout(), kNumBlocks);
  const auto store = KvStore::OnHost(arena.get());
  EXPECT_EQ(store->view().base, arena->base());
  std::memset(arena->Block(BlockIndex(1)), 0x21, ToyLayout().BlockBytes());
  const BlockHandle blocks[] = {Handle(1)};
  uint64_t checksum = 0;
  store->Seal(blocks, 0, {&checksum, 1});
  EXPECT_EQ(checksum, SliceChecksum(arena->Slice(BlockIndex(1), 0), ToyLayout().SliceBytes()));
  store->Copy(1, 3);
  EXPECT_EQ(std::memcmp(arena->Block(BlockIndex(3)), arena->Block(BlockIndex(1)),
                        ToyLayout().BlockBytes()),
            0);
}

// Blocks that only a device has.
KvLayout WideLayout() {
  return {.dtype = KvDtype::kBf16,
          .encoding = KvEncoding::kPlain,
          .num_layers = 2,
          .num_kv_heads = 1,
          .head_dim = 64,
          .block_size = 4};
}

TEST(KvStoreTest, OnADeviceSlicesAreHashedWhereTheyLie) {
  FakeAccelerator device;
  // More than one launch takes.
  constexpr uint32_t kMany = 700;
  const auto made = KvStore::OnDevice(&device, &nccl_test::FakeKernels(), WideLayout(), kMany);
  ASSERT_TRUE(made.ok()) << made.status();
  KvStore& store = **made;
  const size_t size = kMany * WideLayout().BlockStride();
  TestRandom random(5);
  for (size_t i = 0; i < size; ++i) store.memory().base[i] = static_cast<std::byte>(random.Next());
  const std::vector<std::byte> before(store.memory().base, store.memory().base + size);
  std::vector<BlockHandle> blocks;
  for (uint32_t b = 0; b < kMany; ++b) blocks.push_back(Handle(kMany - 1 - b));
  std::vector<uint64_t> checksums(kMany);
  const uint64_t waits_before = FakeAccelerator::num_waits();
  const uint64_t staged_before = FakeAccelerator::num_staged();
  for (uint32_t layer = 0; layer < 2; ++layer) {
    store.Seal(blocks, layer, checksums);
    for (uint32_t i = 0; i < kMany; ++i) {
      EXPECT_EQ(checksums[i], SliceChecksum(store.memory().Slice(blocks[i].index, layer),
                                            WideLayout().SliceBytes()));
    }
  }
  EXPECT_EQ(std::memcmp(before.data(), store.memory().base, size), 0) << "hashing writes nothing";
  EXPECT_EQ(FakeAccelerator::num_waits(), waits_before);
  EXPECT_EQ(FakeAccelerator::num_staged(), staged_before);
}

TEST(KvStoreTest, OnADeviceASealHashesBesideWhatIsComputed) {
  FakeAccelerator device;
  const auto store = *KvStore::OnDevice(&device, &nccl_test::FakeKernels(), WideLayout(), 2);
  const size_t slice_bytes = WideLayout().SliceBytes();
  std::memset(store->memory().Slice(BlockIndex(1), 1), 0x42, slice_bytes);
  bool has_run = false;
  device.Put([&] { has_run = true; });
  const BlockHandle blocks[] = {Handle(1)};
  uint64_t checksum = 0;
  store->Seal(blocks, 1, {&checksum, 1});
  EXPECT_FALSE(has_run);
  const std::vector<std::byte> computed(slice_bytes, std::byte{0x42});
  EXPECT_EQ(checksum, SliceChecksum(computed.data(), slice_bytes));
}

TEST(KvStoreTest, OnADeviceACopyIsDoneWhenItReturns) {
  FakeAccelerator device;
  const auto store = *KvStore::OnDevice(&device, &nccl_test::FakeKernels(), WideLayout(), 2);
  std::memset(store->memory().Block(BlockIndex(0)), 0x11, WideLayout().BlockBytes());
  store->Copy(0, 1);
  // A transport may write either block now, in a stream of its own.
  EXPECT_EQ(std::memcmp(store->memory().Block(BlockIndex(0)), store->memory().Block(BlockIndex(1)),
                        WideLayout().BlockBytes()),
            0);
}

TEST(KvStoreTest, OnlyASharedStoreCanBeMappedByOthers) {
  FakeAccelerator device;
  FakeAccelerator other;
  const auto store =
      *KvStore::OnDevice(&device, &nccl_test::FakeKernels(), WideLayout(), 2, KvSharing::kHost);
  const size_t size = 2 * WideLayout().BlockStride();
  const UniqueFd fd = *device.ExportShared(store->memory().base);
  const std::byte* const mapped = *other.ImportShared(fd, size);
  store->memory().base[size - 1] = std::byte{0x42};
  EXPECT_EQ(mapped[size - 1], std::byte{0x42});
  other.ReleaseShared(mapped);
  const auto own = *KvStore::OnDevice(&device, &nccl_test::FakeKernels(), WideLayout(), 2);
  EXPECT_FALSE(device.ExportShared(own->memory().base).ok());
}

// ---- Ranks: each has its own heads in blocks of its own.

KvLayout FourHeads() {
  return {.dtype = KvDtype::kBf16,
          .encoding = KvEncoding::kPlain,
          .num_layers = 3,
          .num_kv_heads = 4,
          .head_dim = 4,
          .block_size = 2};
}

// The pieces of rank `rank` of `num_ranks`; `visit` is given the piece and its place in the whole.
template <typename Visit>
void ForEachPiece(const KvStore& store, uint32_t rank, uint32_t num_ranks, uint32_t block,
                  const Visit& visit) {
  const KvLayout layout = RankLayout(FourHeads(), num_ranks);
  const KvView view = {store.view().ranks[rank], &layout, kNumBlocks};
  for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (uint32_t which = 0; which < 2; ++which) {
      for (uint32_t head = 0; head < layout.num_kv_heads; ++head) {
        const uint32_t of_all = rank * layout.num_kv_heads + head;
        visit(view.Piece(block, layer, which, head), 64 * block + 16 * layer + 4 * which + of_all);
      }
    }
  }
}

// A block that ranks computed is one to whoever receives it, whatever the number of its ranks.
TEST(KvStoreTest, RanksOfAnotherNumberTakeTheHeadsThatAreTheirs) {
  const size_t piece_bytes = FourHeads().PieceBytes();
  for (const uint32_t num_senders : {2u, 4u}) {
    FakeAccelerator devices[4];
    const std::vector<Accelerator*> senders = {&devices[0], &devices[1], &devices[2], &devices[3]};
    const auto from = *KvArena::Create(FourHeads(), kNumBlocks);
    const auto sender = *KvStore::Ranked(std::span(senders).first(num_senders), from.get());
    EXPECT_EQ(sender->view().base, nullptr);
    for (uint32_t rank = 0; rank < num_senders; ++rank) {
      ForEachPiece(*sender, rank, num_senders, 1, [&](std::byte* piece, uint32_t place) {
        std::memset(piece, static_cast<int>(place), piece_bytes);
      });
    }
    const BlockHandle blocks[] = {Handle(1)};
    for (uint32_t layer = 0; layer < 3; ++layer) {
      uint64_t checksum = 0;
      sender->Seal(blocks, layer, {&checksum, 1});
      EXPECT_EQ(checksum,
                SliceChecksum(from->Slice(BlockIndex(1), layer), FourHeads().SliceBytes()));
    }
    for (const uint32_t num_receivers : {1u, 2u, 4u}) {
      FakeAccelerator device;
      const std::vector<Accelerator*> all_on_one(num_receivers, &device);
      const auto to = *KvArena::Create(FourHeads(), kNumBlocks);
      const auto receiver = *KvStore::Ranked(all_on_one, to.get());
      std::memcpy(to->Block(BlockIndex(3)), from->Block(BlockIndex(1)), FourHeads().BlockBytes());
      const BlockHandle received[] = {Handle(3)};
      receiver->Adopt(received);
      receiver->Copy(3, 0);
      ASSERT_TRUE(device.Wait().ok());
      for (uint32_t rank = 0; rank < num_receivers; ++rank) {
        for (const uint32_t block : {3u, 0u}) {
          ForEachPiece(
              *receiver, rank, num_receivers, block, [&](std::byte* piece, uint32_t place) {
                const uint32_t sent = place - 64 * block + 64;
                const std::vector<std::byte> expected(piece_bytes, static_cast<std::byte>(sent));
                EXPECT_EQ(std::memcmp(piece, expected.data(), piece_bytes), 0) << "piece " << sent;
              });
        }
      }
    }
  }
}

// The blocks lie on devices alone: nothing moves, and a seal covers the whole slice.
TEST(KvStoreTest, OnDevicesOfRanksASealIsThatOfTheArena) {
  KvLayout layout = FourHeads();
  layout.head_dim = 16;
  for (const uint32_t num_ranks : {1u, 2u, 4u}) {
    FakeAccelerator devices[4];
    const std::vector<Accelerator*> all = {&devices[0], &devices[1], &devices[2], &devices[3]};
    const auto ranks = std::span(all).first(num_ranks);
    const auto arena = *KvArena::Create(layout, kNumBlocks);
    const auto through_host = *KvStore::Ranked(ranks, arena.get());
    const auto made = KvStore::OnDevice(ranks, &nccl_test::FakeKernels(), layout, kNumBlocks);
    ASSERT_TRUE(made.ok()) << made.status();
    KvStore& store = **made;
    ASSERT_EQ(store.memory().num_ranks(), num_ranks);
    TestRandom random(num_ranks);
    const size_t rank_bytes = store.memory().RankBytes();
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      EXPECT_TRUE(devices[rank].Owns(store.view().BaseOfRank(rank)));
      for (size_t i = 0; i < rank_bytes; ++i) {
        const auto byte = static_cast<std::byte>(random.Next());
        store.view().BaseOfRank(rank)[i] = byte;
        through_host->view().BaseOfRank(rank)[i] = byte;
      }
    }
    store.Copy(2, 0);  // done when it returns, whatever the ranks' streams hold
    const BlockHandle blocks[] = {Handle(3), Handle(1), Handle(0)};
    const BlockHandle as_before[] = {Handle(3), Handle(1), Handle(2)};
    for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
      std::vector<uint64_t> expected(3);
      through_host->Seal(as_before, layer, expected);
      std::vector<uint64_t> found(3);
      store.Seal(blocks, layer, found);
      EXPECT_EQ(found, expected) << num_ranks << " ranks, layer " << layer;
    }
  }
}

TEST(KvStoreTest, EachRankOfASharedStoreHasADescriptor) {
  FakeAccelerator devices[2];
  const std::vector<Accelerator*> ranks = {&devices[0], &devices[1]};
  KvLayout layout = FourHeads();
  layout.head_dim = 16;
  const auto store =
      *KvStore::OnDevice(ranks, &nccl_test::FakeKernels(), layout, 2, KvSharing::kHost);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(devices[rank].ExportShared(store->memory().ranks[rank]).ok());
    EXPECT_FALSE(devices[1 - rank].ExportShared(store->memory().ranks[rank]).ok());
  }
}

TEST(KvStoreTest, SlicesThatNoKernelTakesAreRefused) {
  FakeAccelerator device;
  const auto store = KvStore::OnDevice(&device, &nccl_test::FakeKernels(), ToyLayout(), 2);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument);
  // Six heads, and pieces of 40 bytes.
  const std::vector<Accelerator*> four(4, &device);
  for (const auto& [num_heads, head_dim] : {std::pair{6u, 16u}, {4u, 10u}}) {
    KvLayout layout = FourHeads();
    layout.num_kv_heads = num_heads;
    layout.head_dim = head_dim;
    const auto divided = KvStore::OnDevice(four, &nccl_test::FakeKernels(), layout, 2);
    EXPECT_EQ(divided.status().code(), absl::StatusCode::kInvalidArgument) << num_heads;
  }
}

}  // namespace
}  // namespace baton::engine
