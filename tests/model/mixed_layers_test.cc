// Models whose layers differ in shape (gemma4): what their keys and a config.json make of them, the
// part of a KV block that each layer takes, what is announced to an engine, and files that are
// refused by name.
#include <algorithm>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/model/folder_error.h"
#include "src/model/hf_config.h"
#include "src/model/model_rank.h"
#include "src/model/model_report.h"
#include "tests/model/damaged_model.h"
#include "tests/model/golden_bytes.h"
#include "tests/model/model_fixture.h"
#include "tests/model/test_model.h"
#include "tests/model/told_slices.h"

namespace baton::model {

using kv::KvDtype;
using kv::KvLayout;

namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kFile = "tiny_gemma4.gguf";

ModelConfig ConfigOf(const std::string& name) {
  const auto file = OpenModelFile(GoldenPath(name));
  EXPECT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(**file);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(ModelConfig());
}

std::vector<uint32_t> FirstSlices(const ModelConfig& config) {
  std::vector<uint32_t> out;
  for (uint32_t layer = 0; layer <= config.num_layers; ++layer) {
    out.push_back(config.FirstSlice(layer));
  }
  return out;
}

// Local heads of 16, global ones of 32, one KV head each: a slice is one head of 16.
TEST(MixedLayersTest, LayersThatStoreKvTakeWholeSlicesAndOthersNone) {
  const ModelConfig config = ConfigOf(kFile);
  EXPECT_EQ(FirstSlices(config), (std::vector<uint32_t>{0, 1, 2, 4, 5, 5, 5, 5}));
  EXPECT_EQ(config.last_storing_layer(), 3u);
  EXPECT_EQ(config.KvLayer(3), 3u);
  EXPECT_EQ(config.KvLayer(4), 3u);  // the last local layer before the shared ones
  EXPECT_EQ(config.KvLayer(5), 3u);
  EXPECT_EQ(config.KvLayer(6), 2u);
  EXPECT_EQ(config.FfnSize(3), 64u);
  EXPECT_EQ(config.FfnSize(4), 128u);
  EXPECT_EQ(config.per_layer_size, 32u);
  EXPECT_EQ(config.logit_softcap, 9.0f);
  const KvLayout layout = KvLayoutOf(config, KvDtype::kBf16, 16);
  EXPECT_EQ(layout.num_layers, 5u);
  EXPECT_EQ(layout.num_kv_heads, 1u);
  EXPECT_EQ(layout.head_dim, 16u);
  // Three local layers and one global: no byte of a block is unused.
  EXPECT_EQ(layout.BytesPerToken(), 2u * 2 * (3 * 16 + 32));
  EXPECT_TRUE(layout.Validate().ok());
  EXPECT_EQ(config.WeightsPerRow(),
            32u * (2 * (5 * 64 + 2 * 128) + 2 * (3 * 16 + 32) + 3 * (4 * 64 + 3 * 128) + 21 * 32));
}

// Four local KV heads of 16, one global of 32: the widths 64 and 32 are whole numbers of 32.
TEST(MixedLayersTest, WideLocalLayersTakeSeveralSlices) {
  const ModelConfig config = ConfigOf("tiny_gemma4_dense.gguf");
  EXPECT_EQ(FirstSlices(config), (std::vector<uint32_t>{0, 2, 3, 5, 6}));
  EXPECT_TRUE(config.key_is_value);
  const KvLayout layout = KvLayoutOf(config, KvDtype::kF32, 16);
  EXPECT_EQ(layout.num_kv_heads, 2u);
  EXPECT_EQ(layout.head_dim, 16u);
  EXPECT_EQ(layout.BytesPerToken(), 4u * 2 * (2 * 64 + 2 * 32));
  const KvLayout local = LayerLayoutOf(config, layout, 0);
  EXPECT_EQ(local.SliceBytes(), 2 * layout.SliceBytes());
  EXPECT_EQ(LayerLayoutOf(config, layout, 1).SliceBytes(), layout.SliceBytes());
}

TEST(MixedLayersTest, InspectSaysWhatIsSharedAndWhatIsNotRead) {
  const auto file = GgufFile::Open(GoldenPath(kFile));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string text = DescribeModelFile(**file, OkStatus());
  EXPECT_THAT(text, HasSubstr("local heads   4 of 16, 1 kv heads\n"));
  EXPECT_THAT(text,
              HasSubstr("shared KV     the last 3 of 7 layers store none; 9 tensors unused\n"));
  EXPECT_THAT(text, HasSubstr("per layer     32 elements of each token, "));
  EXPECT_THAT(text, HasSubstr("ffn           64 to 128 by layer\n"));
  EXPECT_THAT(text, HasSubstr("logits        9 tanh(logit / 9)\n"));
  EXPECT_THAT(text, HasSubstr("KV cache      320 bytes a token (bf16), 640 (f32)"));
}

TEST(MixedLayersTest, EachSliceIsAnnouncedOnceWhenItIsFinal) {
  for (const char* name : {kFile, "tiny_gemma4_dense.gguf"}) ExpectSlicesToldWhenFinal(name);
}

TEST(MixedLayersTest, RanksAreRefusedByName) {
  EXPECT_TRUE(CheckRankCount(ConfigOf(kFile), 1).ok());
  EXPECT_THAT(std::string(CheckRankCount(ConfigOf(kFile), 2).message()),
              HasSubstr("architecture gemma4"));
}

template <typename T>
std::vector<std::byte> WithValue(std::string_view key, size_t num_skipped, T value) {
  return GoldenBytes(kFile).WithValue(key, num_skipped, value);
}

std::vector<std::byte> Renamed(std::string_view from, std::string_view to) {
  return GoldenBytes(kFile).Renamed(from, to);
}

TEST(MixedLayersTest, RefusesKeysAndTensorsThatDisagree) {
  const std::string a = "gemma4.attention.";
  const size_t elements = 4 + 8;  // element type and count before them
  ExpectRefused(WithValue<uint32_t>(a + "shared_kv_layers", 0, 7), "is 7, supported is [0, 6]");
  ExpectRefused(WithValue<uint32_t>(a + "shared_kv_layers", 0, 5),
                "layer 2 is not local, and no layer before the shared ones is");
  ExpectRefused(WithValue<uint32_t>(a + "key_length_swa", 0, 24), "value_length_swa\" is 16");
  ExpectRefused(WithValue<uint32_t>(a + "key_length_swa", 0, 12), "multiples of 8");
  ExpectRefused(WithValue<uint32_t>(a + "key_length", 0, 520), "supported is [8, 512]");
  ExpectRefused(Renamed(a + "value_length_swa", a + "value_length_swb"), "value_length_sw");
  ExpectRefused(WithValue<uint8_t>(a + "sliding_window_pattern", elements + 6, 1),
                "the last layer is local");
  ExpectRefused(WithValue<uint32_t>("gemma4.rope.dimension_count_swa", 0, 8),
                "supported is only the head's 16");
  ExpectRefused(WithValue<uint32_t>("gemma4.rope.dimension_count", 0, 16), "only the head's 32");
  ExpectRefused(WithValue<uint32_t>("gemma4.embedding_length_per_layer_input", 0, 0),
                "not part of a gemma4 model");
  ExpectRefused(WithValue<uint32_t>("gemma4.embedding_length_per_layer_input", 0, 5000),
                "supported is [0, 4096]");
  ExpectRefused(WithValue<float>("gemma4.final_logit_softcapping", 0, -1.0f), "is -1, supported");
  ExpectRefused(WithValue<int32_t>("gemma4.feed_forward_length", elements + 4, 32),
                "\"blk.1.ffn_gate.weight\" is [32, 64], the model needs [32, 32]");
  ExpectRefused(WithValue<uint32_t>("gemma4.block_count", 0, 6), "has 7 numbers");
  ExpectRefused(WithValue<uint32_t>(a + "head_count_kv", 0, 3), "no divisor of the 4 heads");
  ExpectRefused(Renamed("blk.0.attn_v.weight", "blk.0.attn_w.weight"),
                "\"blk.0.attn_v.weight\" is missing");
  ExpectRefused(Renamed("blk.6.inp_gate.weight", "blk.6.inp_gatf.weight"),
                "\"blk.6.inp_gate.weight\" is missing");
  ExpectRefused(Renamed("blk.4.attn_k.weight", "blk.4.attn_x.weight"), "blk.4.attn_x.weight");
  ExpectRefused(Renamed("per_layer_token_embd.weight", "per_layer_token_embe.weight"),
                "\"per_layer_token_embd.weight\" is missing");
}

// The table stays in the mapping; what is wrong with it is found when the model is loaded.
TEST(MixedLayersTest, RefusesATableOfVectorsThatAreNoNumbers) {
  const std::string path = DamagedModel(kFile, "per_layer_token_embd.weight", uint16_t{0x7FC0});
  ModelFixture fixture({.path = path});
  EXPECT_THAT(std::string(fixture.status().message()),
              HasSubstr("\"per_layer_token_embd.weight\": row 0 of 263"));
}

// The model outlives the file and its own bytes.
TEST(MixedLayersTest, TheTableIsThereAfterTheFileIsClosed) {
  ModelFixture wanted({.path = GoldenPath(kFile)});
  device::ThreadPool pool(1);
  std::unique_ptr<Model> model;
  {
    const std::vector<std::byte> bytes = BytesOfGolden(kFile);
    const auto file = GgufFile::FromBytes(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    auto loaded = Model::Load(**file, {.pool = &pool, .max_rows = 64, .max_context = 64});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    model = *std::move(loaded);
  }
  std::vector<TokenId> tokens = {7, 200, 9};
  auto arena = device::AlignedBuffer::AllocateOrDie(model->layout().BlockStride());
  const uint32_t blocks[] = {0};
  const kernels::AttentionSpan spans[] = {{{blocks}, 0, 3, 0}};
  const uint32_t rows[] = {2};
  std::vector<float> logits(wanted.vocab());
  const kv::KvView view = {arena.data(), &model->layout(), 1};
  ASSERT_TRUE(model->Forward({tokens, spans, rows}, view, nullptr, logits).ok());
  EXPECT_EQ(logits, wanted.Run({{0, 0, tokens}}).value());
}

// The config of a folder as it is published.
Json Folder() { return Json::parse(std::ifstream(GoldenPath("tiny_gemma4/config.json"))); }

absl::Status StatusOf(const Json& config) { return ReadHfConfig(config.dump()).status(); }

TEST(MixedLayersTest, BothFormsOfTheHeadsGiveTheSameKeys) {
  const auto published = ReadHfConfig(Folder().dump());
  ASSERT_TRUE(published.ok()) << published.status();
  Json saved = Folder();
  saved.erase("global_head_dim");
  saved["per_layer_config"] = {{"2", {{"head_dim", 32}}}, {"06", {{"head_dim", 32}}}};
  const auto other = ReadHfConfig(saved.dump());
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->keys.Header(), published->keys.Header());
  EXPECT_EQ(other->rope_factors, published->rope_factors);
  std::vector<float> factors(16, 1e30f);  // of 16 pairs a quarter turns
  std::fill_n(factors.begin(), 4, 1.0f);
  EXPECT_EQ(published->rope_factors, factors);
}

TEST(MixedLayersTest, RefusesValuesThatAreNotComputed) {
  struct Case {
    const char* key;
    Json value;
    const char* words;
  };
  const Json rope = Folder()["rope_parameters"];
  const auto with_rope = [&rope](const char* kind, const char* key, const Json& value) {
    Json out = rope;
    out[kind][key] = value;
    return out;
  };
  for (const Case& test : {
           Case{"enable_moe_block", true, "\"enable_moe_block\""},
           Case{"use_bidirectional_attention", "all", "\"use_bidirectional_attention\""},
           Case{"attention_bias", true, "\"attention_bias\""},
           Case{"vocab_size_per_layer_input", 200, "\"vocab_size_per_layer_input\""},
           Case{"num_kv_shared_layers", 7, "\"num_kv_shared_layers\""},
           Case{"num_kv_shared_layers", 5, "leaves a full_attention layer"},
           Case{"global_head_dim", 600, "512]; it is 600 in layer 2"},
           Case{"per_layer_config", Json{{"2", {{"head_dim", 32}}}}, "equal heads"},
           Case{"per_layer_config", Json{{"7", {{"head_dim", 32}}}}, "numbers in [0, 7)"},
           Case{"per_layer_config", Json{{"x", {{"head_dim", 32}}}}, "numbers in [0, 7)"},
           Case{"per_layer_config", Json{{"2", {{"sliding_window", 4}}}}, "\"sliding_window\""},
           Case{"final_logit_softcapping", -3, "\"final_logit_softcapping\""},
           Case{"query_pre_attn_scalar", 16, "\"query_pre_attn_scalar\""},
           Case{"rope_theta", 1e4, "\"rope_theta\""},
           Case{"a_new_key", 1, "\"a_new_key\""},
           Case{"rope_parameters", with_rope("full_attention", "rope_type", "yarn"), "\"yarn\""},
           Case{"rope_parameters", with_rope("full_attention", "partial_rotary_factor", 1.5),
                "\"partial_rotary_factor\""},
           Case{"rope_parameters", with_rope("sliding_attention", "rope_type", "proportional"),
                "\"proportional\""},
           Case{"rope_parameters", with_rope("sliding_attention", "partial_rotary_factor", 0.5),
                "\"partial_rotary_factor\""},
           Case{"rope_parameters", Json{{"full_attention", rope["full_attention"]}},
                "\"sliding_attention\""},
           Case{"hidden_activation", "silu", "\"hidden_activation\""},
       }) {
    Json config = Folder();
    config[test.key] = test.value;
    const absl::Status status = StatusOf(config);
    EXPECT_FALSE(status.ok()) << test.key;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.words)) << test.key;
    EXPECT_NE(FolderErrorOf(status), FolderErrorCode::kNone) << test.key;
  }
  Json local_end = Folder();
  local_end["layer_types"].back() = "sliding_attention";
  EXPECT_THAT(std::string(StatusOf(local_end).message()),
              HasSubstr("whose last is full_attention"));
}

TEST(MixedLayersTest, WhatHasNoEffectIsNotRefused) {
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"num_experts", 8},
                                                 {"top_k_experts", 2},
                                                 {"moe_intermediate_size", 64},
                                                 {"use_bidirectional_attention", "vision"},
                                                 {"num_global_key_value_heads", 2},
                                                 {"rope_parameters", nullptr},
                                                 {"final_logit_softcapping", nullptr}}) {
    Json config = Folder();
    config[key] = value;
    EXPECT_TRUE(StatusOf(config).ok()) << key << StatusOf(config);
  }
}

}  // namespace
}  // namespace baton::model
