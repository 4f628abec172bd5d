#include "kernels/rope_table.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(SinCos, IsWithinItsBoundUpToLargeAngles) {
  double worst = 0;
  for (double x = 0; x < 1647099.0; x = x * 1.00001 + 0.0123) {
    const SinCosResult value = SinCos(x);
    worst = std::fmax(worst, std::fabs(value.sin - static_cast<double>(sinl(x))));
    worst = std::fmax(worst, std::fabs(value.cos - static_cast<double>(cosl(x))));
  }
  // Angles next to multiples of pi / 2, where the reduction cancels most.
  for (int n = 1; n < 1048576; n += 997) {
    const double x = n * 1.5707963267948966;
    worst = std::fmax(worst, std::fabs(SinCos(x).sin - static_cast<double>(sinl(x))));
    worst = std::fmax(worst, std::fabs(SinCos(x).cos - static_cast<double>(cosl(x))));
  }
  EXPECT_LT(worst, 1e-15);
  EXPECT_GT(worst, 0);
  EXPECT_EQ(SinCos(0).sin, 0.0);
  EXPECT_EQ(SinCos(0).cos, 1.0);
}

TEST(Power, IsWithinItsBound) {
  for (double base : {0.5, 1.0, 2.0, 10000.0, 100000.0, 500000.0, 1e6, 1e30}) {
    for (double exponent = -1; exponent <= 1; exponent += 0.0078125) {
      const double exact = std::pow(base, exponent);
      ASSERT_NEAR(Power(base, exponent), exact, 1e-14 * exact) << base << " " << exponent;
    }
  }
}

TEST(BuildRopeTable, IsTheDefinitionWithinAnUlp) {
  for (uint32_t dim : {2u, 64u, 80u, 256u}) {
    std::vector<float> factors(dim / 2);
    for (size_t i = 0; i < factors.size(); ++i) factors[i] = 1.0f + static_cast<float>(i) / 7.0f;
    for (bool with_factors : {false, true}) {
      std::vector<float> table(size_t{3000} * dim);
      RopeTableParams params = {3000, dim, 100000.0};
      if (with_factors) params.freq_factors = factors;
      ASSERT_TRUE(BuildRopeTable(params, table).ok());
      for (uint32_t position : {0u, 1u, 17u, 2999u}) {
        for (uint32_t i = 0; i < dim / 2; ++i) {
          const long double frequency =
              powl(100000.0L, -2.0L * i / dim) / (with_factors ? factors[i] : 1.0f);
          const float* pair = &table[(size_t{position} * (dim / 2) + i) * 2];
          // Half an ulp of the value plus the error of the angle, in double.
          ASSERT_NEAR(pair[0], cosl(position * frequency), 0x1p-25 + 3e-11);
          ASSERT_NEAR(pair[1], sinl(position * frequency), 0x1p-25 + 3e-11);
        }
      }
    }
  }
}

TEST(BuildRopeTable, SaysWhatIsWrongWithItsParameters) {
  std::vector<float> table(size_t{16} * 4);
  const std::vector<float> zero = {1.0f, 0.0f};
  const std::vector<float> nan = {1.0f, NAN};
  const std::vector<float> tiny = {1.0f, 1e-30f};
  const std::vector<float> three = {1.0f, 1.0f, 1.0f};
  EXPECT_TRUE(BuildRopeTable({16, 4, 10000.0}, table).ok());
  for (double base : {0.0, -1.0, 1e300, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    EXPECT_EQ(BuildRopeTable({16, 4, base}, table).code(), StatusCode::kInvalidArgument) << base;
  }
  for (const auto& factors : {zero, nan, tiny, three}) {
    EXPECT_EQ(BuildRopeTable({16, 4, 10000.0, factors}, table).code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton
