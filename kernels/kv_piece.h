// Where element (token, dim) of one head lies inside a piece of a KV block, for each encoding of
// kvcache/kv_layout.h that the processor has, and how a row is stored there. Pure; any thread.
#ifndef BATON_KERNELS_KV_PIECE_H_
#define BATON_KERNELS_KV_PIECE_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/kv_q8.h"
#include "kernels/math.h"
#include "kvcache/kv_view.h"

namespace baton::kernels {

// Index, in elements, of K or V at (token of the block, dim).
inline size_t KIndex(const kv::KvLayout& layout, uint32_t token, uint32_t dim) {
  if (layout.encoding == kv::KvEncoding::kPaired) {
    return (size_t{dim / 2} * layout.block_size + token) * 2 + dim % 2;
  }
  if (layout.encoding == kv::KvEncoding::kLanes) return size_t{dim} * layout.block_size + token;
  return size_t{token} * layout.head_dim + dim;
}
inline size_t VIndex(const kv::KvLayout& layout, uint32_t token, uint32_t dim) {
  if (layout.encoding == kv::KvEncoding::kPaired) {
    return (size_t{token / 2} * layout.head_dim + dim) * 2 + token % 2;
  }
  return size_t{token} * layout.head_dim + dim;
}

// Reads element `index` of a piece as fp32; exact. In q8 it is the code, whose product with KvScale
// is an element of the turned row.
inline float LoadKv(kv::KvDtype dtype, const std::byte* piece, size_t index) {
  if (dtype == kv::KvDtype::kF32) {
    float value;
    std::memcpy(&value, piece + index * 4, 4);
    return value;
  }
  if (dtype == kv::KvDtype::kQ8) return static_cast<float>(static_cast<int8_t>(piece[index]));
  uint16_t bits;
  std::memcpy(&bits, piece + index * 2, 2);
  return FloatFromBf16(bits);
}

// The scale of element (token, dim) of a piece; 1 where rows have none.
inline float KvScale(const kv::KvLayout& layout, const std::byte* piece, uint32_t token,
                     uint32_t dim) {
  if (layout.dtype != kv::KvDtype::kQ8) return 1.0f;
  uint16_t bits;
  std::memcpy(&bits, piece + Q8ScaleOffset(layout, token, dim / kv::kQ8SegmentDims), sizeof(bits));
  return FloatFromBf16(bits);
}

// Writes element `index` of a piece of bf16 or f32, rounded to nearest even.
inline void StoreKv(kv::KvDtype dtype, std::byte* piece, size_t index, float value) {
  if (dtype == kv::KvDtype::kF32) {
    std::memcpy(piece + index * 4, &value, 4);
    return;
  }
  const uint16_t bits = Bf16FromFloat(value);
  std::memcpy(piece + index * 2, &bits, 2);
}

// Writes a token's row of K (which = 0) or V (which = 1): `row` [head_dim]. Slow.
inline void StoreKvRow(const kv::KvLayout& layout, uint32_t which, std::byte* piece, uint32_t token,
                       const float* row) {
  const auto at = [&](uint32_t dim) {
    return which == 0 ? KIndex(layout, token, dim) : VIndex(layout, token, dim);
  };
  if (layout.dtype != kv::KvDtype::kQ8) {
    for (uint32_t d = 0; d < layout.head_dim; ++d) StoreKv(layout.dtype, piece, at(d), row[d]);
    return;
  }
  std::vector<float> turned(row, row + layout.head_dim);
  for (float& x : turned) x *= 1.0f / static_cast<float>(Q8TurnWidth(layout.head_dim));
  TurnQ8(turned.data(), layout.head_dim);
  for (uint32_t segment = 0; segment < layout.num_scales(); ++segment) {
    const uint32_t begin = segment * kv::kQ8SegmentDims;
    const uint32_t end = std::min(begin + kv::kQ8SegmentDims, layout.head_dim);
    uint32_t absmax = 0;
    for (uint32_t d = begin; d < end; ++d) {
      absmax = std::max(absmax, std::bit_cast<uint32_t>(turned[d]) & 0x7FFFFFFFu);
    }
    const Q8Scale scale = Q8ScaleOf(absmax);
    for (uint32_t d = begin; d < end; ++d) {
      const int8_t code = scale.inverse == 0.0f ? int8_t{0} : Q8Code(turned[d], scale.inverse);
      piece[at(d)] = static_cast<std::byte>(code);
    }
    std::memcpy(piece + Q8ScaleOffset(layout, token, segment), &scale.bits, sizeof(scale.bits));
  }
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_KV_PIECE_H_
