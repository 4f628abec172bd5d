// The CUDA kernels on the runner: every shape in every order gives the reference's values within
// the stated tolerance, the same bits in each order, and every element is written. GemmBf16 is in
// gemm_test.cc.
#include <cmath>
#include <fstream>
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
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/mutation.h"

namespace baton::kernels::cuda {
namespace {

using simt::AllOrders;
using simt::RunOptions;
using simt::ScopedRunOptions;
using simt::SimBuffer;
using simt_test::OnDevice;
using simt_test::RandomBf16;
using simt_test::SameBits;
using testing::HasSubstr;

constexpr double kElementwise = 5e-6;  // relative, before the result's rounding to bf16
constexpr double kFarGate = 2.7e-37;   // times |up|: kernel_table.h

const KernelTable& Table() { return runner::Kernels(); }

// The value that is added to the residual: x itself, or the norm of x.
enum class Branch { kPlain, kNormed };

// The first difference from what the kernel promises, or "".
std::string CheckRmsNorm(uint32_t rows, uint32_t dim, float scale = 1.0f,
                         Branch branch = Branch::kPlain) {
  const size_t count = size_t{rows} * dim;
  std::vector<Bf16> before = RandomBf16(count, 1, scale);
  const std::vector<Bf16> x = RandomBf16(count, 2, scale);
  const std::vector<Bf16> weight = RandomBf16(dim, 3);
  const std::vector<Bf16> x_weight = RandomBf16(dim, 6);
  const bool is_normed = branch == Branch::kNormed;
  SimBuffer x_buffer = OnDevice(x, "x");
  SimBuffer residual = OnDevice(before, "residual");
  SimBuffer weights = OnDevice(weight, "weight");
  SimBuffer x_weights = OnDevice(x_weight, "x_weight");
  SimBuffer out(count * sizeof(Bf16), "out");
  const absl::Status status = Table().rms_norm(
      {x_buffer.as<Bf16>(), residual.as<Bf16>(), weights.as<Bf16>(), out.as<Bf16>(), rows, dim,
       1e-5f, is_normed ? x_weights.as<Bf16>() : nullptr},
      nullptr);
  if (!status.ok()) return std::string(status.message());
  RmsNormParams host = {
      x.data(), before.data(), weight.data(), nullptr,
      rows,     dim,           1e-5f,         is_normed ? x_weight.data() : nullptr};
  const SummedRows sums = ReferenceResidual(host);
  std::vector<Bf16> after = simt_test::FromDevice<Bf16>(residual);
  host.residual = after.data();
  const std::vector<double> exact = ReferenceRmsNorm(host);
  for (size_t i = 0; i < count; ++i) {
    const double slack = is_normed ? kElementwise * sums.magnitudes[i] : 0;
    if (!IsRoundingOf(after[i], sums.values[i], {is_normed ? kElementwise : 0, slack})) {
      return fmt::format("residual[{}] is {}, exact {}", i, FloatFromBf16(after[i].bits),
                         sums.values[i]);
    }
    if (!IsRoundingOf(out.as<Bf16>()[i], exact[i], {kElementwise})) {
      return fmt::format("out[{}] is {}, exact {}", i, FloatFromBf16(out.as<Bf16>()[i].bits),
                         exact[i]);
    }
  }
  return "";
}

// Silu or gelu.
struct GateMul {
  absl::Status (*kernel)(const GateMulParams& params, void* stream);
  std::vector<double> (*reference)(const GateMulParams& params);
  Tolerance (*tolerance)(Bf16 gate, Bf16 up);
};

Tolerance SiluMulTolerance(Bf16, Bf16 up) {
  return {kElementwise, std::abs(FloatFromBf16(up.bits)) * kFarGate};
}
const GateMul kSilu = {Table().silu_mul, ReferenceSiluMul, SiluMulTolerance};
const GateMul kGelu = {Table().gelu_mul, ReferenceGeluMul, GeluMulTolerance};

std::string CheckGateMul(const GateMul& gate_mul, uint32_t rows, uint32_t dim, float scale = 4.0f) {
  const std::vector<Bf16> gate_up = RandomBf16(size_t{rows} * 2 * dim, 4, scale);
  SimBuffer in = OnDevice(gate_up, "gate_up");
  SimBuffer out(size_t{rows} * dim * sizeof(Bf16), "out");
  const absl::Status status = gate_mul.kernel({in.as<Bf16>(), out.as<Bf16>(), rows, dim}, nullptr);
  if (!status.ok()) return std::string(status.message());
  const std::vector<double> exact = gate_mul.reference({gate_up.data(), nullptr, rows, dim});
  for (size_t i = 0; i < exact.size(); ++i) {
    const Bf16* gate = &gate_up[i / dim * 2 * dim + i % dim];
    if (!IsRoundingOf(out.as<Bf16>()[i], exact[i], gate_mul.tolerance(gate[0], gate[dim]))) {
      return fmt::format("out[{}] is {}, exact {}", i, FloatFromBf16(out.as<Bf16>()[i].bits),
                         exact[i]);
    }
  }
  return "";
}

std::string CheckEmbed(uint32_t rows, uint32_t dim, float scale = 1.0f) {
  constexpr uint32_t kIds = 11;
  const std::vector<Bf16> table = RandomBf16(size_t{kIds} * dim, 5);
  std::vector<uint32_t> ids(rows);
  for (uint32_t i = 0; i < rows; ++i) ids[i] = i * 7 % kIds;
  if (rows > 2) ids[1] = kIds;  // unknown: a row of zeros
  // Two that another kernel gives, one of them unknown.
  const std::vector<uint32_t> fed = {kNoToken, 5, 2};
  if (rows > 4) ids[3] = kFedId | 1;
  if (rows > 5) ids[5] = kFedId;
  SimBuffer fed_buffer = OnDevice(fed, "fed");
  SimBuffer table_buffer = OnDevice(table, "table");
  SimBuffer id_buffer = OnDevice(ids, "ids");
  SimBuffer out(size_t{rows} * dim * sizeof(Bf16), "out");
  const absl::Status status =
      Table().embed({table_buffer.as<Bf16>(), id_buffer.as<uint32_t>(), out.as<Bf16>(), rows, kIds,
                     dim, scale, fed_buffer.as<uint32_t>()},
                    nullptr);
  if (!status.ok()) return std::string(status.message());
  std::vector<Bf16> expected(size_t{rows} * dim);
  ReferenceEmbed({table.data(), ids.data(), expected.data(), rows, kIds, dim, scale, fed.data()});
  return SameBits(out.data(), expected.data(), out.size()) ? "" : "out has other bits";
}

class EveryOrder : public testing::TestWithParam<RunOptions> {
 protected:
  ScopedRunOptions options_{GetParam()};
};

TEST_P(EveryOrder, RmsNormFollowsTheReference) {
  for (const uint32_t dim : {8u, 56u, 256u, 576u, 2056u, 4096u}) {
    for (const uint32_t rows : {0u, 1u, 7u}) {
      EXPECT_EQ(CheckRmsNorm(rows, dim), "") << rows << " x " << dim;
      EXPECT_EQ(CheckRmsNorm(rows, dim, 1.0f, Branch::kNormed), "") << rows << " x " << dim;
    }
  }
}

TEST_P(EveryOrder, SiluAndGeluFollowTheReference) {
  for (const uint32_t dim : {8u, 104u, 1024u, 1032u, 1536u}) {
    for (const uint32_t rows : {0u, 1u, 5u}) {
      EXPECT_EQ(CheckGateMul(kSilu, rows, dim), "") << rows << " x " << dim;
      EXPECT_EQ(CheckGateMul(kGelu, rows, dim), "") << rows << " x " << dim;
    }
  }
}

TEST_P(EveryOrder, EmbedScalesRows) {
  for (const uint32_t dim : {8u, 576u, 1032u}) {
    for (const uint32_t rows : {0u, 1u, 13u}) {
      EXPECT_EQ(CheckEmbed(rows, dim), "") << rows << " x " << dim;
      EXPECT_EQ(CheckEmbed(rows, dim, 25.298221f), "") << rows << " x " << dim;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryOrder, testing::ValuesIn(AllOrders(2)));

TEST(CudaKernels, LargestShapesFollowTheReference) {
  EXPECT_EQ(CheckRmsNorm(2, kMaxNormDim), "");
  EXPECT_EQ(CheckRmsNorm(2, kMaxNormDim, 1.0f, Branch::kNormed), "");
  EXPECT_EQ(CheckGateMul(kSilu, 2, 14336), "");
  EXPECT_EQ(CheckGateMul(kGelu, 2, 14336), "");
  EXPECT_EQ(CheckEmbed(257, 4096), "");
}

TEST(CudaKernels, HugeAndTinyValuesFollowTheReference) {
  EXPECT_EQ(CheckRmsNorm(3, 64, 1e15f), "");
  EXPECT_EQ(CheckRmsNorm(3, 64, 0.0f), "");
  EXPECT_EQ(CheckRmsNorm(3, 64, 1e15f, Branch::kNormed), "");
  EXPECT_EQ(CheckRmsNorm(3, 64, 0.0f, Branch::kNormed), "");
  EXPECT_EQ(CheckGateMul(kSilu, 3, 64, 100.0f), "");  // exp overflows for gates below -89
  EXPECT_EQ(CheckGateMul(kGelu, 3, 64, 100.0f), "");
  EXPECT_EQ(CheckGateMul(kGelu, 3, 64, 1e25f), "");  // and the square of the gate
}

TEST(CudaKernels, ShapesThatNoKernelTakesAreRefusedByName) {
  const auto message = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_THAT(message(Table().rms_norm({.dim = 12}, nullptr)), HasSubstr("RmsNorm: dim 12"));
  EXPECT_THAT(message(Table().rms_norm({.dim = kMaxNormDim + 8}, nullptr)), HasSubstr("16392"));
  EXPECT_THAT(message(Table().silu_mul({.dim = 0}, nullptr)), HasSubstr("SiluMul: dim 0"));
  EXPECT_THAT(message(Table().gelu_mul({.dim = 4}, nullptr)), HasSubstr("GeluMul: dim 4"));
  EXPECT_THAT(message(Table().embed({.dim = 7}, nullptr)), HasSubstr("Embed: dim 7"));
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
    return CheckRmsNorm(2, 1064).empty() && CheckRmsNorm(2, 1064, 1.0f, Branch::kNormed).empty() &&
           CheckGateMul(kSilu, 2, 1032).empty() && CheckGateMul(kGelu, 2, 1032).empty() &&
           CheckEmbed(5, 1032, 25.298221f).empty();
  };
  simt_test::ExpectAllNoticed(suite, 8);
}

}  // namespace
}  // namespace baton::kernels::cuda
