// The integer part of the 16-lane vector in AVX-512: bytes and pairs of int16, for the quantised
// matmul. See simd_avx512.h.
#ifndef BATON_KERNELS_CPU_SIMD_AVX512_I16_H_
#define BATON_KERNELS_CPU_SIMD_AVX512_I16_H_

#include "kernels/cpu/simd_avx512.h"

namespace baton::kernels::BATON_ISA {

// 64 bytes as they are.
BATON_INLINE I32x16 LoadInts(const void* p) { return LoadPairs(p); }
BATON_INLINE void StoreInts(void* p, I32x16 v) { _mm512_storeu_si512(p, v.v); }
// 16 bytes, without or with a sign.
BATON_INLINE I32x16 LoadBytes(const void* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
BATON_INLINE I32x16 LoadSignedBytes(const void* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
// Two int16 in every lane.
using PairInAllLanes = __m512i;
BATON_INLINE PairInAllLanes BroadcastPair(const int16_t* pair) {
  int32_t bits;
  __builtin_memcpy(&bits, pair, sizeof(bits));
  return _mm512_set1_epi32(bits);
}
// acc + w[0] a[0] + w[1] a[1] in each lane, int32.
BATON_INLINE I32x16 MulAddPairs(I32x16 acc, I32x16 w, PairInAllLanes a) {
  return {_mm512_dpwssd_epi32(acc.v, w.v, a)};
}
// As MulAddPairs, in place. Assembly, because gcc 12 copies each sum of a tile that is written with
// the intrinsic, and spills it: 72 instructions beside 24 vpdpwssd.
BATON_INLINE void MulAddInto(I32x16* acc, I32x16 w, PairInAllLanes a) {
#if defined(BATON_AVX512_EMULATION)
  *acc = MulAddPairs(*acc, w, a);
#else
  __asm__("vpdpwssd %2, %1, %0" : "+v"(acc->v) : "v"(w.v), "v"(a));
#endif
}
// See simd_avx2_i16.h; vpdpwssd is a chain already.
BATON_INLINE void KeepOrder(I32x16*) {}
// Keeps the compiler from loading v again for each of its uses.
BATON_INLINE void KeepInRegister(I32x16* v) {
#if !defined(BATON_AVX512_EMULATION)
  __asm__("" : "+v"(v->v));
#else
  (void)v;
#endif
}
// Operations on 32 lanes of 16 bits.
template <int kBits>
BATON_INLINE I32x16 ShiftRight16(I32x16 v) {
  return {_mm512_srli_epi16(v.v, kBits)};
}
template <int kBits>
BATON_INLINE I32x16 ShiftRightSigned16(I32x16 v) {
  return {_mm512_srai_epi16(v.v, kBits)};
}
template <int kBits>
BATON_INLINE I32x16 ShiftLeft16(I32x16 v) {
  return {_mm512_slli_epi16(v.v, kBits)};
}
BATON_INLINE I32x16 Sub16(I32x16 a, I32x16 b) { return {_mm512_sub_epi16(a.v, b.v)}; }
// Each byte, an index below 16, to that byte of `table`.
BATON_INLINE I32x16 LookUp(const int8_t* table, I32x16 v) {
  const __m128i row = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  const __m256i both = _mm256_broadcastsi128_si256(row);
  return {_mm512_shuffle_epi8(Join(both, both), v.v)};
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_SIMD_AVX512_I16_H_
