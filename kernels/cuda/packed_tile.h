// Packed weights (packed_weights.h) in the hands of a warp: digits and scales of a tile to
// fragments of bf16. Included by kernels only.
//
// A digit becomes an fp32 by putting its bits below the exponent of 128 (no conversion); s q (+ m)
// is then one fma, exact without a minimum: with 4 bits value = 128 + digit, and s value - 136 s is
// s (digit - 8); with 8 bits value = 128 + digit / 2, and 2 s value - 384 s is s (digit - 128). An
// e4m3 code's bits where bf16 has sign, exponent and mantissa are its value times 2^-120,
// subnormals included, which the scale times 2^120 gives back in one product.
#ifndef BATON_KERNELS_CUDA_PACKED_TILE_H_
#define BATON_KERNELS_CUDA_PACKED_TILE_H_

#include <bit>
#include <cstdint>

#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/packed_weights.h"
#include "kernels/simt/device.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {

static_assert(kPackedK == kGemmStageK, "a tile is a warp's part of a stage");
inline constexpr uint32_t kPackedSteps = kPackedK / kGemmStepK;

// One tile.
template <PackedFormat kFormat>
struct alignas(16) PackedTile {
  static constexpr uint32_t kDigitVecs = PackedDigitBits(kFormat) / 4;  // of a lane

  simt::Vec16 digits[kDigitVecs][simt::kWarpSize];
  uint32_t scales[PackedScaleWords(kFormat)][kPackedRows];
};

// The digits of one lane in a tile.
template <PackedFormat kFormat>
struct LaneDigits {
  simt::Vec16 vecs[PackedTile<kFormat>::kDigitVecs];
};

// The scale and the offset that make weights of the digits of one row in a step of K: fma(scale,
// value, offset). For codes a weight is scale * value.
struct StepScale {
  float scale;
  float offset;
};

// The halves and bytes of one word.
BATON_DEVICE float LowerHalf(uint32_t word) {
  return simt::from_half(static_cast<uint16_t>(word & 0xFFFFu));
}
BATON_DEVICE float UpperHalf(uint32_t word) {
  return simt::from_half(static_cast<uint16_t>(word >> 16));
}
BATON_DEVICE float Half(uint32_t word, uint32_t i) {
  return i == 0 ? LowerHalf(word) : UpperHalf(word);
}
BATON_DEVICE float UnsignedByte(uint32_t word, uint32_t i) {
  return static_cast<float>(word >> (8 * i) & 0xFFu);
}
BATON_DEVICE float SignedByte(uint32_t word, uint32_t i) {
  return static_cast<float>(static_cast<int32_t>(word << (24 - 8 * i)) >> 24);
}

// The scale and the offset of row `row` (0..15) of a tile in step `step`.
template <PackedFormat kFormat>
BATON_DEVICE StepScale ScaleOf(const PackedTile<kFormat>& tile, uint32_t row, uint32_t step) {
  constexpr float kNibbleZero = 128.0f + PackedOffset(kFormat);
  constexpr float kByteZero = 256.0f + PackedOffset(kFormat);
  const uint32_t group = step / 2;
  const uint32_t first = tile.scales[0][row];
  if constexpr (kFormat == PackedFormat::kQ4_0) {
    const float s = Half(first, group);
    return {s, s * -kNibbleZero};
  } else if constexpr (kFormat == PackedFormat::kQ8_0) {
    const float s = Half(first, group);
    return {s * 2.0f, s * -kByteZero};
  } else if constexpr (kFormat == PackedFormat::kQ6_K) {
    const float s = LowerHalf(first) * SignedByte(tile.scales[1][row], step);
    return {s * 2.0f, s * -kByteZero};
  } else if constexpr (kFormat == PackedFormat::kQ4_1) {
    return {Half(first, group), Half(tile.scales[1][row], group)};
  } else if constexpr (kFormat == PackedFormat::kE4m3) {
    return {std::bit_cast<float>(first), 0};
  } else {
    static_assert(kFormat == PackedFormat::kQ4_K);
    const uint32_t factors = tile.scales[1][row];
    return {LowerHalf(first) * UnsignedByte(factors, 2 * group),
            UpperHalf(first) * UnsignedByte(factors, 2 * group + 1)};
  }
}

// Two of the four codes in a word, as the weights of bf16 that they are: bytes 0 and 2, or 1 and 3.
BATON_DEVICE uint32_t CodePair(uint32_t word, bool is_odd, float scale) {
  constexpr uint32_t kSigns = 0x80008000u;
  constexpr uint32_t kMagnitudes = 0x07F007F0u;
  const uint32_t codes = is_odd ? simt::and_or(word, kSigns, word >> 4 & kMagnitudes)
                                : simt::and_or(word << 8, kSigns, word << 4 & kMagnitudes);
  return simt::pack_bf16(std::bit_cast<float>(codes << 16) * scale,
                         std::bit_cast<float>(codes & 0xFFFF0000u) * scale);
}

// Pair `pair` (0..3) of a lane's digits in step `step`, as the weights of bf16 that they are.
template <PackedFormat kFormat>
BATON_DEVICE uint32_t WeightPair(const LaneDigits<kFormat>& digits, uint32_t step, uint32_t pair,
                                 const StepScale& scale) {
  if constexpr (kFormat == PackedFormat::kE4m3) {
    return CodePair(digits.vecs[step / 2].words[step % 2 * 2 + pair / 2], pair % 2 != 0,
                    scale.scale);
  }
  // One shift and one operation of three inputs a digit.
  constexpr uint32_t kExponent = 0x43000000u;  // of 128; the units bit is 16
  constexpr bool kIsNibble = PackedDigitBits(kFormat) == 4;
  constexpr uint32_t kMask = kIsNibble ? 0x000F0000u : 0x007F8000u;
  uint32_t lower;
  uint32_t upper;
  if constexpr (kIsNibble) {
    const uint32_t word = digits.vecs[0].words[step];
    lower = word << (16 - 4 * pair);
    upper = word >> (4 * pair);
  } else {
    const uint32_t word = digits.vecs[step / 2].words[step % 2 * 2 + pair / 2];
    lower = pair % 2 == 0 ? word << 15 : word >> 1;
    upper = pair % 2 == 0 ? word << 7 : word >> 9;
  }
  float low = std::bit_cast<float>(simt::and_or(lower, kMask, kExponent));
  float high = std::bit_cast<float>(simt::and_or(upper, kMask, kExponent));
  if constexpr (kIsNibble && PackedOffset(kFormat) == 0) {
    low -= 128.0f;  // exact; m beside s 128 would not be
    high -= 128.0f;
  }
  return simt::pack_bf16(simt::fma(scale.scale, low, scale.offset),
                         simt::fma(scale.scale, high, scale.offset));
}

template <PackedFormat kFormat>
BATON_DEVICE LaneDigits<kFormat> DigitsOf(const PackedTile<kFormat>& tile, uint32_t lane) {
  LaneDigits<kFormat> digits;
  BATON_UNROLL
  for (uint32_t i = 0; i < PackedTile<kFormat>::kDigitVecs; ++i) {
    digits.vecs[i] = tile.digits[i][lane];
  }
  return digits;
}

// The calling lane's A fragment of a step of the tile.
template <PackedFormat kFormat>
BATON_DEVICE simt::FragmentA WeightsOf(const PackedTile<kFormat>& tile,
                                       const LaneDigits<kFormat>& digits, uint32_t step) {
  const uint32_t row = simt::lane() / 4;
  const StepScale scales[2] = {ScaleOf(tile, row, step), ScaleOf(tile, row + 8, step)};
  simt::FragmentA out;
  BATON_UNROLL
  for (uint32_t pair = 0; pair < 4; ++pair) {
    out.regs[pair] = WeightPair(digits, step, pair, scales[pair % 2]);
  }
  return out;
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_PACKED_TILE_H_
