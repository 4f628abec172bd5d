// Quantising activations to a16 (see A16View in ops.h) on the 16-lane vector. Included by one
// translation unit per instruction set.
#ifndef BATON_KERNELS_CPU_QUANTIZE_A16_H_
#define BATON_KERNELS_CPU_QUANTIZE_A16_H_

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/cpu/row_ops.h"

namespace baton::kernels::BATON_ISA {

// Bits of the magnitudes that quantising divides by: [2^-100, infinity). The reciprocal of the
// smallest times 32767 is finite.
inline constexpr int32_t kInfinityBits = 0x7F800000;
inline constexpr int32_t kSmallestBits = (127 - 100) << 23;

// Where quantised blocks go: q [32], scale, sum, half_sum [2] and half_total [2] of each.
struct QuantizedBlocks {
  int16_t* q;
  float* scale;
  float* sum;
  float* half_sum;
  int32_t* half_total;
};

// One block of 32: see A16View. Magnitudes are compared as bits, so that NaN is the largest.
BATON_INLINE void QuantizeBlock(const float* x, const QuantizedBlocks& out) {
  const F32x16 low = Load(x);
  const F32x16 high = Load(x + 16);
  const I32x16 magnitude = SetI(0x7FFFFFFF);
  const int32_t max_bits =
      MaxAllI(MaxI(AndI(BitsOf(low), magnitude), AndI(BitsOf(high), magnitude)));
  if (max_bits >= kInfinityBits || max_bits < kSmallestBits) [[unlikely]] {
    const float mark = max_bits >= kInfinityBits ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    *out.scale = mark;
    *out.sum = mark;
    out.half_sum[0] = mark;
    out.half_sum[1] = mark;
    out.half_total[0] = 0;
    out.half_total[1] = 0;
    StoreI16(out.q, SetI(0));
    StoreI16(out.q + 16, SetI(0));
    return;
  }
  const float absmax = std::bit_cast<float>(max_bits);
  const F32x16 inverse = Set1(32767.0f / absmax);
  const I32x16 q_low = ToInt(Mul(low, inverse));
  const I32x16 q_high = ToInt(Mul(high, inverse));
  StoreI16(out.q, q_low);
  StoreI16(out.q + 16, q_high);
  *out.scale = absmax / 32767.0f;
  const int32_t sum_low = SumAllI(q_low);
  const int32_t sum_high = SumAllI(q_high);
  *out.sum = *out.scale * static_cast<float>(sum_low + sum_high);
  out.half_sum[0] = *out.scale * static_cast<float>(sum_low);
  out.half_sum[1] = *out.scale * static_cast<float>(sum_high);
  out.half_total[0] = sum_low;
  out.half_total[1] = sum_high;
}

// The integers of block kBlock of four, of which each quarter of `inverse` has the factors. They
// come back as bits.
template <int kBlock>
BATON_INLINE void QuantizeOneOfFour(const float* x, F32x16 inverse, int16_t* q, F32x16 (&low)[4],
                                    F32x16 (&high)[4]) {
  const F32x16 factor = DupOfQuarter<kBlock>(inverse);
  const I32x16 q_low = ToInt(Mul(Load(x + kBlock * 32), factor));
  const I32x16 q_high = ToInt(Mul(Load(x + kBlock * 32 + 16), factor));
  StoreI16(q + kBlock * 32, q_low);
  StoreI16(q + kBlock * 32 + 16, q_high);
  low[kBlock] = FromBits(q_low);
  high[kBlock] = FromBits(q_high);
}

// Four blocks, as QuantizeBlock does each. What is added or compared across lanes costs a third of
// what it costs block by block.
BATON_INLINE void QuantizeFour(const float* x, const QuantizedBlocks& out) {
  const I32x16 magnitude = SetI(0x7FFFFFFF);
  F32x16 largest[4];
  for (int i = 0; i < 4; ++i) {
    largest[i] = FromBits(MaxI(AndI(BitsOf(Load(x + i * 32)), magnitude),
                               AndI(BitsOf(Load(x + i * 32 + 16)), magnitude)));
  }
  const F32x16 absmax =
      FoldFour(largest, [](F32x16 a, F32x16 b) { return FromBits(MaxI(BitsOf(a), BitsOf(b))); });
  StoreQuarter(out.scale, absmax);
  for (int i = 0; i < 4; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(out.scale[i]);
    if (bits >= kInfinityBits || bits < kSmallestBits) [[unlikely]] {
      for (int b = 0; b < 4; ++b) {
        QuantizeBlock(x + b * 32, {out.q + b * 32, out.scale + b, out.sum + b, out.half_sum + 2 * b,
                                   out.half_total + 2 * b});
      }
      return;
    }
  }
  const F32x16 inverse = Div(Set1(32767.0f), absmax);
  F32x16 low[4];
  F32x16 high[4];
  QuantizeOneOfFour<0>(x, inverse, out.q, low, high);
  QuantizeOneOfFour<1>(x, inverse, out.q, low, high);
  QuantizeOneOfFour<2>(x, inverse, out.q, low, high);
  QuantizeOneOfFour<3>(x, inverse, out.q, low, high);
  const F32x16 scale = Div(absmax, Set1(32767.0f));
  const auto add = [](F32x16 a, F32x16 b) { return FromBits(AddI(BitsOf(a), BitsOf(b))); };
  const I32x16 sum_low = BitsOf(FoldFour(low, add));
  const I32x16 sum_high = BitsOf(FoldFour(high, add));
  const F32x16 half_low = Mul(scale, ToFloat(sum_low));
  const F32x16 half_high = Mul(scale, ToFloat(sum_high));
  StoreQuarter(out.scale, scale);
  StoreQuarter(out.sum, Mul(scale, ToFloat(AddI(sum_low, sum_high))));
  StoreQuarter(out.half_sum, MixLow(half_low, half_high));
  StoreQuarter(out.half_sum + 4, MixHigh(half_low, half_high));
  StoreQuarter(out.half_total, MixLow(FromBits(sum_low), FromBits(sum_high)));
  StoreQuarter(out.half_total + 4, MixHigh(FromBits(sum_low), FromBits(sum_high)));
}

inline void QuantizeA16(device::ThreadPool& pool, const float* x, uint32_t rows, A16View out) {
  const uint32_t row_blocks = out.k / kQuantBlock;
  const uint32_t min_rows = std::max<uint32_t>(1, kRowGrain / std::max<uint32_t>(1, out.k));
  pool.RunRanges(rows, min_rows, 4 * pool.num_threads(), [&](device::TaskRange range, uint32_t) {
    size_t block = size_t{range.begin} * row_blocks;
    const size_t end = size_t{range.end} * row_blocks;
    const auto at = [&] {
      return QuantizedBlocks{out.q + block * kQuantBlock, out.scale + block, out.sum + block,
                             out.half_sum + 2 * block, out.half_total + 2 * block};
    };
    for (; block + 4 <= end; block += 4) QuantizeFour(x + block * kQuantBlock, at());
    for (; block < end; ++block) QuantizeBlock(x + block * kQuantBlock, at());
  });
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_QUANTIZE_A16_H_
