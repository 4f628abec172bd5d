// KvLayout: the exact bytes of one KV block. Pure data; any thread.
//
// A block holds `block_size` tokens of K and V for all layers as [layer][K|V][kv_head][piece]: one
// contiguous region (one transfer unit), and a (block, layer) slice is contiguous (the unit of
// sealing and checksumming). A piece holds one head of K or V in the order named by `encoding`.
// With kLatent a block has no V: [layer][piece], one row for each token, whose beginning is its V.
//
// A model with layers that keep a fixed state in place of K and V has `state_blocks` > 0: each
// sequence owns so many blocks beside those of its tokens, of the same bytes, and all of them cross
// with it. Slice l of these blocks, taken one after the other, holds the states of some layers
// (src/model/state_map.h).
//
// Invariants
//  1. Two workers may exchange blocks if and only if their layouts are equal (LayoutId equal).
//  2. Every slice starts at a multiple of 64 bytes from the block start, every block at a multiple
//     of kKvBlockAlignment from the arena start.
#ifndef BATON_KVCACHE_KV_LAYOUT_H_
#define BATON_KVCACHE_KV_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace baton::kv {

// Element type of stored K and V. kFp8 = e4m3 with a scale for each row of a head (a token's K or
// V), a power of two as bf16 (kernels/cuda/kv_fp8.h). kQ8 = int8 of turned rows with a scale for
// each segment of a row, a bf16 (kernels/kv_q8.h).
enum class KvDtype : uint8_t { kUnspecified = 0, kBf16 = 1, kF32 = 2, kFp8 = 3, kQ8 = 4 };

// Elements of a row of q8 that have one scale; the last segment of a row may have fewer.
inline constexpr uint32_t kQ8SegmentDims = 32;

// "bf16", as flags and layouts say it.
std::string_view KvDtypeName(KvDtype dtype);
// The type of that name; none for a name of none, and for "unspecified".
std::optional<KvDtype> KvDtypeNamed(std::string_view name);

// Order of elements inside a piece. Part of the layout's identity, so that a peer with another
// SIMD order is refused and never misread.
enum class KvEncoding : uint8_t {
  kUnspecified = 0,
  // K and V as [token][dim].
  kPlain = 1,
  // K as [dim/2][token][2] and V as [token/2][dim][2]. A 32-bit lane holds two bf16 values that one
  // shift and one mask turn into fp32. The 16 tokens of a block are the SIMD lanes of a score.
  kPaired = 2,
  // fp8 on devices: K and V as [token][dim], dims 16i + j and 16i + 8 + j neighbours for j < 8,
  // then the scales [token]. Two neighbours of two tokens, or four bytes of one, are then what a
  // lane multiplies with on tensor cores.
  kFragments = 3,
  // q8 on the processor: K as [dim][token], V as [token][dim], each with its scales
  // [segment][token] after it. The 16 bytes that become the SIMD lanes of a score or of a value are
  // neighbours. The name says that rows are turned: builds that do not turn them have another id.
  kLanes = 4,
  // One row for each token as [token][dim], and no V: kernels take the first elements of a row for
  // its V (multi-head latent attention, DeepSeek-AI, "DeepSeek-V2", 2024).
  kLatent = 5,
};

inline constexpr size_t kKvBlockAlignment = 4096;

// Describes one block; see the file comment for the order of the bytes.
struct KvLayout {
  KvDtype dtype = KvDtype::kBf16;
  KvEncoding encoding = KvEncoding::kPaired;
  uint32_t num_layers = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;       // elements; even; fp8: a multiple of 16
  uint32_t block_size = 16;    // tokens; even; fp8: a multiple of 16
  uint32_t window_tokens = 0;  // sliding window of the windowed layers, 0 = none
  uint32_t state_blocks = 0;   // of each sequence, besides those of its tokens; 0 = none

  // Each row of a head has scales of its own.
  bool HasScales() const { return dtype == KvDtype::kFp8 || dtype == KvDtype::kQ8; }
  size_t ElementBytes() const { return HasScales() ? 1 : dtype == KvDtype::kF32 ? 4 : 2; }
  // Scales of one head's row, each a bf16.
  uint32_t num_scales() const {
    if (dtype == KvDtype::kQ8) return (head_dim + kQ8SegmentDims - 1) / kQ8SegmentDims;
    return dtype == KvDtype::kFp8 ? 1 : 0;
  }
  size_t ScaleBytes() const { return size_t{2} * num_scales(); }
  size_t PieceBytes() const { return block_size * (head_dim * ElementBytes() + ScaleBytes()); }
  // Pieces of one head: K and V, or latent rows alone.
  size_t num_pieces() const { return encoding == KvEncoding::kLatent ? 1 : 2; }
  // Bytes of one (block, layer) slice: K of all heads, then V of all heads, or the latent rows.
  size_t SliceBytes() const { return num_pieces() * size_t{num_kv_heads} * PieceBytes(); }
  // Bytes of one block that carry KV (num_layers slices).
  size_t BlockBytes() const { return size_t{num_layers} * SliceBytes(); }
  // Distance between blocks in an arena: BlockBytes rounded up to kKvBlockAlignment.
  size_t BlockStride() const {
    return (BlockBytes() + kKvBlockAlignment - 1) / kKvBlockAlignment * kKvBlockAlignment;
  }
  size_t BytesPerToken() const { return BlockBytes() / block_size; }
  // Bytes of a sequence beside those of its tokens.
  size_t BytesPerSequence() const { return state_blocks * BlockBytes(); }
  // Blocks of so many tokens, without those of the sequence's state.
  uint32_t BlocksFor(uint32_t num_tokens) const {
    return (num_tokens + block_size - 1) / block_size;
  }
  // Blocks of a sequence of so many tokens.
  uint32_t BlocksOfSequence(uint32_t num_tokens) const {
    return BlocksFor(num_tokens) + state_blocks;
  }

  // InvalidArgument naming the field and its range when a size is zero, odd, or overflows, or an
  // encoding is not the dtype's.
  absl::Status Validate() const;
  // XXH3-64 of the canonical text form; equal ids <=> equal layouts.
  uint64_t LayoutId() const;
  // "bf16 paired layers=30 kv_heads=3 head_dim=64 block=16 window=0", and " state=42 spread" of a
  // layout with so many state blocks.
  std::string ToString() const;
  // Names the first differing field and both values, for pairing errors; "" when equal.
  static std::string Difference(const KvLayout& a, const KvLayout& b);

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

// The layout of the blocks of one of `num_ranks` ranks. Each rank has as many KV heads as the
// others: rank r has those from r * num_kv_heads / num_ranks on.
inline KvLayout RankLayout(const KvLayout& layout, uint32_t num_ranks) {
  KvLayout part = layout;
  part.num_kv_heads /= num_ranks;
  return part;
}

}  // namespace baton::kv

#endif  // BATON_KVCACHE_KV_LAYOUT_H_
