// Pooling against a slow reference: mean and last, in one go and with rows that come twice.
#include "src/model/row_pool.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace baton::model {
namespace {

using Rows = std::vector<std::vector<float>>;

Rows RandomRows(uint32_t num_rows, uint32_t dim, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  Rows rows(num_rows, std::vector<float>(dim));
  for (auto& row : rows) {
    for (float& value : row) value = normal(random);
  }
  return rows;
}

// In long double, with the divisor that RowPool leaves out.
std::vector<long double> SlowVector(Pooling pooling, const Rows& rows) {
  std::vector<long double> out(rows.front().size(), 0.0L);
  for (size_t i = 0; i < out.size(); ++i) {
    if (pooling == Pooling::kLast) {
      out[i] = rows.back()[i];
      continue;
    }
    for (const auto& row : rows) out[i] += row[i];
    out[i] /= static_cast<long double>(rows.size());
  }
  long double square = 0;
  for (const long double value : out) square += value * value;
  for (long double& value : out) value /= std::sqrt(square);
  return out;
}

TEST(RowPoolTest, EqualsTheSlowReference) {
  constexpr uint64_t kSeed = 20250611;
  for (const Pooling pooling : {Pooling::kMean, Pooling::kLast}) {
    for (const uint32_t num_rows : {1u, 2u, 17u, 500u}) {
      for (const uint32_t dim : {1u, 3u, 576u}) {
        const Rows rows = RandomRows(num_rows, dim, kSeed + num_rows + dim);
        RowPool pool(pooling, dim);
        for (uint32_t pos = 0; pos < num_rows; ++pos) pool.Add(pos, rows[pos]);
        const auto vector = pool.Vector();
        ASSERT_TRUE(vector.ok()) << vector.status();
        const std::vector<long double> slow = SlowVector(pooling, rows);
        double square = 0;
        for (uint32_t i = 0; i < dim; ++i) {
          // Half a unit of a float below 1, and what cancels in double.
          EXPECT_NEAR((*vector)[i], static_cast<double>(slow[i]), 6e-8)
              << PoolingName(pooling) << " " << num_rows << " rows, element " << i << ", seed "
              << kSeed;
          square += double{(*vector)[i]} * (*vector)[i];
        }
        EXPECT_NEAR(square, 1.0, 1e-5);
      }
    }
  }
}

TEST(RowPoolTest, RowsThatComeAgainChangeNoBit) {
  const Rows rows = RandomRows(9, 5, 7);
  RowPool once(Pooling::kMean, 5);
  RowPool again(Pooling::kMean, 5);
  for (uint32_t pos = 0; pos < 9; ++pos) once.Add(pos, rows[pos]);
  for (uint32_t pos = 0; pos < 6; ++pos) again.Add(pos, rows[pos]);
  for (uint32_t pos = 0; pos < 9; ++pos) again.Add(pos, rows[pos]);
  EXPECT_EQ(*once.Vector(), *again.Vector());
}

TEST(RowPoolTest, ZerosStayAndNoNumberIsRefused) {
  RowPool pool(Pooling::kLast, 2);
  EXPECT_EQ(pool.Vector().status().code(), StatusCode::kFailedPrecondition);
  pool.Add(0, std::vector<float>{0.0f, 0.0f});
  EXPECT_EQ(*pool.Vector(), (std::vector<float>{0.0f, 0.0f}));
  pool.Add(1, std::vector<float>{1.0f, std::numeric_limits<float>::quiet_NaN()});
  EXPECT_EQ(pool.Vector().status().code(), StatusCode::kDataLoss);
}

TEST(RowPoolTest, OnlyMeanAndLastGiveAVector) {
  for (uint32_t i = 0; i <= kMaxPooling; ++i) {
    const auto pooling = static_cast<Pooling>(i);
    const bool gives = pooling == Pooling::kMean || pooling == Pooling::kLast;
    EXPECT_EQ(GivesVector(pooling), gives) << PoolingName(pooling);
  }
}

}  // namespace
}  // namespace baton::model
