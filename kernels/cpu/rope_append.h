// Rotary embedding and the append of K and V to the blocks. Included by one translation unit per
// instruction set. Bound by memory: each row of q, k, v is read once and written once.
//
// A pair (x0, x1) with (cos, sin) becomes fma(x0, cos, -(x1 * sin)), fma(x1, cos, x0 * sin).
#ifndef BATON_KERNELS_CPU_ROPE_APPEND_H_
#define BATON_KERNELS_CPU_ROPE_APPEND_H_

#include "kernels/cpu/turn_q8.h"
#include "kernels/embed.h"
#include "kernels/kv_piece.h"
#include "kernels/ops.h"

namespace baton::kernels::BATON_ISA {

inline constexpr uint32_t kMaxHeadDim = 512;

// Pairs (2i, 2i + 1); in and out may be equal.
BATON_INLINE void RotateInterleaved(const float* in, const float* cos_sin, uint32_t dim,
                                    float* out) {
  const auto rotated = [](F32x16 x, F32x16 cs) {
    return FmaSubAdd(x, DupEven(cs), Mul(SwapPairs(x), DupOdd(cs)));
  };
  const uint32_t whole = dim & ~15u;
  for (uint32_t i = 0; i < whole; i += 16) {
    Store(out + i, rotated(Load(in + i), Load(cos_sin + i)));
  }
  if (whole == dim) return;
  const uint32_t n = dim - whole;
  StoreN(out + whole, rotated(LoadN(in + whole, n), LoadN(cos_sin + whole, n)), n);
}

// Pairs (i, i + dim / 2); in and out may be equal.
BATON_INLINE void RotateHalves(const float* in, const float* cos_sin, uint32_t dim, float* out) {
  const uint32_t half = dim / 2;
  for (uint32_t i = 0; i < half; ++i) {
    const float x0 = in[i];
    const float x1 = in[i + half];
    const float cos = cos_sin[2 * i];
    const float sin = cos_sin[2 * i + 1];
    out[i] = FmaScalar(x0, cos, -(x1 * sin));
    out[i + half] = FmaScalar(x1, cos, x0 * sin);
  }
}

BATON_INLINE void Rotate(const RopeAppendArgs& args, const float* in, const float* cos_sin,
                         float* out) {
  const uint32_t dim = args.kv.layout->head_dim;
  if (args.interleaved) {
    RotateInterleaved(in, cos_sin, dim, out);
  } else {
    RotateHalves(in, cos_sin, dim, out);
  }
}

// Where K and V of one token and head go.
struct KvSlot {
  const kv::KvLayout& layout;
  uint32_t token;  // of the block
  std::byte* k_piece;
  std::byte* v_piece;
};

// Stores K and V in the default layout, bf16 paired.
BATON_INLINE void StorePairedBf16(const KvSlot& slot, const float* k, const float* v) {
  const kv::KvLayout& layout = slot.layout;
  const uint32_t dim = layout.head_dim;
  alignas(64) uint16_t rounded[kMaxHeadDim];
  const auto round = [&](const float* row) {
    for (uint32_t d = 0; d < dim; d += 16) {
      StoreBf16(rounded + d, dim - d < 16 ? LoadN(row + d, dim - d) : Load(row + d));
    }
  };
  round(k);
  std::byte* k_out = slot.k_piece + size_t{slot.token} * 4;
  for (uint32_t d = 0; d < dim; d += 2) {
    std::memcpy(k_out, rounded + d, 4);
    k_out += size_t{layout.block_size} * 4;
  }
  round(v);
  auto* v_out =
      reinterpret_cast<uint16_t*>(slot.v_piece) + size_t{slot.token / 2} * dim * 2 + slot.token % 2;
  for (uint32_t d = 0; d < dim; ++d) v_out[2 * d] = rounded[d];
}

// Stores the scales of a token's row of q8 in `piece` and gives its codes, one in each int16: see
// kv_q8.h. Magnitudes are compared as bits, so that NaN is the largest. `codes` has room for
// head_dim rounded up to 16.
BATON_INLINE void QuantizeQ8(const KvSlot& slot, const float* row, std::byte* piece,
                             int16_t* codes) {
  const uint32_t dim = slot.layout.head_dim;
  alignas(64) float turned[kMaxHeadDim];
  const F32x16 shrink = Set1(1.0f / static_cast<float>(Q8TurnWidth(dim)));
  for (uint32_t d = 0; d < dim; d += 16) {
    const uint32_t n = dim - d < 16 ? dim - d : 16;
    Store(turned + d, Mul(LoadN(row + d, n), shrink));
  }
  TurnRow(turned, dim);
  for (uint32_t begin = 0; begin < dim; begin += kv::kQ8SegmentDims) {
    const uint32_t end = dim - begin < kv::kQ8SegmentDims ? dim : begin + kv::kQ8SegmentDims;
    I32x16 largest = SetI(0);
    for (uint32_t d = begin; d < end; d += 16) {
      largest = MaxI(largest, AndI(BitsOf(Load(turned + d)), SetI(0x7FFFFFFF)));
    }
    const Q8Scale scale = Q8ScaleOf(static_cast<uint32_t>(MaxAllI(largest)));
    const F32x16 inverse = Set1(scale.inverse);
    const bool is_zero = scale.inverse == 0.0f;  // the product would be NaN in a segment of NaN
    for (uint32_t d = begin; d < end; d += 16) {
      StoreI16(codes + d, is_zero ? SetI(0) : ToInt(Mul(Load(turned + d), inverse)));
    }
    const size_t at = Q8ScaleOffset(slot.layout, slot.token, begin / kv::kQ8SegmentDims);
    std::memcpy(piece + at, &scale.bits, sizeof(scale.bits));
  }
}

BATON_INLINE void StoreQ8(const KvSlot& slot, const float* k, const float* v) {
  const kv::KvLayout& layout = slot.layout;
  alignas(64) int16_t codes[kMaxHeadDim];
  QuantizeQ8(slot, k, slot.k_piece, codes);
  std::byte* k_out = slot.k_piece + slot.token;
  for (uint32_t d = 0; d < layout.head_dim; ++d) {
    *k_out = static_cast<std::byte>(codes[d]);
    k_out += layout.block_size;
  }
  QuantizeQ8(slot, v, slot.v_piece, codes);
  std::byte* v_out = slot.v_piece + size_t{slot.token} * layout.head_dim;
  for (uint32_t d = 0; d < layout.head_dim; ++d) v_out[d] = static_cast<std::byte>(codes[d]);
}

BATON_INLINE void StoreGeneric(const KvSlot& slot, const float* k, const float* v) {
  const kv::KvLayout& layout = slot.layout;
  for (uint32_t d = 0; d < layout.head_dim; ++d) {
    StoreKv(layout.dtype, slot.k_piece, KIndex(layout, slot.token, d), k[d]);
    StoreKv(layout.dtype, slot.v_piece, VIndex(layout, slot.token, d), v[d]);
  }
}

inline void RopeAppendRow(const RopeAppendArgs& args, const AttentionSpan& span, uint32_t r) {
  const kv::KvLayout& layout = *args.kv.layout;
  const uint32_t dim = layout.head_dim;
  const uint32_t position = span.first_pos + r;
  const size_t row = size_t{span.first_row} + r;
  const bool rotates = args.cos_sin != nullptr;
  const float* cos_sin = rotates ? args.cos_sin + size_t{position} * dim : nullptr;
  float* q = args.q + row * args.qkv_stride;
  for (uint32_t head = 0; rotates && head < args.num_heads; ++head) {
    Rotate(args, q + head * dim, cos_sin, q + head * dim);
  }
  const uint32_t block = span.kv.blocks[position / layout.block_size];
  const uint32_t token = position % layout.block_size;
  const bool fast =
      layout.dtype == kv::KvDtype::kBf16 && layout.encoding == kv::KvEncoding::kPaired;
  for (uint32_t head = 0; head < layout.num_kv_heads; ++head) {
    alignas(64) float rotated[kMaxHeadDim];
    const float* k = args.k + row * args.qkv_stride + head * dim;
    if (rotates) {
      Rotate(args, k, cos_sin, rotated);
      k = rotated;
    }
    const float* v = args.v + row * args.qkv_stride + head * dim;
    const KvSlot slot = {layout, token, args.kv.Piece(block, args.layer, 0, head),
                         args.kv.Piece(block, args.layer, 1, head)};
    if (fast) {
      StorePairedBf16(slot, k, v);
    } else if (layout.dtype == kv::KvDtype::kQ8) {
      StoreQ8(slot, k, v);
    } else {
      StoreGeneric(slot, k, v);
    }
  }
}

inline void RopeAppend(device::ThreadPool& pool, const RopeAppendArgs& args) {
  const uint32_t dim = args.kv.layout->head_dim;
  const uint32_t row_elements = (args.num_heads + 2 * args.kv.layout->num_kv_heads) * dim;
  const uint32_t min_rows = 1 + 8192 / (row_elements > 0 ? row_elements : 1);
  for (const AttentionSpan& span : args.spans) {
    // Spans of a decode batch have one row: they stay on the caller.
    pool.RunRanges(span.num_rows, min_rows, 4 * pool.num_threads(),
                   [&](device::TaskRange range, uint32_t) {
                     for (uint32_t r = range.begin; r < range.end; ++r)
                       RopeAppendRow(args, span, r);
                   });
    ZeroUnusedSlots(args, span);
  }
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_ROPE_APPEND_H_
