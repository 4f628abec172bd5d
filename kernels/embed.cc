#include "kernels/embed.h"

#include <bit>
#include <cstring>

#include "kernels/kv_piece.h"
#include "kernels/math.h"

namespace baton::kernels {

using device::TaskRange;
using device::ThreadPool;
using kv::KvDtype;
using kv::KvLayout;

namespace {

void Dequantize(PackedScales coded, const WeightBlock& block, float* out) {
  const BlockScales scales = ScalesOf(coded, block);
  const bool has_min = HasMin(coded);
  for (uint32_t i = 0; i < kQuantBlock; ++i) {
    const float product = scales.scale[i / 16] * static_cast<float>(block.q[i]);
    out[i] = has_min ? product + scales.min[i / 16] : product;
  }
}

float FloatOf(WeightType type, uint32_t bits) {
  switch (type) {
    case WeightType::kF16:
      return FloatFromHalf(static_cast<uint16_t>(bits));
    case WeightType::kBf16:
      return FloatFromBf16(static_cast<uint16_t>(bits));
    default:
      return std::bit_cast<float>(bits);
  }
}

void EmbedRow(const PackedMatrix& matrix, uint32_t row, float* out) {
  if (matrix.traits().quantized()) {
    for (uint32_t b = 0; b < matrix.k() / kQuantBlock; ++b) {
      Dequantize(matrix.traits().scales, matrix.Block(row, b), out + b * kQuantBlock);
    }
    return;
  }
  for (uint32_t i = 0; i < matrix.k(); ++i) {
    out[i] = FloatOf(matrix.type(), matrix.ElementBits(row, i));
  }
}

// Tokens [used, block_size) of a piece of q8: codes and scales.
void ZeroQ8Tokens(const KvLayout& layout, uint32_t used, std::byte* k_piece, std::byte* v_piece) {
  const uint32_t count = layout.block_size - used;
  for (uint32_t dim = 0; dim < layout.head_dim; ++dim) {
    std::memset(k_piece + KIndex(layout, used, dim), 0, count);
  }
  std::memset(v_piece + VIndex(layout, used, 0), 0, size_t{count} * layout.head_dim);
  for (std::byte* piece : {k_piece, v_piece}) {
    for (uint32_t segment = 0; segment < layout.num_scales(); ++segment) {
      std::memset(piece + Q8ScaleOffset(layout, used, segment), 0, count * sizeof(uint16_t));
    }
  }
}

}  // namespace

void EmbedRows(ThreadPool& pool, const PackedMatrix& matrix, std::span<const int32_t> ids,
               float* out) {
  pool.RunRanges(static_cast<uint32_t>(ids.size()), 8, 4 * pool.num_threads(),
                 [&](TaskRange range, uint32_t) {
                   for (uint32_t r = range.begin; r < range.end; ++r) {
                     EmbedRow(matrix, static_cast<uint32_t>(ids[r]), out + size_t{r} * matrix.k());
                   }
                 });
}

bool DequantizeRow(WeightType type, const std::byte* raw, uint32_t k, float* out) {
  const WeightTraits& traits = TraitsOf(type);
  if (!traits.quantized()) {
    for (uint32_t i = 0; i < k; ++i) {
      uint32_t bits = 0;  // little endian
      std::memcpy(&bits, raw + size_t{i} * traits.block_bytes, traits.block_bytes);
      out[i] = FloatOf(type, bits);
    }
    return true;
  }
  const uint32_t blocks_of_raw = traits.block_elements / kQuantBlock;
  bool is_finite = true;
  for (uint32_t b = 0; b < k / kQuantBlock; ++b) {
    WeightBlock block = {};
    traits.unpack(raw + size_t{b / blocks_of_raw} * traits.block_bytes, b % blocks_of_raw, &block);
    is_finite = is_finite && HasFiniteScales(traits.scales, block);
    Dequantize(traits.scales, block, out + size_t{b} * kQuantBlock);
  }
  return is_finite;
}

void ZeroUnusedSlots(const RopeAppendArgs& args, const AttentionSpan& span) {
  const KvLayout& layout = *args.kv.layout;
  const uint32_t end = span.first_pos + span.num_rows;
  const uint32_t used = end % layout.block_size;
  if (used == 0 || used > span.num_rows) return;
  const uint32_t block = span.kv.blocks[end / layout.block_size];
  for (uint32_t head = 0; head < layout.num_kv_heads; ++head) {
    std::byte* k_piece = args.kv.Piece(block, args.layer, 0, head);
    std::byte* v_piece = args.kv.Piece(block, args.layer, 1, head);
    if (layout.dtype == KvDtype::kQ8) {
      ZeroQ8Tokens(layout, used, k_piece, v_piece);
      continue;
    }
    for (uint32_t token = used; token < layout.block_size; ++token) {
      for (uint32_t dim = 0; dim < layout.head_dim; ++dim) {
        StoreKv(layout.dtype, k_piece, KIndex(layout, token, dim), 0.0f);
        StoreKv(layout.dtype, v_piece, VIndex(layout, token, dim), 0.0f);
      }
    }
  }
}

}  // namespace baton::kernels
