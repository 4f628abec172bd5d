// The parts of an item of attention, for a thread: which keys its pairs see, and the copies of q, K
// and V into shared memory. Included by the attention kernels and their reference.
//
// Shared memory: rows of head_dim bf16 in chunks of sixteen bytes, chunk c of row r at c ^ (r % 8):
// the eight rows of an ldmatrix touch 32 different banks. Rows of fp8 have the same order.
// With 64 dims a row of fp8 has four chunks, and chunk c of row r lies at c ^ (r / 2 % 4).
#ifndef BATON_KERNELS_CUDA_ATTENTION_ITEMS_H_
#define BATON_KERNELS_CUDA_ATTENTION_ITEMS_H_

#include <cstdint>

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/row_shapes.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

using simt::Bf16;
using simt::Vec16;

inline constexpr uint32_t kTileKeys = 64;
inline constexpr uint32_t kSplitTiles = 4;
inline constexpr uint32_t kSplitKeys = kSplitTiles * kTileKeys;
inline constexpr uint32_t kWarpPairs = 16;

// Tiles [first, end) of an item or of a split, at absolute positions.
struct Tiles {
  uint32_t first;
  uint32_t end;
};

// Chunks of sixteen bytes of a row of K or V, and where one lies in a row in shared memory.
template <KvElement kElement, uint32_t kDim>
inline constexpr uint32_t kKeyChunks = kElement == KvElement::kFp8 ? kDim / 16 : kDim / kVec;
template <uint32_t kChunks>
BATON_DEVICE uint32_t KeyChunkAt(uint32_t row, uint32_t chunk) {
  return kChunks < 8 ? chunk ^ (row / 2 % 4) : Swizzled(row, chunk);
}

// How rows of bf16 lie: [row][chunk], or as tiles [64 columns][row][chunk of the tile].
enum class SharedRows : uint8_t { kWhole, kTiles };

// A chunk of a row of kRows.
template <SharedRows kAs, uint32_t kDim, uint32_t kRows>
BATON_DEVICE Vec16* ChunkOf(Vec16 (*rows)[kDim / kVec], uint32_t row, uint32_t chunk) {
  if constexpr (kAs == SharedRows::kWhole) return &rows[row][Swizzled(row, chunk)];
  constexpr uint32_t kTileChunks = simt::kTileColumns / kVec;
  const uint32_t tile = chunk / kTileChunks;
  return rows[0] + (tile * kRows + row) * kTileChunks + Swizzled(row, chunk % kTileChunks);
}

// Some keys' K or V as they are stored: rows [key][chunk] and, of fp8, their scales [key].
template <KvElement kElement, uint32_t kDim, uint32_t kKeys>
struct StoredKeys {
  Vec16 rows[kKeys][kKeyChunks<kElement, kDim>];
};
template <uint32_t kDim, uint32_t kKeys>
struct StoredKeys<KvElement::kFp8, kDim, kKeys> {
  Vec16 rows[kKeys][kKeyChunks<KvElement::kFp8, kDim>];
  Vec16 scales[kKeys / kVec];
};
template <uint32_t kDim, uint32_t kKeys>
using CodedKeys = StoredKeys<KvElement::kFp8, kDim, kKeys>;

// Keys [begin, end).
struct KeyRange {
  uint32_t begin;
  uint32_t end;

  BATON_DEVICE bool Has(uint32_t key) const { return key - begin < end - begin; }
  BATON_DEVICE bool Meets(uint32_t first, uint32_t count) const {
    return first < end && first + count > begin;
  }
};

// The keys that the pair of the item at this index sees; none after the last pair.
BATON_DEVICE KeyRange KeysOfPair(const AttentionParams& params, const AttentionItem& item,
                                 uint32_t pair) {
  if (pair >= item.num_pairs) return {0, 0};
  const uint32_t group = params.num_heads / params.kv.num_kv_heads;
  const uint32_t position = item.first_position + (item.first_pair + pair) / group;
  const bool is_cut = params.window > 0 && position >= params.window;
  return {is_cut ? position - params.window + 1 : 0, position + 1};
}

// The keys that pairs [first, first + count) of an item see together: they ascend.
BATON_DEVICE KeyRange KeysOfPairs(const AttentionParams& params, const AttentionItem& item,
                                  uint32_t first, uint32_t count) {
  if (first >= item.num_pairs) return {0, 0};
  const uint32_t end = first + count < item.num_pairs ? first + count : item.num_pairs;
  return {KeysOfPair(params, item, first).begin, KeysOfPair(params, item, end - 1).end};
}

// Where the pair's head_dim elements begin, in q and in out.
BATON_DEVICE size_t PairOffset(const AttentionParams& params, const AttentionItem& item,
                               uint32_t pair) {
  const uint32_t group = params.num_heads / params.kv.num_kv_heads;
  const uint32_t at = item.first_pair + pair;
  const size_t row = item.first_row + at / group;
  return (row * params.num_heads + item.kv_head * group + at % group) * params.kv.head_dim;
}

// q of the item's first kPairs pairs, zeros after the last, by kThreads threads.
template <uint32_t kDim, uint32_t kPairs, uint32_t kThreads, SharedRows kAs = SharedRows::kWhole>
BATON_DEVICE void CopyPairs(const AttentionParams& params, const AttentionItem& item,
                            Vec16 (*to)[kDim / kVec]) {
  constexpr uint32_t kChunks = kDim / kVec;
  static_assert(kPairs * kChunks % kThreads == 0, "every thread copies as much");
  BATON_UNROLL
  for (uint32_t i = 0; i < kPairs * kChunks / kThreads; ++i) {
    const uint32_t at = i * kThreads + simt::thread();
    const uint32_t pair = at / kChunks;
    const uint32_t chunk = at % kChunks;
    const bool inside = simt::guard(pair < item.num_pairs);
    const Bf16* from = params.q + (inside ? PairOffset(params, item, pair) + chunk * kVec : 0);
    simt::cp_async16(ChunkOf<kAs, kDim, kPairs>(to, pair, chunk), from, inside ? 16 : 0);
  }
}

// The blocks of one sequence and head, and which of their slots an item looks at.
struct KeySource {
  const KvBlocks& kv;
  const uint32_t* blocks;
  uint32_t kv_head;
  KeyRange seen;
};

BATON_DEVICE KeySource SourceOf(const AttentionParams& params, const AttentionItem& item,
                                const KeyRange& seen) {
  return {params.kv, params.block_lists + size_t{item.sequence} * params.max_blocks, item.kv_head,
          seen};
}

// A key's block in a list, for kThreads threads. Where a whole cta copies, the compiler spills when
// it does not divide.
template <uint32_t kThreads>
BATON_DEVICE uint32_t BlockOfKey(const KvBlocks& kv, uint32_t key) {
  return kThreads > simt::kWarpSize ? key / kv.block_size : kv.BlockOf(key);
}
template <uint32_t kThreads>
BATON_DEVICE uint32_t TokenOfKey(const KvBlocks& kv, uint32_t key) {
  return kThreads > simt::kWarpSize ? key % kv.block_size : kv.TokenOf(key);
}

// Rows of K or V of kKeys keys from `first_key`, a multiple of kKeys, by kThreads threads. Slots
// that the item does not see become zeros and are not read: they may hold anything, and their block
// none.
template <KvElement kElement, uint32_t kDim, uint32_t kKeys, uint32_t kThreads, SharedRows kAs>
BATON_DEVICE void CopyRows(const KeySource& from, uint32_t first_key, bool is_value,
                           Vec16 (*to)[kKeyChunks<kElement, kDim>]) {
  constexpr uint32_t kChunks = kKeyChunks<kElement, kDim>;
  constexpr size_t kElementBytes = kChunks * sizeof(Vec16) / kDim;
  constexpr uint32_t kRows = kThreads / kChunks;  // at a time
  // A block is looked up once for sixteen keys; more rows at a time are several sixteens.
  constexpr uint32_t kSixteens = kRows > kMinBlockSize ? kRows / kMinBlockSize : 1;
  static_assert(kSixteens * kMinBlockSize % kRows == 0 && kKeys % kRows == 0);
  // At head_dim 256 the sums are 128 registers: addresses kept for later copies would spill.
  [[maybe_unused]] constexpr uint32_t kCopies = kDim == 256 ? 1 : kSixteens * kMinBlockSize / kRows;
  const uint32_t thread = simt::thread() % kThreads;
  const uint32_t chunk = thread % kChunks;
  const uint32_t own = kSixteens == 1 ? 0 : thread / kChunks / kMinBlockSize * kMinBlockSize;
  BATON_UNROLL
  for (uint32_t first = 0; first < kKeys; first += kSixteens * kMinBlockSize) {
    const uint32_t key = first_key + first + own;
    const bool any = simt::guard(from.seen.Meets(key, kMinBlockSize));
    const uint32_t block = any ? from.blocks[BlockOfKey<kThreads>(from.kv, key)] : 0;
    const size_t offset =
        from.kv.KeyOffset(block, from.kv_head, TokenOfKey<kThreads>(from.kv, key), kElement) +
        (is_value ? from.kv.ValueOffset(kElement) : 0);
    BATON_UNROLL_BY(kCopies)
    for (uint32_t i = 0; i < kSixteens * kMinBlockSize; i += kRows) {
      const uint32_t row = i + thread / kChunks - own;
      const bool is_seen = from.seen.Has(key + row);
      // No guard for fp8: a code too many has a scale of zero in the end (attention_fp8.h), and to
      // ask costs less registers than not to.
      const bool inside = kElement == KvElement::kFp8 ? is_seen : simt::guard(is_seen);
      const std::byte* at = from.kv.base;
      if (inside) at += offset + (row * kDim + chunk * (kDim / kChunks)) * kElementBytes;
      const uint32_t to_row = first + own + row;
      Vec16* to_chunk = nullptr;
      if constexpr (kElement == KvElement::kFp8) {
        to_chunk = &to[to_row][KeyChunkAt<kChunks>(to_row, chunk)];
      } else {
        to_chunk = ChunkOf<kAs, kDim, kKeys>(to, to_row, chunk);
      }
      simt::cp_async16(to_chunk, at, inside ? 16 : 0);
    }
  }
}

// Their scales, of fp8, by the first threads: eight at a time where the item sees any of them, so
// those of slots that it does not see may be anything; zeros where it sees none.
template <uint32_t kKeys, uint32_t kThreads>
BATON_DEVICE void CopyScales(const KeySource& from, uint32_t first_key, bool is_value, Vec16* to) {
  const uint32_t thread = simt::thread() % kThreads;
  if (thread >= kKeys / kVec) return;
  const uint32_t key = first_key + thread * kVec;
  const bool any = simt::guard(from.seen.Meets(key, kVec));
  const std::byte* at = from.kv.base;
  if (any) {
    const uint32_t block = from.blocks[BlockOfKey<kThreads>(from.kv, key)];
    at += from.kv.KeyOffset(block, from.kv_head, 0, KvElement::kFp8) +
          (is_value ? from.kv.ValueOffset(KvElement::kFp8) : 0) +
          from.kv.ScaleOffset(TokenOfKey<kThreads>(from.kv, key));
  }
  simt::cp_async16(to + thread, at, any ? 16 : 0);
}

// `kAs` is of bf16; fp8 lies as the file comment says.
template <KvElement kElement, uint32_t kDim, uint32_t kKeys, uint32_t kThreads,
          SharedRows kAs = SharedRows::kWhole>
BATON_DEVICE void CopyKeys(const KeySource& from, uint32_t first_key, bool is_value,
                           StoredKeys<kElement, kDim, kKeys>& to) {
  CopyRows<kElement, kDim, kKeys, kThreads, kAs>(from, first_key, is_value, to.rows);
  if constexpr (kElement == KvElement::kFp8) {
    CopyScales<kKeys, kThreads>(from, first_key, is_value, to.scales);
  }
}

// The keys that the two pairs of a lane see (rows lane / 4 and lane / 4 + 8 of its warp's tile).
// `any` has the keys that some pair of the warp sees, and `all` those that every pair sees.
struct PairRows {
  KeyRange keys[2];
  KeyRange any;
  KeyRange all;

  BATON_DEVICE bool SeeAll(uint32_t first, uint32_t count) const {
    return first >= all.begin && first + count <= all.end;
  }
};

BATON_DEVICE PairRows RowsOfWarp(const AttentionParams& params, const AttentionItem& item,
                                 uint32_t first_pair) {
  const uint32_t pair = first_pair + simt::lane() / 4;
  const KeyRange last = KeysOfPair(params, item, first_pair + kWarpPairs - 1);
  return {{KeysOfPair(params, item, pair), KeysOfPair(params, item, pair + 8)},
          KeysOfPairs(params, item, first_pair, kWarpPairs),
          {last.begin, last.end == 0 ? 0 : KeysOfPair(params, item, first_pair).end}};
}

BATON_DEVICE void StorePair(Bf16* row, uint32_t dim, float low, float high) {
  *reinterpret_cast<uint32_t*>(row + dim) = Pair(low, high);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_ATTENTION_ITEMS_H_
