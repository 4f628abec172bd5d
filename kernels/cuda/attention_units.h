// The ring of a prefill cta: K and V of the tiles of 64 keys that an item sees, each a unit in
// shared memory. Included through attention_walk.h, which says what Memory is.
#ifndef BATON_KERNELS_CUDA_ATTENTION_UNITS_H_
#define BATON_KERNELS_CUDA_ATTENTION_UNITS_H_

#include <cstdint>

#include "kernels/cuda/attention_fp8.h"
#include "kernels/cuda/attention_items.h"
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/attention_tile_copies.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

inline constexpr uint32_t kPrefillThreads = 128;
inline constexpr uint32_t kPrefillPairs = 64;
static_assert(kPrefillThreads / simt::kWarpSize * kWarpPairs == kPrefillPairs);

// Whether scores of the next tile are multiplied while this one's are weighed. At 256 dims there
// are no registers for both, and fp8 would take a third buffer of bf16.
template <KvElement kElement, uint32_t kDim, SharedRows kAs>
inline constexpr bool kLooksAhead =
    kDim <= 128 && kElement == KvElement::kBf16&& kAs == SharedRows::kTiles;

// Slots of the ring: those under way and the one that is read, or two of them: K of the next tile
// is still multiplied when V of this one has been waited for.
template <KvElement kElement, uint32_t kDim, SharedRows kAs>
inline constexpr uint32_t kSlots = kLooksAhead<kElement, kDim, kAs> ? 4 : 3;

// Units under way when the first one is waited for.
template <KvElement kElement>
inline constexpr uint32_t kUnitsAhead = kElement == KvElement::kFp8 ? 3 : 2;

// See attention_walk.h.
template <KvElement kType, uint32_t kSize, SharedRows kAs>
struct WalkTraits {
  static constexpr KvElement kElement = kType;
  static constexpr uint32_t kDim = kSize;
  static constexpr SharedRows kRows = kAs;
  static constexpr bool kIsAhead = kLooksAhead<kType, kSize, kAs>;
  static constexpr uint32_t kNumSlots = kSlots<kType, kSize, kAs>;
};

// A unit is K or V of a tile.
struct Unit {
  uint32_t tile;
  bool is_value;
};

// Where units come from: TileSource by wgmma, whose registers have room for it, else KeySource.
template <typename Memory>
BATON_DEVICE auto UnitSourceOf(const KeySource& keys, const Tiles& tiles) {
  if constexpr (Memory::kRows == SharedRows::kTiles) {
    return TileSourceOf<Memory::kElement, Memory::kDim>(keys, tiles.first);
  } else {
    return keys;
  }
}

// K0 V0 K1 V1 ..., or, looking ahead, K0 K1 V0 K2 V1 ...
template <typename Memory>
BATON_DEVICE Unit UnitAt(const Tiles& tiles, uint32_t unit) {
  if constexpr (!Memory::kIsAhead) return {tiles.first + unit / 2, unit % 2 == 1};
  if (unit % 2 == 1) return {tiles.first + unit / 2 + 1, false};
  return {tiles.first + unit / 2 - 1, true};
}

// Copies a unit into its slot, if there is one. Always ends a group.
template <typename Source, typename Memory>
BATON_DEVICE void CopyUnit(Source& source, const Tiles& tiles, uint32_t unit, Memory& memory) {
  const Unit at =
      Memory::kIsAhead && unit == 0 ? Unit{tiles.first, false} : UnitAt<Memory>(tiles, unit);
  auto& slot = memory.ring[unit % Memory::kNumSlots];
  if (simt::guard(at.tile < tiles.end)) {
    if constexpr (Memory::kRows == SharedRows::kTiles) {
      CopyTile<Memory::kElement, Memory::kDim>(source, at.tile, at.is_value, slot);
    } else {
      CopyKeys<Memory::kElement, Memory::kDim, kTileKeys, kPrefillThreads>(
          source, at.tile * kTileKeys, at.is_value, slot);
    }
  }
  simt::cp_async_commit();
}

// Turns a unit of fp8 into bf16, if there is one.
template <typename Source, typename Memory>
BATON_DEVICE void WidenUnit(const Source& source, const Tiles& tiles, uint32_t unit,
                            Memory& memory) {
  const uint32_t tile = tiles.first + unit / 2;
  if (tile >= tiles.end) return;
  WidenKeys<Memory::kDim, kTileKeys, kPrefillThreads, Memory::kRows>(
      memory.ring[unit % Memory::kNumSlots], {source.seen, tile * kTileKeys},
      memory.wide[unit % 2]);
}

// Starts the walk: the first copies, which may be of q's group.
template <typename Source, typename Memory>
BATON_DEVICE void BeginUnits(Source& source, const Tiles& tiles, Memory& memory) {
  BATON_UNROLL
  for (uint32_t unit = 0; unit < kUnitsAhead<Memory::kElement>; ++unit) {
    CopyUnit(source, tiles, unit, memory);
  }
  if constexpr (Memory::kElement == KvElement::kFp8) {
    simt::cp_async_wait<2>();
    simt::sync_block();
    WidenUnit(source, tiles, 0, memory);
  }
}

template <typename Memory>
using UnitRows = const Vec16 (*)[Memory::kDim / kVec];

// Waits for a unit of the walk, has later ones under way, and says where its rows of bf16 lie.
template <typename Source, typename Memory>
BATON_DEVICE UnitRows<Memory> NextUnit(Source& source, const Tiles& tiles, uint32_t unit,
                                       Memory& memory) {
  // This thread's copies have landed: those of this unit, with fp8 those of the next one. After the
  // barrier all threads' copies have. All have then read the unit before, whose slot (with fp8:
  // whose bf16) is filled next. With fp8 all have turned this unit into bf16, so its slot is free.
  simt::cp_async_wait<1>();
  if constexpr (Memory::kRows == SharedRows::kTiles) simt::fence_proxy_async();
  simt::sync_block();
  CopyUnit(source, tiles, unit + kUnitsAhead<Memory::kElement>, memory);
  if constexpr (Memory::kElement == KvElement::kFp8) {
    WidenUnit(source, tiles, unit + 1, memory);
    return memory.wide[unit % 2];
  } else {
    return memory.ring[unit % Memory::kNumSlots].rows;
  }
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_UNITS_H_
