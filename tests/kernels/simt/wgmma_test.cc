// Tensor copies and wgmma on the runner: right answers in every order with no false report, planted
// faults named, mutants noticed.
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/math.h"
#include "kernels/simt/arena.h"
#include "kernels/simt/run_options.h"
#include "kernels/simt/runner_body.h"
#include "kernels/simt/tensor_core.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/faulty_wgmma.h"
#include "tests/kernels/simt/mutation.h"
#include "tests/kernels/simt/wgmma_kernels.h"
#include "tests/kernels/simt/word_buffers.h"

namespace baton::kernels::simt_test {
namespace {

using simt::AllOrders;
using simt::Bf16;
using simt::RunOptions;
using simt::ScopedRunOptions;
using simt::SimBuffer;
using testing::HasSubstr;
using testing::IsEmpty;

// A, B and C of one product, on the device, and D by the model of the tensor cores.
class ProductCase {
 public:
  explicit ProductCase(uint32_t columns)
      : columns_(columns),
        a_(RandomBf16(size_t{64} * 16, 1)),
        b_(RandomBf16(size_t{columns} * 16, 2)),
        c_(RandomBf16(WgmmaWordsC(columns), 3, 100.0f)),
        in_(4 * size_t{WgmmaWords(columns)}, "in"),
        out_(4 * size_t{WgmmaWordsC(columns)}, "out") {
    std::memcpy(in_.data(), a_.data(), a_.size() * 2);
    std::memcpy(in_.as<Bf16>() + a_.size(), b_.data(), b_.size() * 2);
    auto* c = reinterpret_cast<float*>(in_.as<Bf16>() + a_.size() + b_.size());
    for (size_t i = 0; i < c_.size(); ++i) c[i] = FloatFromBf16(c_[i].bits);
  }

  WordParams Params(uint32_t count) {
    return {in_.as<uint32_t>(), out_.as<uint32_t>(), nullptr, count};
  }
  // The first output that is not that of `times` steps, or "".
  std::string Wrong(uint32_t times, bool adds) const {
    for (uint32_t i = 0; i < c_.size(); ++i) {
      float sum = adds ? FloatFromBf16(c_[i].bits) : 0.0f;
      for (uint32_t t = 0; t < times; ++t) {
        sum = simt::DotBf16(simt::TensorCore::kHopper, &a_[i / columns_ * 16],
                            &b_[i % columns_ * 16], sum);
      }
      if (out_.as<uint32_t>()[i] == std::bit_cast<uint32_t>(sum)) continue;
      return fmt::format("output {} is {}, not {}", i, out_.as<float>()[i], sum);
    }
    return "";
  }

 private:
  uint32_t columns_;
  std::vector<Bf16> a_;
  std::vector<Bf16> b_;
  std::vector<Bf16> c_;
  SimBuffer in_;
  SimBuffer out_;
};

// "" or what went wrong.
std::string CheckProduct(uint32_t columns, uint32_t step, bool adds) {
  ProductCase product(columns);
  const absl::Status status = WarpgroupProduct(product.Params(WgmmaCount(step, adds)), columns);
  return status.ok() ? product.Wrong(1, adds) : std::string(status.message());
}

// Checks the product with A in registers and B in tiles of columns.
std::string CheckColumns(uint32_t columns, uint32_t step) {
  ProductCase product(columns);
  const absl::Status status = WarpgroupColumns(product.Params(WgmmaCount(step, true)), columns);
  return status.ok() ? product.Wrong(1, true) : std::string(status.message());
}

std::string CheckChain() {
  ProductCase product(128);
  const absl::Status status = WarpgroupChain(product.Params(0));
  return status.ok() ? product.Wrong(kChainProducts, true) : std::string(status.message());
}

std::string CheckTiles() {
  Words words(kMatrixWords, kCopiedWords);
  const absl::Status status = TensorTiles(words.Params(0));
  if (!status.ok()) return std::string(status.message());
  constexpr uint32_t kRowWords = simt::kTileColumns / 2;
  for (uint32_t i = 0; i < kCopiedWords; ++i) {
    const uint32_t tile = i / (kCopiedRows * kRowWords);
    const uint32_t row = FirstRowOf(tile) + i / kRowWords % kCopiedRows;
    const uint32_t column = FirstColumnOf(tile) / 2 + i % kRowWords;
    const bool is_inside = row < kMatrixRows && column < kMatrixColumns / 2;
    const uint32_t expected = is_inside ? InputWord(row * kMatrixColumns / 2 + column) : 0;
    if (words.Out(i) != expected) return fmt::format("word {} is {}", i, words.Out(i));
  }
  return "";
}

class EveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(EveryOrder, TilesAreCopiedSwizzledWithZerosBeyondTheMatrix) { EXPECT_EQ(CheckTiles(), ""); }

TEST_P(EveryOrder, AProductHasTheBitsOfTheModel) {
  EXPECT_EQ(CheckProduct(128, 0, false), "");
  EXPECT_EQ(CheckProduct(128, 3, true), "");
  EXPECT_EQ(CheckProduct(192, 1, true), "");
  EXPECT_EQ(CheckProduct(256, 2, true), "");
  EXPECT_EQ(CheckProduct(64, 1, false), "");
}

TEST_P(EveryOrder, AProductOfRegistersAndColumnsHasTheBitsOfTheModel) {
  EXPECT_EQ(CheckColumns(64, 0), "");
  EXPECT_EQ(CheckColumns(128, 3), "");
  EXPECT_EQ(CheckColumns(256, 1), "");
}

TEST_P(EveryOrder, ProductsOfTheSameSumsAreAChain) { EXPECT_EQ(CheckChain(), ""); }

INSTANTIATE_TEST_SUITE_P(, EveryOrder, testing::ValuesIn(AllOrders(2)));

// The message of a fault, or "OK"; `out` gets the first word that the kernel wrote.
std::string FaultOf(WgmmaFault fault, uint32_t* out = nullptr) {
  SimBuffer in = OnDevice(std::vector<uint16_t>(64 * 64, 0x3F80), "in");
  SimBuffer words(4 * size_t{simt::kWarpgroupSize}, "out");
  const absl::Status status = RunFaultyWgmma(fault, {in.as<uint16_t>(), words.as<uint32_t>()});
  if (out != nullptr) *out = words.as<uint32_t>()[0];
  return std::string(status.ToString());
}

// A fault and what its report must contain.
struct Case {
  WgmmaFault fault;
  std::vector<std::string> words;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.words.back(); }

class PlantedFault : public testing::TestWithParam<Case> {};

TEST_P(PlantedFault, IsNamedInEveryOrder) {
  for (const RunOptions& options : AllOrders(2)) {
    ScopedRunOptions scope(options);
    const std::string report = FaultOf(GetParam().fault);
    for (const std::string& word : GetParam().words) {
      EXPECT_THAT(report, HasSubstr(word)) << Describe(options);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Calls, PlantedFault,
    testing::Values(
        Case{WgmmaFault::kAcrossWarpgroups,
             {"deadlock:", "threads 64..191 wait for their warpgroup in a wgmma"}},
        Case{WgmmaFault::kTooFewThreads, {"misuse:", "wgmma needs a warpgroup"}},
        Case{WgmmaFault::kTwoPlaces, {"misuse:", "which waits in the wgmma at faulty_wgmma.cu:"}},
        Case{WgmmaFault::kDifferentOperands, {"misuse:", "ask for different products"}},
        Case{WgmmaFault::kTileMisaligned, {"misuse:", "a tile at 128 of shared memory"}},
        Case{WgmmaFault::kStepBeyondTile, {"misuse:", "or a step beyond its 64 columns"}},
        Case{WgmmaFault::kNoSwizzle, {"misuse:", "not a descriptor of a tile swizzled"}},
        Case{WgmmaFault::kColumnsMisaligned, {"misuse:", "columns at 128 of shared memory"}},
        Case{WgmmaFault::kColumnsNoSwizzle, {"misuse:", "not a descriptor of columns swizzled"}},
        Case{WgmmaFault::kColumnsOutside, {"misuse:", "columns are not in shared memory"}},
        Case{WgmmaFault::kTileOutside, {"misuse:", "a tile is not in shared memory"}}));

INSTANTIATE_TEST_SUITE_P(
    Orders, PlantedFault,
    testing::Values(
        Case{WgmmaFault::kNoFence, {"misuse:", "wgmma_fence is missing"}},
        Case{WgmmaFault::kNoFenceAfterWait, {"misuse:", "wgmma_fence is missing"}},
        Case{WgmmaFault::kNoProxyFence, {"misuse:", "no fence_proxy_async came between"}},
        Case{WgmmaFault::kSumsWritten, {"misuse:", "wrote its sums before it waited"}},
        Case{WgmmaFault::kSumsWrittenBetween, {"misuse:", "wrote its sums before it waited"}},
        Case{WgmmaFault::kOperandWritten, {"misuse:", "wrote an operand before it waited"}},
        Case{WgmmaFault::kColumnsNotFenced, {"misuse:", "no fence_proxy_async came between"}},
        Case{WgmmaFault::kColumnsWritten, {"race:", "the read of a wgmma of warpgroup 0"}},
        Case{WgmmaFault::kNotWaited, {"misuse:", "without waiting for its last wgmma"}},
        Case{WgmmaFault::kTileWritten, {"race:", "the read of a wgmma of warpgroup 0"}},
        Case{WgmmaFault::kTileWrittenAfterTooFew, {"race:", "the read of a wgmma of warpgroup 0"}},
        Case{WgmmaFault::kTileFilledAgain,
             {"race:", "a bulk copy on mbarrier", "the read of a wgmma of warpgroup 0"}}));

INSTANTIATE_TEST_SUITE_P(
    Copies, PlantedFault,
    testing::Values(Case{WgmmaFault::kNoMap, {"misuse:", "make_tensor_map did not make it"}},
                    Case{WgmmaFault::kCopyMisaligned, {"misuse:", "not aligned to 1024 bytes"}},
                    Case{WgmmaFault::kCopyWithoutFence,
                         {"misuse:", "mbar_fence_init was not called"}},
                    Case{WgmmaFault::kCopyReadEarly, {"race:", "'shared memory'"}}));

TEST(Wgmma, SumsReadBeforeTheWaitAreNan) {
  for (const RunOptions& options : AllOrders(2)) {
    ScopedRunOptions scope(options);
    uint32_t word = 0;
    EXPECT_EQ(FaultOf(WgmmaFault::kSumsRead, &word), "OK");
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(word))) << Describe(options);
    EXPECT_EQ(FaultOf(WgmmaFault::kNone, &word), "OK");
    EXPECT_EQ(word, std::bit_cast<uint32_t>(1.0f));
  }
}

TEST(Wgmma, ZerosTimesInfinityAreNan) {
  ProductCase product(128);
  const WordParams params = product.Params(WgmmaCount(0, false));
  auto* a = const_cast<uint32_t*>(params.in);
  std::memset(a, 0, 4 * size_t{kWgmmaWordsA});
  a[kWgmmaWordsA] = 0x7F807F80;  // column 0
  ASSERT_TRUE(WarpgroupProduct(params, 128).ok());
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(params.out[0])));
  EXPECT_EQ(params.out[1], 0u);
}

TEST(TensorMap, ShapesThatNoMapTakesAreRefused) {
  alignas(16) static const Bf16 kData[16] = {};
  simt::TensorMap map;
  const auto code = [&](const simt::TensorShape& shape) {
    return simt::make_tensor_map(shape, &map).code();
  };
  EXPECT_EQ(code({kData, 2, 8, 64}), absl::StatusCode::kOk);
  for (const simt::TensorShape& shape :
       {simt::TensorShape{kData + 1, 1, 8, 64}, simt::TensorShape{kData, 0, 8, 64},
        simt::TensorShape{kData, 1, 12, 64}, simt::TensorShape{kData, 1, 0, 64},
        simt::TensorShape{kData, 1, 8, 0}, simt::TensorShape{kData, 1, 8, 257}}) {
    EXPECT_EQ(code(shape), absl::StatusCode::kInvalidArgument);
  }
}

void ExpectAllNoticed(const Suite& suite) {
  const MutationResult result = RunMutants(suite, {});
  EXPECT_GT(result.num_mutants, 0u);
  EXPECT_THAT(result.survivors, IsEmpty());
}

TEST(Mutants, OfTensorTilesAreNoticed) {
  ExpectAllNoticed([] { return CheckTiles().empty(); });
}

TEST(Mutants, OfProductsAreNoticed) {
  ExpectAllNoticed([] { return CheckProduct(128, 2, true).empty(); });
  ExpectAllNoticed([] { return CheckColumns(128, 2).empty(); });
}

}  // namespace
}  // namespace baton::kernels::simt_test
