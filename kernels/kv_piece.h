// Where element (token, dim) of one head lies inside a piece of a KV block, for each encoding of
// kvcache/kv_layout.h that the processor has, and how a row is stored there. Pure; any thread.
#ifndef BATON_KERNELS_KV_PIECE_H_
#define BATON_KERNELS_KV_PIECE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

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

// Reads element `index` of a piece as fp32; exact. Of q8 the code, whose product with KvScale is
// the element.
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

// The scale of a token's row in a piece; 1 where rows have none.
inline float KvScale(const kv::KvLayout& layout, const std::byte* piece, uint32_t token) {
  if (layout.dtype != kv::KvDtype::kQ8) return 1.0f;
  uint16_t bits;
  std::memcpy(&bits, piece + Q8ScaleOffset(layout, token), sizeof(bits));
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

// Writes a token's row of K (which = 0) or V (which = 1): `row` [head_dim].
inline void StoreKvRow(const kv::KvLayout& layout, uint32_t which, std::byte* piece, uint32_t token,
                       const float* row) {
  const auto at = [&](uint32_t dim) {
    return which == 0 ? KIndex(layout, token, dim) : VIndex(layout, token, dim);
  };
  if (layout.dtype != kv::KvDtype::kQ8) {
    for (uint32_t d = 0; d < layout.head_dim; ++d) StoreKv(layout.dtype, piece, at(d), row[d]);
    return;
  }
  uint32_t absmax = 0;
  for (uint32_t d = 0; d < layout.head_dim; ++d) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(row[d]) & 0x7FFFFFFFu;
    absmax = magnitude > absmax ? magnitude : absmax;
  }
  const Q8Scale scale = Q8ScaleOf(absmax);
  for (uint32_t d = 0; d < layout.head_dim; ++d) {
    const int8_t code = scale.inverse == 0.0f ? int8_t{0} : Q8Code(row[d], scale.inverse);
    piece[at(d)] = static_cast<std::byte>(code);
  }
  StoreQ8Scale(layout, piece, token, scale.bits);
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_KV_PIECE_H_
