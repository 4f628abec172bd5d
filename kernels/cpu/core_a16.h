// Cores of the quantised matmul, shared by every instruction set: int16 pairs of consecutive k
// (lanes = outputs) times a broadcast pair of activations, summed in int32. Sums over a block are
// exact: 32 * 128 * 32767 < 2^31. Included after one of the simd_*.h headers, which give kTileRows
// (the tile fills the registers: on AVX2 6 rows x 2 registers of sums + 2 of weights + 1 broadcast
// + 1 product).
#ifndef BATON_KERNELS_CPU_CORE_A16_H_
#define BATON_KERNELS_CPU_CORE_A16_H_

#include "kernels/packed_matrix.h"

namespace baton::BATON_ISA {

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
  const int16_t* q;     // first row, first block
  const float* scale;   // likewise
  const float* sum;     // likewise
  size_t q_stride;      // elements between rows
  size_t scale_stride;  // blocks between rows
};

// The int16 pairs of one chunk of digits (64 bytes): 4 for nibbles, 2 for bytes.
template <PackedDigits kDigits>
inline constexpr int kPairsPerChunk = kDigits == PackedDigits::kBytes ? 2 : 4;

template <PackedDigits kDigits>
BATON_INLINE void PairsOfChunk(I32x16 chunk, I32x16* pairs) {
  if constexpr (kDigits == PackedDigits::kBytes) {
    pairs[0] = ShiftRightSigned16<8>(ShiftLeft16<8>(chunk));
    pairs[1] = ShiftRightSigned16<8>(chunk);
  } else {
    const I32x16 nibble = SetI(0x000F000F);
    pairs[0] = AndI(chunk, nibble);
    pairs[1] = AndI(ShiftRight16<4>(chunk), nibble);
    pairs[2] = AndI(ShiftRight16<8>(chunk), nibble);
    pairs[3] = ShiftRight16<12>(chunk);
    if constexpr (kDigits == PackedDigits::kNibblesOff8) {
      for (int i = 0; i < 4; ++i) pairs[i] = Sub16(pairs[i], SetI(0x00080008));
    }
  }
}

// Unpacks the digits of one block to out [16 pairs][16 rows][2].
template <PackedDigits kDigits>
BATON_INLINE void UnpackDigits(const std::byte* digits, int16_t* out) {
  constexpr int kPairs = kPairsPerChunk<kDigits>;
  for (int chunk = 0; chunk < 16 / kPairs; ++chunk) {
    I32x16 pairs[kPairs];
    PairsOfChunk<kDigits>(LoadInts(digits + chunk * 64), pairs);
    for (int i = 0; i < kPairs; ++i) {
      StoreInts(out + (chunk * kPairs + i) * 2 * kPanelRows, pairs[i]);
    }
  }
}

// dot [kRows][16] = one block: w [16 pairs][16][2] times kRows rows of 32 that are `stride`
// elements apart.
template <int kRows>
BATON_INLINE void DotBlock(const int16_t* w, const int16_t* rows, size_t stride,
                           I32x16 (&dot)[kRows]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) dot[r] = SetI(0);
#pragma GCC unroll 2
  for (int i = 0; i < 16; ++i) {
    const I32x16 pair = LoadInts(w + i * 2 * kPanelRows);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) MulAddBroadcast(&dot[r], pair, rows + r * stride + 2 * i);
  }
}

// Unpacked blocks of one panel.
struct PanelStretch {
  const int16_t* digits;  // [num_blocks][16 pairs][16 outputs][2]
  const float* scale;     // [num_blocks][16]
  const float* min;       // likewise; read only when the type has one
  uint32_t num_blocks;
};

// acc [kRows][16] += the stretch times kRows rows.
template <bool kHasMin, int kRows>
inline void Tile(const PanelStretch& panel, const A16Rows& rows, float* acc) {
  for (uint32_t b = 0; b < panel.num_blocks; ++b) {
    const int16_t* w = panel.digits + b * (kQuantBlock * kPanelRows);
    const int16_t* a = rows.q + b * kQuantBlock;
    I32x16 dot[kRows];
    DotBlock(w, a, rows.q_stride, dot);
    const F32x16 d = Load(panel.scale + b * kPanelRows);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F32x16 s = Mul(d, Set1(rows.scale[r * rows.scale_stride + b]));
      F32x16 sum = Fma(s, ToFloat(dot[r]), Load(acc + r * kPanelRows));
      if constexpr (kHasMin) {
        sum = Fma(Load(panel.min + b * kPanelRows), Set1(rows.sum[r * rows.scale_stride + b]), sum);
      }
      Store(acc + r * kPanelRows, sum);
    }
  }
}

// acc [kRows] = one packed panel times kRows rows. Each byte of the panel is read once.
template <PackedDigits kDigits, bool kHasMin, int kRows>
inline void StreamPanel(const std::byte* panel, uint32_t num_blocks, const A16Rows& rows,
                        F32x16* acc) {
  constexpr int kPairs = kPairsPerChunk<kDigits>;
  constexpr size_t kHeader = kPanelRows * 2 * (kHasMin ? 2 : 1);
  constexpr size_t kBlockBytes = kHeader + 64 * (16 / kPairs);
  F32x16 sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = Zero();
  for (uint32_t b = 0; b < num_blocks; ++b) {
    const std::byte* block = panel + b * kBlockBytes;
    const int16_t* a = rows.q + b * kQuantBlock;
    for (size_t line = 0; line < kBlockBytes; line += 64)
      __builtin_prefetch(block + kPrefetchBytes + line);
    I32x16 dot[kRows];
    for (int r = 0; r < kRows; ++r) dot[r] = SetI(0);
#pragma GCC unroll 8
    for (int chunk = 0; chunk < 16 / kPairs; ++chunk) {
      I32x16 pairs[kPairs];
      PairsOfChunk<kDigits>(LoadInts(block + kHeader + chunk * 64), pairs);
#pragma GCC unroll 4
      for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const int16_t* pair = a + r * rows.q_stride + 2 * (chunk * kPairs + i);
          dot[r] = MulAddPairs(dot[r], pairs[i], BroadcastPair(pair));
          KeepOrder(&dot[r]);
        }
      }
    }
    const F32x16 d = LoadHalf(block);
    for (int r = 0; r < kRows; ++r) {
      const F32x16 s = Mul(d, Set1(rows.scale[r * rows.scale_stride + b]));
      sum[r] = Fma(s, ToFloat(dot[r]), sum[r]);
      if constexpr (kHasMin) {
        const F32x16 m = LoadHalf(block + kPanelRows * 2);
        sum[r] = Fma(m, Set1(rows.sum[r * rows.scale_stride + b]), sum[r]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) acc[r] = sum[r];
}

}  // namespace baton::BATON_ISA

#endif  // BATON_KERNELS_CPU_CORE_A16_H_
