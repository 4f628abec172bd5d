// Models with multi-head latent attention (deepseek2): what they store, how they choose experts,
// and the keys and tensors that are refused by name, of files and of folders.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/model/expert_choice.h"
#include "src/model/hf_config.h"
#include "src/model/hf_deepseek.h"
#include "src/model/hf_folder.h"
#include "src/model/model_rank.h"
#include "src/model/model_report.h"
#include "src/model/safetensors.h"
#include "tests/model/fp8_folder.h"
#include "tests/model/golden_bytes.h"
#include "tests/model/model_fixture.h"
#include "tests/model/test_model.h"
#include "tests/test_seed.h"

namespace baton::model {

using kv::KvDtype;
using kv::KvEncoding;
using kv::KvLayout;

namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kFile = "tiny_deepseek2.gguf";

template <typename T>
std::vector<std::byte> WithValue(std::string_view key, T value) {
  return GoldenBytes(kFile).WithValue(key, 0, value);
}

std::vector<std::byte> Renamed(std::string_view from, std::string_view to) {
  return GoldenBytes(kFile).Renamed(from, to);
}

TEST(LatentModelTest, StoresOneRowForAllHeads) {
  const auto file = GgufFile::Open(GoldenPath(kFile));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->latent_dim, 40u);
  EXPECT_EQ(config->rope_dims, 8u);
  EXPECT_EQ(config->nope_dim, 16u);
  EXPECT_EQ(config->value_dim, 12u);
  EXPECT_EQ(config->q_rank, 24u);
  EXPECT_EQ(config->num_dense_layers, 1u);
  EXPECT_FALSE(config->HasExperts(0));
  EXPECT_TRUE(config->HasExperts(1));
  // YaRN's factor of 4 with mscale_all_dim 1; cos and sin keep their length.
  const double mscale = 1 + 0.1 * std::log(4.0);
  EXPECT_NEAR(config->attention_scale, mscale * mscale / std::sqrt(24.0), 1e-6);
  EXPECT_NEAR(RopeAmplitude(config->rope_scaling), 1.0, 1e-6);
  const KvLayout layout = KvLayoutOf(*config, KvDtype::kBf16, 16);
  EXPECT_EQ(layout.encoding, KvEncoding::kLatent);
  EXPECT_TRUE(layout.Validate().ok()) << layout.Validate();
  EXPECT_EQ(layout.BytesPerToken(), 3u * 48 * 2);
  EXPECT_EQ(layout.SliceBytes(), 16u * 48 * 2);
  const std::string report = DescribeModelFile(**file, OkStatus());
  EXPECT_THAT(report, HasSubstr("KV cache      288 bytes a token (bf16), 576 (f32)"));
  EXPECT_THAT(report,
              HasSubstr("latent KV     48 elements a token and layer, one row for all heads: "
                        "40 that are its value, and a key of 8"));
  EXPECT_THAT(report,
              HasSubstr("by sigmoid and bias in 2 of 4 groups, weights times 2.5 of a sum of "
                        "1"));
}

// The whole amplitude of cos and sin; scores keep the scale of mscale_all_dim.
TEST(LatentModelTest, YarnAttnFactorHoldsBesideTheLogMultiplier) {
  const std::vector<std::byte> bytes =
      GoldenBytes(kFile).WithKey("deepseek2.rope.scaling.yarn_attn_factor", 1.25f);
  const auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(CheckServable(**file).ok()) << CheckServable(**file);
  const auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status();
  const double mscale = 1 + 0.1 * std::log(4.0);
  EXPECT_NEAR(RopeAmplitude(config->rope_scaling), 1.25, 1e-6);
  EXPECT_NEAR(config->attention_scale, mscale * mscale / std::sqrt(24.0), 1e-6);
}

TEST(LatentModelTest, ALayoutWithoutVIsAnotherLayout) {
  KvLayout latent = {.dtype = KvDtype::kBf16,
                     .encoding = KvEncoding::kLatent,
                     .num_layers = 2,
                     .num_kv_heads = 1,
                     .head_dim = 48};
  KvLayout paired = latent;
  paired.encoding = KvEncoding::kPaired;
  EXPECT_EQ(2 * latent.SliceBytes(), paired.SliceBytes());
  EXPECT_NE(latent.LayoutId(), paired.LayoutId());
  EXPECT_EQ(KvLayout::Difference(latent, paired), "encoding latent against paired");
  latent.num_kv_heads = 2;
  EXPECT_THAT(std::string(latent.Validate().message()),
              HasSubstr("num_kv_heads 2 of latent rows is not 1"));
  latent.num_kv_heads = 1;
  latent.dtype = KvDtype::kFp8;
  EXPECT_THAT(std::string(latent.Validate().message()),
              HasSubstr("fp8 does not go with the encoding latent"));
}

TEST(LatentModelTest, RanksAreRefusedByName) {
  const auto file = GgufFile::Open(GoldenPath(kFile));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(CheckRankCount(*config, 1).ok());
  EXPECT_THAT(std::string(CheckRankCount(*config, 2).message()),
              HasSubstr("architecture deepseek2: its latent rows, one for all heads, are not "
                        "divided among 2 ranks"));
}

TEST(LatentModelTest, RefusesKeysAndTensorsByName) {
  const std::string at = "deepseek2.";
  ExpectRefused(WithValue<uint32_t>(at + "attention.kv_lora_rank", 41), "must be even");
  ExpectRefused(WithValue<uint32_t>(at + "attention.kv_lora_rank", 4098),
                "\"deepseek2.attention.kv_lora_rank\" is 4098, supported is [8, 4096]");
  ExpectRefused(WithValue<uint32_t>(at + "attention.key_length", 47),
                "\"deepseek2.attention.key_length\" is 47, not the 48 of kv_lora_rank and "
                "rope.dimension_count");
  ExpectRefused(WithValue<uint32_t>(at + "attention.value_length", 48),
                "\"deepseek2.attention.value_length\" is 48, not the 40 of kv_lora_rank");
  ExpectRefused(WithValue<uint32_t>(at + "attention.head_count_kv", 4),
                "\"deepseek2.attention.head_count_kv\" is 4, not the 1 of the absorbed form");
  ExpectRefused(WithValue<uint32_t>(at + "attention.key_length_mla", 8),
                "a head of 8 elements has no part beside the 8 of");
  ExpectRefused(WithValue<uint32_t>(at + "rope.dimension_count", 514), "supported is [2, 512]");
  ExpectRefused(WithValue<uint32_t>(at + "expert_gating_func", 3),
                "\"deepseek2.expert_gating_func\" is 3, supported are 1 (softmax) and 2 (sigmoid)");
  ExpectRefused(WithValue<uint32_t>(at + "expert_group_count", 3),
                "\"deepseek2.expert_group_count\" is 3: 8 experts are not so many groups of two");
  ExpectRefused(WithValue<uint32_t>(at + "expert_group_count", 8), "so many groups of two or more");
  ExpectRefused(WithValue<uint32_t>(at + "expert_group_used_count", 1),
                "\"deepseek2.expert_group_used_count\" is 1: they have 2 experts, a row needs 3");
  ExpectRefused(WithValue<uint32_t>(at + "expert_group_used_count", 5), "supported is [1, 4]");
  ExpectRefused(WithValue<uint32_t>(at + "expert_shared_count", 0), "supported is [1, ");
  ExpectRefused(WithValue<uint32_t>(at + "leading_dense_block_count", 4), "supported is [0, 3]");
  ExpectRefused(WithValue<float>(at + "expert_weights_scale", -1.0f),
                "\"deepseek2.expert_weights_scale\" is -1");
  ExpectRefused(WithValue<float>(at + "rope.scaling.yarn_log_multiplier", 1.5f),
                "yarn_log_multiplier\" is 1.5, supported is [0, 1]");
  ExpectRefused(Renamed("blk.1.exp_probs_b.bias", "blk.1.exp_probs_c.bias"),
                "tensor \"blk.1.exp_probs_b.bias\" is missing");
  ExpectRefused(Renamed("blk.2.attn_k_b.weight", "blk.2.attn_k_c.weight"),
                "tensor \"blk.2.attn_k_b.weight\" is missing");
  ExpectRefused(Renamed("blk.0.attn_q_a_norm.weight", "blk.0.attn_q_a_morn.weight"),
                "tensor \"blk.0.attn_q_a_norm.weight\" is missing");
  ExpectRefused(Renamed("deepseek2.attention.q_lora_rank", "deepseek2.attention.q_lora_runk"),
                "q_lora_runk");
}

Json V3Config() {
  std::ifstream in(GoldenPath("tiny_deepseek2/config.json"));
  return Json::parse(in);
}

void ExpectFolderRefused(const std::string& key, const Json& value, const std::string& words) {
  Json json = V3Config();
  json[key] = value;
  const auto config = ReadHfConfig(json.dump());
  ASSERT_FALSE(config.ok()) << key << " " << value;
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("\"" + key + "\""));
  EXPECT_THAT(std::string(config.status().message()), HasSubstr(words));
}

// The V2-Lite folder with other matrices kv_b in all layers.
FolderTensors WithKvB(const FolderTensors& kv_b) {
  FolderTensors out = kv_b;
  for (const char* shard : {"00001", "00002"}) {
    const auto file = SafetensorsFile::Open(GoldenPath("tiny_deepseek2_lite/model-") + shard +
                                            "-of-00002.safetensors");
    EXPECT_TRUE(file.ok()) << file.status();
    for (const SafetensorsTensor& tensor : (*file)->tensors()) {
      if (tensor.name.ends_with("kv_b_proj.weight")) continue;
      out[tensor.name] = {
          std::string(SafetensorsTypeName(tensor.type)), tensor.shape,
          std::string(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size())};
    }
  }
  return out;
}

// Integers with a scale for each row: the keys are transposed, so no block holds them.
TEST(LatentModelTest, PackedKvBTakesTheTypeOfItsScales) {
  constexpr uint32_t kRows = 128;
  constexpr uint32_t kColumns = 32;
  std::mt19937_64 random(TestSeed());
  FolderTensors packed;
  FolderTensors plain;
  for (int layer = 0; layer < 3; ++layer) {
    std::string codes(kRows * kColumns, '\0');
    std::vector<float> scales;
    std::vector<float> weights;
    for (uint32_t i = 0; i < kRows * kColumns; ++i) {
      if (i % kColumns == 0) scales.push_back(std::ldexp(1.0f + (random() % 128) / 128.0f, -9));
      const auto code = static_cast<int8_t>(random() % 256);
      codes[i] = static_cast<char>(code);
      weights.push_back(code * scales.back());
    }
    const std::string name =
        "model.layers." + std::to_string(layer) + ".self_attn.kv_b_proj.weight";
    packed[name] = {"I8", {kRows, kColumns}, codes};
    packed[name + "_scale"] = NumbersTensor("BF16", {kRows, 1}, scales);
    plain[name] = NumbersTensor("BF16", {kRows, kColumns}, weights);
  }
  std::ifstream in(GoldenPath("tiny_deepseek2_lite/config.json"));
  Json config = Json::parse(in);
  const TestFolder plain_folder("plain_kv_b");
  plain_folder.Write(config, WithKvB(plain));
  config["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"format", "int-quantized"},
      {"ignore", {"lm_head"}},
      {"config_groups",
       {{"group_0",
         {{"targets", {"re:.*kv_b_proj"}},
          {"weights",
           {{"num_bits", 8}, {"type", "int"}, {"symmetric", true}, {"strategy", "channel"}}}}}}}};
  const TestFolder packed_folder("packed_kv_b");
  packed_folder.Write(config, WithKvB(packed));
  const auto a = OpenModelFile(packed_folder.path());
  const auto b = OpenModelFile(plain_folder.path());
  ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  for (int layer = 0; layer < 3; ++layer) {
    for (const char* part : {".attn_k_b.weight", ".attn_v_b.weight"}) {
      const std::string name = "blk." + std::to_string(layer) + part;
      const GgufTensor* of_packed = (*a)->FindTensor(name);
      const GgufTensor* of_plain = (*b)->FindTensor(name);
      ASSERT_TRUE(of_packed != nullptr && of_plain != nullptr) << name;
      EXPECT_EQ(of_packed->type->name, "BF16");
      EXPECT_TRUE(std::ranges::equal(of_packed->data, of_plain->data)) << name;
    }
  }
}

TEST(LatentModelTest, LeavesOutLayersThatPredictAndNoOthers) {
  const auto range_of = [](const Json& config) {
    const auto read = ReadHfConfig(config.dump());
    EXPECT_TRUE(read.ok()) << read.status();
    return read->prediction_layers;
  };
  Json config = V3Config();
  const uint32_t layers = config.at("num_hidden_layers");
  config["num_nextn_predict_layers"] = 2;
  const HfLayerRange two = range_of(config);
  EXPECT_EQ(two.begin, layers);
  EXPECT_EQ(two.end, layers + 2);
  const auto name = [](uint64_t layer) {
    return "model.layers." + std::to_string(layer) + ".mlp.gate.weight";
  };
  EXPECT_FALSE(IsPredictionTensor(name(layers - 1), two));
  EXPECT_TRUE(IsPredictionTensor(name(layers), two));
  EXPECT_TRUE(IsPredictionTensor(name(layers + 1), two));
  EXPECT_FALSE(IsPredictionTensor(name(layers + 2), two));
  config["num_nextn_predict_layers"] = 0;
  const HfLayerRange none = range_of(config);
  for (const uint64_t layer : {uint64_t{0}, uint64_t{layers}, uint64_t{UINT32_MAX}}) {
    EXPECT_FALSE(IsPredictionTensor(name(layer), none));
  }
  EXPECT_FALSE(IsPredictionTensor("model.layers..mlp.gate.weight", {0, 9}));
  ExpectFolderRefused("num_nextn_predict_layers", 5000, "[0, 1024]");
}

TEST(LatentModelTest, RefusesKeysOfFoldersByName) {
  ASSERT_TRUE(ReadHfConfig(V3Config().dump()).ok());
  ExpectFolderRefused("scoring_func", "softmax", "sigmoid");
  ExpectFolderRefused("topk_method", "greedy", "noaux_tc");
  ExpectFolderRefused("rope_interleave", false, "true");
  ExpectFolderRefused("moe_layer_freq", 2, "1");
  ExpectFolderRefused("attention_bias", true, "false");
  ExpectFolderRefused("num_key_value_heads", 1, "4 heads");
  ExpectFolderRefused("head_dim", 16, "qk_rope_head_dim");
  ExpectFolderRefused("qk_head_dim", 20, "24");
  ExpectFolderRefused("n_group", 3, "divisor of the 8 experts");
  ExpectFolderRefused("topk_group", 5, "[1, 4]");
  ExpectFolderRefused("n_shared_experts", 0, "[1, ");
  ExpectFolderRefused("num_experts", 4, "n_routed_experts");
  ExpectFolderRefused("kv_lora_rank", 7, "[8, 4096]");
  ExpectFolderRefused("routed_scaling_factor", 0.0, "[");
  ExpectFolderRefused("index_topk", 2048, "null");  // DeepSeek-V3.2's sparse attention
  Json v2 = V3Config();
  v2["model_type"] = "deepseek_v2";
  v2["scoring_func"] = "softmax";
  v2["topk_method"] = "group_limited_greedy";
  v2["norm_topk_prob"] = false;
  ASSERT_TRUE(ReadHfConfig(v2.dump()).ok()) << ReadHfConfig(v2.dump()).status();
  v2["norm_topk_prob"] = true;
  EXPECT_THAT(std::string(ReadHfConfig(v2.dump()).status().message()), HasSubstr("norm_topk_prob"));
  Json linear = V3Config();
  linear["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_THAT(std::string(ReadHfConfig(linear.dump()).status().message()),
              HasSubstr("rope type \"linear\" is not supported (default and yarn are)"));
}

ExpertRule Rule(ExpertScore score, uint32_t groups, uint32_t used, bool sum_to_one, float scale) {
  return {.score = score,
          .num_groups = groups,
          .num_groups_used = used,
          .sum_to_one = sum_to_one,
          .scale = scale};
}

struct Chosen {
  std::vector<uint32_t> experts;
  std::vector<double> weights;
};

// Sorted scores in double; no two are equal.
Chosen ChooseByDefinition(const ExpertRule& rule, std::span<const float> logits,
                          std::span<const float> bias, size_t used) {
  const size_t count = logits.size();
  const bool is_sigmoid = rule.score == ExpertScore::kSigmoid;
  std::vector<double> scores(count);
  double sum = 0;
  for (size_t e = 0; e < count; ++e) {
    scores[e] = is_sigmoid ? 1 / (1 + std::exp(-double{logits[e]})) : std::exp(double{logits[e]});
    sum += scores[e];
  }
  std::vector<double> choice(count);
  for (size_t e = 0; e < count; ++e) {
    if (!is_sigmoid) scores[e] /= sum;
    choice[e] = scores[e] + (is_sigmoid ? double{bias[e]} : 0.0);
  }
  const size_t size = count / rule.num_groups;
  std::vector<std::pair<double, size_t>> groups;
  for (size_t g = 0; g < rule.num_groups; ++g) {
    std::vector<double> of_group(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(of_group.rbegin(), of_group.rend());
    groups.emplace_back(is_sigmoid && size > 1 ? of_group[0] + of_group[1] : of_group[0], g);
  }
  std::sort(groups.rbegin(), groups.rend());
  groups.resize(rule.num_groups_used);
  std::vector<std::pair<double, size_t>> experts;
  for (const auto& [score, g] : groups) {
    for (size_t e = g * size; e < (g + 1) * size; ++e) experts.emplace_back(choice[e], e);
  }
  std::sort(experts.rbegin(), experts.rend());
  experts.resize(used);
  Chosen out;
  double total = 0;
  for (const auto& [score, e] : experts) total += scores[e];
  for (const auto& [score, e] : experts) {
    out.experts.push_back(static_cast<uint32_t>(e));
    out.weights.push_back(scores[e] / (rule.sum_to_one ? total : 1.0) * double{rule.scale});
  }
  return out;
}

TEST(ExpertChoiceTest, ChoosesByTheDefinition) {
  std::mt19937_64 random(TestSeed());
  std::normal_distribution<float> normal(0.0f, 1.5f);
  for (const ExpertRule& rule :
       {Rule(ExpertScore::kSoftmax, 1, 1, false, 1.0f),
        Rule(ExpertScore::kSoftmax, 8, 3, false, 16), Rule(ExpertScore::kSoftmax, 4, 2, true, 1.5f),
        Rule(ExpertScore::kSigmoid, 8, 4, true, 2.5f),
        Rule(ExpertScore::kSigmoid, 1, 1, false, 0.5f)}) {
    SCOPED_TRACE(CanonicalText(rule));
    for (int i = 0; i < 200; ++i) {
      std::vector<float> logits(64);
      std::vector<float> bias(64);
      for (float& x : logits) x = normal(random);
      for (float& x : bias) x = 0.2f * normal(random);
      std::vector<uint32_t> experts(6);
      std::vector<float> weights(6);
      ChooseExperts(rule, logits, bias, {experts, weights});
      const Chosen wanted = ChooseByDefinition(rule, logits, bias, 6);
      ASSERT_EQ(experts, wanted.experts);
      for (size_t j = 0; j < 6; ++j) {
        ASSERT_NEAR(weights[j], wanted.weights[j], 1e-5 * wanted.weights[j]);
      }
    }
  }
}

TEST(ExpertChoiceTest, TakesTheLowerOfEqualsAndDifferentOnesOfNan) {
  std::vector<float> logits(8, 1.0f);
  const std::vector<float> bias(8, 0.0f);
  std::vector<uint32_t> experts(3);
  std::vector<float> weights(3);
  for (const ExpertScore score : {ExpertScore::kSoftmax, ExpertScore::kSigmoid}) {
    const ExpertRule rule = Rule(score, 4, 2, true, 1.0f);
    ChooseExperts(rule, logits, bias, {experts, weights});
    EXPECT_EQ(experts, (std::vector<uint32_t>{0, 1, 2}));
    for (const float weight : weights) EXPECT_NEAR(weight, 1.0f / 3, 1e-6f);
    std::vector<float> bad(8, std::numeric_limits<float>::quiet_NaN());
    ChooseExperts(rule, bad, bias, {experts, weights});
    std::sort(experts.begin(), experts.end());
    EXPECT_EQ(std::unique(experts.begin(), experts.end()), experts.end());
    EXPECT_LT(experts.back(), 8u);
    EXPECT_TRUE(std::isnan(weights[0]));
  }
}

}  // namespace
}  // namespace baton::model
