// Parameters of the kernels that move KV slices between scattered blocks and a contiguous staging
// buffer (kernels/cuda/kv_slices.cu), and the keys of their checksums. Pure; any thread.
//
// A checksum is XXH3-64 with seed 0, as hand-offs carry it for each (block, layer) slice
// (kvcache/transport/slice_copy.h). It adds 64-byte stripes as integers, so any order gives the
// same bits, and only one multiplication a KiB must wait for the one before it.
#ifndef BATON_KVCACHE_KV_SLICES_H_
#define BATON_KVCACHE_KV_SLICES_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace baton::kv {

// Words of Xxh3Keys(): 24 of the secret at multiples of 8 bytes, 8 at byte 121 (for the last
// stripe), 8 at byte 11 (for the end).
inline constexpr uint32_t kXxh3NumKeys = 40;
inline constexpr uint32_t kXxh3LastKeys = 24;
inline constexpr uint32_t kXxh3MergeKeys = 32;

// The keys of XXH3 with seed 0, from its default secret (doc/xxhash_spec.md of the xxHash project).
std::array<uint64_t, kXxh3NumKeys> Xxh3Keys();

inline constexpr uint32_t kMinKvSliceBytes = 256;        // below 241 bytes XXH3 is another function
inline constexpr uint32_t kMaxKvSliceBytes = 64u << 20;  // kMaxSliceBytes of the wire
// Whether the kernels take slices of this size.
constexpr bool IsKvSliceSize(uint64_t bytes) {
  return bytes % 64 == 0 && bytes >= kMinKvSliceBytes && bytes <= kMaxKvSliceBytes;
}
// Whether the kernels take slices of `num_ranks` ranks: K and V of each rank's heads are whole 16
// bytes.
constexpr bool IsKvSliceOfRanks(uint64_t bytes, uint32_t num_ranks) {
  return num_ranks == 1 || bytes % (uint64_t{32} * num_ranks) == 0;
}

// The most ranks of a divided model that share the KV heads of a slice.
inline constexpr uint32_t kMaxKvRanks = 8;

// One side of a move: the memory of the slices, or the memories of several ranks, which the
// launch's device reaches. A slice is [K|V][kv_head][piece]. With n ranks, each rank has a slice
// with its n-th part of the heads, in the order of ranks. The slice lies at the same offset in
// every rank's memory.
struct KvSide {
  KvSide() = default;
  // One memory. Not explicit, as nearly all sides are one memory.
  KvSide(std::byte* base) : ranks{base} {}  // NOLINT(google-explicit-constructor)

  std::byte* ranks[kMaxKvRanks] = {};
  uint32_t num_ranks = 1;  // in [1, kMaxKvRanks]
};

// Where one slice lies on both sides, in bytes; multiples of 16.
struct KvSlicePlace {
  uint64_t block_offset;    // from `blocks`, of each rank
  uint64_t staging_offset;  // from `staging`, of each rank
};

// KvGather copies slices to staging. KvScatter copies a slice from staging to its block when the
// bytes have the expected checksum; otherwise the block stays unchanged. No call writes a place
// twice. KvScatter with the blocks as its staging, and equal offsets in each place, only hashes: it
// writes bytes that are there already. A checksum is of the whole slice, in order, with any number
// of ranks on either side.
struct KvSlicesParams {
  KvSide blocks;               // read by gather, written by scatter
  KvSide staging;              // written by gather, read by scatter
  const KvSlicePlace* places;  // [num_slices]
  const uint64_t* keys;        // [kXxh3NumKeys] Xxh3Keys()
  const uint64_t* expected;    // [num_slices]; scatter only
  uint64_t* checksums;         // [num_slices] written: of the bytes that were read
  uint32_t num_slices;
  // A multiple of 64 in [kMinKvSliceBytes, kMaxKvSliceBytes], and of 32 for each rank.
  uint32_t slice_bytes;
};

// The kernels of one device as functions: each puts one kernel into the stream and returns.
struct SliceKernels {
  absl::Status (*gather)(const KvSlicesParams& params, void* stream) = nullptr;
  absl::Status (*scatter)(const KvSlicesParams& params, void* stream) = nullptr;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_KV_SLICES_H_
