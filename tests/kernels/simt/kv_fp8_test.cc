// The rows of fp8 KV: what a scale is chosen to be, how far a stored element is from the one
// before, and that a stored one is a bf16 exactly.
#include "kernels/cuda/kv_fp8.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/kv_rows_reference.h"
#include "kernels/math.h"
#include "tests/kernels/simt/device_values.h"

namespace baton::kernels::cuda {
namespace {

using simt::Bf16;
using simt_test::RandomBf16;

constexpr KvBlocks kBlocks = {nullptr, 2 * 1056, 1, 64, 16, KvElement::kFp8};

// A row as it comes back from a block.
std::vector<Bf16> Stored(const std::vector<Bf16>& row) {
  std::vector<std::byte> piece(kBlocks.PieceBytes(), std::byte{0xFF});
  ReferenceStoreRow(kBlocks, row.data(), piece.data(), 7);
  return ReferenceLoadRow(kBlocks, piece.data(), 7);
}

double Value(Bf16 x) { return FloatFromBf16(x.bits); }

TEST(KvFp8, EveryScaleMakesTheLargestACodeOfTheHighestBinadeOrTheOneBelow) {
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const double largest = FloatFromBf16(static_cast<uint16_t>(bits));
    const uint16_t scale = Fp8Scale(bits);
    const double power = FloatFromBf16(scale);
    const double code =
        FloatFromE4m3(E4m3FromFloat(static_cast<float>(largest) * Fp8Inverse(scale)));
    ASSERT_EQ(power * Fp8Inverse(scale), 1.0) << bits;
    ASSERT_LE(code, 448.0) << bits;
    if (power == std::ldexp(1.0, kMaxFp8Exponent) && largest > 464 * power) continue;  // cut
    if (power > std::ldexp(1.0, kMinFp8Exponent)) {
      ASSERT_GT(code, 224.0) << bits;
    }
    ASSERT_LE(std::fabs(code * power - largest), std::max(largest / 16, power / 1024)) << bits;
  }
  for (uint32_t bits = 0x7F80; bits < 0x8000; ++bits) {
    ASSERT_EQ(Fp8Scale(bits), kNanFp8Scale);
    ASSERT_EQ(Fp8Inverse(Fp8Scale(bits)), 0.0f);
  }
}

TEST(KvFp8, EveryCodeTimesEveryScaleIsANormalBf16OrZero) {
  for (int32_t e = kMinFp8Exponent; e <= kMaxFp8Exponent; ++e) {
    for (uint32_t code = 0; code < 256; ++code) {
      if ((code & 0x7F) == 0x7F) continue;
      const float value = FloatFromE4m3(static_cast<uint8_t>(code)) * std::ldexp(1.0f, e);
      ASSERT_EQ(FloatFromBf16(Bf16FromFloat(value)), value) << e << " " << code;
      ASSERT_TRUE(value == 0.0f || std::fabs(value) >= 0x1p-60f) << e << " " << code;
      ASSERT_LE(std::fabs(value), 57344.0f);
    }
  }
}

TEST(KvFp8, PlacesArePermutedWithinSixteenDims) {
  std::set<uint32_t> places;
  for (uint32_t dim = 0; dim < 256; ++dim) {
    EXPECT_EQ(Fp8Place(dim) / 16, dim / 16);
    places.insert(Fp8Place(dim));
    if (dim % 16 >= 8) {
      EXPECT_EQ(Fp8Place(dim), Fp8Place(dim - 8) + 1);
    }
  }
  EXPECT_EQ(places.size(), 256u);
}

TEST(KvFp8, ElementsStayWithinTheStatedBound) {
  double worst = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const float scale = std::ldexp(1.0f, static_cast<int>(seed % 40) - 30);
    const std::vector<Bf16> row = RandomBf16(64, seed, scale);
    const std::vector<Bf16> stored = Stored(row);
    double largest = 0;
    for (const Bf16 x : row) largest = std::max(largest, std::fabs(Value(x)));
    for (size_t i = 0; i < row.size(); ++i) {
      const double exact = Value(row[i]);
      const double error = std::fabs(Value(stored[i]) - exact);
      ASSERT_LE(error, std::max(std::fabs(exact) / 16, largest * 0x1p-17)) << seed << " " << i;
      worst = std::max(worst, error / largest);
    }
  }
  std::printf("worst error of an element %.3g of its row's largest\n", worst);
}

TEST(KvFp8, RowsOutsideTheRangeHaveADefinedAnswer) {
  const auto row_with = [](float first, float others) {
    std::vector<Bf16> row(64, Bf16{Bf16FromFloat(others)});
    row[0].bits = Bf16FromFloat(first);
    return row;
  };
  for (const float bad : {HUGE_VALF, -HUGE_VALF, FloatFromBf16(0x7FC0), FloatFromBf16(0xFFFF)}) {
    for (const Bf16 x : Stored(row_with(bad, 1.0f))) EXPECT_TRUE(std::isnan(Value(x)));
  }
  const std::vector<Bf16> huge = Stored(row_with(-1e30f, 3e5f));
  EXPECT_EQ(Value(huge[0]), -57344);
  EXPECT_EQ(Value(huge[1]), 57344);
  const std::vector<Bf16> zeros = Stored(row_with(-0.0f, 0.0f));
  EXPECT_EQ(zeros[0].bits, 0x8000);
  EXPECT_EQ(zeros[1].bits, 0);
  for (const Bf16 x : Stored(row_with(1e-30f, -1e-38f))) EXPECT_EQ(Value(x), 0);
}

}  // namespace
}  // namespace baton::kernels::cuda
