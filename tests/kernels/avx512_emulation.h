// AVX-512 intrinsics on a machine without AVX-512: each one lane by lane, by its definition in the
// Intel intrinsics guide. Only those that kernels/cpu/simd_avx512*.h use, with only controls they
// use. avx512_emulation_test.cc compares them with SIMDe's. For tests. (The bodies are not built
// on SIMDe itself: gcc 12 takes over five minutes, or stops with an internal error.)
#ifndef BATON_TESTS_KERNELS_AVX512_EMULATION_H_
#define BATON_TESTS_KERNELS_AVX512_EMULATION_H_

#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace baton::kernels::emulation {

// A 512-bit register of floats.
struct alignas(64) F512 {
  float v[16];
};
// A 512-bit register of integers.
struct alignas(64) I512 {
  int32_t v[16];
};
using Mask16 = uint16_t;

template <typename Function>
inline F512 EachFloat(const Function& function) {
  F512 out;
  for (int i = 0; i < 16; ++i) out.v[i] = function(i);
  return out;
}
template <typename Function>
inline I512 EachInt(const Function& function) {
  I512 out;
  for (int i = 0; i < 16; ++i) out.v[i] = function(i);
  return out;
}
// Applies function to each 16-bit lane.
template <typename Function>
inline I512 Each16(I512 a, const Function& function) {
  uint16_t lanes[32];
  std::memcpy(lanes, &a, sizeof(lanes));
  for (uint16_t& lane : lanes) lane = static_cast<uint16_t>(function(lane));
  std::memcpy(&a, lanes, sizeof(lanes));
  return a;
}

inline F512 setzero_ps() {
  return EachFloat([](int) { return 0.0f; });
}
inline F512 set1_ps(float x) {
  return EachFloat([&](int) { return x; });
}
inline I512 set1_epi32(int32_t x) {
  return EachInt([&](int) { return x; });
}
inline F512 loadu_ps(const void* p) {
  F512 out;
  std::memcpy(&out, p, sizeof(out));
  return out;
}
inline void storeu_ps(void* p, F512 a) { std::memcpy(p, &a, sizeof(a)); }
inline I512 loadu_si512(const void* p) { return std::bit_cast<I512>(loadu_ps(p)); }
inline void storeu_si512(void* p, I512 a) { std::memcpy(p, &a, sizeof(a)); }
inline bool Bit(Mask16 mask, int i) { return (mask >> i & 1) != 0; }
inline F512 maskz_loadu_ps(Mask16 mask, const float* p) {
  return EachFloat([&](int i) { return Bit(mask, i) ? p[i] : 0.0f; });
}
inline void mask_storeu_ps(float* p, Mask16 mask, F512 a) {
  for (int i = 0; i < 16; ++i) {
    if (Bit(mask, i)) p[i] = a.v[i];
  }
}
inline F512 mask_mov_ps(F512 src, Mask16 mask, F512 a) {
  return EachFloat([&](int i) { return Bit(mask, i) ? a.v[i] : src.v[i]; });
}
inline Mask16 cmp_ps_mask(F512 a, F512 b, int predicate) {
  if (predicate != _CMP_LT_OQ && predicate != _CMP_UNORD_Q) __builtin_trap();
  Mask16 mask = 0;
  for (int i = 0; i < 16; ++i) {
    const bool holds = predicate == _CMP_LT_OQ ? a.v[i] < b.v[i] : std::isunordered(a.v[i], b.v[i]);
    mask = static_cast<Mask16>(mask | (holds ? 1 << i : 0));
  }
  return mask;
}

inline F512 add_ps(F512 a, F512 b) {
  return EachFloat([&](int i) { return a.v[i] + b.v[i]; });
}
inline F512 sub_ps(F512 a, F512 b) {
  return EachFloat([&](int i) { return a.v[i] - b.v[i]; });
}
inline F512 mul_ps(F512 a, F512 b) {
  return EachFloat([&](int i) { return a.v[i] * b.v[i]; });
}
inline F512 div_ps(F512 a, F512 b) {
  return EachFloat([&](int i) { return a.v[i] / b.v[i]; });
}
inline F512 fmadd_ps(F512 a, F512 b, F512 c) {
  return EachFloat([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline F512 fmaddsub_ps(F512 a, F512 b, F512 c) {
  return EachFloat(
      [&](int i) { return __builtin_fmaf(a.v[i], b.v[i], i % 2 == 0 ? -c.v[i] : c.v[i]); });
}
inline F512 max_ps(F512 a, F512 b) {
  return EachFloat([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F512 min_ps(F512 a, F512 b) {
  return EachFloat([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F512 moveldup_ps(F512 a) {
  return EachFloat([&](int i) { return a.v[i & ~1]; });
}
inline F512 movehdup_ps(F512 a) {
  return EachFloat([&](int i) { return a.v[i | 1]; });
}
inline F512 permute_ps(F512 a, int control) {
  return EachFloat([&](int i) { return a.v[(i & ~3) + (control >> (2 * (i & 3)) & 3)]; });
}
// Two of four floats of a and of b, in turn.
inline F512 unpacklo_ps(F512 a, F512 b) {
  return EachFloat([&](int i) { return (i % 2 == 0 ? a : b).v[(i & ~3) + i % 4 / 2]; });
}
inline F512 unpackhi_ps(F512 a, F512 b) {
  return EachFloat([&](int i) { return (i % 2 == 0 ? a : b).v[(i & ~3) + 2 + i % 4 / 2]; });
}
// Two of four floats come from a, then two from b.
inline F512 shuffle_ps(F512 a, F512 b, int control) {
  return EachFloat(
      [&](int i) { return (i % 4 < 2 ? a : b).v[(i & ~3) + (control >> (2 * (i & 3)) & 3)]; });
}
// Four floats move together: the first two quarters come from a, the others from b.
inline F512 shuffle_f32x4(F512 a, F512 b, int control) {
  return EachFloat([&](int i) {
    const int from = control >> (2 * (i / 4)) & 3;
    return (i < 8 ? a : b).v[4 * from + i % 4];
  });
}

inline I512 castps_si512(F512 a) { return std::bit_cast<I512>(a); }
inline F512 castsi512_ps(I512 a) { return std::bit_cast<F512>(a); }
// Wraps, as the instruction does.
inline int32_t Wrap(int64_t x) { return static_cast<int32_t>(static_cast<uint32_t>(x)); }
inline I512 add_epi32(I512 a, I512 b) {
  return EachInt([&](int i) { return Wrap(int64_t{a.v[i]} + b.v[i]); });
}
inline I512 and_si512(I512 a, I512 b) {
  return EachInt([&](int i) { return a.v[i] & b.v[i]; });
}
inline I512 or_si512(I512 a, I512 b) {
  return EachInt([&](int i) { return a.v[i] | b.v[i]; });
}
inline I512 max_epi32(I512 a, I512 b) {
  return EachInt([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline I512 slli_epi32(I512 a, unsigned bits) {
  return EachInt(
      [&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << bits); });
}
inline I512 srli_epi32(I512 a, unsigned bits) {
  return EachInt(
      [&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) >> bits); });
}
inline I512 srai_epi32(I512 a, unsigned bits) {
  return EachInt([&](int i) { return a.v[i] >> bits; });
}
inline I512 dpwssd_epi32(I512 acc, I512 a, I512 b) {
  return EachInt([&](int i) {
    const int64_t low = int64_t{static_cast<int16_t>(a.v[i])} * static_cast<int16_t>(b.v[i]);
    const int64_t high = int64_t{a.v[i] >> 16} * (b.v[i] >> 16);
    return Wrap(acc.v[i] + low + high);
  });
}
inline I512 srli_epi16(I512 a, unsigned bits) {
  return Each16(a, [&](uint16_t x) { return x >> bits; });
}
inline I512 srai_epi16(I512 a, unsigned bits) {
  return Each16(a, [&](uint16_t x) { return static_cast<int16_t>(x) >> bits; });
}
inline I512 slli_epi16(I512 a, unsigned bits) {
  return Each16(a, [&](uint16_t x) { return x << bits; });
}
inline I512 sub_epi16(I512 a, I512 b) {
  const auto x = std::bit_cast<F512>(a);
  const auto y = std::bit_cast<F512>(b);
  uint16_t p[32];
  uint16_t q[32];
  std::memcpy(p, &x, sizeof(p));
  std::memcpy(q, &y, sizeof(q));
  for (int i = 0; i < 32; ++i) p[i] = static_cast<uint16_t>(p[i] - q[i]);
  std::memcpy(&a, p, sizeof(p));
  return a;
}

inline F512 cvtepi32_ps(I512 a) {
  return EachFloat([&](int i) { return static_cast<float>(a.v[i]); });
}
// Round to nearest even; out of range and NaN give INT32_MIN.
inline I512 cvtps_epi32(F512 a) {
  return EachInt([&](int i) { return _mm_cvtss_si32(_mm_set_ss(a.v[i])); });
}
// A half as a float; exact. A signalling NaN becomes quiet.
inline float FloatOfHalf(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int fraction = half & 1023;
  float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  if (exponent == 31) {
    const uint32_t quiet = fraction == 0 ? 0 : 0x00400000;
    magnitude = std::bit_cast<float>(0x7F800000 | quiet | static_cast<uint32_t>(fraction) << 13);
  } else if (exponent > 0) {
    magnitude = std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  }
  return half >> 15 != 0 ? -magnitude : magnitude;
}
inline F512 cvtph_ps(__m256i a) {
  uint16_t lanes[16];
  std::memcpy(lanes, &a, sizeof(lanes));
  return EachFloat([&](int i) { return FloatOfHalf(lanes[i]); });
}
inline I512 cvtepu16_epi32(__m256i a) {
  uint16_t lanes[16];
  std::memcpy(lanes, &a, sizeof(lanes));
  return EachInt([&](int i) { return int32_t{lanes[i]}; });
}
inline I512 cvtepu8_epi32(__m128i a) {
  uint8_t lanes[16];
  std::memcpy(lanes, &a, sizeof(lanes));
  return EachInt([&](int i) { return int32_t{lanes[i]}; });
}
inline I512 cvtepi8_epi32(__m128i a) {
  int8_t lanes[16];
  std::memcpy(lanes, &a, sizeof(lanes));
  return EachInt([&](int i) { return int32_t{lanes[i]}; });
}
// In each 16 bytes: the byte of `a` that the low four bits name, or 0 where the index is negative.
inline I512 shuffle_epi8(I512 a, I512 index) {
  uint8_t from[64];
  uint8_t at[64];
  uint8_t out[64];
  std::memcpy(from, &a, sizeof(from));
  std::memcpy(at, &index, sizeof(at));
  for (int i = 0; i < 64; ++i) {
    out[i] = at[i] >= 128 ? uint8_t{0} : from[(i & ~15) + (at[i] & 15)];
  }
  std::memcpy(&a, out, sizeof(out));
  return a;
}
inline __m256i cvtsepi32_epi16(I512 a) {
  int16_t lanes[16];
  for (int i = 0; i < 16; ++i) {
    const int32_t x = a.v[i];
    lanes[i] = static_cast<int16_t>(x > INT16_MAX ? INT16_MAX : x < INT16_MIN ? INT16_MIN : x);
  }
  __m256i out;
  std::memcpy(&out, lanes, sizeof(out));
  return out;
}
inline __m256i extracti64x4_epi64(I512 a, int half) {
  __m256i out;
  std::memcpy(&out, a.v + 8 * half, sizeof(out));
  return out;
}
inline I512 inserti64x4(I512 a, __m256i b, int half) {
  std::memcpy(a.v + 8 * half, &b, sizeof(b));
  return a;
}
inline __m256 castps512_ps256(F512 a) {
  __m256 out;
  std::memcpy(&out, &a, sizeof(out));
  return out;
}
inline __m256i castsi512_si256(I512 a) { return extracti64x4_epi64(a, 0); }
// The upper half is undefined: here all ones, so that a use of it shows.
inline I512 castsi256_si512(__m256i a) { return inserti64x4(set1_epi32(-1), a, 0); }

}  // namespace baton::kernels::emulation

#endif  // BATON_TESTS_KERNELS_AVX512_EMULATION_H_
