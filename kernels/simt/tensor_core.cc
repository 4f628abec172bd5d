#include "kernels/simt/tensor_core.h"

#include <pmmintrin.h>

#include <bit>
#include <cstdlib>
#include <cstring>

#include "kernels/math.h"

namespace baton::simt {
namespace {

// A finite number as significand * 2^(exponent - fraction bits of its format).
struct Decoded {
  int64_t significand;
  int exponent;
};

Decoded DecodeBf16(uint16_t bits) {
  const int field = (bits >> 7) & 0xFF;
  const int64_t magnitude = (bits & 0x7F) | (field != 0 ? 0x80 : 0);
  return {(bits & 0x8000) != 0 ? -magnitude : magnitude, (field != 0 ? field : 1) - 127};
}

Decoded DecodeFloat(uint32_t bits) {
  const int field = static_cast<int>((bits >> 23) & 0xFF);
  const int64_t magnitude = (bits & 0x7FFFFF) | (field != 0 ? 0x800000 : 0);
  return {(bits >> 31) != 0 ? -magnitude : magnitude, (field != 0 ? field : 1) - 127};
}

bool IsFinite(float x) { return (std::bit_cast<uint32_t>(x) & 0x7F800000u) != 0x7F800000u; }

// The magnitude shifted (left for positive counts), cut toward zero, the sign kept.
int64_t ShiftTowardZero(int64_t value, int left) {
  const uint64_t magnitude = static_cast<uint64_t>(std::llabs(value));
  const uint64_t shifted =
      left >= 0 ? magnitude << left : (left <= -64 ? 0 : magnitude >> static_cast<unsigned>(-left));
  return value < 0 ? -static_cast<int64_t>(shifted) : static_cast<int64_t>(shifted);
}

// sum * 2^(exponent - fraction_bits), cut toward zero to fp32.
float Truncate(int64_t sum, int exponent, int fraction_bits) {
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

// What a core does with the terms of a step.
struct Datapath {
  int fraction_bits;
  int zero_exponent;
};
constexpr Datapath kHopperPath = {25, -133};
constexpr Datapath kAmperePath = {24, -132};

// One step of kCount products.
template <int kCount>
float Step(Datapath path, const Bf16* a, const Bf16* b, float c) {
  // Products carry 7 + 7 fraction bits, C 23; both are brought to so many behind the largest
  // exponent.
  Decoded terms[kCount];
  bool finite = IsFinite(c);
  double special = finite ? 0.0 : c;  // only its kind counts: infinity, minus infinity or NaN
  Decoded c_term = DecodeFloat(std::bit_cast<uint32_t>(c));
  if (c_term.significand == 0) c_term.exponent = path.zero_exponent;
  int largest = c_term.exponent;
  for (int i = 0; i < kCount; ++i) {
    const float x = FloatFromBf16(a[i].bits);
    const float y = FloatFromBf16(b[i].bits);
    if (!IsFinite(x) || !IsFinite(y)) {
      finite = false;
      special += static_cast<double>(x) * static_cast<double>(y);
      continue;
    }
    const Decoded first = DecodeBf16(a[i].bits);
    const Decoded second = DecodeBf16(b[i].bits);
    terms[i] = {first.significand * second.significand, first.exponent + second.exponent};
    if (terms[i].significand == 0) terms[i].exponent = path.zero_exponent;
    largest = terms[i].exponent > largest ? terms[i].exponent : largest;
  }
  if (!finite) {
    return special != special ? std::bit_cast<float>(0x7FFFFFFFu) : static_cast<float>(special);
  }
  int64_t sum =
      ShiftTowardZero(c_term.significand, path.fraction_bits - 23 - (largest - c_term.exponent));
  for (int i = 0; i < kCount; ++i) {
    sum += ShiftTowardZero(terms[i].significand,
                           path.fraction_bits - 14 - (largest - terms[i].exponent));
  }
  return Truncate(sum, largest, path.fraction_bits);
}

// The processor takes subnormal operands and results for zero meanwhile: it needs a hundred cycles
// for one otherwise, and weights of attention give many. What computes is not inlined, or the
// compiler could move it out.
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

[[gnu::noinline]] float Chain(const Bf16* a, const Bf16* b, float c) {
  for (int i = 0; i < kTensorCoreProducts; ++i) {
    c += FloatFromBf16(a[i].bits) * FloatFromBf16(b[i].bits);
  }
  return c;
}

// The chains of a tile.
[[gnu::noinline]] void Chains(const Bf16 (*a)[kTensorCoreProducts],
                              const Bf16 (*b)[kTensorCoreProducts], float (*c)[8]) {
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
  if (core == TensorCore::kHopper) return Step<kTensorCoreProducts>(kHopperPath, a, b, c);
  constexpr int kHalf = kTensorCoreProducts / 2;
  return Step<kHalf>(kAmperePath, a + kHalf, b + kHalf, Step<kHalf>(kAmperePath, a, b, c));
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

}  // namespace baton::simt
