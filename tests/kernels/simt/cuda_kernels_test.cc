// The CUDA kernels on the runner: every shape in every order gives the reference's values within
// the stated tolerance, the same bits in each order, and every element is written.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/kernel_reference.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/math.h"
#include "kernels/simt/arena.h"
#include "kernels/simt/run_options.h"
#include "tests/kernels/simt/device_arrays.h"
#include "tests/kernels/simt/mutation.h"

namespace baton::cuda {
namespace {

using simt::AllOrders;
using simt::RunOptions;
using simt::ScopedRunOptions;
using simt::SimBuffer;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kElementwise = 5e-6;       // relative, before the result's rounding to bf16
constexpr double kSiluOfFarGate = 2.7e-37;  // times |up|: kernel_table.h
constexpr double kGemm = 1e-4;              // relative, in the Euclidean norm, against double

const KernelTable& Table() { return runner::Kernels(); }

// The first difference from what the kernel promises, or "".
std::string CheckRmsNorm(uint32_t rows, uint32_t dim, float scale = 1.0f) {
  const size_t count = size_t{rows} * dim;
  std::vector<Bf16> expected_residual = RandomBf16(count, 1, scale);
  const std::vector<Bf16> x = RandomBf16(count, 2, scale);
  const std::vector<Bf16> weight = RandomBf16(dim, 3);
  SimBuffer x_buffer = OnDevice(x, "x");
  SimBuffer residual = OnDevice(expected_residual, "residual");
  SimBuffer weights = OnDevice(weight, "weight");
  SimBuffer out(count * sizeof(Bf16), "out");
  const absl::Status status =
      Table().rms_norm({x_buffer.as<Bf16>(), residual.as<Bf16>(), weights.as<Bf16>(),
                        out.as<Bf16>(), rows, dim, 1e-5f},
                       nullptr);
  if (!status.ok()) return std::string(status.message());
  const std::vector<double> exact = ReferenceRmsNorm(
      {x.data(), expected_residual.data(), weight.data(), nullptr, rows, dim, 1e-5f});
  if (!SameBits(residual.data(), expected_residual.data(), residual.size())) {
    return "residual has other bits";
  }
  for (size_t i = 0; i < count; ++i) {
    if (!IsRoundingOf(out.as<Bf16>()[i], exact[i], {kElementwise})) {
      return fmt::format("out[{}] is {}, exact {}", i, FloatFromBf16(out.as<Bf16>()[i].bits),
                         exact[i]);
    }
  }
  return "";
}

std::string CheckSiluMul(uint32_t rows, uint32_t dim, float scale = 4.0f) {
  const std::vector<Bf16> gate_up = RandomBf16(size_t{rows} * 2 * dim, 4, scale);
  SimBuffer in = OnDevice(gate_up, "gate_up");
  SimBuffer out(size_t{rows} * dim * sizeof(Bf16), "out");
  const absl::Status status = Table().silu_mul({in.as<Bf16>(), out.as<Bf16>(), rows, dim}, nullptr);
  if (!status.ok()) return std::string(status.message());
  const std::vector<double> exact = ReferenceSiluMul({gate_up.data(), nullptr, rows, dim});
  for (size_t i = 0; i < exact.size(); ++i) {
    const Bf16 up = gate_up[i / dim * 2 * dim + dim + i % dim];
    const double absolute = std::abs(FloatFromBf16(up.bits)) * kSiluOfFarGate;
    if (!IsRoundingOf(out.as<Bf16>()[i], exact[i], {kElementwise, absolute})) {
      return fmt::format("out[{}] is {}, exact {}", i, FloatFromBf16(out.as<Bf16>()[i].bits),
                         exact[i]);
    }
  }
  return "";
}

std::string CheckEmbed(uint32_t rows, uint32_t dim) {
  constexpr uint32_t kIds = 11;
  const std::vector<Bf16> table = RandomBf16(size_t{kIds} * dim, 5);
  std::vector<uint32_t> ids(rows);
  for (uint32_t i = 0; i < rows; ++i) ids[i] = i * 7 % kIds;
  if (rows > 2) ids[1] = kIds;  // unknown: a row of zeros
  if (rows > 4) ids[3] = std::numeric_limits<uint32_t>::max();
  SimBuffer table_buffer = OnDevice(table, "table");
  SimBuffer id_buffer = OnDevice(ids, "ids");
  SimBuffer out(size_t{rows} * dim * sizeof(Bf16), "out");
  const absl::Status status = Table().embed(
      {table_buffer.as<Bf16>(), id_buffer.as<uint32_t>(), out.as<Bf16>(), rows, kIds, dim},
      nullptr);
  if (!status.ok()) return std::string(status.message());
  std::vector<Bf16> expected(size_t{rows} * dim);
  ReferenceEmbed({table.data(), ids.data(), expected.data(), rows, kIds, dim});
  return SameBits(out.data(), expected.data(), out.size()) ? "" : "out has other bits";
}

// What one product is made of: m, n, k, and how large its terms are.
struct GemmCase {
  uint32_t m;
  uint32_t n;
  uint32_t k;
  float scale = 1.0f;
};

// Reports the worst relative error through `worst`, if given.
std::string CheckGemm(const GemmCase& c, double* worst = nullptr) {
  const std::vector<Bf16> x = RandomBf16(size_t{c.m} * c.k, 6, c.scale);
  const std::vector<Bf16> w = RandomBf16(size_t{c.n} * c.k, 7);
  SimBuffer x_buffer = OnDevice(x, "x");
  SimBuffer w_buffer = OnDevice(w, "w");
  SimBuffer y(size_t{c.m} * c.n * sizeof(float), "y");
  const absl::Status status = Table().gemm_bf16(
      {x_buffer.as<Bf16>(), w_buffer.as<Bf16>(), y.as<float>(), c.m, c.n, c.k}, nullptr);
  if (!status.ok()) return std::string(status.message());
  std::vector<float> bits(size_t{c.m} * c.n);
  ReferenceGemmBits({x.data(), w.data(), bits.data(), c.m, c.n, c.k});
  if (!SameBits(y.data(), bits.data(), y.size())) return "other bits than the tensor cores' model";
  const std::vector<double> exact = ReferenceGemm({x.data(), w.data(), nullptr, c.m, c.n, c.k});
  const double error = RelativeError(y.as<float>(), exact);
  if (worst != nullptr) *worst = std::max(*worst, error);
  return error < kGemm ? "" : fmt::format("relative error {:.3g}", error);
}

class EveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(EveryOrder, RmsNormFollowsTheReference) {
  for (const uint32_t dim : {8u, 56u, 256u, 576u, 2056u, 4096u}) {
    for (const uint32_t rows : {0u, 1u, 7u}) {
      EXPECT_EQ(CheckRmsNorm(rows, dim), "") << rows << " x " << dim;
    }
  }
}

TEST_P(EveryOrder, SiluMulFollowsTheReference) {
  for (const uint32_t dim : {8u, 104u, 1024u, 1032u, 1536u}) {
    for (const uint32_t rows : {0u, 1u, 5u}) {
      EXPECT_EQ(CheckSiluMul(rows, dim), "") << rows << " x " << dim;
    }
  }
}

TEST_P(EveryOrder, EmbedCopiesRows) {
  for (const uint32_t dim : {8u, 576u, 1032u}) {
    for (const uint32_t rows : {0u, 1u, 13u}) {
      EXPECT_EQ(CheckEmbed(rows, dim), "") << rows << " x " << dim;
    }
  }
}

TEST_P(EveryOrder, GemmHasTheBitsOfTheModel) {
  for (const GemmCase& c : {GemmCase{0, 64, 64}, GemmCase{5, 0, 64}, GemmCase{1, 1, 8},
                            GemmCase{7, 61, 40}, GemmCase{64, 64, 96}, GemmCase{67, 71, 104}}) {
    EXPECT_EQ(CheckGemm(c), "") << c.m << " x " << c.n << " x " << c.k;
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryOrder, testing::ValuesIn(AllOrders(2)));

TEST(CudaKernels, LargestShapesFollowTheReference) {
  EXPECT_EQ(CheckRmsNorm(2, kMaxNormDim), "");
  EXPECT_EQ(CheckSiluMul(2, 14336), "");
  EXPECT_EQ(CheckEmbed(257, 4096), "");
}

TEST(CudaKernels, HugeAndTinyValuesFollowTheReference) {
  EXPECT_EQ(CheckRmsNorm(3, 64, 1e15f), "");
  EXPECT_EQ(CheckRmsNorm(3, 64, 0.0f), "");
  EXPECT_EQ(CheckSiluMul(3, 64, 100.0f), "");  // exp overflows for gates below -89
  EXPECT_EQ(CheckGemm({3, 9, 64, 1e20f}), "");
  EXPECT_EQ(CheckGemm({3, 9, 64, 1e-20f}), "");
}

TEST(CudaKernels, GemmErrorAtLargeK) {
  double worst = 0;
  EXPECT_EQ(CheckGemm({3, 5, 4096}, &worst), "");
  EXPECT_EQ(CheckGemm({2, 3, 14336}, &worst), "");
  std::printf("worst relative error of gemm %.2g, the limit is %.2g\n", worst, kGemm);
}

TEST(CudaKernels, GemmOfNanIsNan) {
  std::vector<Bf16> x(16, Bf16{Bf16FromFloat(1.0f)});
  const std::vector<Bf16> w = x;
  x[5].bits = 0x7FC0;
  SimBuffer x_buffer = OnDevice(x, "x");
  SimBuffer w_buffer = OnDevice(w, "w");
  SimBuffer y(sizeof(float), "y");
  ASSERT_TRUE(
      Table()
          .gemm_bf16({x_buffer.as<Bf16>(), w_buffer.as<Bf16>(), y.as<float>(), 1, 1, 16}, nullptr)
          .ok());
  EXPECT_EQ(std::bit_cast<uint32_t>(y.as<float>()[0]), 0x7FFFFFFFu);
  EXPECT_FALSE(RelativeError(y.as<float>(), {11.0}) < kGemm);  // a NaN passes nowhere
  EXPECT_FALSE(IsRoundingOf(x[5], 1.0, {1.0}));
}

TEST(CudaKernels, ARowsBitsDoNotDependOnTheBatch) {
  constexpr uint32_t kN = 33;
  constexpr uint32_t kK = 72;
  const std::vector<Bf16> x = RandomBf16(size_t{65} * kK, 8);
  SimBuffer x_buffer = OnDevice(x, "x");
  SimBuffer w = OnDevice(RandomBf16(size_t{kN} * kK, 9), "w");
  SimBuffer all(65 * kN * sizeof(float), "all");
  SimBuffer one(kN * sizeof(float), "one");
  const auto gemm = [&](const Bf16* rows, SimBuffer& y, uint32_t m) {
    return Table().gemm_bf16({rows, w.as<Bf16>(), y.as<float>(), m, kN, kK}, nullptr).ok();
  };
  ASSERT_TRUE(gemm(x_buffer.as<Bf16>(), all, 65));
  for (const uint32_t row : {0u, 31u, 64u}) {
    SimBuffer single =
        OnDevice(std::vector<Bf16>(x.begin() + row * kK, x.begin() + (row + 1) * kK), "single");
    ASSERT_TRUE(gemm(single.as<Bf16>(), one, 1));
    EXPECT_TRUE(SameBits(one.data(), all.as<float>() + row * kN, one.size())) << row;
  }
}

TEST(CudaKernels, FastArithmeticStaysWithinTheTolerance) {
  RunOptions options;
  options.tensor_math = simt::TensorMath::kFloat;
  ScopedRunOptions scope(options);
  const std::vector<Bf16> x = RandomBf16(7 * 512, 10);
  const std::vector<Bf16> w = RandomBf16(9 * 512, 11);
  SimBuffer x_buffer = OnDevice(x, "x");
  SimBuffer w_buffer = OnDevice(w, "w");
  SimBuffer y(7 * 9 * sizeof(float), "y");
  ASSERT_TRUE(
      Table()
          .gemm_bf16({x_buffer.as<Bf16>(), w_buffer.as<Bf16>(), y.as<float>(), 7, 9, 512}, nullptr)
          .ok());
  EXPECT_LT(RelativeError(y.as<float>(), ReferenceGemm({x.data(), w.data(), nullptr, 7, 9, 512})),
            kGemm);
}

TEST(CudaKernels, ShapesThatNoKernelTakesAreRefusedByName) {
  const auto message = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_THAT(message(Table().rms_norm({.dim = 12}, nullptr)), HasSubstr("RmsNorm: dim 12"));
  EXPECT_THAT(message(Table().rms_norm({.dim = kMaxNormDim + 8}, nullptr)), HasSubstr("16392"));
  EXPECT_THAT(message(Table().silu_mul({.dim = 0}, nullptr)), HasSubstr("SiluMul: dim 0"));
  EXPECT_THAT(message(Table().embed({.dim = 7}, nullptr)), HasSubstr("Embed: dim 7"));
  EXPECT_THAT(message(Table().gemm_bf16({.k = 4}, nullptr)), HasSubstr("GemmBf16: dim 4"));
}

// The columns that ptxas does not know; cuda_resources_test has the others.
TEST(CudaKernels, SharedMemoryAndThreadsAreThoseOfTheBaseline) {
  std::ifstream file("kernels/cuda/resources_sm_90a.txt");
  std::map<std::string, std::pair<uint32_t, uint32_t>> baseline;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string name;
    uint32_t numbers[6] = {};
    fields >> name;
    for (uint32_t& number : numbers) fields >> number;
    ASSERT_TRUE(fields) << line;
    baseline[name] = {numbers[4], numbers[5]};
  }
  ASSERT_EQ(baseline.size(), Table().num_infos);
  for (uint32_t i = 0; i < Table().num_infos; ++i) {
    const KernelInfo& info = *Table().infos[i];
    EXPECT_EQ(baseline[info.name], std::make_pair(info.shared_bytes, info.max_threads))
        << info.name;
  }
}

TEST(CudaKernels, MutantsAreNoticed) {
  const simt_test::Suite suite = [] {
    return CheckRmsNorm(2, 1064).empty() && CheckSiluMul(2, 1032).empty() &&
           CheckEmbed(5, 1032).empty() && CheckGemm({1, 3, 136}).empty() &&
           CheckGemm({65, 66, 8}).empty();
  };
  const simt_test::MutationResult result = simt_test::RunMutants(suite, {});
  EXPECT_GE(result.num_mutants, 15u);
  EXPECT_THAT(result.survivors, IsEmpty());
  EXPECT_THAT(result.stale, IsEmpty());
}

}  // namespace
}  // namespace baton::cuda
