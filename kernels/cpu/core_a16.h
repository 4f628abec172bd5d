// Cores of the quantised matmul, shared by every instruction set: int16 pairs of consecutive k
// (lanes = outputs) times a broadcast pair of activations, summed in int32. Sums over a block are
// exact: 32 * 128 * 32767 < 2^31. Included after one of the simd_*.h headers, which give kTileRows
// (the tile fills the registers: on AVX2 6 rows x 2 registers of sums + 2 of weights + 1 broadcast
// + 1 product).
#ifndef BATON_KERNELS_CPU_CORE_A16_H_
#define BATON_KERNELS_CPU_CORE_A16_H_

#include "kernels/cpu/unpack_a16.h"

namespace baton::kernels::BATON_ISA {

// Up to this many rows a panel is read straight from its packed form, kStreamRows at a time; above,
// unpacking it once costs less than taking its nibbles apart for each group of rows again.
inline constexpr uint32_t kMaxStreamRows = 16;
// Rows that share the digits while they are in registers.
inline constexpr uint32_t kStreamRows = 3;
// How far ahead a panel is asked for: one Zen 3 core then reads 23 GB/s of weights, and 17 GB/s
// with the hardware's own prefetching alone.
inline constexpr size_t kPrefetchBytes = 2560;

// The rows and blocks of activations that one call of a core works on.
struct A16Rows {
  const int16_t* q;       // first row, first block
  const float* scale;     // first row, first block
  const float* sum;       // first row, first block
  const float* half_sum;  // first row, first block
  size_t q_stride;        // elements between rows
  size_t scale_stride;    // blocks between rows
};

// The sum of activations that the kPart-th min of block b is multiplied by.
template <PackedScales kScales>
BATON_INLINE F32x16 SumForMin(const A16Rows& rows, size_t row, uint32_t b, uint32_t part) {
  const size_t block = row * rows.scale_stride + b;
  return Set1(ScalesPerBlock(kScales) == 2 ? rows.half_sum[2 * block + part] : rows.sum[block]);
}

// dot [kRows][16] = w [kPairs][16][2] times kRows rows that are `stride` elements apart.
template <int kPairs, int kRows>
BATON_INLINE void DotBlock(const int16_t* w, const int16_t* rows, size_t stride,
                           I32x16 (&dot)[kRows]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) dot[r] = SetI(0);
#pragma GCC unroll 2
  for (int i = 0; i < kPairs; ++i) {
    const I32x16 pair = LoadInts(w + i * 2 * kPanelRows);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) MulAddBroadcast(&dot[r], pair, rows + r * stride + 2 * i);
  }
}

// Unpacked blocks of one panel.
struct PanelStretch {
  const int16_t* digits;  // [num_blocks][16 pairs][16 outputs][2]
  const float* scale;     // [num_blocks][scales of a block][16]
  const float* min;       // as scale; read only when the type has one
  uint32_t num_blocks;
};

// acc [kRows][16] += the stretch times kRows rows.
template <PackedScales kScales, int kRows>
inline void Tile(const PanelStretch& panel, const A16Rows& rows, float* acc) {
  constexpr int kParts = ScalesPerBlock(kScales);
  constexpr int kPairs = 16 / kParts;
  // A part is what shares a scale: a block or half of one.
  for (uint32_t part = 0; part < panel.num_blocks * kParts; ++part) {
    const uint32_t b = part / kParts;
    I32x16 dot[kRows];
    DotBlock<kPairs>(panel.digits + part * (2 * kPairs * kPanelRows), rows.q + part * 2 * kPairs,
                     rows.q_stride, dot);
    const F32x16 d = Load(panel.scale + part * kPanelRows);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F32x16 s = Mul(d, Set1(rows.scale[r * rows.scale_stride + b]));
      F32x16 sum = Fma(s, ToFloat(dot[r]), Load(acc + r * kPanelRows));
      if constexpr (HasMin(kScales)) {
        sum = Fma(Load(panel.min + part * kPanelRows),
                  SumForMin<kScales>(rows, static_cast<size_t>(r), b, part % kParts), sum);
      }
      Store(acc + r * kPanelRows, sum);
    }
  }
}

// dot += the digits of a block, from chunk kChunk up to kEnd, times kRows rows of activations.
template <PackedDigits kDigits, int kRows, int kChunk, int kEnd>
BATON_INLINE void StreamChunks(const std::byte* digits, const int16_t* a, size_t stride,
                               I32x16 (&dot)[kRows]) {
  if constexpr (kChunk < kEnd) {
    constexpr int kPairs = kPairsPerChunk<kDigits>;
    I32x16 pairs[kPairs];
    PairsOfChunk<kDigits, kChunk>(digits, pairs);
#pragma GCC unroll 4
    for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const int16_t* pair = a + r * stride + 2 * (kChunk * kPairs + i);
        dot[r] = MulAddPairs(dot[r], pairs[i], BroadcastPair(pair));
        KeepOrder(&dot[r]);
      }
    }
    StreamChunks<kDigits, kRows, kChunk + 1, kEnd>(digits, a, stride, dot);
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
  constexpr int kChunks = 16 / kPairsPerChunk<kDigits> / ScalesPerBlock(kScales);
  I32x16 dot[kRows];
  for (int r = 0; r < kRows; ++r) dot[r] = SetI(0);
  StreamChunks<kDigits, kRows, kPart * kChunks, (kPart + 1) * kChunks>(
      w.block + BlockScaleBytes(kScales), rows.q + b * kQuantBlock, rows.q_stride, dot);
  const F32x16 d = LoadScale<kScales, kPart>(w.super, w.block);
  for (int r = 0; r < kRows; ++r) {
    const F32x16 s = Mul(d, Set1(rows.scale[r * rows.scale_stride + b]));
    sum[r] = Fma(s, ToFloat(dot[r]), sum[r]);
    if constexpr (HasMin(kScales)) {
      const F32x16 m = LoadMin<kScales, kPart>(w.super, w.block);
      sum[r] = Fma(m, SumForMin<kScales>(rows, static_cast<size_t>(r), b, kPart), sum[r]);
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
