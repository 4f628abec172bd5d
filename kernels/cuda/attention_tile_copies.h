// Copies of K and V for attention by wgmma: tiles of 64 keys into shared memory, by a cta of four
// warps. Each warp copies the same sixteen keys of every tile, which lie in one block at the same
// token. So a thread knows all of an address beforehand but the block. It divides nothing, and asks
// for the next tile's block while this one's units are copied. 54 instructions a unit and thread at
// 128 dims, where CopyKeys takes 250.
#ifndef BATON_KERNELS_CUDA_ATTENTION_TILE_COPIES_H_
#define BATON_KERNELS_CUDA_ATTENTION_TILE_COPIES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_items.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

// A thread's part of the keys that an item looks at.
struct TileSource {
  const KvBlocks& kv;
  KeyRange seen;
  const uint32_t* blocks;  // of the warp's sixteen keys of tile 0
  const std::byte* rows;   // the thread's first chunk of K, if it lay in block 0
  uint32_t tile_blocks;    // 1, 2 or 4
  uint32_t key_block;      // of the warp's keys of the tile whose K is copied next
  uint32_t value_block;    // of that whose V is
  uint32_t to_scales;      // of fp8: bytes from `rows` to the lane's eight scales
};

// The warp's first key of a tile.
BATON_DEVICE uint32_t KeyOfWarp(uint32_t tile) {
  return tile * kTileKeys + simt::warp() * kMinBlockSize;
}

// The block of the warp's keys of a tile; any where the item sees none of them.
BATON_DEVICE uint32_t BlockOf(const TileSource& source, uint32_t tile) {
  if (!simt::guard(source.seen.Meets(KeyOfWarp(tile), kMinBlockSize))) return 0;
  return source.blocks[tile * source.tile_blocks];
}

// A source that begins with a tile.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE TileSource TileSourceOf(const KeySource& keys, uint32_t first_tile) {
  constexpr uint32_t kChunks = kKeyChunks<kElement, kDim>;
  const uint32_t own = simt::warp() * kMinBlockSize;
  const uint32_t token = own % keys.kv.block_size + simt::lane() / kChunks;
  TileSource source = {.kv = keys.kv,
                       .seen = keys.seen,
                       .blocks = keys.blocks + own / keys.kv.block_size,
                       .rows = keys.kv.base + keys.kv.KeyOffset(0, keys.kv_head, token, kElement) +
                               simt::lane() % kChunks * sizeof(Vec16),
                       .tile_blocks = kTileKeys / keys.kv.block_size,
                       .key_block = 0,
                       .value_block = 0,
                       .to_scales = 0};
  if constexpr (kElement == KvElement::kFp8) {
    const std::byte* const piece = keys.kv.base + keys.kv.KeyOffset(0, keys.kv_head, 0, kElement);
    source.to_scales = static_cast<uint32_t>(
        piece + keys.kv.ScaleOffset(own % keys.kv.block_size + simt::lane() * kVec) - source.rows);
  }
  source.key_block = source.value_block = BlockOf(source, first_tile);
  return source;
}

// K or V of a tile, whose block is known; that of the next tile is asked for. Slots that
// the item does not see become zeros and are not read; of fp8 as CopyKeys says.
template <KvElement kElement, uint32_t kDim>
BATON_DEVICE void CopyTile(TileSource& from, uint32_t tile, bool is_value,
                           StoredKeys<kElement, kDim, kTileKeys>& to) {
  constexpr uint32_t kChunks = kKeyChunks<kElement, kDim>;
  constexpr uint32_t kRows = simt::kWarpSize / kChunks;  // at a time
  constexpr size_t kRowBytes = kChunks * sizeof(Vec16);
  const uint32_t lane = simt::lane();
  const uint32_t chunk = lane % kChunks;
  const uint32_t first_row = simt::warp() * kMinBlockSize + lane / kChunks;
  const uint32_t block = is_value ? from.value_block : from.key_block;
  const std::byte* const at = from.rows + block * from.kv.block_stride_bytes +
                              (is_value ? from.kv.ValueOffset(kElement) : 0);
  BATON_UNROLL
  for (uint32_t i = 0; i < kMinBlockSize; i += kRows) {
    const bool is_seen = from.seen.Has(tile * kTileKeys + first_row + i);
    // No guard for fp8, as in CopyRows.
    const bool inside = kElement == KvElement::kFp8 ? is_seen : simt::guard(is_seen);
    Vec16* to_chunk = nullptr;
    if constexpr (kElement == KvElement::kFp8) {
      to_chunk = &to.rows[first_row + i][KeyChunkAt<kChunks>(first_row + i, chunk)];
    } else {
      // ChunkOf of row first_row + i, whose bits below 8 are those of i and of lane / kChunks.
      constexpr uint32_t kTileChunks = simt::kTileColumns / kVec;
      Vec16* const row = to.rows[0] + (chunk / kTileChunks * kTileKeys + first_row) * kTileChunks;
      to_chunk = row + i * kTileChunks + ((chunk % kTileChunks ^ lane / kChunks) ^ i % 8);
    }
    simt::cp_async16(to_chunk, at + i * kRowBytes, inside ? 16 : 0);
  }
  if constexpr (kElement == KvElement::kFp8) {
    if (lane < kMinBlockSize / kVec) {  // eight scales each
      const uint32_t first = simt::warp() * kMinBlockSize + lane * kVec;
      const bool any = from.seen.Meets(tile * kTileKeys + first, kVec);
      simt::cp_async16(to.scales + first / kVec, at + from.to_scales, any ? 16 : 0);
    }
  }
  const uint32_t next = BlockOf(from, tile + 1);
  from.value_block = is_value ? next : from.value_block;
  from.key_block = is_value ? from.key_block : next;
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_TILE_COPIES_H_
