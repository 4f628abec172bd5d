// The forward pass on an accelerator, here the runner of CUDA sources: logits near those of a
// float64 reference, and the bits of a row depend on its sequence alone.
#include "src/model/device_model.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/simt/run_options.h"
#include "kernels/simt/simt_device.h"
#include "src/model/compute_device.h"
#include "src/model/sampler.h"
#include "tests/model/golden_compare.h"
#include "tests/model/golden_file.h"
#include "tests/model/model_fixture.h"
#include "tests/model/test_model.h"
#include "tests/test_seed.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

// About twice the worst error found, in units of a row's root mean square logit: activations round
// to 2^-9 between any two operations, not only in KV.
constexpr double kTinyBound = 0.2;
constexpr double kDemoBound = 0.2;

// A model on its own device.
struct OnDevice {
  explicit OnDevice(const std::string& name, uint32_t block_size = 64, uint32_t max_rows = 96)
      : device(*OpenComputeDevice(DeviceKind::kSimt)),
        fixture({.path = name,
                 .block_size = block_size,
                 .max_rows = max_rows,
                 .max_context = 512,
                 .num_blocks = 61,  // prime
                 .device = device.accelerator.get(),
                 .kernels = device.kernels}) {}

  ComputeDevice device;
  ModelFixture fixture;
};

std::string Tiny(const std::string& name) { return GoldenPath("tiny_" + name + ".gguf"); }

std::vector<TokenId> RandomTokens(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> out(count);
  for (TokenId& token : out) token = static_cast<TokenId>(random() % 263);
  return out;
}

void ExpectNear(ModelFixture& fixture, const std::string& golden_name, double bound,
                size_t num_prompts) {
  const auto golden = ReadGolden(GoldenPath(golden_name));
  ASSERT_TRUE(golden.ok()) << golden.status();
  ASSERT_TRUE(fixture.status().ok()) << fixture.status();
  const Accuracy accuracy = Compare(fixture, *golden, bound, num_prompts);
  std::printf("%s: %d rows, error worst %.2e rms %.2e of bound %.2e; argmax decided on %d\n",
              golden_name.c_str(), accuracy.num_rows, accuracy.worst, accuracy.mean, bound,
              accuracy.num_decided);
  EXPECT_LE(accuracy.worst, bound);
  EXPECT_EQ(accuracy.num_wrong, 0);
  EXPECT_GE(accuracy.num_decided, accuracy.num_rows / 4);
}

class DeviceModelLaunchTest : public ::testing::TestWithParam<const char*> {};

// What first estimates of a step's time count on.
TEST_P(DeviceModelLaunchTest, AStepIsTheStatedNumberOfKernels) {
  OnDevice on(Tiny(GetParam()));
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  const ModelConfig& config = on.fixture.model().config();
  const std::vector<TokenId> tokens = RandomTokens(63, 1);  // more rows unpack matrices
  const std::span<const TokenId> all(tokens);
  const auto launches = [&on](const std::vector<Chunk>& chunks) {
    const uint64_t before = simt::TotalRunStats().num_launches;
    EXPECT_TRUE(on.fixture.Run(chunks).ok());
    return simt::TotalRunStats().num_launches - before;
  };
  const uint32_t kernels = DeviceModel::KernelsAStep(config);
  EXPECT_EQ(launches({{0, 0, all}}), kernels) << "a prompt";
  EXPECT_EQ(launches({{0, 63, all.first(1)}}), kernels) << "a decode row";
  EXPECT_EQ(launches({{0, 64, all.first(1)}, {1, 0, all}}), kernels + config.num_layers);
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeviceModelLaunchTest,
                         ::testing::Values("head64_llama", "head64_qwen3moe"),
                         [](const auto& info) { return std::string(info.param); });

class DeviceModelTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DeviceModelTest, LogitsAgreeWithTheReference) {
  OnDevice on(Tiny(GetParam()));
  ExpectNear(on.fixture, std::string("tiny_") + GetParam() + ".golden", kTinyBound, 3);
}

// Decoded token by token, then prefilled in chunks of any size, in blocks of another size, and in
// one batch with others: the same logits and the same KV.
TEST_P(DeviceModelTest, ARowsBitsDependOnItsSequenceAlone) {
  const uint32_t kPrompt = 30;
  const uint32_t kTotal = 50;
  const std::vector<TokenId> tokens = RandomTokens(kTotal, TestSeed());
  const std::span<const TokenId> all(tokens);
  OnDevice on(Tiny(GetParam()));
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

  OnDevice small(Tiny(GetParam()), /*block_size=*/16);
  const auto again = small.fixture.Run({{0, 0, all}});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(std::equal(logits->begin(), logits->end(), again->begin()));
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
                                           "head64_gemma3", "head64_qwen3moe"),
                         [](const auto& info) { return std::string(info.param); });

// As the first of two models over one device's kernels, which has recorded its decode steps.
class RecordedStepTest : public ::testing::TestWithParam<const char*> {
 protected:
  // Rows [first, first + count) of one step, each of a sequence of its own, which is `at` long.
  static std::vector<Chunk> DecodeRows(std::span<const TokenId> tokens, uint32_t count,
                                       uint32_t at) {
    std::vector<Chunk> chunks;
    for (uint32_t i = 0; i < count; ++i) chunks.push_back({i, at, tokens.subspan(i, 1)});
    return chunks;
  }
};

// Every number of rows, those that are padded too, and rows whose logits are taken beside rows
// whose tokens are chosen: the bits of a step that is launched kernel by kernel.
TEST_P(RecordedStepTest, HasTheBitsOfAStepThatIsNotRecorded) {
  constexpr uint32_t kMaxRows = 26;
  OnDevice plain(Tiny(GetParam()), 16, kMaxRows);
  OnDevice recorded(Tiny(GetParam()), 16, kMaxRows);
  ASSERT_TRUE(plain.fixture.status().ok()) << plain.fixture.status();
  ASSERT_TRUE(recorded.fixture.model().Prepare(recorded.fixture.view()).ok());
  const auto& model = static_cast<const DeviceModel&>(recorded.fixture.model());
  ASSERT_EQ(model.num_recorded_steps(), 2 * 17u) << "1 to 16 and 24 rows, on two grids";
  const std::vector<TokenId> tokens = RandomTokens(kMaxRows, TestSeed());
  uint32_t at = 0;
  for (const uint32_t num_rows : {1u, 3u, 16u, 17u, 24u, 26u, 2u}) {
    const std::vector<Chunk> chunks = DecodeRows(tokens, num_rows, at++);
    std::vector<RowSampling> sampling(num_rows);
    for (uint32_t i = 0; i < num_rows; i += 2) {
      sampling[i] = {.seed = TestSeed() + i, .temperature = 0.7f, .on_device = 1};
    }
    const auto expected = plain.fixture.Choose(chunks, sampling);
    const auto got = recorded.fixture.Choose(chunks, sampling);
    ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
    EXPECT_EQ(got->tokens, expected->tokens) << num_rows << " rows";
    EXPECT_EQ(got->logits, expected->logits) << num_rows << " rows";
  }
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(recorded.fixture.KvBytes(i, at), plain.fixture.KvBytes(i, at));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RecordedStepTest,
                         ::testing::Values("head64_llama", "head64_gemma3", "head64_qwen3moe"),
                         [](const auto& info) { return std::string(info.param); });

// A step is one of the recorded kind only if all its rows decode, nobody hears of its layers and
// its KV lies where it did: the kernel that chooses tokens is in every recorded step.
TEST(DeviceModelRecordedTest, OthersAreLaunchedKernelByKernel) {
  OnDevice on(Tiny("head64_llama"));
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  ASSERT_TRUE(on.fixture.model().Prepare(on.fixture.view()).ok());
  const std::vector<TokenId> tokens = RandomTokens(20, 1);
  const std::span<const TokenId> all(tokens);
  struct Hook : LayerHook {
    void OnLayerStored(uint32_t /*layer*/) override { ++num_layers; }
    uint32_t num_layers = 0;
  } hook;
  const auto launches = [&](const std::vector<Chunk>& chunks, LayerHook* with) {
    const uint64_t before = simt::TotalRunStats().num_launches;
    EXPECT_TRUE(on.fixture.Run(chunks, false, with).ok());
    return simt::TotalRunStats().num_launches - before;
  };
  const uint32_t kernels = DeviceModel::KernelsAStep(on.fixture.model().config());
  EXPECT_EQ(launches({{0, 0, all}}, nullptr), kernels);
  EXPECT_EQ(launches({{0, 20, all.first(1)}}, nullptr), kernels + 1) << "a recorded step";
  EXPECT_EQ(launches({{0, 21, all.first(1)}}, &hook), kernels);
  EXPECT_EQ(hook.num_layers, on.fixture.model().config().num_layers);
  EXPECT_EQ(launches({{0, 22, all.first(2)}}, nullptr), kernels) << "two rows of one sequence";
  const DeviceBuffer elsewhere = *DeviceBuffer::Create(
      on.device.accelerator.get(), on.fixture.view().layout->BlockStride(), "other KV");
  const KvView moved = {elsewhere.data(), on.fixture.view().layout, 1};
  const uint32_t block = 0;
  const AttentionSpan span{.kv = {{&block, 1}}, .first_row = 0, .num_rows = 1, .first_pos = 0};
  const uint32_t row = 0;
  std::vector<float> logits(on.fixture.vocab());
  const uint64_t before = simt::TotalRunStats().num_launches;
  ASSERT_TRUE(on.fixture.model()
                  .Forward({all.first(1), {&span, 1}, {&row, 1}}, moved, nullptr, logits)
                  .ok());
  EXPECT_EQ(simt::TotalRunStats().num_launches - before, kernels);
}

// Local layers whose window begins in the second split of 256 keys, beside layers that see all.
TEST(DeviceModelWindowTest, DecodingFarBehindTheWindowHasTheBitsOfPrefill) {
  const std::vector<TokenId> tokens = RandomTokens(300, TestSeed());
  const std::span<const TokenId> all(tokens);
  OnDevice on(Tiny("head64_gemma3"));
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

TEST(DeviceModelDemoTest, SomeTokensOfTheDemoModelAgreeWithTheReference) {
  OnDevice on(DemoModelPath(), /*block_size=*/64, /*max_rows=*/64);
  ExpectNear(on.fixture, "smollm2.golden", kDemoBound, 1);
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

TEST(DeviceModelLoadTest, AKindThatIsNotInThisBuildIsNamed) {
#ifdef BATON_HAVE_CUDA
  EXPECT_TRUE(CheckDeviceInBuild(DeviceKind::kCuda).ok());
#else
  for (const absl::Status& status :
       {CheckDeviceInBuild(DeviceKind::kCuda), OpenComputeDevice(DeviceKind::kCuda).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr("--device cuda is not in this build"));
  }
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
  for (const char* name : {"head64_llama", "head64_gemma3", "head64_qwen3moe"}) {
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

// On one SM: tiles of wgmma are then the quickest way for many rows.
const cuda::KernelTable& KernelsOfOneSm() {
  static const cuda::KernelTable table = [] {
    cuda::KernelTable kernels = cuda::runner::Kernels();
    kernels.gemm_bf16 = [](const cuda::GemmParams& params, void* stream) {
      cuda::GemmParams call = params;
      call.num_sms = 1;
      return cuda::runner::Kernels().gemm_bf16(call, stream);
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
  ASSERT_TRUE(whole.ok() && fixture.Run({{1, 0, all.first(30)}}).ok());
  ASSERT_TRUE(fixture.Run({{1, 30, all.subspan(30, 30)}}).ok());
  const auto last = fixture.Run({{1, 60, all.subspan(60)}});
  ASSERT_TRUE(last.ok()) << last.status();
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
}  // namespace baton
