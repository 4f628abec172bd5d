// The integer part of the portable 16-lane vector: pairs of int16, for the quantised matmul. See
// simd_portable.h.
#ifndef BATON_KERNELS_CPU_SIMD_PORTABLE_I16_H_
#define BATON_KERNELS_CPU_SIMD_PORTABLE_I16_H_

#include "kernels/cpu/simd_portable.h"

namespace baton::kernels::BATON_ISA {

using I16x8 = int16_t __attribute__((vector_size(16)));
using I8x16 = int8_t __attribute__((vector_size(16)));
using U16x8 = uint16_t __attribute__((vector_size(16)));

// 64 bytes as they are.
BATON_INLINE I32x16 LoadInts(const void* p) { return LoadPairs(p); }
BATON_INLINE void StoreInts(void* p, I32x16 v) { std::memcpy(p, &v, sizeof(v)); }
// 16 bytes, without or with a sign.
BATON_INLINE I32x16 LoadBytes(const void* p) {
  uint8_t bytes[16];
  std::memcpy(bytes, p, sizeof(bytes));
  I32x16 out;
  for (int i = 0; i < 16; ++i) out.v[i / 4][i % 4] = bytes[i];
  return out;
}
BATON_INLINE I32x16 LoadSignedBytes(const void* p) {
  int8_t bytes[16];
  std::memcpy(bytes, p, sizeof(bytes));
  I32x16 out;
  for (int i = 0; i < 16; ++i) out.v[i / 4][i % 4] = int32_t{bytes[i]};
  return out;
}
// Two int16 in every lane.
using PairInAllLanes = I32x4;
BATON_INLINE PairInAllLanes BroadcastPair(const int16_t* pair) {
  int32_t bits;
  std::memcpy(&bits, pair, sizeof(bits));
  return I32x4{bits, bits, bits, bits};
}
// acc + w[0] a[0] + w[1] a[1] in each lane, int32.
BATON_INLINE I32x16 MulAddPairs(I32x16 acc, I32x16 w, PairInAllLanes a) {
  I32x16 out;
  for (int i = 0; i < 4; ++i) {
#if defined(__SSE2__)
    // Part of every x86-64; the compiler does not find it from the expression below.
    const auto products =
        __builtin_ia32_pmaddwd128(std::bit_cast<I16x8>(w.v[i]), std::bit_cast<I16x8>(a));
    out.v[i] = acc.v[i] + std::bit_cast<I32x4>(products);
#else
    // Low and high int16 of each lane, sign extended.
    out.v[i] = acc.v[i] + ((w.v[i] << 16) >> 16) * ((a << 16) >> 16) + (w.v[i] >> 16) * (a >> 16);
#endif
  }
  return out;
}
// As MulAddPairs, in place.
BATON_INLINE void MulAddInto(I32x16* acc, I32x16 w, PairInAllLanes a) {
  *acc = MulAddPairs(*acc, w, a);
}
// See simd_avx2_i16.h; integer sums are exact in any order.
BATON_INLINE void KeepOrder(I32x16*) {}
BATON_INLINE void KeepInRegister(I32x16*) {}
// Operations on 32 lanes of 16 bits.
template <int kBits>
BATON_INLINE I32x16 ShiftRight16(I32x16 v) {
  for (I32x4& part : v.v) part = std::bit_cast<I32x4>(std::bit_cast<U16x8>(part) >> kBits);
  return v;
}
template <int kBits>
BATON_INLINE I32x16 ShiftRightSigned16(I32x16 v) {
  for (I32x4& part : v.v) part = std::bit_cast<I32x4>(std::bit_cast<I16x8>(part) >> kBits);
  return v;
}
template <int kBits>
BATON_INLINE I32x16 ShiftLeft16(I32x16 v) {
  for (I32x4& part : v.v) part = std::bit_cast<I32x4>(std::bit_cast<U16x8>(part) << kBits);
  return v;
}
BATON_INLINE I32x16 Sub16(I32x16 a, I32x16 b) {
  for (int i = 0; i < 4; ++i) {
    a.v[i] = std::bit_cast<I32x4>(std::bit_cast<U16x8>(a.v[i]) - std::bit_cast<U16x8>(b.v[i]));
  }
  return a;
}
// Each byte, an index below 16, to that byte of `table`: one comparison for each value, since the
// baseline of x86-64 cannot look up.
BATON_INLINE I32x16 LookUp(const int8_t* table, I32x16 v) {
  I32x16 out;
  for (int i = 0; i < 4; ++i) {
    const I8x16 index = std::bit_cast<I8x16>(v.v[i]);
    I8x16 found = {};
    for (int8_t value = 0; value < 16; ++value) found |= (index == value) & table[value];
    out.v[i] = std::bit_cast<I32x4>(found);
  }
  return out;
}

BATON_INLINE int32_t MaxAllI(I32x16 v) {
  int32_t best = v.v[0][0];
  for (int i = 1; i < 16; ++i) best = v.v[i / 4][i % 4] > best ? v.v[i / 4][i % 4] : best;
  return best;
}
BATON_INLINE int32_t SumAllI(I32x16 v) {
  const I32x4 s4 = v.v[0] + v.v[1] + v.v[2] + v.v[3];
  return s4[0] + s4[1] + s4[2] + s4[3];
}
// Stores 16 lanes that fit int16.
BATON_INLINE void StoreI16(int16_t* p, I32x16 v) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int16_t>(v.v[i / 4][i % 4]);
}

// Stores 16 lanes as the bf16 of Bf16FromFloat.
BATON_INLINE void StoreBf16(uint16_t* p, F32x16 v) {
  for (int i = 0; i < 16; ++i) p[i] = Bf16FromFloat(v.v[i / 4][i % 4]);
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_SIMD_PORTABLE_I16_H_
