// GemmBf16 on the runner: every path, shape and order gives the bits of the model, so that a row's
// bits depend on nothing but the row and the weights; and the model is near exact arithmetic.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/gemm_segments.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/math.h"
#include "kernels/simt/arena.h"
#include "kernels/simt/run_options.h"
#include "kernels/simt/tensor_core.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/mutation.h"
#include "tests/test_seed.h"

namespace baton::cuda {
namespace {

using simt::AllOrders;
using simt::RunOptions;
using simt::ScopedRunOptions;
using simt::SimBuffer;
using simt_test::OnDevice;
using simt_test::RandomBf16;
using simt_test::SameBits;
using testing::HasSubstr;

constexpr double kGemm = 1e-4;      // relative, in the Euclidean norm, against double
constexpr double kGemmBf16 = 4e-3;  // with the rounding of a bf16 output: 2^-9 of each element

enum class Bias { kNone, kFloat, kBf16 };

// One product: its shape, path and operands' kinds, and how large its terms are.
struct GemmCase {
  uint32_t m;
  uint32_t n;
  uint32_t k;
  GemmPath path = GemmPath::kAuto;
  Bias bias = Bias::kNone;
  bool to_bf16 = false;
  float scale = 1.0f;
};

std::string Name(const GemmCase& c) {
  return fmt::format("{} x {} x {} path {} bias {} bf16 {}", c.m, c.n, c.k,
                     static_cast<int>(c.path), static_cast<int>(c.bias), c.to_bf16);
}

// The operands of products of up to m rows, on the host and on the runner.
class Operands {
 public:
  explicit Operands(const GemmCase& c)
      : case_(c),
        x_(RandomBf16(size_t{c.m} * c.k, 6, c.scale)),
        w_(RandomBf16(size_t{c.n} * c.k, 7)),
        bias_(RandomBf16(c.n, 8)),
        bias_float_(c.n),
        x_buffer_(OnDevice(x_, "x")),
        w_buffer_(OnDevice(w_, "w")),
        bias_buffer_(OnDevice(bias_, "bias")),
        counters_(OnDevice(std::vector<uint32_t>(kGemmCounters), "counters")) {
    for (uint32_t i = 0; i < c.n; ++i) bias_float_[i] = FloatFromBf16(bias_[i].bits) * 1.0009765f;
    bias_float_buffer_ = std::make_unique<SimBuffer>(OnDevice(bias_float_, "bias"));
  }

  size_t y_bytes(uint32_t m) const {
    return size_t{m} * case_.n * (case_.to_bf16 ? sizeof(Bf16) : sizeof(float));
  }

  // The rows [first, first + m) by the kernel into y; "" or what went wrong.
  std::string Run(uint32_t first, uint32_t m, GemmPath path, SimBuffer& y) {
    GemmParams params = Params(m, x_buffer_.as<Bf16>() + size_t{first} * case_.k, y.data());
    params.w = w_buffer_.as<Bf16>();
    if (case_.bias == Bias::kFloat) params.bias_float = bias_float_buffer_->as<float>();
    if (case_.bias == Bias::kBf16) params.bias_bf16 = bias_buffer_.as<Bf16>();
    params.path = path;
    SimBuffer partials(GemmPartialBytes(m, case_.n, case_.k), "partials");
    params.partials = partials.data();
    params.partial_bytes = partials.size();
    params.counters = counters_.as<uint32_t>();
    const absl::Status status = runner::Kernels().gemm_bf16(params, nullptr);
    if (!status.ok()) return std::string(status.message());
    for (uint32_t i = 0; i < kGemmCounters; ++i) {
      if (counters_.as<uint32_t>()[i] != 0) return "a counter is not set back";
    }
    return "";
  }

  // All rows by the model.
  std::vector<std::byte> Expected() const {
    std::vector<std::byte> y(y_bytes(case_.m));
    ReferenceGemmBits(HostParams(y.data()));
    return y;
  }

  // How far the model, and so the kernel, is from exact arithmetic.
  double Error(const std::vector<std::byte>& y) const {
    std::vector<float> values(size_t{case_.m} * case_.n);
    for (size_t i = 0; i < values.size(); ++i) {
      if (case_.to_bf16) {
        Bf16 value;
        std::memcpy(&value, &y[i * sizeof(value)], sizeof(value));
        values[i] = FloatFromBf16(value.bits);
      } else {
        std::memcpy(&values[i], &y[i * sizeof(float)], sizeof(float));
      }
    }
    return RelativeError(values.data(), ReferenceGemm(HostParams(nullptr)));
  }

 private:
  GemmParams Params(uint32_t m, const Bf16* x, void* y) const {
    GemmParams params = {.x = x, .w = w_.data(), .m = m, .n = case_.n, .k = case_.k};
    if (case_.to_bf16) {
      params.y_bf16 = static_cast<Bf16*>(y);
    } else {
      params.y_float = static_cast<float*>(y);
    }
    return params;
  }
  GemmParams HostParams(void* y) const {
    GemmParams params = Params(case_.m, x_.data(), y);
    if (case_.bias == Bias::kFloat) params.bias_float = bias_float_.data();
    if (case_.bias == Bias::kBf16) params.bias_bf16 = bias_.data();
    return params;
  }

  GemmCase case_;
  std::vector<Bf16> x_;
  std::vector<Bf16> w_;
  std::vector<Bf16> bias_;
  std::vector<float> bias_float_;
  SimBuffer x_buffer_;
  SimBuffer w_buffer_;
  SimBuffer bias_buffer_;
  SimBuffer counters_;
  std::unique_ptr<SimBuffer> bias_float_buffer_;
};

// The first difference from what the kernel promises, or "". Reports the worst relative error
// through `worst`, if given.
std::string Check(const GemmCase& c, double* worst = nullptr) {
  Operands operands(c);
  const std::vector<std::byte> expected = operands.Expected();
  for (int again = 0; again < 2; ++again) {  // the second launch finds the counters of the first
    SimBuffer y(expected.size(), "y");
    const std::string fault = operands.Run(0, c.m, c.path, y);
    if (!fault.empty()) return Name(c) + ": " + fault;
    if (!SameBits(y.data(), expected.data(), y.size())) return Name(c) + ": other bits";
  }
  const double error = operands.Error(expected);
  if (worst != nullptr) *worst = std::max(*worst, error);
  return error < (c.to_bf16 ? kGemmBf16 : kGemm) ? "" : fmt::format("relative error {:.3g}", error);
}

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
      const float one = simt::HopperDotBf16(a, b, c);
      const float other = simt::HopperDotBf16(b, a, c);
      ASSERT_TRUE(SameBits(&one, &other, sizeof(one))) << "seed " << seed << " " << round;
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
}  // namespace baton::cuda
