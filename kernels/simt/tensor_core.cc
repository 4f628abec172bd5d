#include "kernels/simt/tensor_core.h"

#include <pmmintrin.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/math.h"
#include "kernels/simt/wide.h"

namespace baton::kernels::simt {
namespace {

// Inlined into both forms of a BATON_WIDE function.
#define BATON_INLINE [[gnu::always_inline]] inline

BATON_INLINE bool IsFinite(float x) {
  return (std::bit_cast<uint32_t>(x) & 0x7F800000u) != 0x7F800000u;
}

// The magnitude shifted (left for positive counts), cut toward zero, the sign kept.
BATON_INLINE int64_t ShiftTowardZero(int64_t value, int left) {
  const uint64_t magnitude = static_cast<uint64_t>(std::llabs(value));
  const uint64_t shifted =
      left >= 0 ? magnitude << left : (left <= -64 ? 0 : magnitude >> static_cast<unsigned>(-left));
  return value < 0 ? -static_cast<int64_t>(shifted) : static_cast<int64_t>(shifted);
}

// sum * 2^(exponent - fraction_bits), cut toward zero to fp32.
BATON_INLINE float Truncate(int64_t sum, int exponent, int fraction_bits) {
  if (sum == 0) return 0.0f;
  uint64_t magnitude = static_cast<uint64_t>(std::llabs(sum));
  const int top = 63 - std::countl_zero(magnitude);
  int value_exponent = exponent - fraction_bits + top;
  if (value_exponent > 127) {
    return std::bit_cast<float>(sum < 0 ? 0xFF800000u : 0x7F800000u);
  }
  // The last place of the result is 2^(max(value_exponent, -126) - 23).
  const int last_place = (value_exponent < -126 ? -126 : value_exponent) - 23;
  const int shift = exponent - fraction_bits - last_place;
  magnitude = static_cast<uint64_t>(ShiftTowardZero(static_cast<int64_t>(magnitude), shift));
  if (magnitude == 0) return 0.0f;
  const uint32_t field = value_exponent < -126 ? 0u : static_cast<uint32_t>(value_exponent + 127);
  const uint32_t bits = field << 23 | static_cast<uint32_t>(magnitude & 0x7FFFFF);
  return std::bit_cast<float>(sum < 0 ? bits | 0x80000000u : bits);
}

// The numbers by which a core treats the terms of a step.
struct Datapath {
  int fraction_bits;
  int zero_exponent;
};
constexpr Datapath kHopperPath = {25, -133};
constexpr Datapath kAmperePath = {24, -132};

constexpr int kHalf = kTensorCoreProducts / 2;

// One side of the products of a step, taken apart: significand * 2^(exponent - 7), where subnormal
// numbers have the exponent of the smallest normal ones.
struct Factors {
  const Bf16* values;
  int32_t significand[kTensorCoreProducts];
  int32_t exponent[kTensorCoreProducts];
  bool is_finite[2];  // of each half
  bool is_zero;
};

BATON_INLINE void Decode(const Bf16* values, Factors* out) {
  out->values = values;
  int32_t any = 0;
  for (int half = 0; half < 2; ++half) {
    int32_t largest = 0;
    for (int i = half * kHalf; i < (half + 1) * kHalf; ++i) {
      const int32_t bits = values[i].bits;
      const int32_t field = bits >> 7 & 0xFF;
      const int32_t magnitude = (bits & 0x7F) | (field != 0 ? 0x80 : 0);
      out->significand[i] = (bits & 0x8000) != 0 ? -magnitude : magnitude;
      out->exponent[i] = (field != 0 ? field : 1) - 127;
      largest = field > largest ? field : largest;
      any |= magnitude;
    }
    out->is_finite[half] = largest < 0xFF;
  }
  out->is_zero = any == 0;
}

// A step in which a number is an infinity or a NaN.
float SpecialStep(const Bf16* a, const Bf16* b, int count, float c) {
  double special = IsFinite(c) ? 0.0 : c;  // only its kind counts: infinity, minus infinity or NaN
  for (int i = 0; i < count; ++i) {
    const float x = FloatFromBf16(a[i].bits);
    const float y = FloatFromBf16(b[i].bits);
    if (IsFinite(x) && IsFinite(y)) continue;
    special += static_cast<double>(x) * static_cast<double>(y);
  }
  return special != special ? std::bit_cast<float>(0x7FFFFFFFu) : static_cast<float>(special);
}

// One step of the kCount products from kFirst on.
template <int kFirst, int kCount>
BATON_INLINE float Step(Datapath path, const Factors& a, const Factors& b, float c) {
  bool is_finite = IsFinite(c);
  for (int half = kFirst / kHalf; half < (kFirst + kCount) / kHalf; ++half) {
    is_finite = is_finite && a.is_finite[half] && b.is_finite[half];
  }
  if (!is_finite) return SpecialStep(a.values + kFirst, b.values + kFirst, kCount, c);

  const auto c_bits = std::bit_cast<uint32_t>(c);
  const auto c_field = static_cast<int32_t>(c_bits >> 23 & 0xFF);
  const int64_t c_magnitude = (c_bits & 0x7FFFFF) | (c_field != 0 ? 0x800000 : 0);
  const int32_t c_exponent =
      c_magnitude == 0 ? path.zero_exponent : (c_field != 0 ? c_field : 1) - 127;
  int32_t products[kCount];
  int32_t exponents[kCount];
  int32_t largest = c_exponent;
  for (int i = 0; i < kCount; ++i) {
    products[i] = a.significand[kFirst + i] * b.significand[kFirst + i];
    const int32_t exponent = a.exponent[kFirst + i] + b.exponent[kFirst + i];
    exponents[i] = products[i] == 0 ? path.zero_exponent : exponent;
    largest = exponents[i] > largest ? exponents[i] : largest;
  }
  // Products carry 7 + 7 fraction bits, C 23; all are brought to so many behind the largest
  // exponent. A product has 16 + 11 bits then at most (255^2 * 2^11), so that int32_t holds the sum
  // of sixteen.
  static_assert(int64_t{kCount} * 255 * 255 * 2048 <= INT32_MAX);
  const int left = path.fraction_bits - 14;
  int32_t sum = 0;
  for (int i = 0; i < kCount; ++i) {
    const auto magnitude = static_cast<uint32_t>(products[i] < 0 ? -products[i] : products[i]);
    const int32_t behind = largest - exponents[i];
    const auto cut = static_cast<int32_t>(magnitude << left >> (behind < 31 ? behind : 31));
    sum += products[i] < 0 ? -cut : cut;
  }
  const int64_t c_sum = ShiftTowardZero((c_bits >> 31) != 0 ? -c_magnitude : c_magnitude,
                                        path.fraction_bits - 23 - (largest - c_exponent));
  return Truncate(sum + c_sum, largest, path.fraction_bits);
}

BATON_INLINE float Dot(TensorCore core, const Factors& a, const Factors& b, float c) {
  if (core == TensorCore::kHopper) return Step<0, kTensorCoreProducts>(kHopperPath, a, b, c);
  return Step<kHalf, kHalf>(kAmperePath, a, b, Step<0, kHalf>(kAmperePath, a, b, c));
}

// A function of which its callers know nothing, so that calls of it stay where they are.
#ifdef __clang__
#define BATON_APART [[gnu::noinline]]
#else
#define BATON_APART [[gnu::noipa]]
#endif

// The processor takes subnormal operands and results for zero meanwhile: it needs a hundred cycles
// for one otherwise, and weights of attention give many. Functions that compute meanwhile have to
// be BATON_APART, or the compiler could move them out.
class WithoutSubnormals {
 public:
  WithoutSubnormals() : before_(_mm_getcsr()) {
    _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
  }
  ~WithoutSubnormals() { _mm_setcsr(before_); }
  WithoutSubnormals(const WithoutSubnormals&) = delete;
  WithoutSubnormals& operator=(const WithoutSubnormals&) = delete;

 private:
  unsigned before_;
};

BATON_APART float Chain(const Bf16* a, const Bf16* b, float c) {
  for (int i = 0; i < kTensorCoreProducts; ++i) {
    c += FloatFromBf16(a[i].bits) * FloatFromBf16(b[i].bits);
  }
  return c;
}

// The chains of a tile.
BATON_APART void Chains(const Bf16 (*a)[kTensorCoreProducts], const Bf16 (*b)[kTensorCoreProducts],
                        float (*c)[8]) {
  using Four = float __attribute__((vector_size(4 * sizeof(float))));
  Four columns[kTensorCoreProducts][2];
  for (int k = 0; k < kTensorCoreProducts; ++k) {
    for (int n = 0; n < 8; ++n) columns[k][n / 4][n % 4] = FloatFromBf16(b[n][k].bits);
  }
  // So many chains at once hide how long each waits for its own sum.
  constexpr int kRows = 4;
  for (int m = 0; m < 16; m += kRows) {
    Four sums[kRows][2];
    std::memcpy(sums, c[m], sizeof(sums));
    for (int k = 0; k < kTensorCoreProducts; ++k) {
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const float x = FloatFromBf16(a[m + i][k].bits);
        sums[i][0] += x * columns[k][0];
        sums[i][1] += x * columns[k][1];
      }
    }
    std::memcpy(c[m], sums, sizeof(sums));
  }
}

}  // namespace

float DotBf16(TensorCore core, const Bf16* a, const Bf16* b, float c) {
  Factors left;
  Factors right;
  Decode(a, &left);
  Decode(b, &right);
  return Dot(core, left, right, c);
}

BATON_WIDE void MultiplyBf16(TensorCore core, const Bf16 (*a)[kTensorCoreProducts],
                             const Bf16 (*b)[kTensorCoreProducts], float (*c)[8]) {
  Factors columns[8];
  for (int n = 0; n < 8; ++n) Decode(b[n], &columns[n]);
  for (int m = 0; m < 16; ++m) {
    Factors row;
    Decode(a[m], &row);
    for (int n = 0; n < 8; ++n) {
      const bool is_finite = columns[n].is_finite[0] && columns[n].is_finite[1];
      // A row of zeros costs no time: tiles have such rows beyond their matrix.
      c[m][n] =
          row.is_zero && is_finite && c[m][n] == 0.0f ? 0.0f : Dot(core, row, columns[n], c[m][n]);
    }
  }
}

float FloatDotBf16(const Bf16* a, const Bf16* b, float c) {
  const WithoutSubnormals scope;
  return Chain(a, b, c);
}

void FloatMultiplyBf16(const Bf16 (*a)[kTensorCoreProducts], const Bf16 (*b)[kTensorCoreProducts],
                       float (*c)[8]) {
  const WithoutSubnormals scope;
  Chains(a, b, c);
}

}  // namespace baton::kernels::simt
