// The forward pass on an accelerator, here the runner of CUDA sources: logits near those of a
// float64 reference, and the bits of a row depend on its sequence alone.
#include "src/model/device_model.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/simt/run_options.h"
#include "kernels/simt/simt_device.h"
#include "src/model/sampler.h"
#include "src/wire/sampling_params.h"
#include "tests/model/gguf_builder.h"
#include "tests/model/golden_compare.h"
#include "tests/model/golden_file.h"
#include "tests/model/on_device.h"
#include "tests/model/rounding_bound.h"
#include "tests/model/test_model.h"
#include "tests/test_seed.h"

namespace baton::model {

namespace cuda = kernels::cuda;
namespace simt = kernels::simt;
using device::DeviceKind;
using kernels::RowSampling;
using kv::KvDtype;
using kv::KvDtypeName;
using kv::KvLayout;
using wire::SamplingParams;

namespace {

using ::testing::HasSubstr;

// About twice the worst error found, in units of a row's root mean square logit: the average over
// keys takes back most of what fp8 rounds, and no rule says how much.
constexpr double kDemoFp8Bound = 0.4;

void ExpectNear(ModelFixture& fixture, const std::string& golden_name, double bound,
                size_t num_prompts, bool decides_some = true) {
  const auto golden = ReadGolden(GoldenPath(golden_name));
  ASSERT_TRUE(golden.ok()) << golden.status();
  ASSERT_TRUE(fixture.status().ok()) << fixture.status();
  const Accuracy accuracy = Compare(fixture, *golden, bound, num_prompts);
  std::printf("%s: %d rows, error worst %.2e rms %.2e of bound %.2e; argmax decided on %d\n",
              golden_name.c_str(), accuracy.num_rows, accuracy.worst, accuracy.mean, bound,
              accuracy.num_decided);
  EXPECT_LE(accuracy.worst, bound);
  EXPECT_EQ(accuracy.num_wrong, 0);
  if (decides_some) {
    EXPECT_GE(accuracy.num_decided, accuracy.num_rows / 4);
  }
}

class DeviceModelLaunchTest : public ::testing::TestWithParam<const char*> {};

// The first estimates of a step's time count on this number.
TEST_P(DeviceModelLaunchTest, AStepIsTheStatedNumberOfKernels) {
  WeightsOnDevice on(Tiny(GetParam()), /*keeps_packed=*/false);
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  const ModelConfig& config = on.fixture.model().config();
  const std::vector<TokenId> tokens = RandomTokens(63, 1);  // more rows unpack matrices
  const std::span<const TokenId> all(tokens);
  const auto launches = [&on](const std::vector<Chunk>& chunks) {
    const uint64_t before = simt::TotalRunStats().num_launches;
    EXPECT_TRUE(on.fixture.Run(chunks).ok());
    return simt::TotalRunStats().num_launches - before;
  };
  const uint32_t kernels = DeviceModel::KernelsAStep(config, StepKernels::kApart);
  const uint32_t joined = DeviceModel::KernelsAStep(
      config, config.traits->experts || config.traits->short_convs || config.traits->delta_nets
                  ? StepKernels::kJoined
                  : StepKernels::kWithNorms);
  const uint32_t clears = config.num_delta_layers() > 0 ? 1 : 0;  // a state begins as zeros
  EXPECT_EQ(launches({{0, 0, all}}), kernels + clears) << "a prompt";
  EXPECT_EQ(launches({{0, 63, all.first(1)}}), joined) << "a decode row";
  EXPECT_EQ(launches({{0, 64, all.first(1)}, {1, 0, all}}),
            kernels + clears + config.num_attention_layers());
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeviceModelLaunchTest,
                         ::testing::Values("head64_llama", "head64_qwen3moe", "head64_lfm2_q4_0",
                                           "head64_lfm2moe", "head64_qwen35"),
                         [](const auto& info) { return std::string(info.param); });

class DeviceModelTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DeviceModelTest, LogitsAgreeWithTheReference) {
  OnDevice on(Tiny(GetParam()));
  ExpectNear(on.fixture, std::string("tiny_") + GetParam() + ".golden", TinyDeviceBound(), 3);
}

// Decoded token by token, then prefilled in chunks of any size, in blocks of another size, and in
// one batch with others: the same logits and the same KV.
void ExpectBitsOfTheSequenceAlone(const std::string& name, KvDtype kv_dtype) {
  const uint32_t kPrompt = 30;
  const uint32_t kTotal = 50;
  const std::vector<TokenId> tokens = RandomTokens(kTotal, TestSeed());
  const std::span<const TokenId> all(tokens);
  OnDevice on(name, 64, 96, kv_dtype);
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  auto logits = on.fixture.Run({{0, 0, all.first(kPrompt)}});
  for (uint32_t i = kPrompt; i < kTotal; ++i) {
    logits = on.fixture.Run({{0, i, all.subspan(i, 1)}});
    ASSERT_TRUE(logits.ok()) << logits.status();
  }
  const std::vector<std::byte> kv = on.fixture.KvBytes(0, kTotal);

  std::mt19937_64 random(TestSeed());
  for (uint32_t begin = 0; begin < kTotal;) {
    const uint32_t size = std::min<uint32_t>(1 + random() % 23, kTotal - begin);
    const std::vector<TokenId> other = RandomTokens(1 + random() % 40, random());
    const uint32_t neighbour = 2 + begin;  // a new sequence each time
    const auto both = on.fixture.Run({{neighbour, 0, other}, {1, begin, all.subspan(begin, size)}});
    ASSERT_TRUE(both.ok()) << both.status();
    begin += size;
    if (begin < kTotal) continue;
    EXPECT_TRUE(std::equal(logits->begin(), logits->end(), both->end() - on.fixture.vocab()));
  }
  EXPECT_EQ(on.fixture.KvBytes(1, kTotal), kv);

  OnDevice small(name, /*block_size=*/16, 96, kv_dtype);
  const auto again = small.fixture.Run({{0, 0, all}});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(std::equal(logits->begin(), logits->end(), again->begin()));
}

TEST_P(DeviceModelTest, ARowsBitsDependOnItsSequenceAlone) {
  ExpectBitsOfTheSequenceAlone(Tiny(GetParam()), KvDtype::kBf16);
}

// A row's token is the processor's choice of its logits; the logits of the others are the same.
TEST_P(DeviceModelTest, ChoosesTokensAsTheSamplerDoes) {
  OnDevice on(Tiny(GetParam()));
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  EXPECT_TRUE(on.fixture.model().samples());
  const std::vector<TokenId> tokens = RandomTokens(40, TestSeed());
  std::vector<Chunk> chunks;
  for (uint32_t i = 0; i < 4; ++i) chunks.push_back({i, 0, std::span(tokens).subspan(10 * i, 10)});
  const auto logits = on.fixture.Run(chunks);
  ASSERT_TRUE(logits.ok()) << logits.status();

  std::vector<SamplingParams> params(4);
  params[0].temperature = 0;
  params[1].top_p = 0.8f;
  params[1].seed = TestSeed();
  params[2].logprobs = true;
  params[3].top_k = 7;
  const SamplerState state({}, {}, 0);
  const size_t vocab = on.fixture.vocab();
  Sampler sampler(static_cast<uint32_t>(vocab), {});
  std::vector<RowSampling> sampling;
  for (const SamplingParams& p : params) {
    sampling.push_back(RowSamplingOf({.params = &p, .state = &state}));
  }
  const auto chosen = on.fixture.Choose(chunks, sampling);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  for (size_t i = 0; i < params.size(); ++i) {
    const auto row = std::span(*logits).subspan(i * vocab, vocab);
    const auto left = std::span(chosen->logits).subspan(i * vocab, vocab);
    if (params[i].logprobs) {
      EXPECT_TRUE(std::equal(row.begin(), row.end(), left.begin()));
      continue;
    }
    SampledToken expected;
    ASSERT_TRUE(
        sampler.Sample({.params = &params[i], .state = &state, .logits = row}, expected).ok());
    EXPECT_EQ(chosen->tokens[i], expected.token) << "row " << i;
    EXPECT_THAT(left, ::testing::Each(kUntouched));
  }
  // Logits and tokens go to memory for which a GPU does not wait at every row.
  EXPECT_EQ(static_cast<simt::SimtDevice&>(*on.device.accelerator).num_waits(), 0u);
  sampling.pop_back();
  EXPECT_EQ(on.fixture.Choose(chunks, sampling).status().code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeviceModelTest,
                         ::testing::Values("head64_llama", "head64_qwen2", "head128_qwen3",
                                           "head64_gemma3", "head64_qwen3moe", "head64_lfm2",
                                           "head64_lfm2_q4_0", "head64_lfm2moe", "head64_qwen35",
                                           "head64_qwen35_q4_0"),
                         [](const auto& info) { return std::string(info.param); });

// About twice the worst that was found. K and V in fp8 have errors of 2^-4 of an element instead of
// 2^-9. This is how far they move the logits of models of random weights, in units of a row's root
// mean square. In a mixture a row may go to another expert: its worst logit is 25 times its mean.
constexpr double kFp8Bound = 1.5;
constexpr double kFp8MeanBound = 0.2;

class DeviceModelFp8Test : public ::testing::TestWithParam<const char*> {};

TEST_P(DeviceModelFp8Test, LogitsStayNearThoseOfBf16) {
  OnDevice wide(Tiny(GetParam()));
  OnDevice on(Tiny(GetParam()), 64, 96, KvDtype::kFp8);
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  const std::vector<TokenId> tokens = RandomTokens(90, 4);
  const auto expected = wide.fixture.Run({{0, 0, tokens}}, /*all_rows=*/true);
  const auto logits = on.fixture.Run({{0, 0, tokens}}, /*all_rows=*/true);
  ASSERT_TRUE(expected.ok() && logits.ok()) << logits.status();
  const size_t vocab = on.fixture.vocab();
  double worst = 0;
  double total = 0;
  for (size_t row = 0; row < tokens.size(); ++row) {
    double squares = 0;
    double error = 0;
    double errors = 0;
    for (size_t i = row * vocab; i < (row + 1) * vocab; ++i) {
      const double difference = std::fabs((*logits)[i] - (*expected)[i]);
      squares += double{(*expected)[i]} * (*expected)[i];
      errors += difference * difference;
      error = std::max(error, difference);
    }
    worst = std::max(worst, error / std::sqrt(squares / static_cast<double>(vocab)));
    total += std::sqrt(errors / squares);
  }
  const double mean = total / static_cast<double>(tokens.size());
  std::printf("%s: worst %.3g of bound %.2g, mean %.3g of bound %.2g\n", GetParam(), worst,
              kFp8Bound, mean, kFp8MeanBound);
  EXPECT_LT(worst, kFp8Bound);
  EXPECT_LT(mean, kFp8MeanBound);
  EXPECT_GT(mean, 0.0);
  EXPECT_EQ(on.fixture.view().layout->BytesPerToken() * 2,
            wide.fixture.view().layout->BytesPerToken() / wide.fixture.model().config().head_dim *
                (on.fixture.model().config().head_dim + 2));
}

TEST_P(DeviceModelFp8Test, ARowsBitsDependOnItsSequenceAlone) {
  ExpectBitsOfTheSequenceAlone(Tiny(GetParam()), KvDtype::kFp8);
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeviceModelFp8Test,
                         ::testing::Values("head64_llama", "head128_qwen3", "head64_gemma3",
                                           "head64_qwen3moe", "head64_qwen35"),
                         [](const auto& info) { return std::string(info.param); });

class DeviceModelWindowTest : public ::testing::TestWithParam<KvDtype> {};

// Local layers whose window begins in the second split of 256 keys, beside layers that see all.
TEST_P(DeviceModelWindowTest, DecodingFarBehindTheWindowHasTheBitsOfPrefill) {
  const std::vector<TokenId> tokens = RandomTokens(300, TestSeed());
  const std::span<const TokenId> all(tokens);
  OnDevice on(Tiny("head64_gemma3"), 64, 96, GetParam());
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  for (uint32_t begin = 0; begin < 270; begin += 90) {
    ASSERT_TRUE(on.fixture.Run({{0, begin, all.subspan(begin, 90)}}).ok());
    ASSERT_TRUE(on.fixture.Run({{1, begin, all.subspan(begin, 90)}}).ok());
  }
  const auto prefilled = on.fixture.Run({{0, 270, all.subspan(270)}}, /*all_rows=*/true);
  ASSERT_TRUE(prefilled.ok()) << prefilled.status();
  for (uint32_t i = 270; i < 300; ++i) {
    const auto decoded = on.fixture.Run({{1, i, all.subspan(i, 1)}});
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ASSERT_TRUE(std::equal(decoded->begin(), decoded->end(),
                           prefilled->begin() + (i - 270) * on.fixture.vocab()))
        << "position " << i;
  }
  EXPECT_EQ(on.fixture.KvBytes(0, 300), on.fixture.KvBytes(1, 300));
}

INSTANTIATE_TEST_SUITE_P(Types, DeviceModelWindowTest,
                         ::testing::Values(KvDtype::kBf16, KvDtype::kFp8),
                         [](const auto& info) { return std::string(KvDtypeName(info.param)); });

TEST(DeviceModelDemoTest, SomeTokensOfTheDemoModelAgreeWithTheReference) {
  OnDevice on(DemoModelPath(), /*block_size=*/64, /*max_rows=*/64);
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  const double num_layers = on.fixture.model().config().num_layers;
  ExpectNear(on.fixture, "smollm2.golden", Bf16ActivationsBound(num_layers, /*growth=*/1), 1);
}

// KV in fp8 moves a trained model's logits less than those of random weights.
TEST(DeviceModelDemoTest, SomeTokensOfTheDemoModelInFp8StayNearTheReference) {
  OnDevice on(DemoModelPath(), /*block_size=*/64, /*max_rows=*/64, KvDtype::kFp8);
  ExpectNear(on.fixture, "smollm2.golden", kDemoFp8Bound, 1, /*decides_some=*/false);
}

TEST(DeviceModelLoadTest, RefusesWhatHasNoKernel) {
  const auto refusal = [](const std::string& name) {
    OnDevice on(Tiny(name));
    EXPECT_EQ(on.fixture.status().code(), absl::StatusCode::kUnimplemented);
    return std::string(on.fixture.status().message());
  };
  EXPECT_THAT(refusal("gemma3"), HasSubstr("head size 16"));
  EXPECT_THAT(refusal("qwen3moe"), HasSubstr("head size 16"));
  EXPECT_THAT(refusal("bf16"), HasSubstr("head size 16"));
}

// tiny_head64_qwen3moe with norm_topk_prob false. The bytes of both keys are a multiple of 32, so
// the tensors behind them stay aligned.
std::string PlainExperts() {
  std::ifstream in(Tiny("head64_qwen3moe"), std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(in), {});
  ByteWriter keys;
  keys.PutString("qwen3moe.expert_weights_norm").Put<uint32_t>(7).Put<uint8_t>(0);
  keys.PutString("general.author").Put<uint32_t>(8).PutString("nobody in particular.");
  EXPECT_EQ(keys.size() % 32, 0u);
  constexpr size_t kKeyCountAt = 16;
  constexpr size_t kKeysAt = 24;
  uint64_t num_keys = 0;
  std::memcpy(&num_keys, &bytes[kKeyCountAt], sizeof(num_keys));
  num_keys += 2;
  std::memcpy(&bytes[kKeyCountAt], &num_keys, sizeof(num_keys));
  bytes.insert(kKeysAt, reinterpret_cast<const char*>(keys.bytes().data()), keys.size());
  const std::string path = ::testing::TempDir() + "plain_experts.gguf";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(DeviceModelLoadTest, ExpertWeightsThatDoNotSumToOneAreForTheProcessor) {
  const std::string path = PlainExperts();
  OnDevice on(path);
  EXPECT_EQ(on.fixture.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(on.fixture.status().message()),
              HasSubstr("expert_weights_norm (norm_topk_prob) false: the kernels of device simt "
                        "take true; use --device cpu"));
  ModelFixture cpu({.path = path, .max_context = 512});
  EXPECT_TRUE(cpu.status().ok()) << cpu.status();
}

TEST(DeviceModelLoadTest, LayersThatDifferAreForTheProcessor) {
  OnDevice on(Tiny("gemma4_dense"));
  EXPECT_EQ(on.fixture.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(on.fixture.status().message()),
              HasSubstr("architecture gemma4: device simt has no kernels for layers of different "
                        "heads"));
}

TEST(DeviceModelLoadTest, LatentRowsAreForTheProcessor) {
  OnDevice on(Tiny("deepseek2"));
  EXPECT_EQ(on.fixture.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(on.fixture.status().message()),
              HasSubstr("architecture deepseek2: device simt has no kernel for its latent rows"));
}

TEST(DeviceModelLoadTest, MambaIsForTheProcessor) {
  OnDevice on(Tiny("nemotron_h"));
  EXPECT_EQ(on.fixture.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(
      std::string(on.fixture.status().message()),
      HasSubstr("architecture nemotron_h: device simt has no kernel for its layers of Mamba-2"));
}

TEST(DeviceModelLoadTest, SinksAreForTheProcessor) {
  OnDevice on(Tiny("gptoss_mxfp4"));
  EXPECT_EQ(on.fixture.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(on.fixture.status().message()),
              HasSubstr("architecture gpt-oss: the kernels of device simt have no attention sinks "
                        "and no biases of experts; use --device cpu"));
}

// Workers pair by these.
TEST(DeviceModelLoadTest, Fp8IsAnotherLayoutAndOtherNumericsAndF32IsRefused) {
  OnDevice wide(Tiny("head64_llama"));
  OnDevice on(Tiny("head64_llama"), 64, 96, KvDtype::kFp8);
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  const LoadedModel& model = on.fixture.model();
  EXPECT_THAT(model.numerics_text(), HasSubstr("kv=fp8"));
  EXPECT_NE(model.numerics_id(), wide.fixture.model().numerics_id());
  EXPECT_TRUE(model.layout().Validate().ok()) << model.layout().Validate();
  EXPECT_EQ(KvLayout::Difference(model.layout(), wide.fixture.model().layout()),
            "dtype fp8 against bf16");
  EXPECT_NE(model.layout().LayoutId(), wide.fixture.model().layout().LayoutId());
  OnDevice f32(Tiny("head64_llama"), 64, 96, KvDtype::kF32);
  EXPECT_EQ(f32.fixture.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(f32.fixture.status().message()), HasSubstr("bf16 or fp8"));
}

TEST(DeviceModelLoadTest, AKindThatIsNotInThisBuildIsNamed) {
#ifdef BATON_HAVE_CUDA
  EXPECT_TRUE(CheckDeviceInBuild(DeviceKind::kCuda).ok());
#else
  for (const absl::Status& status :
       {CheckDeviceInBuild(DeviceKind::kCuda), OpenComputeDevice(DeviceKind::kCuda).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr("--device cuda is not in this build"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("scripts/build.sh cuda-all baton"));
  }
#endif
}

TEST(DeviceModelLoadTest, WithoutADriverOneLineSaysSoAndTheProcessorComputes) {
#ifndef BATON_HAVE_CUDA
  GTEST_SKIP() << "this build has no CUDA";
#else
  if (void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); driver != nullptr) {
    ::dlclose(driver);
    GTEST_SKIP() << "there is a CUDA driver here";
  }
  const absl::Status asked = OpenComputeDevice(DeviceKind::kCuda).status();
  EXPECT_EQ(asked.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(asked.message(), "no GPU can be used: there is no CUDA driver");
  const absl::StatusOr<ComputeDevice> found = OpenComputeDevice(DeviceKind::kUnspecified);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->accelerator, nullptr);
  EXPECT_EQ(found->why_processor, asked.message()) << "serve shows it";
#endif
}

// With or without a GPU: what the process asks of the driver comes first.
TEST(DeviceModelLoadTest, WhereWorkWaitsForOthersNoLaunchMayWaitForTheGpu) {
#ifndef BATON_HAVE_CUDA
  GTEST_SKIP() << "this build has no CUDA";
#else
  unsetenv("CUDA_MODULE_LOADING");
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  for (const auto& [num_ranks, awaits_others] : {std::pair{2u, false}, {1u, true}}) {
    const absl::Status status =
        OpenComputeDevice(DeviceKind::kCuda, num_ranks, awaits_others).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA_LAUNCH_BLOCKING is set"));
    EXPECT_EQ(OpenComputeDevice(DeviceKind::kUnspecified, num_ranks, awaits_others).status().code(),
              status.code())
        << "no reason to compute on the processor";
    EXPECT_EQ(std::getenv("CUDA_MODULE_LOADING"), nullptr);
  }
  unsetenv("CUDA_LAUNCH_BLOCKING");
  (void)OpenComputeDevice(DeviceKind::kCuda);
  EXPECT_EQ(std::getenv("CUDA_MODULE_LOADING"), nullptr);
  (void)OpenComputeDevice(DeviceKind::kCuda, /*num_ranks=*/1, /*awaits_others=*/true);
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "EAGER");
  unsetenv("CUDA_MODULE_LOADING");
#endif
}

TEST(DeviceModelLoadTest, IsAnotherArithmeticThanTheProcessors) {
  OnDevice on(Tiny("head64_llama"));
  ModelFixture cpu({.path = Tiny("head64_llama")});
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  EXPECT_EQ(on.fixture.model().weights_id(), cpu.model().weights_id());
  EXPECT_NE(on.fixture.model().numerics_id(), cpu.model().numerics_id());
  EXPECT_THAT(on.fixture.model().numerics_text(), HasSubstr("arithmetic=bf16.float.1"));
}

TEST(DeviceModelShareTest, AnotherModelOverTheSameWeightsGivesTheSameBits) {
  for (const char* name :
       {"head64_llama", "head64_gemma3", "head64_qwen3moe", "head64_lfm2", "head64_qwen35"}) {
    OnDevice on(Tiny(name));
    ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
    const auto device = on.device.accelerator->Split();
    ASSERT_TRUE(device.ok());
    ModelFixture second({.max_rows = 96,
                         .max_context = 512,
                         .num_blocks = 61,
                         .device = device->get(),
                         .kernels = on.device.kernels,
                         .weights_of = &on.fixture.model()});
    ASSERT_TRUE(second.status().ok()) << second.status();
    EXPECT_EQ(second.model().numerics_id(), on.fixture.model().numerics_id());
    const std::vector<TokenId> tokens = RandomTokens(70, 3);
    const auto a = on.fixture.Run({{0, 0, tokens}});
    const auto b = second.Run({{0, 0, tokens}});
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(*a, *b);
    EXPECT_EQ(on.fixture.KvBytes(0, 70), second.KvBytes(0, 70));
  }
}

bool multiplies_by_wgmma = true;  // where the device allows it

// On one SM: tiles of wgmma are then the quickest way for many rows.
const cuda::KernelTable& KernelsOfOneSm() {
  static const cuda::KernelTable table = [] {
    cuda::KernelTable kernels = cuda::runner::Kernels();
    kernels.gemm_bf16 = [](const cuda::GemmParams& params, void* stream) {
      cuda::GemmParams call = params;
      call.num_sms = 1;
      call.allows_wgmma = call.allows_wgmma && multiplies_by_wgmma;
      return cuda::runner::Kernels().gemm_bf16(call, stream);
    };
    kernels.gemm_gated = [](const cuda::GatedGemmParams& params, void* stream) {
      cuda::GatedGemmParams call = params;
      call.product.allows_wgmma = call.product.allows_wgmma && multiplies_by_wgmma;
      return cuda::runner::Kernels().gemm_gated(call, stream);
    };
    kernels.gemm_rope = [](const cuda::RopeGemmParams& params, void* stream) {
      cuda::RopeGemmParams call = params;
      call.product.allows_wgmma = call.product.allows_wgmma && multiplies_by_wgmma;
      return cuda::runner::Kernels().gemm_rope(call, stream);
    };
    return kernels;
  }();
  return table;
}

TEST(DeviceModelWgmmaTest, APromptByWgmmaHasTheBitsOfItsChunksByMma) {
  const ComputeDevice device = *OpenComputeDevice(DeviceKind::kSimt);
  ModelFixture fixture({.path = Tiny("head64_llama"),
                        .block_size = 64,
                        .max_rows = 96,
                        .max_context = 512,
                        .num_blocks = 61,
                        .device = device.accelerator.get(),
                        .kernels = &KernelsOfOneSm(),
                        .keeps_packed = false});
  ASSERT_TRUE(fixture.status().ok()) << fixture.status();
  const std::vector<TokenId> tokens = RandomTokens(83, TestSeed());
  const std::span<const TokenId> all(tokens);
  const uint64_t before = simt::TotalRunStats().num_wgmma;
  const auto whole = fixture.Run({{0, 0, all}});
  const uint64_t of_prompt = simt::TotalRunStats().num_wgmma - before;
  EXPECT_GT(of_prompt, 0u);
  ASSERT_TRUE(whole.ok()) << whole.status();
  // By mma.sync; with their heads, too few rows for wgmma in attention, and too many for norms that
  // products divide.
  multiplies_by_wgmma = false;
  constexpr uint32_t kChunk = 12;
  absl::StatusOr<std::vector<float>> last = std::vector<float>();
  for (uint32_t done = 0; done < tokens.size(); done += kChunk) {
    last = fixture.Run({{1, done, all.subspan(done, std::min<size_t>(kChunk, 83 - done))}});
    ASSERT_TRUE(last.ok()) << last.status();
  }
  multiplies_by_wgmma = true;
  EXPECT_EQ(simt::TotalRunStats().num_wgmma - before, of_prompt);
  EXPECT_EQ(*whole, *last);
  EXPECT_EQ(fixture.KvBytes(0, 83), fixture.KvBytes(1, 83));
}

TEST(DeviceModelLoadTest, ABatchOutsideTheLimitsIsRefused) {
  OnDevice on(Tiny("head64_llama"), 64, /*max_rows=*/16);
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  const std::vector<TokenId> tokens = RandomTokens(17, 1);
  EXPECT_EQ(on.fixture.Run({{0, 0, tokens}}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::model
