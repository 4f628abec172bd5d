// From the packed form of quantised weights (packed_matrix.h) to what is multiplied: pairs of int16
// and fp32 scales of 16 outputs. Included after one of the simd_*.h headers.
#ifndef BATON_KERNELS_CPU_UNPACK_A16_H_
#define BATON_KERNELS_CPU_UNPACK_A16_H_

#include "kernels/packed_matrix.h"

namespace baton::kernels::BATON_ISA {

// The int16 pairs of one chunk of digits: 4 in 64 bytes of nibbles, 2 in 64 bytes. A chunk of
// digits of two or three bits is half a block.
template <PackedDigits kDigits>
inline constexpr int kPairsPerChunk = 4;
template <>
inline constexpr int kPairsPerChunk<PackedDigits::kBytes> = 2;
template <>
inline constexpr int kPairsPerChunk<PackedDigits::kThree> = 8;
template <>
inline constexpr int kPairsPerChunk<PackedDigits::kTwo> = 8;

// 64 bytes for several uses. The compiler would load them again for each use. In types with 32
// bytes of scales a block they cross a line, and such a load counts twice.
BATON_INLINE I32x16 LoadOnce(const std::byte* p) {
  I32x16 v = LoadInts(p);
  KeepInRegister(&v);
  return v;
}

// Shifts 16-bit lanes to the right, or to the left where kBits is negative.
template <int kBits>
BATON_INLINE I32x16 Shift16(I32x16 v) {
  if constexpr (kBits > 0) return ShiftRight16<kBits>(v);
  if constexpr (kBits < 0) return ShiftLeft16<-kBits>(v);
  if constexpr (kBits == 0) return v;
}

// The bits that lie above the nibbles of a chunk, moved to bits 4 and up of each byte. They belong
// to the high nibbles where kHigh is set, else to the low ones.
template <PackedDigits kDigits, int kChunk, bool kHigh>
BATON_INLINE I32x16 UpperBits(I32x16 planes) {
  if constexpr (kDigits == PackedDigits::kSixOff32) {
    constexpr int kBit = 2 * (2 * (kChunk % 2) + kHigh);
    return AndI(Shift16<kBit - 4>(planes), SetI(0x30303030));
  } else {
    return AndI(Shift16<2 * kChunk + kHigh - 4>(planes), SetI(0x10101010));
  }
}

// The pairs of a chunk of nibbles by way of its bytes, for digits of more than a nibble: taken
// apart to int16 last, they cost two thirds of the instructions.
template <PackedDigits kDigits, int kChunk>
BATON_INLINE void PairsOfBytes(const std::byte* digits, I32x16* pairs) {
  const I32x16 chunk = LoadOnce(digits + kChunk * 64);
  I32x16 low = AndI(chunk, SetI(0x0F0F0F0F));
  I32x16 high = AndI(ShiftRight16<4>(chunk), SetI(0x0F0F0F0F));
  if constexpr (kDigits == PackedDigits::kFp4 || kDigits == PackedDigits::kIq4) {
    constexpr auto& kValues = kDigits == PackedDigits::kFp4 ? kFp4Values : kIq4Values;
    low = LookUp(kValues, low);
    high = LookUp(kValues, high);
    pairs[0] = ShiftRightSigned16<8>(ShiftLeft16<8>(low));
    pairs[1] = ShiftRightSigned16<8>(ShiftLeft16<8>(high));
    pairs[2] = ShiftRightSigned16<8>(low);
    pairs[3] = ShiftRightSigned16<8>(high);
    return;
  }
  constexpr size_t kPlanes = kDigits == PackedDigits::kSixOff32 ? kChunk / 2 * 64 : 0;
  const I32x16 planes = LoadOnce(digits + kNibbleBytes + kPlanes);
  low = OrI(low, UpperBits<kDigits, kChunk, false>(planes));
  high = OrI(high, UpperBits<kDigits, kChunk, true>(planes));
  pairs[0] = AndI(low, SetI(0x00FF00FF));
  pairs[1] = AndI(high, SetI(0x00FF00FF));
  pairs[2] = ShiftRight16<8>(low);
  pairs[3] = ShiftRight16<8>(high);
}

// Pair kPair (0..14) of digits of three bits, of which `word` has five: shifted up, then down with
// the sign.
template <int kPair>
BATON_INLINE I32x16 PairOfThreeBits(I32x16 word) {
  constexpr int kUp = 13 - 3 * (kPair % 5);
  return ShiftRightSigned16<13>(Shift16<-kUp>(word));
}

// The upper bits of the three words: 2.4 operations a pair in all, and 2.5 for nibbles that have an
// offset.
BATON_INLINE I32x16 LastPairOfThreeBits(I32x16 first, I32x16 second, I32x16 third) {
  const I32x16 low = OrI(ShiftRight16<15>(first), AndI(ShiftRight16<14>(second), SetI(0x00020002)));
  return OrI(low, ShiftLeft16<2>(ShiftRightSigned16<15>(third)));
}

template <int kChunk>
BATON_INLINE void PairsOfThreeBits(const std::byte* digits, I32x16* pairs) {
  const I32x16 second = LoadOnce(digits + 64);
  if constexpr (kChunk == 0) {
    const I32x16 first = LoadOnce(digits);
    pairs[0] = PairOfThreeBits<0>(first);
    pairs[1] = PairOfThreeBits<1>(first);
    pairs[2] = PairOfThreeBits<2>(first);
    pairs[3] = PairOfThreeBits<3>(first);
    pairs[4] = PairOfThreeBits<4>(first);
    pairs[5] = PairOfThreeBits<5>(second);
    pairs[6] = PairOfThreeBits<6>(second);
    pairs[7] = PairOfThreeBits<7>(second);
  } else {
    const I32x16 third = LoadOnce(digits + 128);
    pairs[0] = PairOfThreeBits<8>(second);
    pairs[1] = PairOfThreeBits<9>(second);
    pairs[2] = PairOfThreeBits<10>(third);
    pairs[3] = PairOfThreeBits<11>(third);
    pairs[4] = PairOfThreeBits<12>(third);
    pairs[5] = PairOfThreeBits<13>(third);
    pairs[6] = PairOfThreeBits<14>(third);
    pairs[7] = LastPairOfThreeBits(LoadInts(digits), second, third);
  }
}

template <int kChunk>
BATON_INLINE void PairsOfTwoBits(const std::byte* digits, I32x16* pairs) {
  const I32x16 chunk = LoadOnce(digits + kChunk * 64);
  const I32x16 two_bits = SetI(0x00030003);
  pairs[0] = AndI(chunk, two_bits);
  pairs[1] = AndI(ShiftRight16<2>(chunk), two_bits);
  pairs[2] = AndI(ShiftRight16<4>(chunk), two_bits);
  pairs[3] = AndI(ShiftRight16<6>(chunk), two_bits);
  pairs[4] = AndI(ShiftRight16<8>(chunk), two_bits);
  pairs[5] = AndI(ShiftRight16<10>(chunk), two_bits);
  pairs[6] = AndI(ShiftRight16<12>(chunk), two_bits);
  pairs[7] = ShiftRight16<14>(chunk);
}

// The pairs of chunk kChunk of the digits of a block, as they are stored: with OffsetOf(kDigits)
// added.
template <PackedDigits kDigits, int kChunk>
BATON_INLINE void PairsOfChunk(const std::byte* digits, I32x16* pairs) {
  if constexpr (kDigits == PackedDigits::kBytes) {
    const I32x16 chunk = LoadOnce(digits + kChunk * 64);
    pairs[0] = ShiftRightSigned16<8>(ShiftLeft16<8>(chunk));
    pairs[1] = ShiftRightSigned16<8>(chunk);
  } else if constexpr (kDigits == PackedDigits::kThree) {
    PairsOfThreeBits<kChunk>(digits, pairs);
  } else if constexpr (kDigits == PackedDigits::kTwo) {
    PairsOfTwoBits<kChunk>(digits, pairs);
  } else if constexpr (kDigits == PackedDigits::kNibbles || kDigits == PackedDigits::kNibblesOff8) {
    const I32x16 chunk = LoadOnce(digits + kChunk * 64);
    const I32x16 nibble = SetI(0x000F000F);
    pairs[0] = AndI(chunk, nibble);
    pairs[1] = AndI(ShiftRight16<4>(chunk), nibble);
    pairs[2] = AndI(ShiftRight16<8>(chunk), nibble);
    pairs[3] = ShiftRight16<12>(chunk);
  } else {
    PairsOfBytes<kDigits, kChunk>(digits, pairs);
  }
}

// Unpacks the digits of one block, from chunk kChunk on, to one panel of out [16 pairs][kPanels][16
// rows][2].
template <PackedDigits kDigits, int kPanels, int kChunk = 0>
BATON_INLINE void UnpackDigits(const std::byte* digits, int16_t* out) {
  constexpr int kPairs = kPairsPerChunk<kDigits>;
  if constexpr (kChunk < 16 / kPairs) {
    I32x16 pairs[kPairs];
    PairsOfChunk<kDigits, kChunk>(digits, pairs);
    for (int i = 0; i < kPairs; ++i) {
      if constexpr (OffsetOf(kDigits) != 0) {
        pairs[i] = Sub16(pairs[i], SetI(OffsetOf(kDigits) * 0x00010001));
      }
      StoreInts(out + (kChunk * kPairs + i) * 2 * kPanels * kPanelRows, pairs[i]);
    }
    UnpackDigits<kDigits, kPanels, kChunk + 1>(digits, out);
  }
}

// The scales of one block of a panel: of its 16 rows, for all or the kPart-th half of its elements.
template <PackedScales kScales, int kPart>
BATON_INLINE F32x16 LoadScale(const std::byte* super, const std::byte* block) {
  if constexpr (kScales == PackedScales::kSuperAndMin) {
    return Mul(LoadHalf(super), ToFloat(LoadBytes(block)));
  } else if constexpr (kScales == PackedScales::kSuper || kScales == PackedScales::kSuperTwo) {
    return Mul(LoadHalf(super), ToFloat(LoadSignedBytes(block + kPart * kPanelRows)));
  } else if constexpr (kScales == PackedScales::kSuperTwoAndMins) {
    const I32x16 factors = AndI(LoadBytes(block + kPart * kPanelRows), SetI(15));
    return Mul(LoadHalf(super), ToFloat(factors));
  } else if constexpr (kScales == PackedScales::kPowerOfTwo) {
    // 2^(e - 128) by its bits: the first argument from e = 2 on, the second below (subnormal).
    const I32x16 e = LoadBytes(block);
    return FromBits(MaxI(ShiftLeft<23>(AddI(e, SetI(-1))), ShiftLeft<21>(AddI(e, SetI(1)))));
  } else {
    return LoadHalf(block);
  }
}
// The mins of one block of a panel, as LoadScale; only for types that have one.
template <PackedScales kScales, int kPart>
BATON_INLINE F32x16 LoadMin(const std::byte* super, const std::byte* block) {
  if constexpr (kScales == PackedScales::kSuperAndMin) {
    return Mul(LoadHalf(super + kPanelRows * 2), ToFloat(LoadBytes(block + kPanelRows)));
  } else if constexpr (kScales == PackedScales::kSuperTwoAndMins) {
    const I32x16 factors = ShiftRight16<4>(LoadBytes(block + kPart * kPanelRows));
    return Mul(LoadHalf(super + kPanelRows * 2), ToFloat(factors));
  } else {
    return LoadHalf(block + kPanelRows * 2);
  }
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_UNPACK_A16_H_
