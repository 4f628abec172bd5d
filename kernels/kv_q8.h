// K and V in q8: a row (one token's K or V of one head) is head_dim int8 codes and a scale, a bf16.
// element = code * scale, exact in fp32 (7 and 8 significant bits). Pure; any thread.
//
//   scale = bf16(absmax / 127);  code = round_even(x * (1 / scale))
//
// bf16 rounds absmax / 127 down by at most 2^-8 of it, so a code is at most 127 * (1 + 2^-8), which
// rounds to 127. A code is within 1/2 (1 + 2^-15) of x / scale. A row whose absmax is below 2^-100
// has scale 0 and codes 0: it is zeros. A NaN or an infinity in a row makes all of it NaN, by its
// scale; its codes are zeros. Each line is one IEEE operation, so that every instruction set and
// every chunking stores the same bytes.
#ifndef BATON_KERNELS_KV_Q8_H_
#define BATON_KERNELS_KV_Q8_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/math.h"
#include "kvcache/kv_layout.h"

namespace baton::kernels {

inline constexpr uint32_t kQ8SmallestBits = uint32_t{127 - 100} << 23;  // 2^-100
inline constexpr uint16_t kQ8NanScale = 0x7FC0;

// The scale of a row, and the factor that turns its elements into codes.
struct Q8Scale {
  uint16_t bits;  // bf16, as it is stored
  float inverse;  // 0: all codes of the row are 0, whatever its elements
};

// `absmax` = the largest magnitude of a row as bits of fp32; NaN counts as the largest.
constexpr Q8Scale Q8ScaleOf(uint32_t absmax) {
  if (absmax >= 0x7F800000u) return {kQ8NanScale, 0.0f};
  if (absmax < kQ8SmallestBits) return {0, 0.0f};
  const uint16_t bits = Bf16FromFloat(std::bit_cast<float>(absmax) / 127.0f);
  return {bits, 1.0f / FloatFromBf16(bits)};
}

// Round to nearest even; |x * inverse| < 2^22.
constexpr int8_t Q8Code(float x, float inverse) {
  const float biased = x * inverse + 12582912.0f;  // 1.5 * 2^23
  return static_cast<int8_t>(std::bit_cast<uint32_t>(biased) - 0x4B400000u);
}

// Where the scale of a token's row lies in a piece of `layout`.
inline size_t Q8ScaleOffset(const kv::KvLayout& layout, uint32_t token) {
  return size_t{layout.block_size} * layout.head_dim + size_t{token} * sizeof(uint16_t);
}
inline void StoreQ8Scale(const kv::KvLayout& layout, std::byte* piece, uint32_t token,
                         uint16_t bits) {
  std::memcpy(piece + Q8ScaleOffset(layout, token), &bits, sizeof(bits));
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_KV_Q8_H_
