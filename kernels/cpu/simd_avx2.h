// The 16-lane vector of kernels/cpu in AVX2 + FMA + F16C: two 256-bit halves. Included once by a
// translation unit that is compiled for AVX2 and defines BATON_ISA; the operations are listed in
// README.md ("The 16-lane vector"). Everything is inlined, so nothing compiled for AVX2 leaves the
// unit.
#ifndef BATON_KERNELS_CPU_SIMD_AVX2_H_
#define BATON_KERNELS_CPU_SIMD_AVX2_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#define BATON_INLINE inline __attribute__((always_inline))

namespace baton::kernels::BATON_ISA {

inline constexpr bool kFusedMulAdd = true;

// 16 fp32 lanes.
struct F32x16 {
  __m256 lo, hi;
};
// 16 int32 lanes.
struct I32x16 {
  __m256i lo, hi;
};

BATON_INLINE float FmaScalar(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
BATON_INLINE F32x16 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
BATON_INLINE F32x16 Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
BATON_INLINE I32x16 SetI(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
BATON_INLINE F32x16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
BATON_INLINE void Store(float* p, F32x16 v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}

// All ones in lanes [begin, end).
BATON_INLINE I32x16 LaneMask(int32_t begin, int32_t end) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i first = _mm256_set1_epi32(begin - 1);
  const __m256i last = _mm256_set1_epi32(end);
  const __m256i lane_hi = _mm256_add_epi32(lane, _mm256_set1_epi32(8));
  return {_mm256_and_si256(_mm256_cmpgt_epi32(lane, first), _mm256_cmpgt_epi32(last, lane)),
          _mm256_and_si256(_mm256_cmpgt_epi32(lane_hi, first), _mm256_cmpgt_epi32(last, lane_hi))};
}

// The first n lanes (0 <= n <= 16) from memory, the others 0; reads no other bytes.
BATON_INLINE F32x16 LoadN(const float* p, uint32_t n) {
  const I32x16 mask = LaneMask(0, static_cast<int32_t>(n));
  return {_mm256_maskload_ps(p, mask.lo), _mm256_maskload_ps(p + 8, mask.hi)};
}
BATON_INLINE void StoreN(float* p, F32x16 v, uint32_t n) {
  const I32x16 mask = LaneMask(0, static_cast<int32_t>(n));
  _mm256_maskstore_ps(p, mask.lo, v.lo);
  _mm256_maskstore_ps(p + 8, mask.hi, v.hi);
}

BATON_INLINE F32x16 Add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
BATON_INLINE F32x16 Sub(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
BATON_INLINE F32x16 Mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
BATON_INLINE F32x16 Div(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
BATON_INLINE F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// a > b ? a : b, so b when either is NaN; Min treats NaN so too.
BATON_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
BATON_INLINE F32x16 Min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
// v, and 0 in lanes where x < bound.
BATON_INLINE F32x16 ZeroWhereLess(F32x16 x, F32x16 bound, F32x16 v) {
  return {_mm256_andnot_ps(_mm256_cmp_ps(x.lo, bound.lo, _CMP_LT_OQ), v.lo),
          _mm256_andnot_ps(_mm256_cmp_ps(x.hi, bound.hi, _CMP_LT_OQ), v.hi)};
}
// v in lanes [begin, end), fill in the others.
BATON_INLINE F32x16 KeepLanes(F32x16 v, int32_t begin, int32_t end, F32x16 fill) {
  const I32x16 mask = LaneMask(begin, end);
  return {_mm256_blendv_ps(fill.lo, v.lo, _mm256_castsi256_ps(mask.lo)),
          _mm256_blendv_ps(fill.hi, v.hi, _mm256_castsi256_ps(mask.hi))};
}

BATON_INLINE I32x16 BitsOf(F32x16 v) {
  return {_mm256_castps_si256(v.lo), _mm256_castps_si256(v.hi)};
}
BATON_INLINE F32x16 FromBits(I32x16 v) {
  return {_mm256_castsi256_ps(v.lo), _mm256_castsi256_ps(v.hi)};
}
BATON_INLINE I32x16 AddI(I32x16 a, I32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
BATON_INLINE I32x16 AndI(I32x16 a, I32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
BATON_INLINE I32x16 OrI(I32x16 a, I32x16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
BATON_INLINE I32x16 MaxI(I32x16 a, I32x16 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
template <int kBits>
BATON_INLINE I32x16 ShiftLeft(I32x16 a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
BATON_INLINE I32x16 ShiftRightSigned(I32x16 a) {
  return {_mm256_srai_epi32(a.lo, kBits), _mm256_srai_epi32(a.hi, kBits)};
}
BATON_INLINE F32x16 ToFloat(I32x16 v) {
  return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)};
}
// Round to nearest even; |v| < 2^22.
BATON_INLINE I32x16 ToInt(F32x16 v) { return {_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi)}; }

// The fixed tree: lanes i + 8, then + 4, then + 2, then + 1.
BATON_INLINE float SumTree(F32x16 v) {
  const __m256 s8 = _mm256_add_ps(v.lo, v.hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
BATON_INLINE float MaxAll(F32x16 v) {
  const __m256 m8 = _mm256_max_ps(v.lo, v.hi);
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}
BATON_INLINE int32_t MaxAllI(I32x16 v) {
  const __m256i m8 = _mm256_max_epi32(v.lo, v.hi);
  const __m128i m4 = _mm_max_epi32(_mm256_castsi256_si128(m8), _mm256_extracti128_si256(m8, 1));
  const __m128i m2 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(m2, _mm_shuffle_epi32(m2, 0xB1)));
}
BATON_INLINE int32_t SumAllI(I32x16 v) {
  const __m256i s8 = _mm256_add_epi32(v.lo, v.hi);
  const __m128i s4 = _mm_add_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
  const __m128i s2 = _mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s2, _mm_shuffle_epi32(s2, 0xB1)));
}
// Stores 16 lanes that fit int16.
BATON_INLINE void StoreI16(int16_t* p, I32x16 v) {
  const __m256i packed = _mm256_packs_epi32(v.lo, v.hi);  // interleaved by 128-bit halves
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}

// 16 half / bf16 values to fp32; exact.
BATON_INLINE F32x16 LoadHalf(const void* p) {
  const auto* v = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(v)), _mm256_cvtph_ps(_mm_loadu_si128(v + 1))};
}
BATON_INLINE F32x16 LoadBf16(const void* p) {
  const auto* v = static_cast<const __m128i*>(p);
  return FromBits({_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(v)), 16),
                   _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(v + 1)), 16)});
}
// The upper halves of 8 lanes after rounding as Bf16FromFloat does, each as an int32 with its sign.
BATON_INLINE __m256i RoundedBf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  const __m256 chosen =
      _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan);
  return _mm256_srai_epi32(_mm256_castps_si256(chosen), 16);
}
// Stores 16 lanes as the bf16 of Bf16FromFloat.
BATON_INLINE void StoreBf16(uint16_t* p, F32x16 v) {
  StoreI16(reinterpret_cast<int16_t*>(p), {RoundedBf16(v.lo), RoundedBf16(v.hi)});
}
// 16 pairs of bf16; PairLow and PairHigh take the first and second of each to fp32.
BATON_INLINE I32x16 LoadPairs(const void* p) {
  const auto* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
BATON_INLINE F32x16 PairLow(I32x16 v) { return FromBits(ShiftLeft<16>(v)); }
BATON_INLINE F32x16 PairHigh(I32x16 v) {
  return FromBits(AndI(v, SetI(static_cast<int32_t>(0xFFFF0000u))));
}

// (x0, x1, x2, x3, ...) to (x1, x0, x3, x2, ...), (x0, x0, x2, x2, ...), (x1, x1, x3, x3, ...).
BATON_INLINE F32x16 SwapPairs(F32x16 v) {
  return {_mm256_permute_ps(v.lo, 0xB1), _mm256_permute_ps(v.hi, 0xB1)};
}
// Lane i becomes lane i ^ kApart, a power of two below 16.
template <int kApart>
BATON_INLINE F32x16 SwapLanes(F32x16 v) {
  if constexpr (kApart == 1) return SwapPairs(v);
  if constexpr (kApart == 2) return {_mm256_permute_ps(v.lo, 0x4E), _mm256_permute_ps(v.hi, 0x4E)};
  if constexpr (kApart == 4) {
    return {_mm256_permute2f128_ps(v.lo, v.lo, 1), _mm256_permute2f128_ps(v.hi, v.hi, 1)};
  }
  if constexpr (kApart == 8) return {v.hi, v.lo};
}
BATON_INLINE F32x16 DupEven(F32x16 v) {
  return {_mm256_moveldup_ps(v.lo), _mm256_moveldup_ps(v.hi)};
}
BATON_INLINE F32x16 DupOdd(F32x16 v) {
  return {_mm256_movehdup_ps(v.lo), _mm256_movehdup_ps(v.hi)};
}
// A quarter is 4 neighbouring lanes: (a0, b0, a1, b1), (a2, b2, a3, b3), (a0, a1, b0, b1), ...
BATON_INLINE F32x16 MixLow(F32x16 a, F32x16 b) {
  return {_mm256_unpacklo_ps(a.lo, b.lo), _mm256_unpacklo_ps(a.hi, b.hi)};
}
BATON_INLINE F32x16 MixHigh(F32x16 a, F32x16 b) {
  return {_mm256_unpackhi_ps(a.lo, b.lo), _mm256_unpackhi_ps(a.hi, b.hi)};
}
BATON_INLINE F32x16 JoinLow(F32x16 a, F32x16 b) {
  return {_mm256_shuffle_ps(a.lo, b.lo, 0x44), _mm256_shuffle_ps(a.hi, b.hi, 0x44)};
}
BATON_INLINE F32x16 JoinHigh(F32x16 a, F32x16 b) {
  return {_mm256_shuffle_ps(a.lo, b.lo, 0xEE), _mm256_shuffle_ps(a.hi, b.hi, 0xEE)};
}
// Lane kLane of each quarter to all lanes of that quarter.
template <int kLane>
BATON_INLINE F32x16 DupOfQuarter(F32x16 v) {
  return {_mm256_permute_ps(v.lo, kLane * 0x55), _mm256_permute_ps(v.hi, kLane * 0x55)};
}
// Stores the first quarter.
BATON_INLINE void StoreQuarter(void* p, F32x16 v) {
  _mm_storeu_ps(static_cast<float*>(p), _mm256_castps256_ps128(v.lo));
}
// Even lanes a * b - c, odd lanes a * b + c, one rounding.
BATON_INLINE F32x16 FmaSubAdd(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmaddsub_ps(a.lo, b.lo, c.lo), _mm256_fmaddsub_ps(a.hi, b.hi, c.hi)};
}

// See attention_tile.h: query rows that share a load of K or V; chains of one pass at most.
inline constexpr uint32_t kAttentionRows = 4;
inline constexpr int kAttentionChains = 4;
// See core_a16.h: a tile of a matmul; rows that read packed panels; sums of a block; nibbles' rows.
inline constexpr uint32_t kTileRows = 6;
inline constexpr uint32_t kTilePanels = 1;
inline constexpr uint32_t kMaxStreamRows = 16;
inline constexpr int kDotChains = 1;
inline constexpr int kNibbleRows = 1;

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_SIMD_AVX2_H_
