// Moving KV slices between scattered blocks and a contiguous staging buffer, with their checksums:
// the parameters of the kernels that do it (kernels/cuda/kv_slices.cu), and the keys of the hash.
// Pure; any thread.
//
// A checksum is XXH3-64 with seed 0, the one that the hand-off carries for each (block, layer)
// slice (kvcache/transport/slice_copy.h): its sums over 64-byte stripes are integers, so any order
// gives the same bits, and only one multiplication a KiB is a chain.
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
// Whether they take those of so many ranks: K and V of each one's heads are whole 16 bytes.
constexpr bool IsKvSliceOfRanks(uint64_t bytes, uint32_t num_ranks) {
  return num_ranks == 1 || bytes % (uint64_t{32} * num_ranks) == 0;
}

// The most ranks of a divided model that share the KV heads of a slice.
inline constexpr uint32_t kMaxKvRanks = 8;

// One side of a move: the memory that slices lie in, or those of several ranks that the launch's
// device reaches. A slice is [K|V][kv_head][piece]. Rank r of n then has a slice of its own with
// its part of the heads: those from r / n of them on. That slice lies at one offset in every rank's
// memory.
struct KvSide {
  KvSide() = default;
  // One memory: not explicit, as nearly all are that.
  KvSide(std::byte* base) : ranks{base} {}  // NOLINT(google-explicit-constructor)

  std::byte* ranks[kMaxKvRanks] = {};
  uint32_t num_ranks = 1;  // in [1, kMaxKvRanks]
};

// Where one slice lies on both sides, in bytes; multiples of 16.
struct KvSlicePlace {
  uint64_t block_offset;    // from `blocks`, of each rank
  uint64_t staging_offset;  // from `staging`, of each rank
};

// KvGather copies slices to staging. KvScatter copies slices from staging to the blocks when their
// bytes have the expected checksum, and leaves the blocks of the others alone. A place that one
// call writes is named once. KvScatter with the blocks as its staging and equal offsets in each
// place only hashes: the bytes that it may write are there already. Checksums are of the whole
// slices, in their order, whatever the number of ranks on either side.
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
