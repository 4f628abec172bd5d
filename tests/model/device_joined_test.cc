// Steps whose products end with the work of the kernel after them: the bits of a launch for each.
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/simt/run_options.h"
#include "tests/model/on_device.h"
#include "tests/test_seed.h"

namespace baton::model {

namespace cuda = kernels::cuda;
namespace simt = kernels::simt;
using device::DeviceBuffer;
using device::DeviceKind;
using kv::KvDtype;
using kv::KvDtypeName;

namespace {

constexpr uint32_t kMaxRows = 40;

// Where the launches meet that each do one thing.
struct Between {
  DeviceBuffer gate_up;  // [rows][2][ffn]
  DeviceBuffer added;    // [rows][hidden]
  DeviceBuffer normed;   // [rows][hidden]
};
Between* between = nullptr;

// The residual and the product that was left out of it, normed by a launch; then the rest.
absl::Status NormApart(const cuda::NormedRows& norm, cuda::GemmParams& product, void* stream) {
  if (norm.weight == nullptr) return absl::OkStatus();
  auto* residual = const_cast<simt::Bf16*>(product.x);
  product.x = between->normed.as<simt::Bf16>();
  return cuda::runner::Kernels().rms_norm(
      {between->added.as<simt::Bf16>(), residual, norm.weight, between->normed.as<simt::Bf16>(),
       product.m, product.k, norm.eps},
      stream);
}

// Each product is a launch, and so is the work before and after it.
const cuda::KernelTable& KernelsApart() {
  static const cuda::KernelTable table = [] {
    cuda::KernelTable kernels = cuda::runner::Kernels();
    kernels.gemm_gated = [](const cuda::GatedGemmParams& params, void* stream) -> absl::Status {
      cuda::GemmParams product = params.product;
      BATON_RETURN_IF_ERROR(NormApart(params.norm, product, stream));
      product.y_bf16 = between->gate_up.as<simt::Bf16>();
      BATON_RETURN_IF_ERROR(cuda::runner::Kernels().gemm_bf16(product, stream));
      const cuda::GateMulParams gates = {product.y_bf16, params.product.y_bf16, product.m,
                                         product.n / 2};
      return params.gate == cuda::GateKind::kSilu ? cuda::runner::Kernels().silu_mul(gates, stream)
                                                  : cuda::runner::Kernels().gelu_mul(gates, stream);
    };
    kernels.gemm_rope = [](const cuda::RopeGemmParams& params, void* stream) -> absl::Status {
      cuda::GemmParams product = params.product;
      BATON_RETURN_IF_ERROR(NormApart(params.norm, product, stream));
      BATON_RETURN_IF_ERROR(cuda::runner::Kernels().gemm_bf16(product, stream));
      return cuda::runner::Kernels().rope_append(params.rope, stream);
    };
    kernels.gemm_sum = [](const cuda::SumGemmParams& params, void* stream) {
      cuda::GemmParams product = params.product;
      product.y_bf16 = between->added.as<simt::Bf16>();
      return cuda::runner::Kernels().gemm_bf16(product, stream);
    };
    return kernels;
  }();
  return table;
}

// A model on a device of its own, whose weights are not packed.
struct DenseModel {
  DenseModel(const std::string& name, KvDtype kv_dtype, const cuda::KernelTable& kernels)
      : device(*OpenComputeDevice(DeviceKind::kSimt)),
        fixture({.path = Tiny(name),
                 .kv_dtype = kv_dtype,
                 .block_size = 16,
                 .max_rows = kMaxRows,
                 .max_context = 512,
                 .num_blocks = 61,
                 .device = device.accelerator.get(),
                 .kernels = &kernels,
                 .keeps_packed = false}) {}

  const ComputeDevice device;
  ModelFixture fixture;
};

// A model whose products end with the work of other kernels, beside one whose products do not.
class JoinedStepTest : public ::testing::TestWithParam<std::pair<const char*, KvDtype>> {
 protected:
  JoinedStepTest()
      : joined_(GetParam().first, GetParam().second, cuda::runner::Kernels()),
        apart_(GetParam().first, GetParam().second, KernelsApart()) {}

  void SetUp() override {
    ASSERT_TRUE(joined_.fixture.status().ok()) << joined_.fixture.status();
    ASSERT_TRUE(apart_.fixture.status().ok()) << apart_.fixture.status();
    const auto take = [this](uint32_t width) {
      const size_t size_bytes = size_t{kMaxRows} * width * sizeof(simt::Bf16);
      return *DeviceBuffer::Create(apart_.device.accelerator.get(), size_bytes, "between launches");
    };
    memory_.gate_up = take(2 * config().max_ffn_size());
    memory_.added = take(config().hidden_size);
    memory_.normed = take(config().hidden_size);
    between = &memory_;
  }
  void TearDown() override { between = nullptr; }

  const ModelConfig& config() { return apart_.fixture.model().config(); }

  // The number of launches that a step saves.
  uint64_t NumSaved(uint32_t num_rows) {
    StepKernels kernels = StepKernels::kApart;
    if (num_rows <= cuda::kMaxJoinedRows) kernels = StepKernels::kJoined;
    const ArchitectureTraits& traits = *config().traits;
    const bool takes_norms =
        !traits.experts && !traits.post_norms && !traits.short_convs && !traits.delta_nets;
    if (num_rows <= cuda::kMaxNormedRows && takes_norms) kernels = StepKernels::kWithNorms;
    return DeviceModel::KernelsAStep(config(), StepKernels::kApart) -
           DeviceModel::KernelsAStep(config(), kernels);
  }

  // Runs the chunks on both: equal logits, and so many launches less.
  void ExpectSame(const std::vector<Chunk>& chunks) {
    uint32_t num_rows = 0;
    for (const Chunk& chunk : chunks) num_rows += static_cast<uint32_t>(chunk.tokens.size());
    const uint64_t before = simt::TotalRunStats().num_launches;
    const auto got = joined_.fixture.Run(chunks);
    const uint64_t middle = simt::TotalRunStats().num_launches;
    const auto expected = apart_.fixture.Run(chunks);
    ASSERT_TRUE(got.ok() && expected.ok()) << got.status() << expected.status();
    EXPECT_EQ(*got, *expected);
    EXPECT_EQ(middle - before + NumSaved(num_rows), simt::TotalRunStats().num_launches - middle);
  }

  DenseModel joined_;
  DenseModel apart_;
  Between memory_;
};

// Prompts on both sides of the limit, then decode steps.
TEST_P(JoinedStepTest, HasTheBitsOfALaunchForEachKernel) {
  const std::vector<TokenId> tokens = RandomTokens(kMaxRows, TestSeed());
  const std::span<const TokenId> all(tokens);
  constexpr uint32_t kSequences = 16;
  static_assert(kMaxRows > cuda::kMaxJoinedRows);
  ExpectSame({{0, 0, all}});
  ExpectSame({{1, 0, all.first(cuda::kMaxJoinedRows)}});
  for (uint32_t i = 2; i < kSequences; ++i) ExpectSame({{i, 0, all.subspan(i, i)}});
  std::vector<uint32_t> lengths = {kMaxRows, cuda::kMaxJoinedRows};
  for (uint32_t i = 2; i < kSequences; ++i) lengths.push_back(i);
  for (const uint32_t num_rows : {1u, 2u, 8u, kSequences}) {
    std::vector<Chunk> chunks;
    for (uint32_t i = 0; i < num_rows; ++i) {
      chunks.push_back({i, lengths[i]++, all.subspan(num_rows + i, 1)});
    }
    ExpectSame(chunks);
  }
  for (uint32_t i = 0; i < kSequences; ++i) {
    EXPECT_EQ(joined_.fixture.KvBytes(i, lengths[i]), apart_.fixture.KvBytes(i, lengths[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, JoinedStepTest,
                         ::testing::Values(std::pair("head64_llama", KvDtype::kBf16),
                                           std::pair("head64_llama", KvDtype::kFp8),
                                           std::pair("head64_gemma3", KvDtype::kBf16),
                                           std::pair("head64_qwen2", KvDtype::kBf16),
                                           std::pair("head128_qwen3", KvDtype::kFp8),
                                           std::pair("head64_qwen3moe", KvDtype::kBf16),
                                           std::pair("head64_lfm2", KvDtype::kBf16),
                                           std::pair("head64_qwen35", KvDtype::kBf16),
                                           std::pair("head64_lfm2moe", KvDtype::kBf16)),
                         [](const auto& info) {
                           return std::string(info.param.first) + "_" +
                                  std::string(KvDtypeName(info.param.second));
                         });

}  // namespace
}  // namespace baton::model
