// The bit models of Hopper's and Ampere's tensor cores: cases worked out by hand from the published
// rules, and random ones against an independent form of the same rules in double.
#include "kernels/simt/tensor_core.h"

#include <xmmintrin.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/math.h"
#include "tests/test_seed.h"

namespace baton::kernels::simt {
namespace {

// Sixteen factors on each side; those not named are zero.
struct Factors {
  Bf16 a[16] = {};
  Bf16 b[16] = {};

  Factors& Set(int i, float x, float y) {
    a[i] = {Bf16FromFloat(x)};
    b[i] = {Bf16FromFloat(y)};
    return *this;
  }
  float Dot(float c) const { return DotBf16(TensorCore::kHopper, a, b, c); }
  float AmpereDot(float c) const { return DotBf16(TensorCore::kAmpere, a, b, c); }
};

TEST(HopperDot, SmallIntegersAreExact) {
  Factors f;
  for (int i = 0; i < 16; ++i) f.Set(i, static_cast<float>(i), static_cast<float>(i - 8));
  EXPECT_EQ(f.Dot(3.0f), 283.0f);  // sum of i (i - 8) + 3
}

TEST(HopperDot, TermsAreCutTwentyFiveBitsBelowTheLargest) {
  // 1 has exponent 0: 2^-25 survives the alignment, 2^-26 does not.
  EXPECT_EQ(Factors().Set(0, 1.0f, 1.0f).Set(1, 0x1p-12f, 0x1p-13f).Dot(-1.0f), 0x1p-25f);
  EXPECT_EQ(Factors().Set(0, 1.0f, 1.0f).Set(1, 0x1p-13f, 0x1p-13f).Dot(-1.0f), 0.0f);
  // Two halves of the last place are cut each on its own: their sum is lost.
  EXPECT_EQ(
      Factors().Set(0, 1.0f, 1.0f).Set(1, 0x1p-13f, 0x1p-13f).Set(2, 0x1p-13f, 0x1p-13f).Dot(-1.0f),
      0.0f);
}

TEST(HopperDot, CutsTowardZeroOnBothSides) {
  // 2^-24 + 2^-25 below 1 is less than one place of fp32: the sum is cut, not rounded.
  const float below = 0x1.8p-24f;
  EXPECT_EQ(Factors().Set(0, 1.0f, 1.0f).Dot(below), 1.0f);
  EXPECT_EQ(Factors().Set(0, -1.0f, 1.0f).Dot(-below), -1.0f);
  EXPECT_EQ(Factors().Set(0, 1.0f, 1.0f).Dot(-below), 0x1.fffffcp-1f);  // 1 - 2^-24 - 2^-25, cut
}

TEST(HopperDot, AlignmentUsesExponentsOfTheFactors) {
  // 1.5 * 1.5 = 2.25 counts exponent 0, so 2^-25 still survives beside it.
  EXPECT_EQ(Factors().Set(0, 1.5f, 1.5f).Set(1, -1.5f, 1.5f).Set(2, 0x1p-12f, 0x1p-13f).Dot(0.0f),
            0x1p-25f);
  // A product that is zero has no exponent of theirs.
  EXPECT_EQ(Factors().Set(0, 0.0f, 0x1p127f).Set(1, 0x1p-60f, 0x1p-60f).Dot(0.0f), 0x1p-120f);
}

TEST(HopperDot, AZeroCountsMinus133) {
  // Beside 2^-134 a term of 2^-158, 25 places below 2^-133, counts; one of 2^-159 is cut.
  const float low = std::bit_cast<float>(uint32_t{1} << 15);  // 2^-134, a subnormal
  Factors f;
  f.Set(0, 0x1p-67f, 0x1p-67f);
  EXPECT_EQ(f.Set(1, -0x1p-79f, 0x1p-79f).Dot(0.0f), low - 0x1p-149f);
  EXPECT_EQ(f.Set(1, -0x1p-79f, 0x1p-80f).Dot(0.0f), low);
  EXPECT_EQ(f.Dot(-0.0f), low);
  // A C that is not zero counts -126 at least: the term is cut already at 2^-152.
  EXPECT_EQ(f.Set(1, -0x1p-75f, 0x1p-76f).Dot(0.0f), low - 0x1p-149f);
  EXPECT_EQ(f.Set(1, -0x1p-76f, 0x1p-76f).Dot(0x1p-149f), low + 0x1p-149f);
}

TEST(HopperDot, SubnormalsCountOnBothEnds) {
  const float smallest = std::bit_cast<float>(uint32_t{1} << 16);  // bf16 2^-133
  EXPECT_EQ(Factors().Set(0, smallest, 1.0f).Dot(0.0f), 0x1p-133f);
  EXPECT_EQ(Factors().Set(0, 0x1p-100f, 0x1p-49f).Dot(0.0f), 0x1p-149f);
  EXPECT_EQ(Factors().Set(0, 0x1p-100f, 0x1p-50f).Dot(0.0f), 0.0f);
  EXPECT_EQ(Factors().Dot(0x1p-149f), 0x1p-149f);
}

TEST(HopperDot, SpecialValues) {
  const float infinity = std::bit_cast<float>(0x7F800000u);
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  EXPECT_EQ(Factors().Set(0, 0x1p127f, 0x1p127f).Dot(0.0f), infinity);
  EXPECT_EQ(Factors().Set(0, -0x1p127f, 0x1p127f).Dot(0.0f), -infinity);
  EXPECT_EQ(Factors().Set(3, infinity, -2.0f).Dot(1.0f), -infinity);
  EXPECT_EQ(bits(Factors().Set(3, infinity, 0.0f).Dot(1.0f)), 0x7FFFFFFFu);
  EXPECT_EQ(bits(Factors().Set(3, infinity, 1.0f).Dot(-infinity)), 0x7FFFFFFFu);
  EXPECT_EQ(bits(Factors().Dot(std::bit_cast<float>(0xFFC00000u))), 0x7FFFFFFFu);
  EXPECT_EQ(bits(Factors().Set(0, 1.0f, 1.0f).Dot(-1.0f)), 0u);  // +0
  EXPECT_EQ(bits(Factors().Dot(-0.0f)), 0u);
}

TEST(AmpereDot, TermsAreCutTwentyFourBitsBelowTheLargest) {
  EXPECT_EQ(Factors().Set(0, 1.0f, 1.0f).Set(1, 0x1p-12f, 0x1p-12f).AmpereDot(-1.0f), 0x1p-24f);
  EXPECT_EQ(Factors().Set(0, 1.0f, 1.0f).Set(1, 0x1p-12f, 0x1p-13f).AmpereDot(-1.0f), 0.0f);
}

TEST(AmpereDot, AZeroCountsMinus132) {
  const float low = std::bit_cast<float>(uint32_t{1} << 16);  // 2^-133, a subnormal
  Factors f;
  f.Set(0, 0x1p-66f, 0x1p-67f);
  EXPECT_EQ(f.Set(1, -0x1p-78f, 0x1p-78f).AmpereDot(0.0f), low - 0x1p-149f);
  EXPECT_EQ(f.Set(1, -0x1p-78f, 0x1p-79f).AmpereDot(0.0f), low);
}

TEST(AmpereDot, EightProductsAreAddedAndThenTheOtherEight) {
  // 1 + 2^-24 is cut to 1 before the second eight, which take the 1 away.
  EXPECT_EQ(
      Factors().Set(0, 1.0f, 1.0f).Set(7, 0x1p-12f, 0x1p-12f).Set(8, -1.0f, 1.0f).AmpereDot(0),
      0.0f);
  // In one step the small one stays.
  EXPECT_EQ(
      Factors().Set(0, 1.0f, 1.0f).Set(8, 0x1p-12f, 0x1p-12f).Set(7, -1.0f, 1.0f).AmpereDot(0),
      0x1p-24f);
  // Hopper does not tell the one from the other.
  EXPECT_EQ(Factors().Set(0, 1.0f, 1.0f).Set(7, 0x1p-12f, 0x1p-12f).Set(8, -1.0f, 1.0f).Dot(0),
            0x1p-24f);
}

TEST(AmpereDot, SpecialValuesPassBothSteps) {
  const float infinity = std::bit_cast<float>(0x7F800000u);
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  EXPECT_EQ(Factors().Set(0, 0x1p127f, 0x1p127f).AmpereDot(0.0f), infinity);
  EXPECT_EQ(Factors().Set(15, 0x1p127f, -0x1p127f).AmpereDot(0.0f), -infinity);
  // Beyond fp32 after the first step: what the second takes away comes too late.
  Factors f;
  f.Set(0, 0x1p127f, 2.0f).Set(8, 0x1p127f, -2.0f);
  EXPECT_EQ(f.AmpereDot(0.0f), infinity);
  EXPECT_EQ(f.Dot(0.0f), 0.0f);
  f.Set(0, infinity, 1.0f).Set(8, infinity, -1.0f);
  EXPECT_EQ(bits(f.AmpereDot(0.0f)), 0x7FFFFFFFu);
  EXPECT_EQ(bits(Factors().AmpereDot(-0.0f)), 0u);
}

TEST(TensorCoreOf, IsKnownOfAmpereAdaAndHopperAlone) {
  EXPECT_EQ(TensorCoreOf(8), TensorCore::kAmpere);
  EXPECT_EQ(TensorCoreOf(9), TensorCore::kHopper);
  for (const int major : {0, 7, 10, 12}) EXPECT_FALSE(TensorCoreOf(major).has_value()) << major;
}

// The published rules with floating point in double, where every step is exact: scalings by powers
// of two, truncation to so many fraction bits, sums of terms. One step of products [first, end).
double ReferenceStep(const Factors& f, int first, int end, int fraction_bits, double c) {
  const int zero = -108 - fraction_bits;  // of both generations
  const auto exponent_of = [](double x) { return x == 0 ? -126 : std::max(std::ilogb(x), -126); };
  std::vector<std::pair<double, int>> terms = {{c, c == 0 ? zero : exponent_of(c)}};
  for (int i = first; i < end; ++i) {
    const double x = FloatFromBf16(f.a[i].bits);
    const double y = FloatFromBf16(f.b[i].bits);
    terms.emplace_back(x * y, x * y == 0 ? zero : exponent_of(x) + exponent_of(y));
  }
  int largest = terms[0].second;
  for (const auto& term : terms) largest = std::max(largest, term.second);
  double sum = 0;
  for (const auto& term : terms) sum += std::trunc(std::ldexp(term.first, fraction_bits - largest));
  const double value = std::ldexp(sum, largest - fraction_bits);
  if (value == 0) return 0;
  const int last_place = exponent_of(value) - 23;
  return std::ldexp(std::trunc(std::ldexp(value, -last_place)), last_place);
}

TEST(TensorCoreDot, EqualsTheRulesOnRandomFactors) {
  int num_other = 0;
  int num_subnormal = 0;
  for (const uint64_t seed : TestSeeds(2)) {
    TestRandom random(seed);
    for (int round = 0; round < 20000; ++round) {
      Factors f;
      const uint32_t spread = 1 + random.Below(40);  // exponents near each other, and far apart
      // About one, or their products in the subnormal range.
      const uint32_t middle = random.OneIn(4) ? 61 : 127;
      const auto draw = [&] {
        const uint32_t field = middle - spread / 2 + random.Below(spread);
        const uint32_t magnitude = random.OneIn(8) ? 0 : field << 7 | random.Below(128);
        return Bf16{static_cast<uint16_t>(magnitude | random.Below(2) << 15)};
      };
      for (int i = 0; i < 16; ++i) {
        f.a[i] = draw();
        f.b[i] = draw();
      }
      const float drawn = FloatFromBf16(draw().bits) * (1.0f + 0x1p-20f * random.Below(1 << 19));
      const float c = random.OneIn(2) ? 0.0f : drawn;
      const double hopper = ReferenceStep(f, 0, 16, 25, c);
      const double ampere = ReferenceStep(f, 8, 16, 24, ReferenceStep(f, 0, 8, 24, c));
      ASSERT_EQ(static_cast<double>(f.Dot(c)), hopper) << "seed " << seed << " " << round;
      ASSERT_EQ(static_cast<double>(f.AmpereDot(c)), ampere) << "seed " << seed << " " << round;
      if (hopper != ampere) ++num_other;
      if (hopper != 0 && std::abs(hopper) < 0x1p-126) ++num_subnormal;
    }
  }
  EXPECT_GT(num_other, 1000);  // they are two arithmetics
  EXPECT_GT(num_subnormal, 1000);
}

TEST(FloatDot, IsOneChainOfProducts) {
  Factors f;
  f.Set(0, 0x1p12f, 0x1p12f).Set(1, 1.0f, 1.0f).Set(2, 1.0f, 1.0f);
  EXPECT_EQ(FloatDotBf16(f.a, f.b, 0.0f), 0x1p24f);  // each 1 is rounded away
}

TEST(FloatDot, TakesSubnormalNumbersForZeroAndLeavesTheProcessorAsItWas) {
  const unsigned mode = _mm_getcsr();
  Factors f;
  f.Set(0, 0x1p-130f, 0x1p120f);  // a factor
  EXPECT_EQ(FloatDotBf16(f.a, f.b, 0.0f), 0.0f);
  f.Set(0, 0x1p-70f, 0x1p-70f);  // a product
  EXPECT_EQ(FloatDotBf16(f.a, f.b, 0.0f), 0.0f);
  f.Set(0, 1.0f, 0.0f);
  EXPECT_EQ(FloatDotBf16(f.a, f.b, 0x1p-130f), 0.0f);  // C
  EXPECT_EQ(_mm_getcsr(), mode);
}

// A tile of factors and sums: mostly of one size, with zeros, subnormal and special ones.
struct Tile {
  Bf16 a[16][kTensorCoreProducts];
  Bf16 b[8][kTensorCoreProducts];
  float c[16][8];

  explicit Tile(std::mt19937_64& random) {
    const auto draw = [&random](float one_in) {
      const float x = std::normal_distribution<float>()(random);
      if (std::uniform_real_distribution<float>(0, one_in)(random) > 1) return x;
      const float rare[] = {0.0f,     -0.0f,      0x1p-130f, -0x1p-100f,
                            0x1p100f, 0x1.8p127f, INFINITY,  NAN};
      return rare[random() % std::size(rare)];
    };
    // A tile without any of them, one with a few, one that is full of them.
    const float one_in = std::array{1e9f, 500.0f, 3.0f}[random() % 3];
    const uint32_t first_zero = random() % 17;  // rows beyond a matrix
    for (uint32_t m = 0; m < 16; ++m) {
      for (Bf16& value : a[m]) value = {m < first_zero ? Bf16FromFloat(draw(one_in)) : uint16_t{0}};
      for (float& value : c[m]) value = m < first_zero ? draw(one_in) : 0.0f;
    }
    for (auto& column : b) {
      for (Bf16& value : column) value = {Bf16FromFloat(draw(one_in))};
    }
  }
};

// An arithmetic: a whole tile, and one sum of it.
struct Arithmetic {
  void (*multiply)(Tile& tile);
  float (*dot)(const Bf16* a, const Bf16* b, float c);
};
constexpr Arithmetic kArithmetics[] = {
    {[](Tile& t) { MultiplyBf16(TensorCore::kHopper, t.a, t.b, t.c); },
     [](const Bf16* a, const Bf16* b, float c) { return DotBf16(TensorCore::kHopper, a, b, c); }},
    {[](Tile& t) { MultiplyBf16(TensorCore::kAmpere, t.a, t.b, t.c); },
     [](const Bf16* a, const Bf16* b, float c) { return DotBf16(TensorCore::kAmpere, a, b, c); }},
    {[](Tile& t) { FloatMultiplyBf16(t.a, t.b, t.c); }, &FloatDotBf16},
};

TEST(Multiply, HasTheBitsOfEachDotAlone) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 3000; ++round) {
    const Tile tile(random);
    const Arithmetic& arithmetic = kArithmetics[round % std::size(kArithmetics)];
    Tile got = tile;
    arithmetic.multiply(got);
    for (int i = 0; i < 16 * 8; ++i) {
      const float sum = got.c[i / 8][i % 8];
      const float expected = arithmetic.dot(tile.a[i / 8], tile.b[i % 8], tile.c[i / 8][i % 8]);
      if (std::isnan(expected) && std::isnan(sum)) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(sum), std::bit_cast<uint32_t>(expected))
          << "seed " << seed << " round " << round << " sum " << i;
    }
  }
}

}  // namespace
}  // namespace baton::kernels::simt
