// Where element (token, dim) of one head lies inside a piece of a KV block, for each encoding of
// kvcache/kv_layout.h. Pure; any thread.
#ifndef BATON_KERNELS_KV_PIECE_H_
#define BATON_KERNELS_KV_PIECE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/math.h"
#include "kvcache/kv_view.h"

namespace baton::kernels {

// Index, in elements, of K or V at (token of the block, dim).
inline size_t KIndex(const kv::KvLayout& layout, uint32_t token, uint32_t dim) {
  if (layout.encoding == kv::KvEncoding::kPaired) {
    return (size_t{dim / 2} * layout.block_size + token) * 2 + dim % 2;
  }
  return size_t{token} * layout.head_dim + dim;
}
inline size_t VIndex(const kv::KvLayout& layout, uint32_t token, uint32_t dim) {
  if (layout.encoding == kv::KvEncoding::kPaired) {
    return (size_t{token / 2} * layout.head_dim + dim) * 2 + token % 2;
  }
  return size_t{token} * layout.head_dim + dim;
}

// Reads element `index` of a piece as fp32; exact.
inline float LoadKv(kv::KvDtype dtype, const std::byte* piece, size_t index) {
  if (dtype == kv::KvDtype::kF32) {
    float value;
    std::memcpy(&value, piece + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, piece + index * 2, 2);
  return FloatFromBf16(bits);
}

// Writes element `index` of a piece, rounded to nearest even.
inline void StoreKv(kv::KvDtype dtype, std::byte* piece, size_t index, float value) {
  if (dtype == kv::KvDtype::kF32) {
    std::memcpy(piece + index * 4, &value, 4);
    return;
  }
  const uint16_t bits = Bf16FromFloat(value);
  std::memcpy(piece + index * 2, &bits, 2);
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_KV_PIECE_H_
