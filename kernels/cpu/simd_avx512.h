// The 16-lane vector of kernels/cpu in AVX-512 (F, BW, DQ, VL, VNNI): one 512-bit register.
// Included once by a translation unit that is compiled for AVX-512 and defines BATON_ISA. For tests
// on machines without AVX-512, BATON_AVX512_EMULATION names a header that emulates the intrinsics.
// The operations are listed in README.md ("The 16-lane vector").
#ifndef BATON_KERNELS_CPU_SIMD_AVX512_H_
#define BATON_KERNELS_CPU_SIMD_AVX512_H_

#if defined(BATON_AVX512_EMULATION)
#include BATON_AVX512_EMULATION
#else
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>

#if !defined(BATON_INLINE)
#define BATON_INLINE inline __attribute__((always_inline))
#endif

namespace baton::kernels::BATON_ISA {

inline constexpr bool kFusedMulAdd = true;

// 16 fp32 lanes.
struct F32x16 {
  __m512 v;
};
// 16 int32 lanes.
struct I32x16 {
  __m512i v;
};

BATON_INLINE float FmaScalar(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

BATON_INLINE F32x16 Zero() { return {_mm512_setzero_ps()}; }
BATON_INLINE F32x16 Set1(float x) { return {_mm512_set1_ps(x)}; }
BATON_INLINE I32x16 SetI(int32_t x) { return {_mm512_set1_epi32(x)}; }
BATON_INLINE F32x16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
BATON_INLINE void Store(float* p, F32x16 v) { _mm512_storeu_ps(p, v.v); }

// Ones for lanes [begin, end); both are clamped to [0, 16].
BATON_INLINE __mmask16 LaneMask(int32_t begin, int32_t end) {
  const uint32_t low = begin <= 0 ? 0u : begin >= 16 ? 0xFFFFu : (1u << begin) - 1;
  const uint32_t high = end <= 0 ? 0u : end >= 16 ? 0xFFFFu : (1u << end) - 1;
  return static_cast<__mmask16>(high & ~low);
}
// The first n lanes (0 <= n <= 16) from memory, the others 0; reads no other bytes.
BATON_INLINE F32x16 LoadN(const float* p, uint32_t n) {
  return {_mm512_maskz_loadu_ps(LaneMask(0, static_cast<int32_t>(n)), p)};
}
BATON_INLINE void StoreN(float* p, F32x16 v, uint32_t n) {
  _mm512_mask_storeu_ps(p, LaneMask(0, static_cast<int32_t>(n)), v.v);
}

BATON_INLINE F32x16 Add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
BATON_INLINE F32x16 Sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
BATON_INLINE F32x16 Mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
BATON_INLINE F32x16 Div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
BATON_INLINE F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a > b ? a : b, so b when either is NaN; Min treats NaN so too.
BATON_INLINE F32x16 Max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
BATON_INLINE F32x16 Min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
// v, and 0 in lanes where x < bound.
BATON_INLINE F32x16 ZeroWhereLess(F32x16 x, F32x16 bound, F32x16 v) {
  const __mmask16 less = _mm512_cmp_ps_mask(x.v, bound.v, _CMP_LT_OQ);
  return {_mm512_mask_mov_ps(v.v, less, _mm512_setzero_ps())};
}
// v in lanes [begin, end), fill in the others.
BATON_INLINE F32x16 KeepLanes(F32x16 v, int32_t begin, int32_t end, F32x16 fill) {
  return {_mm512_mask_mov_ps(fill.v, LaneMask(begin, end), v.v)};
}

BATON_INLINE I32x16 BitsOf(F32x16 v) { return {_mm512_castps_si512(v.v)}; }
BATON_INLINE F32x16 FromBits(I32x16 v) { return {_mm512_castsi512_ps(v.v)}; }
BATON_INLINE I32x16 AddI(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
BATON_INLINE I32x16 AndI(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
BATON_INLINE I32x16 OrI(I32x16 a, I32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
BATON_INLINE I32x16 MaxI(I32x16 a, I32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int kBits>
BATON_INLINE I32x16 ShiftLeft(I32x16 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
BATON_INLINE I32x16 ShiftRightSigned(I32x16 a) {
  return {_mm512_srai_epi32(a.v, kBits)};
}
BATON_INLINE F32x16 ToFloat(I32x16 v) { return {_mm512_cvtepi32_ps(v.v)}; }
// Round to nearest even; |v| < 2^22.
BATON_INLINE I32x16 ToInt(F32x16 v) { return {_mm512_cvtps_epi32(v.v)}; }

BATON_INLINE __m256 LowHalf(F32x16 v) { return _mm512_castps512_ps256(v.v); }
BATON_INLINE __m256 HighHalf(F32x16 v) {
  return _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(v.v), 1));
}
BATON_INLINE __m256i LowHalf(I32x16 v) { return _mm512_castsi512_si256(v.v); }
BATON_INLINE __m256i HighHalf(I32x16 v) { return _mm512_extracti64x4_epi64(v.v, 1); }
BATON_INLINE __m512i Join(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// The fixed tree: lanes i + 8, then + 4, then + 2, then + 1.
BATON_INLINE float SumTree(F32x16 v) {
  const __m256 s8 = _mm256_add_ps(LowHalf(v), HighHalf(v));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
BATON_INLINE float MaxAll(F32x16 v) {
  const __m256 m8 = _mm256_max_ps(LowHalf(v), HighHalf(v));
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}
BATON_INLINE int32_t MaxAllI(I32x16 v) {
  const __m256i m8 = _mm256_max_epi32(LowHalf(v), HighHalf(v));
  const __m128i m4 = _mm_max_epi32(_mm256_castsi256_si128(m8), _mm256_extracti128_si256(m8, 1));
  const __m128i m2 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(m2, _mm_shuffle_epi32(m2, 0xB1)));
}
BATON_INLINE int32_t SumAllI(I32x16 v) {
  const __m256i s8 = _mm256_add_epi32(LowHalf(v), HighHalf(v));
  const __m128i s4 = _mm_add_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
  const __m128i s2 = _mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s2, _mm_shuffle_epi32(s2, 0xB1)));
}
// Stores 16 lanes that fit int16.
BATON_INLINE void StoreI16(int16_t* p, I32x16 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(v.v));
}

// 16 half / bf16 values to fp32; exact.
BATON_INLINE F32x16 LoadHalf(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
BATON_INLINE F32x16 LoadBf16(const void* p) {
  const __m256i half = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return FromBits(ShiftLeft<16>({_mm512_cvtepu16_epi32(half)}));
}
// Stores 16 lanes as the bf16 of Bf16FromFloat. The instruction that rounds to bf16 loses
// subnormals.
BATON_INLINE void StoreBf16(uint16_t* p, F32x16 v) {
  const __m512i bits = _mm512_castps_si512(v.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v.v, v.v, _CMP_UNORD_Q);
  const __m512 chosen =
      _mm512_mask_mov_ps(_mm512_castsi512_ps(rounded), nan, _mm512_castsi512_ps(quiet));
  StoreI16(reinterpret_cast<int16_t*>(p), {_mm512_srai_epi32(_mm512_castps_si512(chosen), 16)});
}
// 16 pairs of bf16; PairLow and PairHigh take the first and second of each to fp32.
BATON_INLINE I32x16 LoadPairs(const void* p) { return {_mm512_loadu_si512(p)}; }
BATON_INLINE F32x16 PairLow(I32x16 v) { return FromBits(ShiftLeft<16>(v)); }
BATON_INLINE F32x16 PairHigh(I32x16 v) {
  return FromBits(AndI(v, SetI(static_cast<int32_t>(0xFFFF0000u))));
}

// (x0, x1, x2, x3, ...) to (x1, x0, x3, x2, ...), (x0, x0, x2, x2, ...), (x1, x1, x3, x3, ...).
BATON_INLINE F32x16 SwapPairs(F32x16 v) { return {_mm512_permute_ps(v.v, 0xB1)}; }
// Lane i becomes lane i ^ kApart, a power of two below 16.
template <int kApart>
BATON_INLINE F32x16 SwapLanes(F32x16 v) {
  if constexpr (kApart == 1) return SwapPairs(v);
  if constexpr (kApart == 2) return {_mm512_permute_ps(v.v, 0x4E)};
  if constexpr (kApart == 4) return {_mm512_shuffle_f32x4(v.v, v.v, 0xB1)};
  if constexpr (kApart == 8) return {_mm512_shuffle_f32x4(v.v, v.v, 0x4E)};
}
BATON_INLINE F32x16 DupEven(F32x16 v) { return {_mm512_moveldup_ps(v.v)}; }
BATON_INLINE F32x16 DupOdd(F32x16 v) { return {_mm512_movehdup_ps(v.v)}; }
// A quarter is 4 neighbouring lanes. In each: (a0, b0, a1, b1), (a2, b2, a3, b3), (a0, a1, b0, b1),
// (a2, a3, b2, b3).
BATON_INLINE F32x16 MixLow(F32x16 a, F32x16 b) { return {_mm512_unpacklo_ps(a.v, b.v)}; }
BATON_INLINE F32x16 MixHigh(F32x16 a, F32x16 b) { return {_mm512_unpackhi_ps(a.v, b.v)}; }
BATON_INLINE F32x16 JoinLow(F32x16 a, F32x16 b) { return {_mm512_shuffle_ps(a.v, b.v, 0x44)}; }
BATON_INLINE F32x16 JoinHigh(F32x16 a, F32x16 b) { return {_mm512_shuffle_ps(a.v, b.v, 0xEE)}; }
// Lane kLane of each quarter to all lanes of that quarter.
template <int kLane>
BATON_INLINE F32x16 DupOfQuarter(F32x16 v) {
  return {_mm512_permute_ps(v.v, kLane * 0x55)};
}
// Stores the first quarter.
BATON_INLINE void StoreQuarter(void* p, F32x16 v) {
  _mm_storeu_ps(static_cast<float*>(p), _mm256_castps256_ps128(LowHalf(v)));
}
// Even lanes a * b - c, odd lanes a * b + c, one rounding.
BATON_INLINE F32x16 FmaSubAdd(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm512_fmaddsub_ps(a.v, b.v, c.v)};
}

// Query rows that share a load of K or V, see attention_tile.h.
inline constexpr uint32_t kAttentionRows = 8;
// Chains of one pass of attention at most: query rows times groups of keys, or times columns of
// values.
inline constexpr int kAttentionChains = 16;
// Rows and panels of a matmul tile, see core_a16.h: 24 registers of sums, 2 of weights, 1 broadcast
// that serves two products.
inline constexpr uint32_t kTileRows = 12;
inline constexpr uint32_t kTilePanels = 2;
// Up to this many rows a panel is read straight from its packed form; above, unpacking it once
// costs less than taking its nibbles apart for each group of rows again.
inline constexpr uint32_t kMaxStreamRows = 8;
// Sums into which a block's products of few rows are divided, see core_a16.h.
inline constexpr int kDotChains = 2;
// Rows for which nibbles are multiplied where they stand: three sums a row, see core_a16.h.
inline constexpr int kNibbleRows = 3;

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_SIMD_AVX512_H_
