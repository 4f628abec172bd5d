// The forward pass: the bits of a row depend on its sequence alone, and nothing else happens.
#include "src/model/model.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/sampling.h"
#include "tests/model/gguf_builder.h"
#include "tests/model/memory_meter.h"
#include "tests/model/model_fixture.h"
#include "tests/model/test_model.h"
#include "tests/model/told_slices.h"
#include "tests/test_seed.h"

namespace baton::model {

using device::AlignedBuffer;
using device::ThreadPool;
using kernels::AttentionSpan;
using kernels::Isa;
using kernels::kSamplingRules;
using kernels::OpsFor;
using kv::KvDtype;
using kv::KvDtypeName;
using kv::KvLayout;
using kv::KvView;

namespace {

using ::testing::HasSubstr;

std::vector<TokenId> RandomTokens(std::mt19937_64& random, size_t count, size_t vocab) {
  std::vector<TokenId> out(count);
  for (TokenId& token : out) token = static_cast<TokenId>(random() % vocab);
  return out;
}

// Bit equality, NaN included.
bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TokenId Argmax(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Computes tokens [begin, end) of a sequence in chunks of random size; the logits of the last
// token.
std::vector<float> RunInChunks(ModelFixture& fixture, uint32_t sequence,
                               std::span<const TokenId> tokens, std::mt19937_64& random) {
  std::vector<float> logits;
  for (size_t begin = 0; begin < tokens.size();) {
    const size_t size = std::min<size_t>(1 + random() % 97, tokens.size() - begin);
    auto result =
        fixture.Run({{sequence, static_cast<uint32_t>(begin), tokens.subspan(begin, size)}});
    EXPECT_TRUE(result.ok()) << result.status();
    logits = *std::move(result);
    begin += size;
  }
  return logits;
}

// Every weight type, the joined and the mixed matrices, and both KV dtypes.
struct BitsCase {
  const char* model;  // "" = the demo model
  Isa isa;
  uint32_t num_threads;
  KvDtype kv_dtype;
  size_t prompt_tokens;
  size_t decode_tokens;
};

std::string CaseName(const ::testing::TestParamInfo<BitsCase>& info) {
  const char* isas[] = {"auto", "portable", "avx2", "avx512"};
  return fmt::format("{}_{}_{}threads_{}", info.param.model[0] == 0 ? "demo" : info.param.model,
                     isas[static_cast<int>(info.param.isa)], info.param.num_threads,
                     KvDtypeName(info.param.kv_dtype));
}

class ModelBitsTest : public ::testing::TestWithParam<BitsCase> {
 protected:
  static FixtureOptions Options(uint32_t num_threads) {
    const BitsCase& test = GetParam();
    FixtureOptions options;
    options.path =
        test.model[0] == 0 ? DemoModelPath() : GoldenPath(std::string(test.model) + ".gguf");
    options.isa = test.isa;
    options.num_threads = num_threads;
    options.kv_dtype = test.kv_dtype;
    options.num_blocks = 181;  // prime
    return options;
  }
  // False, after saying so, when this processor cannot run the ISA of the case.
  static bool CanRun() {
    const auto ops = OpsFor(GetParam().isa);
    if (ops.ok()) return true;
    // Not a pass in silence: the refusal itself must name the missing feature.
    EXPECT_EQ(ops.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(ops.status().message()), HasSubstr("avx"));
    std::printf("not run here: %s\n", std::string(ops.status().message()).c_str());
    return false;
  }
};

TEST_P(ModelBitsTest, DecodedThenPrefilledFromScratchGivesTheSameKvAndLogits) {
  if (!CanRun()) return;
  ModelFixture fixture(Options(GetParam().num_threads));
  ASSERT_TRUE(fixture.status().ok()) << fixture.status();
  std::mt19937_64 random(TestSeed());
  std::vector<TokenId> tokens = RandomTokens(random, GetParam().prompt_tokens, fixture.vocab());
  std::vector<float> logits = RunInChunks(fixture, 0, tokens, random);
  for (size_t i = 0; i < GetParam().decode_tokens; ++i) {
    tokens.push_back(Argmax(logits));
    const uint32_t last = static_cast<uint32_t>(tokens.size() - 1);
    auto step = fixture.Run({{0, last, std::span(tokens).subspan(last)}});
    ASSERT_TRUE(step.ok()) << step.status();
    logits = *std::move(step);
  }
  const uint32_t size = static_cast<uint32_t>(tokens.size());
  const std::vector<std::byte> kv = fixture.KvBytes(0, size);
  for (uint32_t again = 1; again <= 2; ++again) {
    ASSERT_TRUE(SameBits(RunInChunks(fixture, again, tokens, random), logits));
    ASSERT_EQ(fixture.KvBytes(again, size), kv);
  }
  // In one step, where it may have more rows than go through a feed-forward layer together.
  const auto whole = fixture.Run({{3, 0, tokens}});
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_TRUE(SameBits(*whole, logits));
  ASSERT_EQ(fixture.KvBytes(3, size), kv);
  // With another number of threads too.
  ModelFixture other(Options(3 - GetParam().num_threads));
  ASSERT_TRUE(other.status().ok()) << other.status();
  ASSERT_TRUE(SameBits(RunInChunks(other, 0, tokens, random), logits));
  ASSERT_EQ(other.KvBytes(0, size), kv);
}

TEST_P(ModelBitsTest, ABatchOfSequencesEqualsEachAlone) {
  if (!CanRun()) return;
  ModelFixture fixture(Options(GetParam().num_threads));
  ASSERT_TRUE(fixture.status().ok()) << fixture.status();
  std::mt19937_64 random(TestSeed());
  constexpr uint32_t kNumSequences = 4;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::vector<float>> alone;
  for (uint32_t s = 0; s < kNumSequences; ++s) {
    prompts.push_back(RandomTokens(random, 1 + random() % 70, fixture.vocab()));
    auto logits = fixture.Run({{s, 0, prompts[s]}}, true);
    ASSERT_TRUE(logits.ok()) << logits.status();
    alone.push_back(*std::move(logits));
  }
  // Again in one fresh batch; sequence 0 as a decode step after its prefix.
  const uint32_t prefix = static_cast<uint32_t>(prompts[0].size() - 1);
  std::vector<Chunk> chunks = {{kNumSequences, prefix, std::span(prompts[0]).subspan(prefix)}};
  for (uint32_t s = 1; s < kNumSequences; ++s) chunks.push_back({kNumSequences + s, 0, prompts[s]});
  for (const bool all_rows : {false, true}) {
    if (prefix > 0) {  // a fixed state begins anew
      ASSERT_TRUE(fixture.Run({{kNumSequences, 0, std::span(prompts[0]).first(prefix)}}).ok());
    }
    const auto logits = fixture.Run(chunks, all_rows);
    ASSERT_TRUE(logits.ok()) << logits.status();
    size_t at = 0;
    for (uint32_t s = 0; s < kNumSequences; ++s) {
      const size_t count = (all_rows ? chunks[s].tokens.size() : 1) * fixture.vocab();
      ASSERT_TRUE(SameBits(std::span(*logits).subspan(at, count), std::span(alone[s]).last(count)))
          << "sequence " << s << " all_rows " << all_rows;
      at += count;
    }
  }
  for (uint32_t s = 0; s < kNumSequences; ++s) {
    const uint32_t size = static_cast<uint32_t>(prompts[s].size());
    ASSERT_EQ(fixture.KvBytes(kNumSequences + s, size), fixture.KvBytes(s, size));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tiny, ModelBitsTest,
    ::testing::Values(BitsCase{"tiny_f32", Isa::kAuto, 1, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_f16", Isa::kAuto, 2, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_bf16", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_q4_0", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_q4_1", Isa::kAuto, 1, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_q8_0", Isa::kAuto, 2, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_iq4_nl", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_iq4_xs", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_q3_k", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_q2_k", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_q2_k", Isa::kPortable, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_mixed_rope", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_mixed_rope", Isa::kPortable, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_mixed_rope", Isa::kAvx2, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_mixed_rope", Isa::kAvx512, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_q4_0", Isa::kAuto, 2, KvDtype::kQ8, 280, 30},
                      BitsCase{"tiny_f32", Isa::kPortable, 1, KvDtype::kQ8, 130, 20},
                      BitsCase{"tiny_q8_0", Isa::kAvx2, 2, KvDtype::kQ8, 130, 20}),
    CaseName);
INSTANTIATE_TEST_SUITE_P(
    Architectures, ModelBitsTest,
    ::testing::Values(BitsCase{"tiny_llama_yarn", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_qwen2", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_qwen3", Isa::kAuto, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_qwen3moe", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_qwen3moe_q8_0", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_qwen3moe_mxfp4", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_qwen3moe_q8_0", Isa::kPortable, 1, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_gemma3", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_gemma3", Isa::kPortable, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_smollm3", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_smollm3", Isa::kPortable, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_granite", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_granite", Isa::kPortable, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_lfm2", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_lfm2", Isa::kPortable, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_lfm2_q8_0", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_gemma4", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_gemma4", Isa::kPortable, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_gemma4_q8_0", Isa::kAuto, 2, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_gemma4_dense", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_gemma4_dense", Isa::kPortable, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_gptoss", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_gptoss", Isa::kPortable, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_gptoss_mxfp4", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_gptoss_mxfp4", Isa::kPortable, 1, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_phi3", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_phi3_short", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_phi3_short", Isa::kPortable, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_olmo2", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_olmo2_q8_0", Isa::kPortable, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_mistral3", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_mistral3_q4_0", Isa::kPortable, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_gemma3", Isa::kAuto, 2, KvDtype::kQ8, 280, 30},
                      BitsCase{"tiny_gptoss", Isa::kAuto, 2, KvDtype::kQ8, 280, 30},
                      BitsCase{"tiny_qwen3moe_q8_0", Isa::kPortable, 1, KvDtype::kQ8, 130, 20},
                      BitsCase{"tiny_lfm2moe", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_deepseek2", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_deepseek2_lite", Isa::kPortable, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_deepseek2_q8_0", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_deepseek2_split_q8_0", Isa::kAuto, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_qwen35", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_qwen35", Isa::kPortable, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_qwen35_q8_0", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_qwen35", Isa::kAuto, 2, KvDtype::kQ8, 280, 30},
                      BitsCase{"tiny_qwen35moe", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_qwen35moe", Isa::kPortable, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_qwen35moe_q8_0", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_nemotron_h", Isa::kAuto, 2, KvDtype::kBf16, 280, 30},
                      BitsCase{"tiny_nemotron_h", Isa::kPortable, 1, KvDtype::kF32, 130, 20},
                      BitsCase{"tiny_nemotron_h", Isa::kAuto, 2, KvDtype::kQ8, 280, 30},
                      BitsCase{"tiny_nemotron_h_plain", Isa::kAuto, 2, KvDtype::kBf16, 130, 20},
                      BitsCase{"tiny_nemotron_h_q8_0", Isa::kAuto, 2, KvDtype::kBf16, 280, 30}),
    CaseName);
INSTANTIATE_TEST_SUITE_P(Demo, ModelBitsTest,
                         ::testing::Values(BitsCase{"", Isa::kAuto, 2, KvDtype::kBf16, 61, 12},
                                           BitsCase{"", Isa::kAuto, 1, KvDtype::kBf16, 300, 4},
                                           BitsCase{"", Isa::kPortable, 1, KvDtype::kBf16, 17, 3},
                                           BitsCase{"", Isa::kAuto, 2, KvDtype::kQ8, 61, 12}),
                         CaseName);

// The context that a model is loaded for chooses LongRoPE's factors, for all its sequences; so does
// the id by which workers know that their KV fits.
TEST(ModelTest, LongRopeTakesTheFactorsOfTheContextThatIsServed) {
  const std::string path = GoldenPath("tiny_phi3.gguf");  // 128 tokens before it was stretched
  ModelFixture at_limit({.path = path, .max_context = 128});
  ModelFixture short_context({.path = path, .max_context = 64});
  ModelFixture long_context({.path = path, .max_context = 129});
  for (ModelFixture* fixture : {&at_limit, &short_context, &long_context}) {
    ASSERT_TRUE(fixture->status().ok()) << fixture->status();
  }
  EXPECT_EQ(at_limit.model().weights_id(), long_context.model().weights_id());
  EXPECT_EQ(at_limit.model().numerics_id(), short_context.model().numerics_id());
  EXPECT_NE(at_limit.model().numerics_id(), long_context.model().numerics_id());
  std::mt19937_64 random(3);
  const std::vector<TokenId> tokens = RandomTokens(random, 20, at_limit.vocab());
  const auto a = at_limit.Run({{0, 0, tokens}});
  const auto b = short_context.Run({{0, 0, tokens}});
  const auto c = long_context.Run({{0, 0, tokens}});
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_TRUE(SameBits(*a, *b));
  EXPECT_FALSE(SameBits(*a, *c));
}

TEST(ModelTest, HookSeesEachLayerCompleteAndUnusedSlotsZero) {
  ModelFixture fixture({.path = GoldenPath("tiny_q8_0.gguf")});
  ASSERT_TRUE(fixture.status().ok()) << fixture.status();
  std::mt19937_64 random(3);
  const std::vector<TokenId> tokens = RandomTokens(random, 21, fixture.vocab());
  ToldSlices slices(fixture, 21);
  ASSERT_TRUE(fixture.Run({{0, 0, tokens}}, false, &slices).ok());
  EXPECT_EQ(fixture.model().layout().num_layers, 2u);
  slices.ExpectAllFinal();
  const std::vector<std::byte> final_kv = fixture.KvBytes(0, 21);
  const KvLayout& layout = fixture.model().layout();
  // 21 tokens: the second block holds 5; its other 11 slots are zero in every layer, K and V.
  const size_t second = layout.BlockBytes();
  const size_t num_zero = std::count(final_kv.begin() + second, final_kv.end(), std::byte{0});
  EXPECT_GE(num_zero, layout.BlockBytes() * 11 / 16);
  EXPECT_LT(num_zero, layout.BlockBytes() * 12 / 16);
}

TEST(ModelTest, ForwardWritesOnlyItsBlocksAndAllocatesNothing) {
  ModelFixture fixture({.path = GoldenPath("tiny_mixed_rope.gguf"), .num_threads = 2});
  ASSERT_TRUE(fixture.status().ok()) << fixture.status();
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5};
  const std::vector<uint32_t> blocks = {7};
  const std::vector<AttentionSpan> spans = {{{blocks}, 0, 5, 0}};
  const std::vector<uint32_t> logit_rows = {1, 2, 4};
  std::vector<float> logits(3 * fixture.vocab());
  const KvView& view = fixture.view();
  const size_t stride = view.layout->BlockStride();
  const std::vector<std::byte> before(view.base, view.base + stride * view.num_blocks);
  // Once before: a thread of the pool allocates while it starts, which may be late.
  ASSERT_TRUE(fixture.model().Forward({tokens, spans, logit_rows}, view, nullptr, logits).ok());
  const MemoryMeter meter;
  ASSERT_TRUE(fixture.model().Forward({tokens, spans, logit_rows}, view, nullptr, logits).ok());
  EXPECT_EQ(meter.NumAllocations(), 0u);
  const std::byte* now = view.base;
  EXPECT_EQ(std::memcmp(before.data(), now, 7 * stride), 0);
  EXPECT_EQ(
      std::memcmp(before.data() + 8 * stride, now + 8 * stride, (view.num_blocks - 8) * stride), 0);
}

// Two engine threads, one set of weights.
TEST(ModelTest, ModelsOfTheSameWeightsComputeAtOnceAndGiveEqualBits) {
  const FixtureOptions options = {.path = GoldenPath("tiny_mixed_rope.gguf"), .num_threads = 2};
  std::vector<TokenId> tokens(40);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(1 + i * 7 % 50);
  ModelFixture alone(options);
  ASSERT_TRUE(alone.status().ok()) << alone.status();
  const auto expected = alone.Run({{0, 0, tokens}}, /*all_rows=*/true);
  ASSERT_TRUE(expected.ok());

  auto first = std::make_unique<ModelFixture>(options);
  FixtureOptions beside = options;
  beside.num_threads = 1;
  beside.weights_of = &first->model();
  ModelFixture second(beside);
  ASSERT_TRUE(second.status().ok()) << second.status();
  EXPECT_EQ(second.model().numerics_id(), first->model().numerics_id());
  EXPECT_EQ(second.model().weight_bytes(), first->model().weight_bytes());
  const auto run = [&](ModelFixture* fixture) {
    for (int i = 0; i < 20; ++i) {
      const auto logits = fixture->Run({{0, 0, tokens}}, /*all_rows=*/true);
      EXPECT_TRUE(logits.ok() && SameBits(*logits, *expected));
    }
  };
  std::thread other(run, &second);
  run(first.get());
  other.join();
  first.reset();
  run(&second);
}

TEST(ModelTest, RefusesABatchThatDoesNotFitBeforeTouchingKv) {
  ModelFixture fixture(
      {.path = GoldenPath("tiny_q4_0.gguf"), .max_rows = 8, .max_context = 64, .num_blocks = 4});
  ASSERT_TRUE(fixture.status().ok()) << fixture.status();
  const KvView& view = fixture.view();
  const std::vector<std::byte> before(view.base, view.base + view.layout->BlockStride() * 4);
  struct Bad {
    const char* words;
    std::vector<TokenId> tokens;
    AttentionSpan span;
    std::vector<uint32_t> logit_rows;
  };
  const std::vector<uint32_t> blocks = {0, 1};
  const std::vector<uint32_t> wild = {0, 4};
  const std::vector<Bad> cases = {
      {"0 rows", {}, {{blocks}, 0, 1, 0}, {}},
      {"9 rows", std::vector<TokenId>(9), {{blocks}, 0, 9, 0}, {}},
      {"token -1", {-1}, {{blocks}, 0, 1, 0}, {}},
      {"token 263", {263}, {{blocks}, 0, 1, 0}, {}},
      {"positions", {1, 2}, {{blocks}, 0, 2, 63}, {}},
      {"positions", {1}, {{blocks}, 0, 1, UINT32_MAX}, {}},
      {"2 blocks", {1}, {{blocks}, 0, 1, 32}, {}},
      {"block 4", {1}, {{wild}, 0, 1, 16}, {}},
      {"cover 1 of 2", {1, 2}, {{blocks}, 0, 1, 0}, {}},
      {"expected to begin", {1, 2}, {{blocks}, 1, 1, 0}, {}},
      {"logit row 2", {1, 2}, {{blocks}, 0, 2, 0}, {2}},
      {"logit row 0", {1, 2}, {{blocks}, 0, 2, 0}, {1, 0}},
  };
  for (const Bad& bad : cases) {
    std::vector<float> logits(bad.logit_rows.size() * fixture.vocab());
    const absl::Status status = fixture.model().Forward(
        {bad.tokens, {&bad.span, 1}, bad.logit_rows}, view, nullptr, logits);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.words));
  }
  EXPECT_EQ(std::memcmp(before.data(), view.base, before.size()), 0);
}

TEST(ModelTest, IdsTellWeightsAndNumericsApart) {
  ThreadPool pool(1);
  const auto load = [&](const std::string& name, KvDtype dtype, uint64_t tokenizer) {
    const auto file = GgufFile::Open(GoldenPath(name));
    EXPECT_TRUE(file.ok()) << file.status();
    auto model = Model::Load(
        **file, {.pool = &pool, .kv_dtype = dtype, .max_rows = 8, .tokenizer_id = tokenizer});
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  };
  const auto a = load("tiny_q4_0.gguf", KvDtype::kBf16, 1);
  const auto same = load("tiny_q4_0.gguf", KvDtype::kBf16, 1);
  EXPECT_EQ(a->weights_id(), same->weights_id());
  EXPECT_EQ(a->numerics_id(), same->numerics_id());
  EXPECT_EQ(a->weights_id().size(), 32u);
  EXPECT_NE(a->weights_id(), load("tiny_q4_1.gguf", KvDtype::kBf16, 1)->weights_id());
  EXPECT_NE(a->numerics_id(), load("tiny_q4_0.gguf", KvDtype::kF32, 1)->numerics_id());
  const auto q8 = load("tiny_q4_0.gguf", KvDtype::kQ8, 1);
  EXPECT_NE(a->numerics_id(), q8->numerics_id());
  EXPECT_THAT(std::string(q8->numerics_text()), HasSubstr("kv=q8"));
  EXPECT_EQ(KvLayout::Difference(a->layout(), q8->layout()), "dtype bf16 against q8");
  const std::string rules = "sampling=" + std::string(kSamplingRules);
  EXPECT_NE(a->numerics_text().find(rules), std::string::npos) << a->numerics_text();
  EXPECT_NE(a->numerics_id(), load("tiny_q4_0.gguf", KvDtype::kBf16, 2)->numerics_id());
}

TEST(ModelTest, LoadRefusesWhatItCannotRun) {
  ThreadPool pool(1);
  const auto file = GgufFile::Open(GoldenPath("tiny_q4_0.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<std::pair<const char*, ModelOptions>> cases = {
      {"max_rows 0", {.pool = &pool, .max_rows = 0}},
      {"max-context 513", {.pool = &pool, .max_rows = 8, .max_context = 513}},
      {"block size 15", {.pool = &pool, .block_size = 15}},
      {"KV dtype", {.pool = &pool, .kv_dtype = KvDtype::kUnspecified}},
  };
  for (const auto& [words, options] : cases) {
    const auto model = Model::Load(**file, options);
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << words;
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(words));
  }
}

TEST(ModelTest, Q8IsRefusedByNameWhereBlocksHoldMoreThanRowsOfKAndV) {
  ThreadPool pool(1);
  for (const std::string name : {"lfm2", "lfm2moe", "gemma4", "deepseek2"}) {
    const auto file = GgufFile::Open(GoldenPath("tiny_" + name + ".gguf"));
    ASSERT_TRUE(file.ok()) << file.status();
    const auto model = Model::Load(**file, {.pool = &pool, .kv_dtype = KvDtype::kQ8});
    EXPECT_EQ(model.status().code(), absl::StatusCode::kUnimplemented) << name;
    EXPECT_THAT(std::string(model.status().message()),
                HasSubstr("--kv-dtype q8: architecture " + name + " "));
  }
}

TEST(ModelTest, HostileConfigsEndInAnErrorOrALoadedModel) {
  // Random edits of a whole file that still parses: loading and one step must not crash.
  std::mt19937_64 random(TestSeed());
  ThreadPool pool(1);
  const GgufBuilder builder = TinyLlama();
  const std::vector<std::byte> original = builder.Build();
  int num_loaded = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bytes = original;
    bytes[random() % builder.HeaderBytes()] ^= static_cast<std::byte>(1u << (random() % 8));
    for (size_t at = builder.HeaderBytes() + 32; at < bytes.size(); ++at) {
      // Floats up to 2^127, whose products overflow; those that are not finite are refused.
      const uint32_t mask = at % 4 == 2 ? 0x7F : 0xFF;
      bytes[at] = static_cast<std::byte>(random() & mask);
    }
    const auto file = GgufFile::FromBytes(bytes);
    if (!file.ok()) continue;
    auto model = Model::Load(**file, {.pool = &pool, .max_rows = 4});
    if (!model.ok()) continue;
    ++num_loaded;
    AlignedBuffer arena = AlignedBuffer::AllocateOrDie((*model)->layout().BlockStride());
    const KvView view{arena.data(), &(*model)->layout(), 1};
    const std::vector<TokenId> tokens = {0, 1};
    const std::vector<uint32_t> blocks = {0};
    const std::vector<AttentionSpan> spans = {{{blocks}, 0, 2, 0}};
    const std::vector<uint32_t> rows = {1};
    std::vector<float> logits((*model)->config().vocab_size);
    EXPECT_TRUE((*model)->Forward({tokens, spans, rows}, view, nullptr, logits).ok());
  }
  EXPECT_GT(num_loaded, 20);
}

}  // namespace
}  // namespace baton::model
