// K and V in q8: a row (one token's K or V of one head) is head_dim int8 codes and a scale, a bf16,
// for each segment of 32 elements. element = code * scale, exact in fp32 (7 and 8 significant
// bits). Pure; any thread.
//
//   t = H (x / width);  scale = bf16(absmax / 127);  code = round_even(t * (1 / scale))
//
// absmax is the largest |t| of the segment. H is the Hadamard matrix of `width` rows (Sylvester's
// order); each `width` elements turn by themselves, width = the largest power of two that divides
// head_dim, at most 32. H H = width, so a score is (H q) t, and a sum of values is H times the sum
// of their t. The turn spreads an element that is larger than its neighbours over all of them:
// absmax falls towards twice the root mean square. Elements of other segments are not touched by
// it.
//
// bf16 rounds absmax / 127 down by at most 2^-8 of it, so a code is at most 127 * (1 + 2^-8), which
// rounds to 127. A code is within 1/2 (1 + 2^-15) of t / scale. A segment whose absmax is below
// 2^-100 has scale 0 and codes 0: it is zeros. A NaN or an infinity makes its segment NaN, by the
// scale; the codes are zeros. Each line is one IEEE operation, so that every instruction set and
// every chunking stores the same bytes.
#ifndef BATON_KERNELS_KV_Q8_H_
#define BATON_KERNELS_KV_Q8_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "kernels/math.h"
#include "kvcache/kv_layout.h"

namespace baton::kernels {

inline constexpr uint32_t kQ8SmallestBits = uint32_t{127 - 100} << 23;  // 2^-100
inline constexpr uint16_t kQ8NanScale = 0x7FC0;
// Names these rules; part of numerics_id.
inline constexpr std::string_view kQ8Numerics = "q8.turned32";
static_assert(kv::kQ8SegmentDims == 32);

// The scale of a segment, and the factor that turns its elements into codes.
struct Q8Scale {
  uint16_t bits;  // bf16, as it is stored
  float inverse;  // 0: all codes are 0, whatever the elements
};

// `absmax` = the largest magnitude of a segment as bits of fp32; NaN counts as the largest.
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

// Elements that turn together; they have one scale.
constexpr uint32_t Q8TurnWidth(uint32_t head_dim) {
  const uint32_t power = head_dim & (~head_dim + 1);
  return power < kv::kQ8SegmentDims ? power : kv::kQ8SegmentDims;
}

// Multiplies each Q8TurnWidth(dim) elements of `row` [dim] by H: neighbours first, then elements 2,
// 4, ... apart, each sum and difference rounded once.
inline void TurnQ8(float* row, uint32_t dim) {
  for (uint32_t apart = 1; apart < Q8TurnWidth(dim); apart *= 2) {
    for (uint32_t i = 0; i < dim; ++i) {
      if ((i & apart) != 0) continue;
      const float first = row[i];
      const float second = row[i + apart];
      row[i] = first + second;
      row[i + apart] = first - second;
    }
  }
}

// Where the scale of a segment of a token's row lies in a piece of `layout`.
inline size_t Q8ScaleOffset(const kv::KvLayout& layout, uint32_t token, uint32_t segment) {
  return size_t{layout.block_size} * (layout.head_dim + segment * sizeof(uint16_t)) +
         size_t{token} * sizeof(uint16_t);
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_KV_Q8_H_
