#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kernels/kernel_fixtures.h"

namespace baton::kernels {

using device::ThreadPool;

namespace {

constexpr double kUnit = 0x1p-24;
constexpr uint32_t kLengths[] = {1, 15, 16, 17, 31, 64, 97, 576, 1009};
constexpr uint32_t kRowCounts[] = {0, 1, 2, 7, 100};

class RowOpsTest : public ::testing::TestWithParam<Body> {
 protected:
  const Ops& ops() const { return *GetParam().ops; }
  ThreadPool one_{1};
  ThreadPool three_{3};
};

TEST_P(RowOpsTest, RmsNorm) {
  for (uint32_t k : kLengths) {
    for (uint32_t rows : kRowCounts) {
      Random random(k * 1000 + rows);
      const auto x = random.Activations(size_t{rows} * k);
      const auto weight = random.Activations(k);
      std::vector<float> expected(x.size());
      std::vector<float> actual(x.size() + 1, kPoison);
      ReferenceOps().rms_norm(one_, {x.data(), weight.data(), rows, k, 1e-5f, expected.data()});
      ops().rms_norm(three_, {x.data(), weight.data(), rows, k, 1e-5f, actual.data()});
      ASSERT_EQ(actual.back(), kPoison);
      ExpectAgree(GetParam(), std::span(actual).first(x.size()), expected, (k / 16 + 8) * kUnit);
      std::vector<float> in_place = x;
      ops().rms_norm(one_, {in_place.data(), weight.data(), rows, k, 1e-5f, in_place.data()});
      EXPECT_EQ(CountDifferent(in_place, std::span(actual).first(x.size())), 0u);
      for (size_t i = 0; i < x.size(); ++i) {
        double squares = 0;
        for (uint32_t j = 0; j < k; ++j) squares += double{x[i / k * k + j]} * x[i / k * k + j];
        const double exact = x[i] / std::sqrt(squares / k + 1e-5) * weight[i % k];
        ASSERT_LE(std::fabs(actual[i] - exact),
                  (k / 16 / 2.0 + 8) * kUnit * std::fabs(exact) + 1e-37);
      }
    }
  }
}

TEST_P(RowOpsTest, QuantizeA16) {
  for (uint32_t k : {32u, 64u, 576u, 992u}) {
    for (uint32_t rows : kRowCounts) {
      Random random(k * 1000 + rows);
      const auto x = random.Activations(size_t{rows} * k);
      A16Buffer expected(rows, k);
      A16Buffer actual(rows, k);
      ReferenceOps().quantize_a16(one_, x.data(), rows, expected.view());
      ops().quantize_a16(three_, x.data(), rows, actual.view());
      // No fma in it: every body agrees exactly.
      EXPECT_EQ(actual.q, expected.q);
      EXPECT_EQ(CountDifferent(actual.scale, expected.scale), 0u);
      EXPECT_EQ(CountDifferent(actual.sum, expected.sum), 0u);
      EXPECT_EQ(CountDifferent(actual.half_sum, expected.half_sum), 0u);
      EXPECT_EQ(actual.half_total, expected.half_total);
      for (size_t i = 0; i < x.size(); ++i) {
        const double scale = actual.scale[i / 32];
        ASSERT_LE(std::fabs(actual.q[i] * scale - x[i]), scale * (0.5 + 0x1p-7)) << i;
      }
      for (size_t half = 0; half < actual.half_sum.size(); ++half) {
        const int total =
            std::accumulate(actual.q.begin() + static_cast<ptrdiff_t>(16 * half),
                            actual.q.begin() + static_cast<ptrdiff_t>(16 * half + 16), 0);
        ASSERT_EQ(actual.half_total[half], total);
        ASSERT_EQ(actual.half_sum[half], actual.scale[half / 2] * static_cast<float>(total));
      }
    }
  }
}

TEST_P(RowOpsTest, QuantizeA16OfAnUglyBlockLeavesItsNeighboursAlone) {
  constexpr uint32_t kBlocks = 11;
  for (uint32_t ugly = 0; ugly < kBlocks; ++ugly) {
    for (float value : {NAN, INFINITY, 0.0f, 0x1p-101f}) {
      Random random(ugly);
      std::vector<float> x = random.Activations(size_t{kBlocks} * 32);
      std::fill_n(x.begin() + 32 * ugly, 32, value);
      A16Buffer expected(1, kBlocks * 32);
      A16Buffer actual(1, kBlocks * 32);
      ReferenceOps().quantize_a16(one_, x.data(), 1, expected.view());
      ops().quantize_a16(one_, x.data(), 1, actual.view());
      EXPECT_EQ(actual.q, expected.q) << ugly;
      EXPECT_EQ(actual.half_total, expected.half_total) << ugly;
      for (uint32_t b = 0; b < 2 * kBlocks; ++b) {
        const auto same = [](float x, float y) {
          return x == y || (std::isnan(x) && std::isnan(y));
        };
        EXPECT_TRUE(same(actual.scale[b / 2], expected.scale[b / 2])) << ugly << " " << b;
        EXPECT_TRUE(same(actual.sum[b / 2], expected.sum[b / 2])) << ugly << " " << b;
        EXPECT_TRUE(same(actual.half_sum[b], expected.half_sum[b])) << ugly << " " << b;
      }
    }
  }
}

TEST_P(RowOpsTest, QuantizeA16OfUglyBlocks) {
  const auto quantize = [&](std::vector<float> x) {
    x.resize(32, 0.0f);
    A16Buffer out(1, 32);
    ops().quantize_a16(one_, x.data(), 1, out.view());
    return out;
  };
  const A16Buffer zero = quantize({});
  EXPECT_EQ(zero.scale[0], 0.0f);
  EXPECT_EQ(zero.sum[0], 0.0f);
  EXPECT_EQ(zero.half_sum[1], 0.0f);
  const A16Buffer tiny = quantize({1e-38f, -1e-45f});
  EXPECT_EQ(tiny.scale[0], 0.0f);
  EXPECT_EQ(tiny.q[0], 0);
  const A16Buffer smallest = quantize({0x1p-100f, -0x1p-101f});
  EXPECT_EQ(smallest.q[0], 32767);
  EXPECT_EQ(smallest.q[1], -16384);
  const A16Buffer largest = quantize({3.4028235e38f, -3.4028235e38f});
  EXPECT_EQ(largest.q[0], 32767);
  EXPECT_EQ(largest.q[1], -32767);
  EXPECT_TRUE(std::isfinite(largest.scale[0]));
  for (float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    const A16Buffer out = quantize({1.0f, bad, 2.0f});
    EXPECT_TRUE(std::isnan(out.scale[0]));
    EXPECT_TRUE(std::isnan(out.sum[0]));
    EXPECT_TRUE(std::isnan(out.half_sum[0]) && std::isnan(out.half_sum[1]));
    EXPECT_EQ(out.q, std::vector<int16_t>(32, 0));
  }
}

TEST_P(RowOpsTest, SiluMul) {
  for (uint32_t k : kLengths) {
    for (uint32_t rows : kRowCounts) {
      Random random(k * 1000 + rows);
      const auto x = random.Activations(size_t{rows} * 2 * k, 4.0f);
      std::vector<float> expected(size_t{rows} * k);
      std::vector<float> actual(expected.size() + 1, kPoison);
      ReferenceOps().silu_mul(one_, x.data(), rows, k, expected.data());
      ops().silu_mul(three_, x.data(), rows, k, actual.data());
      ASSERT_EQ(actual.back(), kPoison);
      actual.pop_back();
      ExpectAgree(GetParam(), actual, expected, 16 * kUnit, 1e-30);
      for (size_t i = 0; i < actual.size(); ++i) {
        const double gate = x[i / k * 2 * k + i % k];
        const double up = x[i / k * 2 * k + k + i % k];
        const double exact = gate / (1 + std::exp(-gate)) * up;
        // Below -87 the divisor stops growing; what is left is smaller than 1e-35 |up|.
        ASSERT_LE(std::fabs(actual[i] - exact),
                  10 * kUnit * std::fabs(exact) + 1e-35 * std::fabs(up));
      }
    }
  }
}

TEST_P(RowOpsTest, SiluMulOfExtremes) {
  for (float gate : {-INFINITY, -1e30f, -100.0f, -88.5f, 88.5f, 100.0f, 1e30f}) {
    const float x[2] = {gate, 1.0f};
    float out = kPoison;
    ops().silu_mul(one_, x, 1, 1, &out);
    if (gate == -INFINITY) {
      // -inf / (1 + e^88): an activation that overflowed stays visible.
      EXPECT_TRUE(std::isinf(out));
    } else if (gate > 0) {
      EXPECT_EQ(out, gate);
    } else {
      EXPECT_LE(std::fabs(out), 1e-5f);
    }
  }
}

TEST_P(RowOpsTest, AddBias) {
  for (uint32_t k : kLengths) {
    for (uint32_t rows : kRowCounts) {
      Random random(k * 1000 + rows);
      const auto x = random.Activations(size_t{rows} * k);
      const auto bias = random.Activations(k);
      std::vector<float> actual = x;
      actual.push_back(kPoison);
      ops().add_bias(three_, actual.data(), bias.data(), rows, k);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(actual[i], x[i] + bias[i % k]);
      EXPECT_EQ(actual.back(), kPoison);
    }
  }
}

TEST_P(RowOpsTest, EmbedIsTheDequantisedRow) {
  for (const WeightType type : WeightTypes()) {
    Random random(static_cast<uint64_t>(type));
    const uint32_t n = 37;
    const uint32_t k = WholeBlocks(type, 96);
    const auto raw = RandomRaw(&random, type, n, k);
    const auto matrix = PackedMatrix::Pack(type, raw, n, k, three_).value();
    std::vector<int32_t> ids = {0, 36, 15, 16, 15, 1};
    for (uint32_t i = 0; i < 40; ++i) ids.push_back(static_cast<int32_t>(random.Below(n)));
    std::vector<float> out(ids.size() * k, kPoison);
    ops().embed(three_, matrix, ids, out.data());
    for (size_t i = 0; i < out.size(); ++i) {
      const double exact = RawElement(type, raw, k, static_cast<uint32_t>(ids[i / k]), i % k);
      ASSERT_EQ(out[i], static_cast<float>(exact)) << matrix.traits().name << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bodies, RowOpsTest, ::testing::ValuesIn(Bodies()), BodyName);

}  // namespace
}  // namespace baton::kernels
