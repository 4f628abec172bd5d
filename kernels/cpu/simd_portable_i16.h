// The integer part of the portable 16-lane vector: pairs of int16, for the quantised matmul. See
// simd_portable.h.
#ifndef BATON_KERNELS_CPU_SIMD_PORTABLE_I16_H_
#define BATON_KERNELS_CPU_SIMD_PORTABLE_I16_H_

#include "kernels/cpu/simd_portable.h"

namespace baton::BATON_ISA {

using I16x8 = int16_t __attribute__((vector_size(16)));
using U16x8 = uint16_t __attribute__((vector_size(16)));

// 64 bytes as they are.
BATON_INLINE I32x16 LoadInts(const void* p) { return LoadPairs(p); }
BATON_INLINE void StoreInts(void* p, I32x16 v) { std::memcpy(p, &v, sizeof(v)); }
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
// As MulAddPairs with a pair from memory.
BATON_INLINE void MulAddBroadcast(I32x16* acc, I32x16 w, const int16_t* pair) {
  *acc = MulAddPairs(*acc, w, BroadcastPair(pair));
}
// See simd_avx2.h; integer sums are exact in any order.
BATON_INLINE void KeepOrder(I32x16*) {}
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

}  // namespace baton::BATON_ISA

#endif  // BATON_KERNELS_CPU_SIMD_PORTABLE_I16_H_
