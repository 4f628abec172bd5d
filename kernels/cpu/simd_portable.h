// The 16-lane vector of kernels/cpu in plain C++: four 4-lane vectors of the compiler's vector
// extension (one SSE or NEON register each, scalar code elsewhere). Included once by a translation
// unit that defines BATON_ISA; the operations are listed in README.md ("The 16-lane vector"). Where
// the target has no fma instruction, Fma multiplies, then adds.
#ifndef BATON_KERNELS_CPU_SIMD_PORTABLE_H_
#define BATON_KERNELS_CPU_SIMD_PORTABLE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/math.h"

#define BATON_INLINE inline __attribute__((always_inline))

namespace baton::kernels::BATON_ISA {

#if defined(__FP_FAST_FMAF)
inline constexpr bool kFusedMulAdd = true;
#else
inline constexpr bool kFusedMulAdd = false;
#endif

using F32x4 = float __attribute__((vector_size(16)));
using I32x4 = int32_t __attribute__((vector_size(16)));

// 16 fp32 lanes.
struct F32x16 {
  F32x4 v[4];
};
// 16 int32 lanes.
struct I32x16 {
  I32x4 v[4];
};

BATON_INLINE float FmaScalar(float a, float b, float c) {
  if constexpr (kFusedMulAdd) {
    return __builtin_fmaf(a, b, c);
  } else {
    return a * b + c;
  }
}

BATON_INLINE F32x16 Set1(float x) {
  const F32x4 v = {x, x, x, x};
  return {{v, v, v, v}};
}
BATON_INLINE F32x16 Zero() { return Set1(0.0f); }
BATON_INLINE I32x16 SetI(int32_t x) {
  const I32x4 v = {x, x, x, x};
  return {{v, v, v, v}};
}
BATON_INLINE F32x16 Load(const float* p) {
  F32x16 out;
  std::memcpy(&out, p, sizeof(out));
  return out;
}
BATON_INLINE void Store(float* p, F32x16 v) { std::memcpy(p, &v, sizeof(v)); }
// The first n lanes (0 <= n <= 16) from memory, the others 0; reads no other bytes.
BATON_INLINE F32x16 LoadN(const float* p, uint32_t n) {
  float lanes[16] = {};
  for (uint32_t i = 0; i < n; ++i) lanes[i] = p[i];
  return Load(lanes);
}
BATON_INLINE void StoreN(float* p, F32x16 v, uint32_t n) {
  float lanes[16];
  Store(lanes, v);
  for (uint32_t i = 0; i < n; ++i) p[i] = lanes[i];
}

// One operator over the four parts.
#define BATON_LANEWISE(type, expression)               \
  type out;                                            \
  for (int i = 0; i < 4; ++i) out.v[i] = (expression); \
  return out

BATON_INLINE F32x16 Add(F32x16 a, F32x16 b) { BATON_LANEWISE(F32x16, a.v[i] + b.v[i]); }
BATON_INLINE F32x16 Sub(F32x16 a, F32x16 b) { BATON_LANEWISE(F32x16, a.v[i] - b.v[i]); }
BATON_INLINE F32x16 Mul(F32x16 a, F32x16 b) { BATON_LANEWISE(F32x16, a.v[i] * b.v[i]); }
BATON_INLINE F32x16 Div(F32x16 a, F32x16 b) { BATON_LANEWISE(F32x16, a.v[i] / b.v[i]); }
BATON_INLINE F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  if constexpr (kFusedMulAdd) {
    F32x16 out;
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 4; ++j) {
        out.v[i][j] = __builtin_fmaf(a.v[i][j], b.v[i][j], c.v[i][j]);
      }
    }
    return out;
  } else {
    BATON_LANEWISE(F32x16, a.v[i] * b.v[i] + c.v[i]);
  }
}
// a > b ? a : b, so b when either is NaN; Min treats NaN so too.
BATON_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  BATON_LANEWISE(F32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]);
}
BATON_INLINE F32x16 Min(F32x16 a, F32x16 b) {
  BATON_LANEWISE(F32x16, a.v[i] < b.v[i] ? a.v[i] : b.v[i]);
}

BATON_INLINE I32x16 BitsOf(F32x16 v) { return std::bit_cast<I32x16>(v); }
BATON_INLINE F32x16 FromBits(I32x16 v) { return std::bit_cast<F32x16>(v); }
BATON_INLINE I32x16 AddI(I32x16 a, I32x16 b) { BATON_LANEWISE(I32x16, a.v[i] + b.v[i]); }
BATON_INLINE I32x16 AndI(I32x16 a, I32x16 b) { BATON_LANEWISE(I32x16, a.v[i] & b.v[i]); }
BATON_INLINE I32x16 OrI(I32x16 a, I32x16 b) { BATON_LANEWISE(I32x16, a.v[i] | b.v[i]); }
BATON_INLINE I32x16 MaxI(I32x16 a, I32x16 b) {
  BATON_LANEWISE(I32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]);
}
template <int kBits>
BATON_INLINE I32x16 ShiftLeft(I32x16 a) {
  BATON_LANEWISE(I32x16, a.v[i] << kBits);
}
template <int kBits>
BATON_INLINE I32x16 ShiftRightSigned(I32x16 a) {
  BATON_LANEWISE(I32x16, a.v[i] >> kBits);
}
// v, and 0 in lanes where x < bound.
BATON_INLINE F32x16 ZeroWhereLess(F32x16 x, F32x16 bound, F32x16 v) {
  I32x16 bits = BitsOf(v);
  for (int i = 0; i < 4; ++i) bits.v[i] &= ~(x.v[i] < bound.v[i]);
  return FromBits(bits);
}
// v in lanes [begin, end), fill in the others.
BATON_INLINE F32x16 KeepLanes(F32x16 v, int32_t begin, int32_t end, F32x16 fill) {
  F32x16 out;
  for (int i = 0; i < 4; ++i) {
    const I32x4 lane = I32x4{0, 1, 2, 3} + 4 * i;
    out.v[i] = ((lane >= begin) & (lane < end)) ? v.v[i] : fill.v[i];
  }
  return out;
}
BATON_INLINE F32x16 ToFloat(I32x16 v) {
  BATON_LANEWISE(F32x16, __builtin_convertvector(v.v[i], F32x4));
}
// Round to nearest even; |v| < 2^22: the sum with 1.5 * 2^23 has the integer in its low bits.
BATON_INLINE I32x16 ToInt(F32x16 v) {
  const I32x16 bits = BitsOf(Add(v, Set1(12582912.0f)));
  BATON_LANEWISE(I32x16, bits.v[i] - 0x4B400000);
}
#undef BATON_LANEWISE

// The fixed tree: lanes i + 8, then + 4, then + 2, then + 1.
BATON_INLINE float SumTree(F32x16 v) {
  const F32x4 s4 = (v.v[0] + v.v[2]) + (v.v[1] + v.v[3]);
  return (s4[0] + s4[2]) + (s4[1] + s4[3]);
}
BATON_INLINE float MaxAll(F32x16 v) {
  float lanes[16];
  Store(lanes, v);
  float best = lanes[0];
  for (int i = 1; i < 16; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

// 16 half / bf16 values to fp32; exact.
BATON_INLINE F32x16 LoadHalf(const void* p) {
  uint16_t half[16];
  std::memcpy(half, p, sizeof(half));
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = FloatFromHalf(half[i]);
  return Load(lanes);
}
BATON_INLINE F32x16 LoadBf16(const void* p) {
  uint16_t half[16];
  std::memcpy(half, p, sizeof(half));
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = FloatFromBf16(half[i]);
  return Load(lanes);
}
// 16 pairs of bf16; PairLow and PairHigh take the first and second of each to fp32.
BATON_INLINE I32x16 LoadPairs(const void* p) {
  I32x16 out;
  std::memcpy(&out, p, sizeof(out));
  return out;
}
BATON_INLINE F32x16 PairLow(I32x16 v) { return FromBits(ShiftLeft<16>(v)); }
BATON_INLINE F32x16 PairHigh(I32x16 v) {
  return FromBits(AndI(v, SetI(static_cast<int32_t>(0xFFFF0000u))));
}

// (x0, x1, x2, x3, ...) to (x1, x0, x3, x2, ...), (x0, x0, x2, x2, ...), (x1, x1, x3, x3, ...).
BATON_INLINE F32x16 SwapPairs(F32x16 v) {
  F32x16 out;
  for (int i = 0; i < 4; ++i) out.v[i] = F32x4{v.v[i][1], v.v[i][0], v.v[i][3], v.v[i][2]};
  return out;
}
// Lane i becomes lane i ^ kApart, a power of two below 16.
template <int kApart>
BATON_INLINE F32x16 SwapLanes(F32x16 v) {
  F32x16 out;
  for (int i = 0; i < 16; ++i) out.v[i / 4][i % 4] = v.v[(i ^ kApart) / 4][(i ^ kApart) % 4];
  return out;
}
BATON_INLINE F32x16 DupEven(F32x16 v) {
  F32x16 out;
  for (int i = 0; i < 4; ++i) out.v[i] = F32x4{v.v[i][0], v.v[i][0], v.v[i][2], v.v[i][2]};
  return out;
}
BATON_INLINE F32x16 DupOdd(F32x16 v) {
  F32x16 out;
  for (int i = 0; i < 4; ++i) out.v[i] = F32x4{v.v[i][1], v.v[i][1], v.v[i][3], v.v[i][3]};
  return out;
}
// A quarter is 4 neighbouring lanes: (a0, b0, a1, b1), (a2, b2, a3, b3), (a0, a1, b0, b1), ...
BATON_INLINE F32x16 MixLow(F32x16 a, F32x16 b) {
  for (int i = 0; i < 4; ++i) a.v[i] = F32x4{a.v[i][0], b.v[i][0], a.v[i][1], b.v[i][1]};
  return a;
}
BATON_INLINE F32x16 MixHigh(F32x16 a, F32x16 b) {
  for (int i = 0; i < 4; ++i) a.v[i] = F32x4{a.v[i][2], b.v[i][2], a.v[i][3], b.v[i][3]};
  return a;
}
BATON_INLINE F32x16 JoinLow(F32x16 a, F32x16 b) {
  for (int i = 0; i < 4; ++i) a.v[i] = F32x4{a.v[i][0], a.v[i][1], b.v[i][0], b.v[i][1]};
  return a;
}
BATON_INLINE F32x16 JoinHigh(F32x16 a, F32x16 b) {
  for (int i = 0; i < 4; ++i) a.v[i] = F32x4{a.v[i][2], a.v[i][3], b.v[i][2], b.v[i][3]};
  return a;
}
// Lane kLane of each quarter to all lanes of that quarter.
template <int kLane>
BATON_INLINE F32x16 DupOfQuarter(F32x16 v) {
  for (F32x4& part : v.v) part = F32x4{part[kLane], part[kLane], part[kLane], part[kLane]};
  return v;
}
// Stores the first quarter.
BATON_INLINE void StoreQuarter(void* p, F32x16 v) { std::memcpy(p, &v.v[0], sizeof(v.v[0])); }
// Even lanes a * b - c, odd lanes a * b + c.
BATON_INLINE F32x16 FmaSubAdd(F32x16 a, F32x16 b, F32x16 c) {
  const F32x4 sign = {-1.0f, 1.0f, -1.0f, 1.0f};
  for (int i = 0; i < 4; ++i) c.v[i] = c.v[i] * sign;
  return Fma(a, b, c);
}

// See attention_tile.h: query rows that share a load of K or V; chains of one pass at most.
inline constexpr uint32_t kAttentionRows = 2;
inline constexpr int kAttentionChains = 4;
// See core_a16.h: a tile of a matmul; rows that read packed panels; sums of a block; nibbles' rows.
inline constexpr uint32_t kTileRows = 2;  // 2 rows x 4 registers of sums on a machine with 16
inline constexpr uint32_t kTilePanels = 1;
inline constexpr uint32_t kMaxStreamRows = 16;
inline constexpr int kDotChains = 1;
inline constexpr int kNibbleRows = 1;

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_SIMD_PORTABLE_H_
