// Row operations that only some architectures use: norms of heads and of what is added, the scale
// of embeddings, the tanh form of gelu, and the routing of a mixture of experts.
#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/kernel_fixtures.h"

namespace baton::kernels {

using device::ThreadPool;

namespace {

constexpr double kUnit = 0x1p-24;
constexpr uint32_t kLengths[] = {1, 15, 16, 17, 64, 97, 640, 1009};
constexpr uint32_t kRowCounts[] = {0, 1, 2, 7, 100};

class ModelOpsTest : public ::testing::TestWithParam<Body> {
 protected:
  const Ops& ops() const { return *GetParam().ops; }
  ThreadPool one_{1};
  ThreadPool three_{3};
};

TEST_P(ModelOpsTest, RmsNormAddsToItsOutput) {
  for (uint32_t k : kLengths) {
    for (uint32_t rows : kRowCounts) {
      Random random(k * 1000 + rows);
      const auto x = random.Activations(size_t{rows} * k);
      const auto weight = random.Activations(k);
      const auto before = random.Activations(x.size());
      std::vector<float> normed(x.size());
      ops().rms_norm(one_, {x.data(), weight.data(), rows, k, 1e-5f, normed.data()});
      std::vector<float> actual = before;
      actual.push_back(kPoison);
      ops().rms_norm(three_,
                     {x.data(), weight.data(), rows, k, 1e-5f, actual.data(), Epilogue::kAdd});
      // Storing, then adding, is the definition.
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(actual[i], before[i] + normed[i]);
      EXPECT_EQ(actual.back(), kPoison);
      std::vector<float> expected = before;
      ReferenceOps().rms_norm(
          one_, {x.data(), weight.data(), rows, k, 1e-5f, expected.data(), Epilogue::kAdd});
      ExpectAgree(GetParam(), std::span(actual).first(x.size()), expected, (k / 16 + 8) * kUnit,
                  100.0);
    }
  }
}

TEST_P(ModelOpsTest, HeadNormIsTheNormOfEachHeadAndTouchesNothingElse) {
  for (uint32_t dim : {8u, 16u, 24u, 64u, 128u, 256u}) {
    for (uint32_t rows : kRowCounts) {
      constexpr uint32_t kHeads = 3;
      const uint32_t stride = kHeads * dim + 11;
      Random random(dim * 1000 + rows);
      const auto x = random.Activations(size_t{rows} * stride);
      const auto weight = random.Activations(dim);
      std::vector<float> actual = x;
      ops().head_norm(three_, {actual.data(), weight.data(), rows, stride, kHeads, dim, 1e-6f});
      std::vector<float> expected = x;
      for (uint32_t r = 0; r < rows; ++r) {
        float* row = expected.data() + size_t{r} * stride;
        ops().rms_norm(one_, {row, weight.data(), kHeads, dim, 1e-6f, row});
      }
      EXPECT_EQ(CountDifferent(actual, expected), 0u);
      std::vector<float> reference = x;
      ReferenceOps().head_norm(one_,
                               {reference.data(), weight.data(), rows, stride, kHeads, dim, 1e-6f});
      ExpectAgree(GetParam(), actual, reference, (dim / 16 + 8) * kUnit, 0);
    }
  }
}

TEST_P(ModelOpsTest, Scale) {
  for (size_t count : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{100000}}) {
    Random random(count);
    const auto x = random.Activations(count);
    std::vector<float> actual = x;
    actual.push_back(kPoison);
    ops().scale(three_, actual.data(), count, 25.298221f);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(actual[i], x[i] * 25.298221f);
    EXPECT_EQ(actual.back(), kPoison);
  }
}

TEST_P(ModelOpsTest, Softcap) {
  constexpr float kCap = 30.0f;
  for (size_t count : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{100000}}) {
    Random random(count);
    auto x = random.Activations(count, 20.0f);
    if (count > 3) x[0] = 1e30f, x[1] = -1e30f, x[2] = 0.0f;
    std::vector<float> expected = x;
    std::vector<float> actual = x;
    actual.push_back(kPoison);
    ReferenceOps().softcap(one_, expected.data(), count, kCap);
    ops().softcap(three_, actual.data(), count, kCap);
    ASSERT_EQ(actual.back(), kPoison);
    actual.pop_back();
    ExpectAgree(GetParam(), actual, expected, 8 * kUnit, kCap);
    for (size_t i = 0; i < count; ++i) {
      const double exact = kCap * std::tanh(double{x[i]} / kCap);
      // 1 - 2 / (1 + e) has the absolute error of numbers near 1.
      ASSERT_LE(std::fabs(actual[i] - exact), 8 * kUnit * kCap) << x[i];
      ASSERT_LE(std::fabs(actual[i]), kCap);
    }
  }
  float nan = std::numeric_limits<float>::quiet_NaN();
  ops().softcap(one_, &nan, 1, kCap);
  EXPECT_TRUE(std::isnan(nan));
}

TEST_P(ModelOpsTest, ReluSquared) {
  for (size_t count : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{100000}}) {
    Random random(count);
    auto x = random.Activations(count, 3.0f);
    if (count > 3) x[0] = -0.0f, x[1] = -1e30f, x[2] = 0.0f;
    std::vector<float> expected = x;
    std::vector<float> actual = x;
    actual.push_back(kPoison);
    ReferenceOps().relu_squared(one_, expected.data(), count);
    ops().relu_squared(three_, actual.data(), count);
    ASSERT_EQ(actual.back(), kPoison);
    actual.pop_back();
    ASSERT_EQ(CountDifferent(actual, expected), 0u);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(actual[i], x[i] > 0 ? x[i] * x[i] : 0.0f) << x[i];
  }
  float nan = std::numeric_limits<float>::quiet_NaN();
  ops().relu_squared(one_, &nan, 1);
  EXPECT_TRUE(std::isnan(nan));
}

TEST_P(ModelOpsTest, GeluMul) {
  for (uint32_t k : kLengths) {
    for (uint32_t rows : kRowCounts) {
      Random random(k * 1000 + rows);
      const auto x = random.Activations(size_t{rows} * 2 * k, 2.0f);
      std::vector<float> expected(size_t{rows} * k);
      std::vector<float> actual(expected.size() + 1, kPoison);
      ReferenceOps().gelu_mul(one_, x.data(), rows, k, expected.data());
      ops().gelu_mul(three_, x.data(), rows, k, actual.data());
      ASSERT_EQ(actual.back(), kPoison);
      actual.pop_back();
      ExpectAgree(GetParam(), actual, expected, 400 * kUnit, 1e-25);
      for (size_t i = 0; i < actual.size(); ++i) {
        const double gate = x[i / k * 2 * k + i % k];
        const double up = x[i / k * 2 * k + k + i % k];
        const double t = 2 * std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
        const double exact = gate / (1 + std::exp(-t)) * up;
        // The exponent's relative error of about 3 units becomes one of t times that.
        const double bound = (12 + 4 * std::min(std::fabs(t), 90.0)) * kUnit;
        ASSERT_LE(std::fabs(actual[i] - exact), bound * std::fabs(exact) + 1e-34 * std::fabs(up))
            << "gate " << gate;
      }
    }
  }
}

TEST_P(ModelOpsTest, ClampedSwiglu) {
  for (uint32_t k : kLengths) {
    for (uint32_t rows : kRowCounts) {
      Random random(k * 1000 + rows);
      auto x = random.Activations(size_t{rows} * 2 * k, 6.0f);  // some are beyond the limit
      if (k > 2 && rows > 0) x[1] = 1e30f, x[k + 1] = -1e30f;
      std::vector<float> expected(size_t{rows} * k);
      std::vector<float> actual(expected.size() + 1, kPoison);
      ReferenceOps().clamped_swiglu(one_, x.data(), rows, k, expected.data());
      ops().clamped_swiglu(three_, x.data(), rows, k, actual.data());
      ASSERT_EQ(actual.back(), kPoison);
      actual.pop_back();
      ExpectAgree(GetParam(), actual, expected, 400 * kUnit, 1e-25);
      for (size_t i = 0; i < actual.size(); ++i) {
        const double gate = std::min<double>(x[i / k * 2 * k + i % k], 7.0);
        const double up = std::clamp<double>(x[i / k * 2 * k + k + i % k], -7.0, 7.0);
        const double exact = gate / (1 + std::exp(-double{kSwigluAlpha} * gate)) * (up + 1);
        // The exponent is rounded once, and up + 1 once, by half a unit of up.
        const double scale = std::fabs(gate / (1 + std::exp(-double{kSwigluAlpha} * gate)));
        const double bound = (12 + 2 * std::min(std::fabs(gate), 90.0)) * kUnit;
        ASSERT_LE(std::fabs(actual[i] - exact), bound * scale * (std::fabs(up) + 1) + 1e-34)
            << "gate " << gate << " up " << up;
      }
    }
  }
}

TEST_P(ModelOpsTest, ClampedSwigluKeepsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {nan, 1.0f, 1.0f, nan};
  std::vector<float> out(2);
  ops().clamped_swiglu(one_, x.data(), 1, 2, out.data());
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(out[1]));
}

TEST_P(ModelOpsTest, RoutePicksTheLargestAndSoftmaxesThem) {
  for (uint32_t experts : {1u, 2u, 8u, 60u, 128u}) {
    for (uint32_t top_k = 1; top_k <= std::min(experts, 8u); ++top_k) {
      for (uint32_t rows : {1u, 5u, 200u}) {
        Random random(experts * 100 + top_k * 10 + rows);
        const auto logits = random.Activations(size_t{rows} * experts, 3.0f);
        std::vector<uint32_t> ids(size_t{rows} * top_k, 1u << 30);
        std::vector<float> weights(ids.size(), kPoison);
        ops().route(three_, {logits.data(), rows, experts, top_k, ids.data(), weights.data()});
        for (uint32_t r = 0; r < rows; ++r) {
          const float* row = &logits[size_t{r} * experts];
          std::vector<uint32_t> order(experts);
          for (uint32_t e = 0; e < experts; ++e) order[e] = e;
          std::stable_sort(order.begin(), order.end(),
                           [&](uint32_t a, uint32_t b) { return row[a] > row[b]; });
          double sum = 0;
          for (uint32_t j = 0; j < top_k; ++j)
            sum += std::exp(double{row[order[j]]} - row[order[0]]);
          for (uint32_t j = 0; j < top_k; ++j) {
            ASSERT_EQ(ids[r * top_k + j], order[j]);
            const double exact = std::exp(double{row[order[j]]} - row[order[0]]) / sum;
            // The logits' difference is rounded once: an error of its size in the exponent.
            const double rounding = (8 + std::fabs(double{row[order[j]]} - row[order[0]])) * kUnit;
            ASSERT_NEAR(weights[r * top_k + j], exact, rounding * exact + 1e-38);
          }
        }
      }
    }
  }
}

TEST_P(ModelOpsTest, RouteOfEqualAndOfBrokenLogits) {
  const auto route = [&](const std::vector<float>& logits, uint32_t top_k) {
    std::pair<std::vector<uint32_t>, std::vector<float>> out;
    out.first.resize(top_k);
    out.second.resize(top_k);
    ops().route(one_, {logits.data(), 1, static_cast<uint32_t>(logits.size()), top_k,
                       out.first.data(), out.second.data()});
    return out;
  };
  const auto equal = route({1, 2, 2, 1, 2}, 4);
  EXPECT_EQ(equal.first, (std::vector<uint32_t>{1, 2, 4, 0}));
  EXPECT_EQ(equal.second[0], equal.second[2]);
  for (float bad : {NAN, INFINITY, -INFINITY}) {
    for (size_t at = 0; at < 4; ++at) {
      std::vector<float> logits = {0, 1, 2, 3};
      logits[at] = bad;
      const auto out = route(logits, 3);
      std::vector<uint32_t> sorted = out.first;
      std::sort(sorted.begin(), sorted.end());
      EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end());
      EXPECT_LT(sorted.back(), 4u);
      for (float weight : out.second) EXPECT_TRUE(std::isnan(weight));
    }
  }
}

TEST_P(ModelOpsTest, CombineIsTheWeightedSumOfTheSlots) {
  for (uint32_t k : kLengths) {
    for (uint32_t rows : {1u, 3u, 50u}) {
      constexpr uint32_t kTopK = 3;
      Random random(k * 1000 + rows);
      const uint32_t slots = rows * kTopK;
      const auto y = random.Activations(size_t{slots} * k);
      const auto weights = random.Activations(slots, 0.3f);
      const auto before = random.Activations(size_t{rows} * k);
      std::vector<uint32_t> where(slots);
      for (uint32_t i = 0; i < slots; ++i) where[i] = random.Below(slots);
      std::vector<float> actual = before;
      actual.push_back(kPoison);
      ops().combine(three_,
                    {y.data(), where.data(), weights.data(), rows, kTopK, k, actual.data()});
      EXPECT_EQ(actual.back(), kPoison);
      std::vector<float> expected = before;
      ReferenceOps().combine(
          one_, {y.data(), where.data(), weights.data(), rows, kTopK, k, expected.data()});
      ExpectAgree(GetParam(), std::span(actual).first(before.size()), expected, 8 * kUnit, 200.0);
      for (size_t i = 0; i < before.size(); ++i) {
        double exact = before[i];
        double size = std::fabs(exact);
        for (uint32_t j = 0; j < kTopK; ++j) {
          const size_t pair = i / k * kTopK + j;
          const double term = double{weights[pair]} * y[size_t{where[pair]} * k + i % k];
          exact += term;
          size += std::fabs(term);
        }
        ASSERT_NEAR(actual[i], exact, 8 * kUnit * size);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bodies, ModelOpsTest, ::testing::ValuesIn(Bodies()), BodyName);

}  // namespace
}  // namespace baton::kernels
