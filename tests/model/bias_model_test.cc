// Tensors that a file of an architecture may have or not: biases, and q, k and v in one tensor.
// tests/golden/saved has folders with biases and what transformers computes with them.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/model/device_shape.h"
#include "src/model/model_report.h"
#include "tests/model/changed_file.h"
#include "tests/model/joined_tensors.h"
#include "tests/model/model_fixture.h"
#include "tests/model/test_model.h"
#include "tests/test_seed.h"

namespace baton::model {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kLlama = "tiny_f32.gguf";

std::vector<TokenId> SomeTokens(size_t count) {
  std::vector<TokenId> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<TokenId>((i * 37 + 5) % 258);
  return out;
}

// A file that is removed with it.
class Written {
 public:
  Written(const ChangedFile& file, const std::string& name) : path_(file.Write(name)) {}
  ~Written() { fs::remove(path_); }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<float> LogitsOf(const std::string& path, size_t first_chunk = 0) {
  ModelFixture fixture({.path = path, .num_threads = 2});
  EXPECT_TRUE(fixture.status().ok()) << fixture.status();
  const std::vector<TokenId> tokens = SomeTokens(50);
  const std::span<const TokenId> all(tokens);
  const auto first = static_cast<uint32_t>(first_chunk);
  if (first > 0) {
    EXPECT_TRUE(fixture.Run({{0, 0, all.first(first)}}).ok());
  }
  const auto logits = fixture.Run({{0, first, all.subspan(first)}});
  EXPECT_TRUE(logits.ok()) << logits.status();
  return *logits;
}

std::string RefusalOf(const ChangedFile& changed) {
  const std::vector<std::byte> bytes = changed.Bytes();
  const auto file = GgufFile::FromBytes(bytes);
  EXPECT_TRUE(file.ok()) << file.status();
  const std::string message(CheckServable(**file).message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

// A bias of zeros beside the matrix `part` of each layer.
void AddZeroBiases(const std::string& part, ChangedFile& file) {
  std::vector<TensorCopy> added;
  for (const TensorCopy& tensor : file.tensors()) {
    if (!tensor.name.ends_with("." + part + ".weight")) continue;
    const std::string layer = tensor.name.substr(0, tensor.name.size() - part.size() - 7);
    const uint64_t size = tensor.dims[1];
    added.push_back({layer + part + ".bias",
                     {size},
                     static_cast<uint32_t>(GgmlType::kF32),
                     std::vector<std::byte>(size * sizeof(float))});
  }
  EXPECT_FALSE(added.empty()) << part;
  file.tensors().insert(file.tensors().end(), added.begin(), added.end());
}

class JoinedQkvTest : public ::testing::TestWithParam<const char*> {};

TEST_P(JoinedQkvTest, GivesTheBitsOfThreeTensors) {
  const std::vector<float> apart = LogitsOf(GoldenPath(GetParam()));
  ChangedFile joined(GetParam());
  JoinQkv("weight", joined);
  if (std::string(GetParam()).find("qwen2") != std::string::npos) {
    EXPECT_EQ(LogitsOf(Written(joined, "joined_weights.gguf").path()), apart) << "biases apart";
    JoinQkv("bias", joined);
  }
  EXPECT_EQ(LogitsOf(Written(joined, "joined.gguf").path()), apart);
}

INSTANTIATE_TEST_SUITE_P(Models, JoinedQkvTest,
                         ::testing::Values("tiny_qwen2.gguf", kLlama, "tiny_q4_0.gguf",
                                           "tiny_gemma3.gguf", "tiny_olmo2.gguf",
                                           "tiny_nemotron_h.gguf"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find('.'));
                         });

TEST(JoinedQkvRefusalTest, IsRefusedBesideTheOthersAndInAnotherShape) {
  ChangedFile both(kLlama);
  const TensorCopy q = both.Find("blk.1.attn_q.weight");
  JoinQkv("weight", both);
  both.tensors().push_back(q);
  EXPECT_THAT(RefusalOf(both), HasSubstr("tensor \"blk.1.attn_k.weight\" is missing"));
  for (const char* golden : {"tiny_qwen35.gguf", "tiny_gemma4.gguf"}) {
    ChangedFile other(golden);
    for (TensorCopy& tensor : other.tensors()) {
      const size_t at = tensor.name.find("attn_q.weight");
      if (at != std::string::npos) tensor.name.insert(at + 6, "kv");
    }
    EXPECT_THAT(RefusalOf(other), HasSubstr("convert it without --fuse-qkv")) << golden;
  }
  ChangedFile narrow(kLlama);
  narrow.Find("blk.0.attn_q.weight").name = "blk.0.attn_qkv.weight";
  EXPECT_THAT(RefusalOf(narrow), HasSubstr("tensor \"blk.0.attn_qkv.weight\" is ["));
}

struct BiasCase {
  const char* golden;
  std::vector<std::string> parts;
};

class OptionalBiasTest : public ::testing::TestWithParam<BiasCase> {};

TEST_P(OptionalBiasTest, EachBiasCountsAndZerosDoNot) {
  const std::vector<float> without = LogitsOf(GoldenPath(GetParam().golden));
  std::mt19937 random(static_cast<uint32_t>(TestSeed()));
  std::uniform_real_distribution<float> draw(-0.5f, 0.5f);
  const auto with_zeros = [] {
    ChangedFile out(GetParam().golden);
    for (const std::string& part : GetParam().parts) AddZeroBiases(part, out);
    return out;
  };
  EXPECT_EQ(LogitsOf(Written(with_zeros(), "zero_biases.gguf").path()), without);
  // One bias at a time is not zero.
  for (const std::string& part : GetParam().parts) {
    ChangedFile one = with_zeros();
    for (TensorCopy& tensor : one.tensors()) {
      if (!tensor.name.ends_with("." + part + ".bias")) continue;
      for (size_t at = 0; at < tensor.data.size(); at += sizeof(float)) {
        const float value = draw(random);
        std::memcpy(tensor.data.data() + at, &value, sizeof(value));
      }
    }
    const Written file(one, "one_bias.gguf");
    const std::vector<float> logits = LogitsOf(file.path());
    EXPECT_NE(logits, without) << part;
    EXPECT_EQ(LogitsOf(file.path(), 17), logits) << part << ", in chunks";
  }
}

const std::vector<std::string> kAll = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                       "ffn_gate", "ffn_up", "ffn_down"};
const std::vector<std::string> kAttention = {"attn_q", "attn_k", "attn_v", "attn_output"};

INSTANTIATE_TEST_SUITE_P(
    Models, OptionalBiasTest,
    ::testing::Values(BiasCase{kLlama, kAll}, BiasCase{"tiny_q4_0.gguf", kAll},
                      BiasCase{"tiny_granite.gguf", kAll}, BiasCase{"tiny_smollm3.gguf", kAll},
                      BiasCase{"tiny_qwen3.gguf", kAttention},
                      BiasCase{"tiny_qwen3moe.gguf", kAttention},
                      BiasCase{"tiny_gemma3.gguf", kAttention},
                      BiasCase{"tiny_olmo2.gguf", kAttention},
                      BiasCase{"tiny_nemotron_h.gguf", {"ffn_up", "ffn_down"}}),
    [](const auto& info) {
      const std::string name = info.param.golden;
      return name.substr(0, name.find('.'));
    });

TEST(OptionalBiasRefusalTest, OfOneLayerAloneAndOfOtherShapesAreRefusedByName) {
  ChangedFile one(kLlama);
  AddZeroBiases("attn_output", one);
  one.Find("blk.1.attn_output.bias").name = "blk.1.other.bias";
  EXPECT_THAT(RefusalOf(one), HasSubstr("tensor \"blk.1.attn_output.bias\" is missing"));
  ChangedFile only_q(kLlama);
  AddZeroBiases("attn_q", only_q);
  EXPECT_THAT(RefusalOf(only_q), HasSubstr("tensor \"blk.0.attn_k.bias\" is missing"));
  ChangedFile only_down(kLlama);
  AddZeroBiases("ffn_down", only_down);
  EXPECT_THAT(RefusalOf(only_down), HasSubstr("tensor \"blk.0.ffn_gate.bias\" is missing"));
  ChangedFile narrow(kLlama);
  AddZeroBiases("attn_output", narrow);
  narrow.Find("blk.1.attn_output.bias").dims = {8};
  EXPECT_THAT(RefusalOf(narrow), HasSubstr("tensor \"blk.1.attn_output.bias\" is [8]"));
  for (const char* golden : {"tiny_phi3.gguf", "tiny_lfm2.gguf", "tiny_qwen35.gguf",
                             "tiny_gemma4.gguf", "tiny_deepseek2.gguf", "tiny_mistral3.gguf"}) {
    ChangedFile other(golden);
    AddZeroBiases("attn_output", other);
    EXPECT_THAT(RefusalOf(other), HasSubstr("attn_output.bias\" is not part of a ")) << golden;
  }
}

TEST(OptionalBiasDeviceTest, DevicesTakeThoseOfQueriesKeysAndValuesAlone) {
  ModelConfig config = *ReadModelConfig(**GgufFile::Open(GoldenPath("tiny_head64_llama.gguf")));
  config.has_qkv_bias = true;
  EXPECT_TRUE(CheckDeviceShape(config, "simt").ok()) << CheckDeviceShape(config, "simt");
  config.has_output_bias = true;
  EXPECT_THAT(std::string(CheckDeviceShape(config, "simt").message()),
              HasSubstr("biases of attn_output (o_proj)"));
  config.has_output_bias = false;
  config.has_ffn_bias = true;
  EXPECT_THAT(std::string(CheckDeviceShape(config, "simt").message()),
              HasSubstr("biases of feed-forward layers (mlp_bias)"));
}

// A copy of a folder of tests/golden that is removed with it.
class FolderCopy {
 public:
  explicit FolderCopy(const std::string& golden) : path_(::testing::TempDir() + "bias_folder") {
    fs::remove_all(path_);
    fs::copy(GoldenPath(golden), path_, fs::copy_options::recursive);
  }
  ~FolderCopy() { fs::remove_all(path_); }
  FolderCopy(const FolderCopy&) = delete;
  FolderCopy& operator=(const FolderCopy&) = delete;

  // The refusal of the folder after one more key of config.json has this value.
  std::string RefusalWith(const char* key, const Json& value) const {
    Json json = Json::parse(std::ifstream(path_ / "config.json"));
    json[key] = value;
    std::ofstream(path_ / "config.json") << json.dump();
    const auto file = OpenModelFile(path_.string());
    return std::string((file.ok() ? CheckServable(**file) : file.status()).message());
  }

 private:
  fs::path path_;
};

TEST(OptionalBiasFolderTest, AFolderSaysWhichItHas) {
  EXPECT_THAT(FolderCopy("tiny_qwen3").RefusalWith("attention_bias", true),
              HasSubstr("\"attention_bias\" is true, but no layer has q_proj.bias"));
  EXPECT_THAT(FolderCopy("tiny_granite").RefusalWith("mlp_bias", true),
              HasSubstr("\"mlp_bias\" is true, but no layer has down_proj.bias"));
  EXPECT_THAT(FolderCopy("saved/5.24.0/llama_biases").RefusalWith("attention_bias", false),
              HasSubstr("config.json does not say \"attention_bias\" true, so that a llama model"));
  EXPECT_THAT(FolderCopy("saved/5.24.0/llama_biases").RefusalWith("mlp_bias", false),
              HasSubstr("config.json does not say \"mlp_bias\" true, so that a llama model"));
  // The class of mistral has no biases, whatever its config.json says.
  EXPECT_THAT(FolderCopy("saved/5.24.0/llama_biases").RefusalWith("model_type", "mistral"),
              HasSubstr("\"mlp_bias\" is true, which is not computed"));
  // No key gives the class of qwen2 those of o, or of a feed-forward layer.
  const FolderCopy other("saved/5.24.0/llama_biases");
  for (const char* key : {"attention_bias", "mlp_bias"}) (void)other.RefusalWith(key, false);
  EXPECT_THAT(other.RefusalWith("model_type", "qwen2"),
              HasSubstr("a qwen2 model has no such bias"));
  EXPECT_THAT(FolderCopy("tiny_gptoss").RefusalWith("attention_bias", false),
              HasSubstr("config.json does not say \"attention_bias\" true, so that a gpt_oss"));
  EXPECT_THAT(FolderCopy("saved/5.24.0/gpt_oss_plain").RefusalWith("attention_bias", true),
              HasSubstr("tensor \"blk.0.attn_q.bias\" is missing"));
  EXPECT_THAT(FolderCopy("tiny_lfm2moe").RefusalWith("use_expert_bias", false),
              HasSubstr("config.json does not say \"use_expert_bias\" true"));
  EXPECT_THAT(FolderCopy("saved/5.24.0/lfm2_moe_plain").RefusalWith("use_expert_bias", true),
              HasSubstr("exp_probs_b.bias\" is missing"));
}

}  // namespace
}  // namespace baton::model
