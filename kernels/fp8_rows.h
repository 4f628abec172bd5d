// Fp8Rows: a matrix of e4m3 codes, some neighbours of a row sharing a scale, as model folders hold
// them. Pure; any thread.
//
// A weight is code * scale in fp32 (exact when the scale has at most 20 significant bits), rounded
// to bf16, to nearest even both times. That bf16 is the weight in whatever form it lies, on the
// processor and on devices.
#ifndef BATON_KERNELS_FP8_ROWS_H_
#define BATON_KERNELS_FP8_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/math.h"

namespace baton::kernels {

// Scales are a largest weight over 448. Up to this one a scale times 2^120, which devices multiply
// by, is an fp32, and no weight is an infinity.
inline constexpr float kMaxFp8Scale = 128.0f;

// e4m3 has no infinity; these are its two NaN.
constexpr bool IsNanCode(std::byte code) { return (code | std::byte{0x80}) == std::byte{0xFF}; }

// See the file comment.
struct Fp8Rows {
  std::span<const std::byte> codes;  // [n][k]
  std::span<const float> scales;     // [n][groups()], each in (0, kMaxFp8Scale]
  uint32_t n = 0;
  uint32_t k = 0;
  uint32_t group = 0;  // elements that share a scale; the last group of a row may have fewer

  uint32_t groups() const { return (k - 1) / group + 1; }

  // Rows [first, first + count).
  Fp8Rows Part(uint32_t first, uint32_t count) const {
    return {codes.subspan(size_t{first} * k, size_t{count} * k),
            scales.subspan(size_t{first} * groups(), size_t{count} * groups()), count, k, group};
  }
  // The weights of a row, which bf16 holds exactly, to out [k].
  void Weights(uint32_t row, float* out) const {
    const std::byte* const from = codes.data() + size_t{row} * k;
    for (uint32_t g = 0; g < groups(); ++g) {
      const float scale = scales[size_t{row} * groups() + g];
      const uint32_t end = g + 1 < groups() ? (g + 1) * group : k;
      for (uint32_t i = g * group; i < end; ++i) {
        const float product = FloatFromE4m3(static_cast<uint8_t>(from[i])) * scale;
        out[i] = FloatFromBf16(Bf16FromFloat(product));
      }
    }
  }
};

}  // namespace baton::kernels

#endif  // BATON_KERNELS_FP8_ROWS_H_
