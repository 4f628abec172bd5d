// GemmBf16 by wgmma on the runner: the bits of the model, and so of mma.sync, for every shape,
// order and landing; and the check that a model makes before it is chosen.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/wgmma_check.h"
#include "kernels/simt/run_options.h"
#include "kernels/simt/simt_device.h"
#include "tests/kernels/simt/gemm_case.h"
#include "tests/kernels/simt/mutation.h"

namespace baton::kernels::cuda {
namespace {

using simt::AllOrders;
using simt::RunOptions;
using simt::ScopedRunOptions;
using testing::HasSubstr;

constexpr GemmPath kPaths[] = {GemmPath::kNarrow, GemmPath::kWgmma128, GemmPath::kWgmma192,
                               GemmPath::kWgmma256};

bool Takes(GemmPath path, const GemmCase& shape, uint32_t m) {
  if (path == GemmPath::kNarrow) return m <= kGemmMaxSpreadRows;
  return path != GemmPath::kWgmma256 || GemmSegments(shape.n, shape.k).num_segments == 1;
}

class EveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(EveryOrder, EveryTileHasTheBitsOfTheModel) {
  for (const GemmCase& c : {
           // Three segments in ten stages, more than the ring holds; both warpgroups have rows.
           GemmCase{67, 5, 584, GemmPath::kWgmma128, Bias::kBf16},
           GemmCase{3, 130, 584, GemmPath::kWgmma192, Bias::kFloat, true},
           // One cta takes four tiles, or two take two each.
           GemmCase{131, 131, 72, GemmPath::kWgmma128, Bias::kNone, true, 1.0f, 1},
           GemmCase{131, 193, 72, GemmPath::kWgmma192, Bias::kNone, false, 1.0f, 2},
           // Few rows: two segments, of four stages and one; each of the three bodies.
           GemmCase{7, 67, 264, GemmPath::kNarrow, Bias::kBf16},
           GemmCase{9, 66, 264, GemmPath::kNarrow, Bias::kFloat, true},
           GemmCase{33, 65, 264, GemmPath::kNarrow},
           // One segment in four stages, as many as the ring holds, twice.
           GemmCase{67, 257, 200, GemmPath::kWgmma256, Bias::kFloat, true, 1.0f, 1},
       }) {
    EXPECT_EQ(Check(c), "");
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryOrder, testing::ValuesIn(AllOrders(2)));

TEST(GemmWgmma, UglyShapesHaveTheBitsOfTheModel) {
  for (const GemmPath path : kPaths) {
    for (const uint32_t m : {1u, 63u, 64u, 65u, 128u, 129u}) {
      for (const uint32_t k : {8u, 64u, 72u, 264u}) {
        if (!Takes(path, {m, 7, k}, m)) continue;
        const Bias bias = m % 2 == 0 ? Bias::kFloat : Bias::kNone;
        EXPECT_EQ(Check({m, 7, k, path, bias, k % 3 == 0}), "");
      }
    }
    for (const uint32_t n : {1u, 8u, 127u, 128u, 129u, 191u, 192u, 193u, 257u}) {
      EXPECT_EQ(Check({2, n, 136, path, Bias::kBf16, n % 3 == 0}), "");
    }
  }
  EXPECT_EQ(Check({37, 83, 1032, GemmPath::kWgmma128, Bias::kBf16}), "");
  EXPECT_EQ(Check({37, 83, 1032, GemmPath::kNarrow, Bias::kBf16}), "");
}

TEST(GemmWgmma, EveryNumberOfRowsGivesARowTheBitsThatMmaGives) {
  uint32_t num_products = 0;
  for (const GemmCase& shape : {GemmCase{130, 13, 328, GemmPath::kAuto, Bias::kFloat},
                                GemmCase{130, 7, 256, GemmPath::kAuto, Bias::kBf16, false},
                                GemmCase{130, 9, 840, GemmPath::kAuto, Bias::kNone, true}}) {
    Operands operands(shape);
    SimBuffer expected(operands.y_bytes(130), "expected");
    ASSERT_EQ(operands.Run(0, 130, GemmPath::kTile128, expected), "");
    for (const uint32_t m : {1u, 2u, 17u, 64u, 65u, 127u, 130u}) {
      for (const GemmPath path : kPaths) {
        if (!Takes(path, shape, m)) continue;
        SimBuffer y(operands.y_bytes(m), "y");
        ASSERT_EQ(operands.Run(0, m, path, y), "") << m << " of " << Name(shape);
        ASSERT_TRUE(SameBits(y.data(), expected.data(), y.size())) << m << " of " << Name(shape);
        ++num_products;
      }
    }
  }
  std::printf("%u products\n", num_products);
}

// So many rows of w are one segment, which takes more stages than a ring has slots. In fast
// arithmetic: by the bits of the model it would take half a minute.
TEST(GemmWgmma, FewRowsUseTheirSlotsAgain) {
  RunOptions options;
  options.tensor_math = simt::TensorMath::kFloat;
  ScopedRunOptions scope(options);
  constexpr uint32_t kRows = 33;
  Operands operands({kRows, 64 * kGemmTargetTiles - 3, 9 * 64 + 8});
  SimBuffer expected(operands.y_bytes(kRows), "expected");
  ASSERT_EQ(operands.Run(0, kRows, GemmPath::kRows32, expected), "");
  for (const uint32_t m : {1u, 9u, kRows}) {
    SimBuffer y(operands.y_bytes(m), "y");
    ASSERT_EQ(operands.Run(0, m, GemmPath::kNarrow, y), "");
    EXPECT_TRUE(SameBits(y.data(), expected.data(), y.size())) << m;
  }
}

// Seventeen tiles of x are two groups; every tile is one cta's.
TEST(GemmWgmma, EveryTileOfManyIsMadeOnce) {
  for (const uint32_t num_sms : {1u, 5u, 132u}) {
    EXPECT_EQ(Check({16 * 128 + 3, 130, 8, GemmPath::kWgmma128, Bias::kNone, true, 1.0f, num_sms}),
              "");
  }
}

TEST(GemmWgmma, HugeAndTinyValuesHaveTheBitsOfTheModel) {
  for (const float scale : {1e20f, 1e-20f, 1e-38f}) {
    EXPECT_EQ(Check({3, 9, 328, GemmPath::kWgmma128, Bias::kNone, false, scale}), "");
  }
}

TEST(GemmWgmma, NanIsNanAndReachesItsRowAndColumnOnly) {
  constexpr uint32_t kRows = 66;
  constexpr uint32_t kDepth = 264;
  std::vector<Bf16> x(size_t{kRows} * kDepth, {Bf16FromFloat(1.0f)});
  x[65 * kDepth + 260].bits = 0x7FC0;
  x[3 * kDepth].bits = 0x7F80;
  SimBuffer x_buffer = OnDevice(x, "x");
  SimBuffer w = OnDevice(std::vector<Bf16>(size_t{2} * kDepth, {Bf16FromFloat(1.0f)}), "w");
  SimBuffer y(sizeof(float) * kRows * 2, "y");
  const absl::Status status = runner::Kernels().gemm_bf16({.x = x_buffer.as<Bf16>(),
                                                           .w = w.as<Bf16>(),
                                                           .y_float = y.as<float>(),
                                                           .m = kRows,
                                                           .n = 2,
                                                           .k = kDepth,
                                                           .path = GemmPath::kWgmma128},
                                                          nullptr);
  ASSERT_TRUE(status.ok()) << status;
  for (uint32_t i = 0; i < kRows * 2; ++i) {
    const float value = y.as<float>()[i];
    if (i / 2 == 65) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(value, i / 2 == 3 ? std::numeric_limits<float>::infinity() : kDepth) << i;
    }
  }
}

TEST(GemmWgmma, FastArithmeticHasTheBitsThatMmaGivesInIt) {
  RunOptions options;
  options.tensor_math = simt::TensorMath::kFloat;
  ScopedRunOptions scope(options);
  Operands operands({67, 129, 600});
  SimBuffer expected(operands.y_bytes(67), "expected");
  ASSERT_EQ(operands.Run(0, 67, GemmPath::kTile64, expected), "");
  for (const GemmPath path : {GemmPath::kWgmma128, GemmPath::kWgmma192}) {
    SimBuffer y(operands.y_bytes(67), "y");
    ASSERT_EQ(operands.Run(0, 67, path, y), "");
    EXPECT_TRUE(SameBits(y.data(), expected.data(), y.size()));
  }
}

// How many products of warpgroups one call takes.
uint64_t NumWgmma(const GemmParams& params) {
  const uint64_t before = simt::TotalRunStats().num_wgmma;
  const absl::Status status = runner::Kernels().gemm_bf16(params, nullptr);
  EXPECT_TRUE(status.ok()) << status;
  return simt::TotalRunStats().num_wgmma - before;
}

TEST(GemmWgmma, IsChosenForManyRowsWhereTheDeviceAllowsIt) {
  SimBuffer x = OnDevice(RandomBf16(size_t{129} * 8, 1), "x");
  SimBuffer w = OnDevice(RandomBf16(size_t{400} * 8, 2), "w");
  SimBuffer y(sizeof(float) * 129 * 400, "y");
  GemmParams params = {
      .x = x.as<Bf16>(), .w = w.as<Bf16>(), .y_float = y.as<float>(), .m = 129, .n = 384, .k = 8};
  params.num_sms = 2;
  EXPECT_EQ(NumWgmma(params), 0u);
  params.allows_wgmma = true;
  // Two warpgroups take four steps of K a tile; there are two tiles of x. Two rounds of 128 x 192
  // cost less than three of 128, or two of 256.
  EXPECT_EQ(NumWgmma(params), 2u * 2 * 2 * 4);
  params.n = 256;  // one round of 256 costs less than two of 128
  EXPECT_EQ(NumWgmma(params), 2u * 2 * 1 * 4);
  params.num_sms = 4;  // one round of either: the smaller tile
  EXPECT_EQ(NumWgmma(params), 2u * 2 * 2 * 4);
  params.num_sms = kHopperSms;
  EXPECT_EQ(NumWgmma(params), 2u * 2 * 2 * 4);
  params.m = 32;  // few rows read weights once: one warpgroup for each 64 of w
  EXPECT_EQ(NumWgmma(params), 4u * 4);
  params.allows_wgmma = false;
  EXPECT_EQ(NumWgmma(params), 0u);
}

TEST(GemmWgmma, CallsThatNoKernelTakesAreRefusedByName) {
  SimBuffer y(64, "y");
  GemmParams params = {.y_float = y.as<float>(), .m = 1, .n = 1, .k = 8};
  const auto message = [&] {
    return std::string(runner::Kernels().gemm_bf16(params, nullptr).message());
  };
  params.num_sms = 0;
  EXPECT_THAT(message(), HasSubstr("GemmBf16: num_sms is 0"));
  params.num_sms = 1;
  params.path = GemmPath::kWgmma256;
  params.k = 264;
  EXPECT_THAT(message(), HasSubstr("tiles of 256 rows of w take one segment of K"));
  params.m = params.n = 0xFFFFFFFF;
  params.path = GemmPath::kWgmma192;
  EXPECT_THAT(message(), HasSubstr("GemmBf16: too many tiles"));
}

// The runner's kernels, but wgmma is missing, is refused, gets one output wrong, or
// writes none.
bool has_wgmma = true;
bool writes = true;
absl::Status refusal;
KernelTable Tampered() {
  KernelTable table = runner::Kernels();
  table.has_wgmma = [] { return has_wgmma; };
  table.gemm_bf16 = [](const GemmParams& params, void* stream) -> absl::Status {
    if (params.path == GemmPath::kWgmma192 && !refusal.ok()) return refusal;
    if (params.path == GemmPath::kWgmma192 && !writes) return absl::OkStatus();
    absl::Status status = runner::Kernels().gemm_bf16(params, stream);
    if (params.path == GemmPath::kWgmma192) reinterpret_cast<uint32_t*>(params.y_float)[7] ^= 1;
    return status;
  };
  return table;
}

TEST(CheckWgmma, IsTrueOnlyWhenAllBitsAgree) {
  simt::SimtDevice device{RunOptions{}};
  device.MakeCurrent();
  EXPECT_TRUE(CheckWgmma(runner::Kernels(), device).value());
  const KernelTable table = Tampered();
  EXPECT_FALSE(CheckWgmma(table, device).value());
  writes = false;
  EXPECT_FALSE(CheckWgmma(table, device).value());
  refusal = absl::FailedPreconditionError("the driver has no tensor maps");
  EXPECT_FALSE(CheckWgmma(table, device).value());
  refusal = absl::InternalError("the device is gone");
  EXPECT_EQ(CheckWgmma(table, device).status(), refusal);
  has_wgmma = false;
  EXPECT_FALSE(CheckWgmma(table, device).value());
}

// The first step of a sum in units of 2^-149, when a C of zero counts that exponent.
double FirstStep(const Bf16* x, const Bf16* w, int zero_exponent) {
  const auto value = [](Bf16 factor) { return double{FloatFromBf16(factor.bits)}; };
  const auto exponent = [](Bf16 factor) { return std::max((factor.bits >> 7 & 0xFF) - 127, -126); };
  int largest = zero_exponent;
  for (int k = 0; k < 16; ++k) largest = std::max(largest, exponent(x[k]) + exponent(w[k]));
  double sum = 0;
  for (int k = 0; k < 16; ++k) {
    sum += std::trunc(std::ldexp(value(x[k]) * value(w[k]), 25 - largest));
  }
  return std::trunc(std::ldexp(sum, largest - 25 + 149));
}

// mma.sync of a device on which a C of zero counts -126, as that of a subnormal C.
TEST(CheckWgmma, NoticesAnotherStartFromZero) {
  simt::SimtDevice device{RunOptions{}};
  device.MakeCurrent();
  KernelTable table = runner::Kernels();
  table.gemm_bf16 = [](const GemmParams& params, void* stream) -> absl::Status {
    absl::Status status = runner::Kernels().gemm_bf16(params, stream);
    if (params.path != GemmPath::kTile64) return status;
    for (uint32_t i = 0; i < params.m * params.n; ++i) {
      const Bf16* x = params.x + size_t{i / params.n} * params.k;
      const Bf16* w = params.w + size_t{i % params.n} * params.k;
      if (FirstStep(x, w, -133) == FirstStep(x, w, -126)) continue;
      reinterpret_cast<uint32_t*>(params.y_float)[i] ^= 1;
    }
    return status;
  };
  EXPECT_FALSE(CheckWgmma(table, device).value());
}

TEST(GemmWgmma, MutantsAreNoticed) {
  const simt_test::Suite suite = [] {
    return Check({67, 3, 584, GemmPath::kWgmma128}).empty() &&
           Check({3, 130, 8, GemmPath::kWgmma128, Bias::kNone, true, 1.0f, 1}).empty() &&
           Check({3, 258, 200, GemmPath::kWgmma256, Bias::kNone, false, 1.0f, 1}).empty();
  };
  simt_test::ExpectAllNoticed(suite, 18);
}

TEST(GemmNarrow, MutantsAreNoticed) {
  // Slots are used again in many ctas only, which take long by the bits of the model.
  RunOptions fast;
  fast.tensor_math = simt::TensorMath::kFloat;
  Operands many({1, 64 * kGemmTargetTiles - 3, 10 * 64});
  SimBuffer expected(many.y_bytes(1), "expected");
  {
    ScopedRunOptions scope(fast);
    ASSERT_EQ(many.Run(0, 1, GemmPath::kRows8, expected), "");
  }
  const simt_test::Suite suite = [&] {
    if (!Check({3, 66, 264, GemmPath::kNarrow}).empty()) return false;
    ScopedRunOptions scope(fast);
    SimBuffer y(many.y_bytes(1), "y");
    return many.Run(0, 1, GemmPath::kNarrow, y).empty() &&
           SameBits(y.data(), expected.data(), y.size());
  };
  simt_test::ExpectAllNoticed(suite, 18);
}

}  // namespace
}  // namespace baton::kernels::cuda
