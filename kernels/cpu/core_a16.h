// Cores of the quantised matmul, shared by every instruction set: int16 pairs of consecutive k
// (lanes = outputs) times a broadcast pair of activations, summed in int32. Sums over a block are
// exact: 32 * 128 * 32767 < 2^31. Included after one of the simd_*.h headers, which give kTileRows
// and kTilePanels (the tile fills the registers: on AVX2 6 rows x 2 registers of sums + 2 of
// weights + 1 broadcast + 1 product).
#ifndef BATON_KERNELS_CPU_CORE_A16_H_
#define BATON_KERNELS_CPU_CORE_A16_H_

#include "kernels/cpu/unpack_a16.h"

namespace baton::kernels::BATON_ISA {

// Rows that share the digits while they are in registers.
inline constexpr uint32_t kStreamRows = 3;
// How far ahead a panel is asked for; NOTES.md has what other distances cost.
inline constexpr size_t kPrefetchBytes = 6144;

// The rows and blocks of activations that one call of a core works on.
struct A16Rows {
  const int16_t* q;           // first row, first block
  const float* scale;         // first row, first block
  const float* sum;           // first row, first block
  const float* half_sum;      // first row, first block
  const int32_t* half_total;  // first row, first block
  size_t q_stride;            // elements between rows
  size_t scale_stride;        // blocks between rows
};

// How the scales of a block enter a product.
struct ScaleForm {
  int parts;  // scales of a block
  bool has_min;
};
constexpr ScaleForm FormOf(PackedScales scales) { return {ScalesPerBlock(scales), HasMin(scales)}; }

// The sum of activations that the part-th min of block b is multiplied by.
template <ScaleForm kForm>
BATON_INLINE F32x16 SumForMin(const A16Rows& rows, size_t row, uint32_t b, uint32_t part) {
  const size_t block = row * rows.scale_stride + b;
  return Set1(kForm.parts == 2 ? rows.half_sum[2 * block + part] : rows.sum[block]);
}

// dot [kRows][kPanels][16] = w [kPairs][kPanels][16][2] times kRows rows that are `stride` elements
// apart.
template <int kPairs, int kRows, int kPanels>
BATON_INLINE void DotBlock(const int16_t* w, const int16_t* rows, size_t stride,
                           I32x16 (&dot)[kRows][kPanels]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) dot[r][p] = SetI(0);
  }
#pragma GCC unroll 1
  for (int i = 0; i < kPairs; ++i) {
    I32x16 pairs[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) pairs[p] = LoadInts(w + (i * kPanels + p) * 2 * kPanelRows);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const PairInAllLanes a = BroadcastPair(rows + r * stride + 2 * i);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) MulAddInto(&dot[r][p], pairs[p], a);
    }
  }
}

// Unpacked blocks of some neighbouring panels.
struct PanelStretch {
  const int16_t* digits;  // [num_blocks][16 pairs][panels][16 outputs][2]
  const float* scale;     // [num_blocks][scales of a block][panels][16]
  const float* min;       // as scale; read only when the type has one
  uint32_t num_blocks;
};

// acc [kRows][kPanels][16] += the stretch times kRows rows. Out of line, so that all types of one
// form share it.
template <ScaleForm kForm, int kRows, int kPanels>
__attribute__((noinline)) void Tile(const PanelStretch& stretch, const A16Rows& from, float* acc) {
  constexpr int kPairs = 16 / kForm.parts;
  const PanelStretch panels = stretch;
  const A16Rows rows = from;
  // A part is what shares a scale: a block or half of one.
  for (uint32_t part = 0; part < panels.num_blocks * kForm.parts; ++part) {
    const uint32_t b = part / kForm.parts;
    I32x16 dot[kRows][kPanels];
    DotBlock<kPairs>(panels.digits + part * (2 * kPairs * kPanels * kPanelRows),
                     rows.q + part * 2 * kPairs, rows.q_stride, dot);
    F32x16 d[kPanels];
    F32x16 m[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      d[p] = Load(panels.scale + (part * kPanels + p) * kPanelRows);
      m[p] = kForm.has_min ? Load(panels.min + (part * kPanels + p) * kPanelRows) : Zero();
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F32x16 a = Set1(rows.scale[r * rows.scale_stride + b]);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        float* at = acc + (r * kPanels + p) * kPanelRows;
        F32x16 sum = Fma(Mul(d[p], a), ToFloat(dot[r][p]), Load(at));
        if constexpr (kForm.has_min) {
          sum =
              Fma(m[p], SumForMin<kForm>(rows, static_cast<size_t>(r), b, part % kForm.parts), sum);
        }
        Store(at, sum);
      }
    }
    // gcc 12 would keep the sums beside the next part's, and spill both.
    __asm__ volatile("" ::: "memory");
  }
}

// dots += the digits of a block, from chunk kChunk up to kEnd, times kRows rows of activations.
// Pairs take the chains in turn.
template <PackedDigits kDigits, int kRows, int kChunk, int kEnd>
BATON_INLINE void StreamChunks(const std::byte* digits, const int16_t* a, size_t stride,
                               I32x16 (&dots)[kDotChains][kRows]) {
  if constexpr (kChunk < kEnd) {
    constexpr int kPairs = kPairsPerChunk<kDigits>;
    I32x16 pairs[kPairs];
    PairsOfChunk<kDigits, kChunk>(digits, pairs);
#pragma GCC unroll 8
    for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const int16_t* pair = a + r * stride + 2 * (kChunk * kPairs + i);
        I32x16* dot = &dots[i % kDotChains][r];
        *dot = MulAddPairs(*dot, pairs[i], BroadcastPair(pair));
        KeepOrder(dot);
      }
    }
    StreamChunks<kDigits, kRows, kChunk + 1, kEnd>(digits, a, stride, dots);
  }
}

// Where a sum of products with stored digits starts: at minus what their offset adds to the sum.
// For part kPart of kParts of block b; exact, as the sum is.
template <PackedDigits kDigits, int kParts, int kPart>
BATON_INLINE I32x16 StartOfSum(const A16Rows& rows, size_t row, uint32_t b) {
  if constexpr (OffsetOf(kDigits) == 0) return SetI(0);
  const int32_t* halves = rows.half_total + 2 * (row * rows.scale_stride + b);
  return SetI(-OffsetOf(kDigits) * (kParts == 2 ? halves[kPart] : halves[0] + halves[1]));
}

// dot += the nibbles of a block times kRows rows of activations. Nibbles are multiplied where they
// stand, as 1, 16 and 256 times their digits, in a sum each: a mask a pair instead of a mask
// and a shift, and three short chains instead of a long one. The largest sum is below 8 * 15 * 256
// * 32767 < 2^30, and shifts take off what are zeros, so all of it is exact.
template <int kRows>
BATON_INLINE void StreamNibbles(const std::byte* digits, const int16_t* a, size_t stride,
                                I32x16 (&dot)[kRows]) {
  I32x16 by_16[kRows];
  I32x16 by_256[kRows];
  for (int r = 0; r < kRows; ++r) by_16[r] = by_256[r] = SetI(0);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const I32x16 chunk = LoadOnce(digits + c * 64);
    const I32x16 pairs[4] = {AndI(chunk, SetI(0x000F000F)), AndI(chunk, SetI(0x00F000F0)),
                             AndI(chunk, SetI(0x0F000F00)), ShiftRight16<12>(chunk)};
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const int16_t* pair = a + r * stride + 8 * c;
      dot[r] = MulAddPairs(dot[r], pairs[0], BroadcastPair(pair));
      KeepOrder(&dot[r]);
      by_16[r] = MulAddPairs(by_16[r], pairs[1], BroadcastPair(pair + 2));
      KeepOrder(&by_16[r]);
      by_256[r] = MulAddPairs(by_256[r], pairs[2], BroadcastPair(pair + 4));
      KeepOrder(&by_256[r]);
      dot[r] = MulAddPairs(dot[r], pairs[3], BroadcastPair(pair + 6));
      KeepOrder(&dot[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    dot[r] = AddI(dot[r], AddI(ShiftRightSigned<4>(by_16[r]), ShiftRightSigned<8>(by_256[r])));
  }
}

// One block of a packed panel.
struct PanelBlock {
  const std::byte* super;  // scales of the super-block, where the type has any
  const std::byte* block;  // scales, then digits
};

// sum [kRows] += the elements of a block that share its kPart-th scale.
template <PackedDigits kDigits, PackedScales kScales, int kRows, int kPart>
BATON_INLINE void StreamPart(const PanelBlock& w, const A16Rows& rows, uint32_t b, F32x16* sum) {
  constexpr int kParts = ScalesPerBlock(kScales);
  constexpr int kChunks = 16 / kPairsPerChunk<kDigits> / kParts;
  constexpr bool kIsNibbles =
      kDigits == PackedDigits::kNibbles || kDigits == PackedDigits::kNibblesOff8;
  const std::byte* digits = w.block + BlockScaleBytes(kScales);
  const int16_t* a = rows.q + b * kQuantBlock;
  I32x16 dots[kDotChains][kRows];
  I32x16(&dot)[kRows] = dots[0];
  for (int r = 0; r < kRows; ++r) {
    dot[r] = StartOfSum<kDigits, kParts, kPart>(rows, static_cast<size_t>(r), b);
  }
  if constexpr (kIsNibbles && kRows <= kNibbleRows) {
    StreamNibbles<kRows>(digits, a, rows.q_stride, dot);
  } else {
    for (int i = 1; i < kDotChains; ++i) {
      for (int r = 0; r < kRows; ++r) dots[i][r] = SetI(0);
    }
    StreamChunks<kDigits, kRows, kPart * kChunks, (kPart + 1) * kChunks>(digits, a, rows.q_stride,
                                                                         dots);
    for (int i = 1; i < kDotChains; ++i) {
      for (int r = 0; r < kRows; ++r) dot[r] = AddI(dot[r], dots[i][r]);
    }
  }
  const F32x16 d = LoadScale<kScales, kPart>(w.super, w.block);
  for (int r = 0; r < kRows; ++r) {
    const F32x16 s = Mul(d, Set1(rows.scale[r * rows.scale_stride + b]));
    sum[r] = Fma(s, ToFloat(dot[r]), sum[r]);
    if constexpr (HasMin(kScales)) {
      const F32x16 m = LoadMin<kScales, kPart>(w.super, w.block);
      sum[r] = Fma(m, SumForMin<FormOf(kScales)>(rows, static_cast<size_t>(r), b, kPart), sum[r]);
    }
  }
}

// acc [kRows] = one packed panel times kRows rows. Each byte of the panel is read once.
template <PackedDigits kDigits, PackedScales kScales, int kRows>
inline void StreamPanel(const std::byte* panel, uint32_t num_blocks, const A16Rows& rows,
                        F32x16* acc) {
  F32x16 sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = Zero();
  for (uint32_t b = 0; b < num_blocks; ++b) {
    const PanelBlock w = {panel + SuperOffset(kDigits, kScales, b),
                          panel + BlockOffset(kDigits, kScales, b)};
    for (size_t line = 0; line < BlockBytes(kDigits, kScales); line += 64) {
      __builtin_prefetch(w.block + kPrefetchBytes + line);
    }
    StreamPart<kDigits, kScales, kRows, 0>(w, rows, b, sum);
    if constexpr (ScalesPerBlock(kScales) == 2) {
      StreamPart<kDigits, kScales, kRows, 1>(w, rows, b, sum);
    }
  }
  for (int r = 0; r < kRows; ++r) acc[r] = sum[r];
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_CORE_A16_H_
