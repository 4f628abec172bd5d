#include "kernels/rope_table.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace baton::kernels {
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
    std::vector<double> factors(dim / 2);
    for (size_t i = 0; i < factors.size(); ++i) factors[i] = 1.0 + static_cast<double>(i) / 7.0;
    for (bool with_factors : {false, true}) {
      std::vector<float> table(size_t{3000} * dim);
      RopeTableParams params = {3000, dim, 100000.0};
      if (with_factors) params.freq_factors = factors;
      if (with_factors) params.amplitude = 1.25;
      const long double amplitude = with_factors ? 1.25L : 1.0L;
      // Half an ulp of the value plus the error of the angle, in double.
      const double bound = (with_factors ? 0x1p-24 : 0x1p-25) + 4e-11;
      ASSERT_TRUE(BuildRopeTable(params, table).ok());
      for (uint32_t position : {0u, 1u, 17u, 2999u}) {
        for (uint32_t i = 0; i < dim / 2; ++i) {
          const long double frequency =
              powl(100000.0L, -2.0L * i / dim) / (with_factors ? factors[i] : 1.0);
          const float* pair = &table[(size_t{position} * (dim / 2) + i) * 2];
          ASSERT_NEAR(pair[0], amplitude * cosl(position * frequency), bound);
          ASSERT_NEAR(pair[1], amplitude * sinl(position * frequency), bound);
        }
      }
    }
  }
}

TEST(BuildRopeTable, SaysWhatIsWrongWithItsParameters) {
  std::vector<float> table(size_t{16} * 4);
  const std::vector<double> zero = {1.0, 0.0};
  const std::vector<double> nan = {1.0, static_cast<double>(NAN)};
  const std::vector<double> tiny = {1.0, 1e-30};
  const std::vector<double> three = {1.0, 1.0, 1.0};
  EXPECT_TRUE(BuildRopeTable({16, 4, 10000.0}, table).ok());
  for (double base : {0.0, -1.0, 1e300, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    EXPECT_EQ(BuildRopeTable({16, 4, base}, table).code(), StatusCode::kInvalidArgument) << base;
  }
  for (double amplitude : {0.0, -1.0, 1e9, static_cast<double>(NAN)}) {
    EXPECT_EQ(BuildRopeTable({16, 4, 10000.0, {}, amplitude}, table).code(),
              StatusCode::kInvalidArgument)
        << amplitude;
  }
  for (const auto& factors : {zero, nan, tiny, three}) {
    EXPECT_EQ(BuildRopeTable({16, 4, 10000.0, factors}, table).code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton::kernels
