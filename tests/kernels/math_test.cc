#include "kernels/math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

#include "kernels/reference/reference_math.h"

namespace baton::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// |actual - exact| in units of the last place of exact (a normal number).
double UlpError(float actual, double exact) {
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::fabs(actual - exact) / std::ldexp(1.0, exponent - 23);
}

TEST(HalfFormat, EveryHalfIsConvertedByItsDefinitionAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = FloatFromHalf(half);
    const int exponent = half >> 10 & 31;
    const int fraction = half & 1023;
    if (exponent == 31) {
      EXPECT_TRUE(fraction != 0 ? std::isnan(value) : std::isinf(value)) << bits;
      EXPECT_EQ(std::signbit(value), half >> 15 != 0);
      if (fraction != 0) {
        EXPECT_TRUE(std::isnan(FloatFromHalf(HalfFromFloat(value))));
        continue;
      }
    } else {
      const double magnitude =
          exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      EXPECT_EQ(value, static_cast<float>(half >> 15 != 0 ? -magnitude : magnitude)) << bits;
      EXPECT_EQ(std::signbit(value), half >> 15 != 0);
    }
    EXPECT_EQ(HalfFromFloat(value), half) << bits;
  }
}

TEST(HalfFormat, RoundsToNearestEven) {
  // Between every pair of neighbours: the middle goes to the even one, a hair beside it does not.
  for (uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const double low = FloatFromHalf(static_cast<uint16_t>(bits));
    const double high = FloatFromHalf(static_cast<uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    const auto even = static_cast<uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(HalfFromFloat(middle), even) << bits;
    ASSERT_EQ(HalfFromFloat(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(HalfFromFloat(std::nextafter(middle, kInfinity)), bits + 1) << bits;
  }
  EXPECT_EQ(HalfFromFloat(65519.0f), 0x7BFF);
  EXPECT_EQ(HalfFromFloat(65520.0f), 0x7C00);
  EXPECT_EQ(HalfFromFloat(-1e30f), 0xFC00);
  EXPECT_EQ(HalfFromFloat(-0.0f), 0x8000);
}

TEST(E4m3Format, EveryCodeIsConvertedByItsDefinitionAndBack) {
  for (uint32_t bits = 0; bits < 0x100; ++bits) {
    const auto code = static_cast<uint8_t>(bits);
    const float value = FloatFromE4m3(code);
    EXPECT_EQ(std::signbit(value), code >> 7 != 0) << bits;
    const int exponent = code >> 3 & 15;
    const int fraction = code & 7;
    if (exponent == 15 && fraction == 7) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_EQ(E4m3FromFloat(value), 0x7F) << bits;
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    EXPECT_EQ(value, static_cast<float>(code >> 7 != 0 ? -magnitude : magnitude)) << bits;
    EXPECT_EQ(E4m3FromFloat(value), code) << bits;
  }
}

TEST(E4m3Format, RoundsToNearestEvenAndStopsAt448) {
  for (uint32_t bits = 0; bits < 0x7E; ++bits) {
    for (const uint32_t sign : {0u, 0x80u}) {
      const double low = FloatFromE4m3(static_cast<uint8_t>(sign | bits));
      const double high = FloatFromE4m3(static_cast<uint8_t>(sign | (bits + 1)));
      const auto middle = static_cast<float>((low + high) / 2);
      const float outwards = sign == 0 ? kInfinity : -kInfinity;
      ASSERT_EQ(E4m3FromFloat(middle), sign | (bits % 2 == 0 ? bits : bits + 1)) << bits;
      ASSERT_EQ(E4m3FromFloat(std::nextafter(middle, 0.0f)), sign | bits) << bits;
      ASSERT_EQ(E4m3FromFloat(std::nextafter(middle, outwards)), sign | (bits + 1)) << bits;
    }
  }
  for (const float large : {448.5f, 464.0f, 479.0f, 480.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(E4m3FromFloat(large), 0x7E) << large;
    EXPECT_EQ(E4m3FromFloat(-large), 0xFE) << large;
  }
  EXPECT_EQ(E4m3FromFloat(1e-45f), 0);
  EXPECT_EQ(E4m3FromFloat(-1e-45f), 0x80);
  EXPECT_EQ(E4m3FromFloat(std::bit_cast<float>(0x7F800001u)), 0x7F);
  EXPECT_EQ(E4m3FromFloat(std::bit_cast<float>(0xFFC00000u)), 0x7F);
}

TEST(Bf16Format, RoundsToNearestEvenAndKeepsNan) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto bf16 = static_cast<uint16_t>(bits);
    const float value = FloatFromBf16(bf16);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(value))));
      continue;
    }
    ASSERT_EQ(Bf16FromFloat(value), bf16);
    if ((bits & 0x7FFF) >= 0x7F80) continue;
    const auto middle = std::bit_cast<float>(bits << 16 | 0x8000u);
    ASSERT_EQ(Bf16FromFloat(middle), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(Bf16FromFloat(std::bit_cast<float>(bits << 16 | 0x7FFFu)), bits);
    ASSERT_EQ(Bf16FromFloat(std::bit_cast<float>(bits << 16 | 0x8001u)), bits + 1);
  }
  // A NaN whose payload lies in the lower half only.
  EXPECT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(std::bit_cast<float>(0x7F800001u)))));
}

TEST(Exp, IsWithinItsBoundOverItsWholeRange) {
  double worst = 0;
  for (float x = -87.3f; x < 88.7f; x += 1.1e-4f) {
    worst = std::fmax(worst, UlpError(Exp(x), std::exp(double{x})));
  }
  for (float x = 1e-30f; x < 1.0f; x *= 1.001f) {
    worst = std::fmax(worst, UlpError(Exp(x), std::exp(double{x})));
    worst = std::fmax(worst, UlpError(Exp(-x), std::exp(double{-x})));
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LE(worst, 1.5);
  EXPECT_GT(worst, 0.5);
}

TEST(Exp, SpecialValues) {
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
  EXPECT_EQ(Exp(-kInfinity), 0.0f);
  EXPECT_EQ(Exp(-104.0f), 0.0f);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_EQ(Exp(89.0f), kInfinity);
  EXPECT_TRUE(std::isnan(Exp(NAN)));
  // Subnormal results.
  for (float x = -103.0f; x < -87.3f; x += 0.01f) {
    ASSERT_NEAR(Exp(x), std::exp(double{x}), 1.5 * 0x1p-149);
  }
}

TEST(Exp, OfNonPositivesHasTheSameBits) {
  uint64_t num_wrong = 0;
  const auto compare = [&](uint32_t bits) {
    const auto x = std::bit_cast<float>(bits);
    const float one = ExpOfNonPositive(x);
    const float other = Exp(x);
    num_wrong += std::bit_cast<uint32_t>(one) != std::bit_cast<uint32_t>(other) ? 1 : 0;
  };
  // Each float where a result is subnormal or just 0; every 97th elsewhere.
  const auto last = std::bit_cast<uint32_t>(-104.5f);
  for (auto bits = std::bit_cast<uint32_t>(-87.0f); bits <= last; ++bits) compare(bits);
  for (uint32_t bits = 0x80000000u; bits < 0xFF800000u; bits += 97) compare(bits);
  for (const float x : {0.0f, -0.0f, -kInfinity}) compare(std::bit_cast<uint32_t>(x));
  EXPECT_EQ(num_wrong, 0u);
  EXPECT_EQ(std::bit_cast<uint32_t>(ExpOfNonPositive(std::nanf(""))), 0u);
}

TEST(Log, IsWithinItsBoundOverItsWholeRange) {
  double worst = 0;
  const auto check = [&](float x) {
    const double exact = std::log(double{x});
    if (exact != 0) worst = std::fmax(worst, UlpError(Log(x), exact));
  };
  for (uint32_t bits = 1; bits < 0x7F800000u; bits += 1499) check(std::bit_cast<float>(bits));
  for (int i = -200000; i <= 200000; ++i) {
    check(std::bit_cast<float>(static_cast<uint32_t>(0x3F800000 + i)));  // around 1
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LE(worst, 1.5);
  EXPECT_GT(worst, 0.5);
}

TEST(Log, SpecialValues) {
  EXPECT_EQ(Log(1.0f), 0.0f);
  EXPECT_EQ(Log(0.0f), -kInfinity);
  EXPECT_EQ(Log(-0.0f), -kInfinity);
  EXPECT_EQ(Log(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(Log(-1.0f)));
  EXPECT_TRUE(std::isnan(Log(-kInfinity)));
  EXPECT_TRUE(std::isnan(Log(NAN)));
}

TEST(KernelExp, IsWithinItsBoundOverItsWholeRange) {
  double worst = 0;
  for (float x = -87.3f; x < 88.0f; x += 1.3e-4f) {
    worst = std::fmax(worst, UlpError(ReferenceExp(x), std::exp(double{x})));
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LE(worst, 1.1);
  EXPECT_GT(worst, 0.5);
  EXPECT_EQ(ReferenceExp(0.0f), 1.0f);
  EXPECT_EQ(ReferenceExp(-kInfinity), 0.0f);
  EXPECT_EQ(ReferenceExp(-87.4f), 0.0f);
  EXPECT_EQ(ReferenceExp(kInfinity), ReferenceExp(88.0f));
  EXPECT_TRUE(std::isnan(ReferenceExp(NAN)));
}

}  // namespace
}  // namespace baton::kernels
