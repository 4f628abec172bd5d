// GemmBf16 on the runner: every path, shape and order gives the bits of the model, so that a row's
// bits depend on nothing but the row and the weights; and the model is near exact arithmetic.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/gemm_segments.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/math.h"
#include "kernels/simt/run_options.h"
#include "kernels/simt/tensor_core.h"
#include "tests/kernels/simt/gemm_case.h"
#include "tests/kernels/simt/mutation.h"
#include "tests/test_seed.h"

namespace baton::kernels::cuda {
namespace {

using simt::AllOrders;
using simt::RunOptions;
using simt::ScopedRunOptions;
using testing::HasSubstr;

class EveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(EveryOrder, EveryPathHasTheBitsOfTheModel) {
  for (const GemmCase& c : {
           GemmCase{1, 1, 8, GemmPath::kRows8},
           // Three segments: the order in which they are added shows.
           GemmCase{7, 67, 584, GemmPath::kRows8, Bias::kBf16},
           GemmCase{33, 65, 264, GemmPath::kRows32, Bias::kFloat, true},
           GemmCase{67, 71, 328, GemmPath::kTile64, Bias::kFloat, true},
           GemmCase{3, 129, 264, GemmPath::kTile128},
       }) {
    EXPECT_EQ(Check(c), "");
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryOrder, testing::ValuesIn(AllOrders(2)));

TEST(Gemm, NothingIsWrittenForNoRowsOrColumns) {
  EXPECT_EQ(Check({0, 64, 64}), "");
  EXPECT_EQ(Check({5, 0, 64}), "");
}

constexpr uint32_t kRowCounts[] = {1,  2,  7,  8,  9,  15,  16,  17, 31,
                                   32, 33, 63, 64, 65, 127, 128, 129};

TEST(Gemm, EveryNumberOfRowsGivesARowTheSameBits) {
  uint32_t num_products = 0;
  for (const GemmCase& shape :
       {GemmCase{129, 1, 8}, GemmCase{129, 61, 40, GemmPath::kAuto, Bias::kBf16, true},
        GemmCase{129, 67, 328, GemmPath::kAuto, Bias::kFloat}, GemmCase{129, 9, 840}}) {
    Operands operands(shape);
    const std::vector<std::byte> expected = operands.Expected();
    for (const uint32_t m : kRowCounts) {
      for (const GemmPath path : {GemmPath::kAuto, GemmPath::kRows8, GemmPath::kRows32,
                                  GemmPath::kTile64, GemmPath::kTile128}) {
        const bool is_spread = path == GemmPath::kRows8 || path == GemmPath::kRows32;
        if (is_spread && m > kGemmMaxSpreadRows) continue;
        SimBuffer y(operands.y_bytes(m), "y");
        ASSERT_EQ(operands.Run(0, m, path, y), "") << m << " of " << Name(shape);
        ASSERT_TRUE(SameBits(y.data(), expected.data(), y.size()))
            << m << " rows of " << Name(shape) << " path " << static_cast<int>(path);
        ++num_products;
      }
    }
  }
  std::printf("%u products\n", num_products);
}

TEST(Gemm, ARowInTheMiddleHasTheBitsOfThatRowAlone) {
  Operands operands({65, 33, 584});
  SimBuffer all(operands.y_bytes(65), "all");
  ASSERT_EQ(operands.Run(0, 65, GemmPath::kAuto, all), "");
  for (const uint32_t row : {0u, 31u, 64u}) {
    SimBuffer one(operands.y_bytes(1), "one");
    ASSERT_EQ(operands.Run(row, 1, GemmPath::kAuto, one), "");
    EXPECT_TRUE(SameBits(one.data(), all.data() + operands.y_bytes(row), one.size())) << row;
  }
}

TEST(Gemm, UglyShapesHaveTheBitsOfTheModel) {
  for (const uint32_t k : {8u, 56u, 64u, 72u, 248u, 256u, 264u, 1016u}) {
    for (const uint32_t n : {1u, 7u, 63u, 64u, 65u, 137u}) {
      const Bias bias = n % 2 == 0 ? Bias::kFloat : Bias::kNone;
      EXPECT_EQ(Check({5, n, k, GemmPath::kAuto, bias, k % 3 == 0}), "");
    }
  }
  EXPECT_EQ(Check({35, 83, 1032, GemmPath::kAuto, Bias::kBf16}), "");
}

TEST(Gemm, HugeAndTinyValuesHaveTheBitsOfTheModel) {
  for (const float scale : {1e20f, 1e-20f}) {
    for (const GemmPath path : {GemmPath::kRows8, GemmPath::kTile64}) {
      EXPECT_EQ(Check({3, 9, 328, path, Bias::kNone, false, scale}), "");
    }
  }
}

TEST(Gemm, ErrorAtLargeK) {
  double worst = 0;
  EXPECT_EQ(Check({3, 5, 4096}, &worst), "");
  EXPECT_EQ(Check({2, 3, 14336}, &worst), "");
  std::printf("worst relative error of gemm %.2g, the limit is %.2g\n", worst, kGemm);
}

TEST(Gemm, FastArithmeticStaysWithinTheTolerance) {
  RunOptions options;
  options.tensor_math = simt::TensorMath::kFloat;
  ScopedRunOptions scope(options);
  Operands operands({7, 9, 512});
  SimBuffer y(operands.y_bytes(7), "y");
  ASSERT_EQ(operands.Run(0, 7, GemmPath::kAuto, y), "");
  EXPECT_LT(operands.Error(std::vector<std::byte>(y.data(), y.data() + y.size())), kGemm);
}

// One product of a row x by a row w, each of one value but for some elements.
float OneProduct(const std::vector<Bf16>& x, GemmPath path) {
  SimBuffer x_buffer = OnDevice(x, "x");
  SimBuffer w = OnDevice(std::vector<Bf16>(x.size(), {Bf16FromFloat(1.0f)}), "w");
  SimBuffer y(sizeof(float), "y");
  const auto k = static_cast<uint32_t>(x.size());
  SimBuffer partials(GemmPartialBytes(1, 1, k), "partials");
  SimBuffer counters = OnDevice(std::vector<uint32_t>(kGemmCounters), "counters");
  const absl::Status status = runner::Kernels().gemm_bf16({.x = x_buffer.as<Bf16>(),
                                                           .w = w.as<Bf16>(),
                                                           .y_float = y.as<float>(),
                                                           .m = 1,
                                                           .n = 1,
                                                           .k = k,
                                                           .partials = partials.data(),
                                                           .counters = counters.as<uint32_t>(),
                                                           .partial_bytes = partials.size(),
                                                           .path = path},
                                                          nullptr);
  EXPECT_TRUE(status.ok()) << status;
  return y.as<float>()[0];
}

TEST(Gemm, NanIsNanOnEveryPathAndPassesNowhere) {
  for (const GemmPath path :
       {GemmPath::kRows8, GemmPath::kRows32, GemmPath::kTile64, GemmPath::kTile128}) {
    std::vector<Bf16> x(520, {Bf16FromFloat(1.0f)});
    EXPECT_EQ(OneProduct(x, path), 520.0f);
    x[300].bits = 0x7F80;
    EXPECT_EQ(OneProduct(x, path), std::numeric_limits<float>::infinity());
    x[10].bits = 0xFF80;  // in the segment before
    EXPECT_TRUE(std::isnan(OneProduct(x, path)));
    x[10].bits = 0x7FC0;
    const float result = OneProduct(x, path);
    EXPECT_TRUE(std::isnan(result));
    EXPECT_FALSE(RelativeError(&result, {520.0}) < kGemm);
    EXPECT_FALSE(IsRoundingOf(x[10], 1.0, {1.0}));
  }
}

// Why weights may be A in one kernel and B in the other.
TEST(Gemm, ExchangingTheFactorsChangesNoBits) {
  for (const uint64_t seed : TestSeeds(2)) {
    TestRandom random(seed);
    for (int round = 0; round < 20000; ++round) {
      Bf16 a[simt::kTensorCoreProducts];
      Bf16 b[simt::kTensorCoreProducts];
      const uint32_t first = random.Below(255);  // exponents near each other, or any with specials
      const uint32_t spread = random.OneIn(4) ? 256 : 1 + random.Below(24);
      const auto draw = [&] {
        const uint32_t exponent = std::min(first + random.Below(spread), 255u);
        return Bf16{
            static_cast<uint16_t>(exponent << 7 | random.Below(128) | random.Below(2) << 15)};
      };
      for (int i = 0; i < simt::kTensorCoreProducts; ++i) {
        a[i] = draw();
        b[i] = draw();
      }
      const float c = FloatFromBf16(draw().bits);
      for (const simt::TensorCore core : {simt::TensorCore::kHopper, simt::TensorCore::kAmpere}) {
        const float one = simt::DotBf16(core, a, b, c);
        const float other = simt::DotBf16(core, b, a, c);
        ASSERT_TRUE(SameBits(&one, &other, sizeof(one))) << "seed " << seed << " " << round;
      }
    }
  }
}

TEST(GemmSegments, OfTheShapesOfAnEightBillionModel) {
  const auto segments = [](uint32_t n, uint32_t k) {
    const GemmSplit split = GemmSegments(n, k);
    return std::make_pair(split.num_segments, split.segment_k);
  };
  EXPECT_EQ(segments(6144, 4096), std::make_pair(3u, 1408u));   // qkv
  EXPECT_EQ(segments(4096, 4096), std::make_pair(5u, 832u));    // o
  EXPECT_EQ(segments(28672, 4096), std::make_pair(1u, 4096u));  // gate and up
  EXPECT_EQ(segments(4096, 14336), std::make_pair(5u, 2880u));  // down
  EXPECT_EQ(segments(128256, 4096), std::make_pair(1u, 4096u));
  EXPECT_EQ(segments(1, 8), std::make_pair(1u, 256u));
}

TEST(GemmSegments, FillTheMachineWhereKAllowsAndStayWithinTheWorkspace) {
  size_t largest = 0;
  for (uint32_t n = 1; n < 20000; n += n < 130 ? 1 : 61) {
    for (uint32_t k = 8; k < 40000; k += k < 1100 ? 8 : 1048) {
      const GemmSplit split = GemmSegments(n, k);
      const uint32_t row_tiles = (n + kGemmRowTile - 1) / kGemmRowTile;
      ASSERT_EQ(split.segment_k % kGemmStageK, 0u);
      ASSERT_GE(split.segment_k, kGemmMinSegmentK);
      // The segments cover K, and none is empty.
      ASSERT_GE(uint64_t{split.num_segments} * split.segment_k, k);
      ASSERT_LT(uint64_t{split.num_segments - 1} * split.segment_k, k);
      ASSERT_TRUE(row_tiles * split.num_segments >= kGemmTargetTiles ||
                  split.segment_k == kGemmMinSegmentK)
          << n << " x " << k;
      ASSERT_TRUE(split.num_segments == 1 || row_tiles < kGemmTargetTiles);
      largest = std::max(largest, GemmPartialBytes(kGemmMaxSpreadRows, n, k));
    }
  }
  EXPECT_LE(largest, kGemmMaxPartialBytes);
  EXPECT_GE(largest * 2, kGemmMaxPartialBytes);
}

TEST(GemmSegments, PartialSumsAreForFewRowsAndSeveralSegments) {
  EXPECT_EQ(GemmPartialBytes(1, 4096, 4096), size_t{4} * 5 * 4096 * 32);
  EXPECT_EQ(GemmPartialBytes(33, 65, 512), size_t{4} * 2 * 128 * 64);
  EXPECT_EQ(GemmPartialBytes(65, 4096, 4096), 0u);
  EXPECT_EQ(GemmPartialBytes(1, 28672, 4096), 0u);
  EXPECT_EQ(GemmPartialBytes(0, 64, 512), 0u);
  EXPECT_EQ(GemmPartialBytes(8, 64, 256), 0u);
}

TEST(Gemm, CallsThatNoKernelTakesAreRefusedByName) {
  SimBuffer y(64, "y");
  const GemmParams good = {.y_float = y.as<float>(), .m = 1, .n = 1, .k = 8};
  const auto message = [](const GemmParams& params) {
    return std::string(runner::Kernels().gemm_bf16(params, nullptr).message());
  };
  GemmParams params = good;
  params.k = 4;
  EXPECT_THAT(message(params), HasSubstr("GemmBf16: dim 4"));
  params = good;
  params.y_float = nullptr;
  EXPECT_THAT(message(params), HasSubstr("exactly one of y_float and y_bf16"));
  params = good;
  params.y_bf16 = y.as<Bf16>();
  EXPECT_THAT(message(params), HasSubstr("exactly one of y_float and y_bf16"));
  params = good;
  params.bias_float = y.as<float>();
  params.bias_bf16 = y.as<Bf16>();
  EXPECT_THAT(message(params), HasSubstr("at most one of bias_float and bias_bf16"));
  params = good;
  params.k = 512;
  EXPECT_THAT(message(params), HasSubstr("0 bytes for partial sums, 16384 are needed"));
  params.partials = y.data();
  params.partial_bytes = 16384;
  EXPECT_THAT(message(params), HasSubstr("no counters"));
  params = good;
  params.m = 65;
  params.path = GemmPath::kRows32;
  EXPECT_THAT(message(params), HasSubstr("65 rows, the kernels of few rows take 64"));
  params.path = GemmPath::kTile128;
  params.n = 128 * 65535 + 1;
  EXPECT_THAT(message(params), HasSubstr("too many rows of w"));
}

TEST(Gemm, MutantsAreNoticed) {
  const simt_test::Suite suite = [] {
    return Check({1, 3, 136, GemmPath::kRows8}).empty() &&
           Check({9, 66, 264, GemmPath::kRows32}).empty() &&
           Check({65, 66, 8, GemmPath::kTile64}).empty();
  };
  simt_test::ExpectAllNoticed(suite, 18);
}

}  // namespace
}  // namespace baton::kernels::cuda
