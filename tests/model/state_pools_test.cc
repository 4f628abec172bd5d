// The manifest of what a model keeps of a sequence, with bytes computed by hand from the shapes of
// tests/golden/tiny_models.py.
#include "src/model/state_pools.h"

#include <string>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/size_text.h"
#include "tests/model/test_model.h"

namespace baton::model {

using kv::KvDtype;

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint32_t kBlock = 16;

ModelConfig ConfigOf(const std::string& name) {
  const auto file = GgufFile::Open(GoldenPath(name));
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return {};
  const auto config = ReadModelConfig(**file);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : ModelConfig();
}

StateManifest ManifestOf(const std::string& name, KvDtype dtype = KvDtype::kBf16) {
  return StateManifestOf(ConfigOf(name), dtype, kBlock);
}

// The shape of Llama 3.1 8B.
ModelConfig Llama8b() {
  ModelConfig config;
  config.traits = FindArchitecture("llama");
  config.architecture = "llama";
  config.num_layers = 32;
  config.hidden_size = 4096;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.context_length = 131'072;
  config.layer_is_local.assign(32, false);
  return config;
}

void ExpectPool(const StatePool& pool, std::string_view name, StatePoolKind kind,
                uint32_t num_layers, uint64_t bytes) {
  EXPECT_EQ(pool.name, name);
  EXPECT_EQ(pool.kind, kind) << name;
  EXPECT_EQ(pool.num_layers, num_layers) << name;
  const bool is_fixed = kind == StatePoolKind::kFixed;
  EXPECT_EQ(pool.bytes_per_token, is_fixed ? 0 : bytes) << name;
  EXPECT_EQ(pool.bytes_per_sequence, is_fixed ? bytes : 0) << name;
}

TEST(StatePoolsTest, PlainAttentionIsOnePoolOfRows) {
  const StateManifest manifest = StateManifestOf(Llama8b(), KvDtype::kBf16, kBlock);
  ASSERT_EQ(manifest.pools.size(), 1u);
  // K and V of 8 heads of 128 elements of 2 bytes.
  ExpectPool(manifest.pools[0], "attention", StatePoolKind::kRows, 32, 32 * 2 * 8 * 128 * 2);
  EXPECT_EQ(manifest.TokensOfState(), 0u);
  EXPECT_EQ(manifest.HandOffBytes(1), 16u * 131'072) << "a whole block";
  EXPECT_EQ(manifest.HandOffBytes(1024), uint64_t{1024} * 131'072);
  EXPECT_EQ(manifest.ReadBytes(1000), uint64_t{1000} * 131'072);
  // Two bytes of scale for each 32 elements of one byte.
  EXPECT_EQ(StateManifestOf(Llama8b(), KvDtype::kQ8, kBlock).bytes_per_token(),
            32u * 2 * 8 * (128 + 4 * 2));
}

TEST(StatePoolsTest, ADeltaNetHasAFixedStateInBlocksOfItsOwn) {
  for (const char* name : {"tiny_qwen35.gguf", "tiny_qwen35moe.gguf"}) {
    SCOPED_TRACE(name);
    const StateManifest manifest = ManifestOf(name);
    ASSERT_EQ(manifest.pools.size(), 2u);
    ExpectPool(manifest.pools[0], "attention", StatePoolKind::kRows, 1, 2 * 16 * 2);
    // Matrices of 4 x 16 x 32 and the last 3 tokens of 192 channels, in fp32.
    ExpectPool(manifest.pools[1], "recurrent", StatePoolKind::kFixed, 4,
               4 * (4 * 16 * 32 + 3 * 192) * 4);
    EXPECT_EQ(manifest.pools[1].dtype, "f32");
    EXPECT_EQ(manifest.bytes_per_sequence(), 41u * 1024);
    EXPECT_EQ(manifest.TokensOfState(), 656u) << "41,984 / 64";
    EXPECT_EQ(manifest.HandOffBytes(1), (1u + 41) * 1024);
    EXPECT_EQ(manifest.HandOffBytes(400), (25u + 41) * 1024);
    EXPECT_EQ(manifest.ReadBytes(400), 41'984u + 400 * 64);
  }
  // Blocks of f32 are twice as large: 20.5 of them.
  EXPECT_EQ(ManifestOf("tiny_qwen35.gguf", KvDtype::kF32).bytes_per_sequence(), 21u * 2048);
}

TEST(StatePoolsTest, InputsOfConvolutionsAreRowsOfWhichTheTapsAreRead) {
  const StateManifest manifest = ManifestOf("tiny_lfm2.gguf");
  ASSERT_EQ(manifest.pools.size(), 2u);
  ExpectPool(manifest.pools[0], "attention", StatePoolKind::kRows, 2, 2 * 2 * 8 * 2);
  // 40 channels take three slices of 16 elements.
  ExpectPool(manifest.pools[1], "convolutions", StatePoolKind::kWindowRows, 4, 4 * 3 * 16 * 2);
  EXPECT_EQ(manifest.pools[1].window, 3u);
  EXPECT_EQ(manifest.HandOffBytes(400), 25u * 16 * 448);
  EXPECT_EQ(manifest.ReadBytes(400), 400u * 64 + 2 * 384) << "two inputs before the next token";
}

TEST(StatePoolsTest, WindowedLayersKeepAllRowsAndReadTheLast) {
  const StateManifest gemma3 = ManifestOf("tiny_gemma3.gguf");
  ASSERT_EQ(gemma3.pools.size(), 2u);
  ExpectPool(gemma3.pools[0], "attention", StatePoolKind::kRows, 1, 2 * 16 * 2);
  ExpectPool(gemma3.pools[1], "window", StatePoolKind::kWindowRows, 6, 6 * 2 * 16 * 2);
  EXPECT_EQ(gemma3.pools[1].window, 33u);
  EXPECT_EQ(gemma3.ReadBytes(20), 20u * 448) << "shorter than the window";
  EXPECT_EQ(gemma3.ReadBytes(32), 32u * 448);
  EXPECT_EQ(gemma3.ReadBytes(33), 33u * 64 + 32 * 384);
  EXPECT_EQ(gemma3.HandOffBytes(33), 3u * 16 * 448) << "all rows cross";

  const StateManifest gptoss = ManifestOf("tiny_gptoss.gguf");
  ASSERT_EQ(gptoss.pools.size(), 2u);
  ExpectPool(gptoss.pools[0], "attention", StatePoolKind::kRows, 2, 2 * 2 * 2 * 8 * 2);
  ExpectPool(gptoss.pools[1], "window", StatePoolKind::kWindowRows, 2, 2 * 2 * 2 * 8 * 2);
}

TEST(StatePoolsTest, LayersThatShareRowsHaveNone) {
  const StateManifest manifest = ManifestOf("tiny_gemma4.gguf");
  ASSERT_EQ(manifest.pools.size(), 2u);
  // The last three of seven layers read what others stored.
  ExpectPool(manifest.pools[0], "attention", StatePoolKind::kRows, 1, 2 * 32 * 2);
  ExpectPool(manifest.pools[1], "window", StatePoolKind::kWindowRows, 3, 3 * 2 * 16 * 2);
}

TEST(StatePoolsTest, LatentsAreOneRowOfEachLayer) {
  const StateManifest manifest = ManifestOf("tiny_deepseek2.gguf");
  ASSERT_EQ(manifest.pools.size(), 1u);
  ExpectPool(manifest.pools[0], "latents", StatePoolKind::kRows, 3, 3 * (40 + 8) * 2);
  EXPECT_EQ(manifest.HandOffBytes(17), 2u * 16 * 288);
}

TEST(StatePoolsTest, PoolsSumToTheLayout) {
  for (const char* name :
       {"tiny_bf16.gguf", "tiny_qwen2.gguf", "tiny_qwen3moe.gguf", "tiny_gemma3.gguf",
        "tiny_gemma4.gguf", "tiny_gemma4_dense.gguf", "tiny_gptoss.gguf", "tiny_granite.gguf",
        "tiny_lfm2.gguf", "tiny_lfm2moe.gguf", "tiny_phi3.gguf", "tiny_olmo2.gguf",
        "tiny_mistral3.gguf", "tiny_deepseek2.gguf", "tiny_deepseek2_lite.gguf", "tiny_qwen35.gguf",
        "tiny_qwen35_q8_0.gguf", "tiny_qwen35moe.gguf"}) {
    SCOPED_TRACE(name);
    const ModelConfig config = ConfigOf(name);
    for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kF32}) {
      const StateManifest manifest = StateManifestOf(config, dtype, kBlock);
      uint64_t a_token = 0;
      uint64_t a_sequence = 0;
      for (const StatePool& pool : manifest.pools) {
        EXPECT_GT(pool.num_layers, 0u);
        a_token += pool.bytes_per_token;
        a_sequence += pool.bytes_per_sequence;
      }
      EXPECT_EQ(a_token, manifest.layout.BytesPerToken());
      EXPECT_LE(a_sequence, manifest.bytes_per_sequence());
      EXPECT_EQ(a_sequence > 0, manifest.layout.state_blocks > 0);
    }
  }
}

TEST(StatePoolsTest, TheTextHasTheNumbers) {
  const std::string llama = StateManifestText(Llama8b());
  EXPECT_THAT(llama, HasSubstr("state pools   attention: rows in 32 layers, 131072 bytes a token "
                               "(bf16)\n"));
  EXPECT_THAT(llama, HasSubstr("hand-off      128 MiB of 1024 tokens, of them 128 MiB that the "
                               "next token reads\n"));
  EXPECT_THAT(llama, HasSubstr("hand-off      4 GiB of 32768 tokens, "));
  EXPECT_THAT(llama, Not(HasSubstr("a sequence")));

  ModelConfig gemma3 = ConfigOf("tiny_gemma3.gguf");
  gemma3.context_length = 2048;
  const std::string windows = StateManifestText(gemma3);
  EXPECT_THAT(windows, HasSubstr("              window: window rows in 6 layers, 384 bytes a token "
                                 "(bf16); all are kept, the last 33 are read\n"));
  // 64 x 1024 + 384 x 32 bytes.
  EXPECT_THAT(windows, HasSubstr("hand-off      448 KiB of 1024 tokens, of them 76 KiB that the "
                                 "next token reads\n"));
  EXPECT_THAT(windows, Not(HasSubstr("32768")));
  EXPECT_THAT(windows, Not(HasSubstr("on a device")));
}

// Workers on the processor release blocks that no layer sees any more, and move no others.
TEST(StatePoolsTest, OfRowsThatNoLayerSeesNoneCross) {
  ModelConfig config = ConfigOf("tiny_phi3_short.gguf");
  config.context_length = 2048;
  const StateManifest manifest = StateManifestOf(config, KvDtype::kBf16, kBlock);
  const uint64_t block_bytes = manifest.layout.BlockBytes();
  EXPECT_EQ(manifest.SeenBytes(47), 3 * block_bytes);
  EXPECT_EQ(manifest.SeenBytes(48), 2 * block_bytes) << "the token after them sees 16 to 48";
  EXPECT_EQ(manifest.SeenBytes(1023), 3 * block_bytes);
  EXPECT_EQ(manifest.SeenBytes(1024), 2 * block_bytes);
  EXPECT_EQ(manifest.HandOffBytes(1024), 64 * block_bytes);
  const StateManifest gemma3 = ManifestOf("tiny_gemma3.gguf");
  EXPECT_EQ(gemma3.SeenBytes(1024), gemma3.HandOffBytes(1024)) << "one layer sees all";
  const std::string text = StateManifestText(config);
  EXPECT_THAT(text, HasSubstr("; the last 33 are read, blocks before them are released\n"));
  EXPECT_THAT(text, HasSubstr(fmt::format("hand-off      {} of 1024 tokens, ",
                                          FormatSize(manifest.SeenBytes(1024)))));
  EXPECT_THAT(
      text, HasSubstr(fmt::format("; on a device {}\n", FormatSize(manifest.HandOffBytes(1024)))));
}

}  // namespace
}  // namespace baton::model
