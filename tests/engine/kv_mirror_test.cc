// Blocks on a device and in the arena: what is fetched and pushed is there, and nothing else moves.
#include "src/engine/kv_mirror.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "tests/device/fake_accelerator.h"
#include "tests/engine/hand_rig.h"

namespace baton {
namespace {

constexpr uint32_t kNumBlocks = 5;

std::byte ByteOf(uint32_t block, uint32_t layer) {
  return static_cast<std::byte>(16 * block + layer + 1);
}

// An arena and its mirror; every slice of the device has a byte of its own.
struct Pair {
  Pair() : arena(*KvArena::Create(ToyLayout(), kNumBlocks)) {
    mirror = *KvMirror::Create(&device, arena.get());
    for (uint32_t b = 0; b < kNumBlocks; ++b) {
      for (uint32_t l = 0; l < kToyLayers; ++l) {
        std::memset(OnDevice(b, l), static_cast<int>(ByteOf(b, l)), slice_bytes);
      }
    }
  }
  std::byte* OnDevice(uint32_t block, uint32_t layer) const {
    return mirror->base() + block * arena->layout().BlockStride() + layer * slice_bytes;
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
  std::unique_ptr<KvMirror> mirror;
};

BlockHandle Handle(uint32_t block) { return {BlockIndex(block), 1}; }

TEST(KvMirrorTest, FetchBringsOneLayerOfTheBlocksBehindWhatWasComputed) {
  Pair pair;
  // A kernel that is still in the stream.
  pair.device.Put([&] { std::memset(pair.OnDevice(3, 1), 0x77, pair.slice_bytes); });
  const BlockHandle blocks[] = {Handle(3), Handle(1)};
  pair.mirror->Fetch(blocks, 1);
  EXPECT_TRUE(pair.ArenaHolds(3, 1, std::byte{0x77}));
  EXPECT_TRUE(pair.ArenaHolds(1, 1, ByteOf(1, 1)));
  for (const uint32_t other : {0u, 2u, 4u}) EXPECT_TRUE(pair.ArenaHolds(other, 1, std::byte{0}));
  for (const uint32_t block : {1u, 3u}) EXPECT_TRUE(pair.ArenaHolds(block, 0, std::byte{0}));
}

TEST(KvMirrorTest, PushBringsAllLayersAndTheArenaMayChangeAtOnce) {
  Pair pair;
  for (uint32_t l = 0; l < kToyLayers; ++l) {
    std::memset(pair.arena->Slice(BlockIndex(2), l), 0x40 + static_cast<int>(l), pair.slice_bytes);
  }
  const BlockHandle blocks[] = {Handle(2)};
  pair.mirror->Push(blocks);
  std::memset(pair.arena->Block(BlockIndex(2)), 0, ToyLayout().BlockBytes());
  ASSERT_TRUE(pair.device.Wait().ok());
  for (uint32_t l = 0; l < kToyLayers; ++l) {
    EXPECT_TRUE(pair.DeviceHolds(2, l, static_cast<std::byte>(0x40 + l)));
    EXPECT_TRUE(pair.DeviceHolds(1, l, ByteOf(1, l)));
    EXPECT_TRUE(pair.DeviceHolds(3, l, ByteOf(3, l)));
  }
}

TEST(KvMirrorTest, CopyStaysOnTheDevice) {
  Pair pair;
  pair.mirror->Copy(4, 0);
  ASSERT_TRUE(pair.device.Wait().ok());
  for (uint32_t l = 0; l < kToyLayers; ++l) {
    EXPECT_TRUE(pair.DeviceHolds(0, l, ByteOf(4, l)));
    EXPECT_TRUE(pair.DeviceHolds(4, l, ByteOf(4, l)));
    EXPECT_TRUE(pair.ArenaHolds(0, l, std::byte{0}));
  }
}

}  // namespace
}  // namespace baton
