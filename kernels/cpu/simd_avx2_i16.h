// The integer part of the 16-lane vector in AVX2: bytes and pairs of int16, for the quantised
// matmul. See simd_avx2.h.
#ifndef BATON_KERNELS_CPU_SIMD_AVX2_I16_H_
#define BATON_KERNELS_CPU_SIMD_AVX2_I16_H_

#include "kernels/cpu/simd_avx2.h"

namespace baton::kernels::BATON_ISA {

// 64 bytes as they are.
BATON_INLINE I32x16 LoadInts(const void* p) { return LoadPairs(p); }
BATON_INLINE void StoreInts(void* p, I32x16 v) {
  auto* out = static_cast<__m256i*>(p);
  _mm256_storeu_si256(out, v.lo);
  _mm256_storeu_si256(out + 1, v.hi);
}
// 16 bytes, without or with a sign.
BATON_INLINE I32x16 LoadBytes(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
BATON_INLINE I32x16 LoadSignedBytes(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
// Two int16 in every lane.
using PairInAllLanes = __m256i;
BATON_INLINE PairInAllLanes BroadcastPair(const int16_t* pair) {
  int32_t bits;
  __builtin_memcpy(&bits, pair, sizeof(bits));
  return _mm256_set1_epi32(bits);
}
// acc + w[0] a[0] + w[1] a[1] in each lane, int32.
BATON_INLINE I32x16 MulAddPairs(I32x16 acc, I32x16 w, PairInAllLanes a) {
  return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(w.lo, a)),
          _mm256_add_epi32(acc.hi, _mm256_madd_epi16(w.hi, a))};
}
// As MulAddPairs, in place.
BATON_INLINE void MulAddInto(I32x16* acc, I32x16 w, PairInAllLanes a) {
  *acc = MulAddPairs(*acc, w, a);
}
// Keeps the compiler from joining the sums before and after into one tree: gcc 12 makes a block's
// 16 exact additions one, and spills its leaves (a third of the speed of a decode step on Zen 3).
BATON_INLINE void KeepOrder(I32x16* sum) { __asm__("" : "+x"(sum->lo), "+x"(sum->hi)); }
// See simd_avx512_i16.h; halves of a vector never cross a line.
BATON_INLINE void KeepInRegister(I32x16*) {}
// Operations on 32 lanes of 16 bits.
template <int kBits>
BATON_INLINE I32x16 ShiftRight16(I32x16 v) {
  return {_mm256_srli_epi16(v.lo, kBits), _mm256_srli_epi16(v.hi, kBits)};
}
template <int kBits>
BATON_INLINE I32x16 ShiftRightSigned16(I32x16 v) {
  return {_mm256_srai_epi16(v.lo, kBits), _mm256_srai_epi16(v.hi, kBits)};
}
template <int kBits>
BATON_INLINE I32x16 ShiftLeft16(I32x16 v) {
  return {_mm256_slli_epi16(v.lo, kBits), _mm256_slli_epi16(v.hi, kBits)};
}
BATON_INLINE I32x16 Sub16(I32x16 a, I32x16 b) {
  return {_mm256_sub_epi16(a.lo, b.lo), _mm256_sub_epi16(a.hi, b.hi)};
}
// Each byte, an index below 16, to that byte of `table`.
BATON_INLINE I32x16 LookUp(const int8_t* table, I32x16 v) {
  const __m128i row = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  const __m256i both = _mm256_broadcastsi128_si256(row);
  return {_mm256_shuffle_epi8(both, v.lo), _mm256_shuffle_epi8(both, v.hi)};
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_SIMD_AVX2_I16_H_
