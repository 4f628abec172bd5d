// Models with short convolutions (lfm2): which layers they are and what of a KV block they take, in
// files and in folders; what is announced to an engine; and files that are refused by name.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "kernels/ops.h"
#include "src/model/hf_config.h"
#include "src/model/model_report.h"
#include "tests/model/damaged_model.h"
#include "tests/model/gguf_builder.h"
#include "tests/model/golden_bytes.h"
#include "tests/model/model_fixture.h"
#include "tests/model/test_model.h"
#include "tests/model/told_slices.h"

namespace baton::model {

using kv::KvDtype;

namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kFile = "tiny_lfm2.gguf";

template <typename T>
std::vector<std::byte> WithValue(std::string_view key, size_t num_skipped, T value) {
  return GoldenBytes(kFile).WithValue(key, num_skipped, value);
}

std::vector<std::byte> Renamed(std::string_view from, std::string_view to) {
  return GoldenBytes(kFile).Renamed(from, to);
}

TEST(ShortConvModelTest, ConvolutionsTakeTheRoomOfSeveralLayersOfAttention) {
  const auto file = GgufFile::Open(GoldenPath(kFile));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layer_is_conv, (std::vector<bool>{true, true, false, true, false, true}));
  EXPECT_EQ(config->conv_taps, 3u);
  EXPECT_EQ(config->num_kv_heads, 1u);
  EXPECT_EQ(config->head_dim, 8u);  // hidden size over heads: the file does not say it
  // 40 elements in slices of 2 * 8.
  EXPECT_EQ(config->conv_slices(), 3u);
  std::vector<uint32_t> firsts;
  for (uint32_t layer = 0; layer <= config->num_layers; ++layer) {
    firsts.push_back(config->FirstSlice(layer));
  }
  EXPECT_EQ(firsts, (std::vector<uint32_t>{0, 3, 6, 7, 10, 11, 14}));
  EXPECT_EQ(config->WeightsPerRow(), 4u * (40 * 120 + 40 * 3 + 40 * 40) +
                                         2u * (40 * (40 + 16) + 40 * 40) + 6u * 3 * 40 * 64);
  const kv::KvLayout layout = KvLayoutOf(*config, KvDtype::kBf16, 16);
  EXPECT_EQ(layout.num_layers, 14u);
  EXPECT_EQ(layout.BytesPerToken(), 14u * 16 * 2);
  EXPECT_TRUE(layout.Validate().ok());
  EXPECT_THAT(DescribeModelFile(**file, OkStatus()),
              HasSubstr("in 4 of 6 layers, of 3 tokens, 384 of the 448 KV bytes a token (bf16)"));
}

TEST(ShortConvModelTest, EachSliceIsAnnouncedOnceWhenItIsFinal) {
  ExpectSlicesToldWhenFinal(kFile);
}

TEST(ShortConvModelTest, RefusesKeysAndTensorsThatDisagree) {
  const std::string key = "lfm2.attention.head_count_kv";
  const size_t elements = 4 + 8;  // element type and count before them
  ExpectRefused(WithValue<uint32_t>("lfm2.shortconv.l_cache", 0, 0),
                "\"lfm2.shortconv.l_cache\" is 0, supported is [2, 16]");
  ExpectRefused(WithValue<uint32_t>("lfm2.shortconv.l_cache", 0, 1), "supported is [2, 16]");
  ExpectRefused(WithValue<uint32_t>("lfm2.shortconv.l_cache", 0, 1u << 31), "supported is [2, 16]");
  ExpectRefused(WithValue<uint32_t>("lfm2.shortconv.l_cache", 0, 4),
                "\"blk.0.shortconv.conv.weight\" is [3, 40], the model needs [4, 40]");
  ExpectRefused(Renamed("lfm2.shortconv.l_cache", "lfm2.shortconv.l_cachf"),
                "lfm2.shortconv.l_cachf");
  ExpectRefused(WithValue<int32_t>(key, elements, 1),
                "\"lfm2.attention.head_count_kv\" makes layer "
                "0 one of attention, but it has the tensor");
  ExpectRefused(WithValue<int32_t>(key, elements + 8, 0),
                "makes layer 2 a convolution, but it has the tensor \"blk.2.attn_q.weight\"");
  ExpectRefused(WithValue<int32_t>(key, elements + 16, 5), "is 1 in layer 2 and 5 in layer 4");
  ExpectRefused(WithValue<int32_t>(key, elements + 8, 6), "is 6, supported is [1, 5]");
  ExpectRefused(WithValue<int32_t>(key, elements + 8, -1), "element 2 is no number");
  ExpectRefused(WithValue<uint32_t>("lfm2.block_count", 0, 5), "has 6 numbers, the model has 5");
  ExpectRefused(Renamed("blk.0.shortconv.conv.weight", "blk.0.shortconv.conx.weight"),
                "\"blk.0.shortconv.conv.weight\" is missing");
  ExpectRefused(Renamed("blk.3.shortconv.out_proj", "blk.3.shortconv.out_prox"),
                "\"blk.3.shortconv.out_proj.weight\" is missing");
  ExpectRefused(Renamed("token_embd_norm.weight", "token_embd_norx.weight"),
                "\"token_embd_norm.weight\" is missing");
  ExpectRefused(Renamed("general.architecture", "general.architecturf"), "general.architecture");
}

TEST(ShortConvModelTest, RefusesModelsWithoutAttentionAndOfOtherKinds) {
  const auto zeros = [](uint32_t count) {
    ByteWriter value;
    value.Put<uint32_t>(5).Put<uint64_t>(count);
    for (uint32_t i = 0; i < count; ++i) value.Put<int32_t>(0);
    return value;
  };
  GgufBuilder none =
      TinyLlama({.architecture = "lfm2", .left_out_key = "lfm2.attention.head_count_kv"});
  none.AddU32("lfm2.shortconv.l_cache", 3);
  GgufBuilder all = none;
  ExpectRefused(none.Build(), "\"lfm2.attention.head_count_kv\" is missing");
  all.AddRaw("lfm2.attention.head_count_kv", 9, zeros(1));
  ExpectRefused(all.Build(), "is 0 in every layer");
  ExpectRefused(TinyLlama({.architecture = "lfm2"}).Build(),
                "\"lfm2.shortconv.l_cache\" is missing");
  GgufBuilder window = TinyLlama({.architecture = "lfm2"});
  window.AddU32("lfm2.attention.sliding_window", 8);
  ExpectRefused(window.Build(), "lfm2.attention.sliding_window");
  ExpectRefused(TinyLlama({.architecture = "lfm2moe"}).Build(),
                "\"lfm2moe.expert_count\" is missing");
}

TEST(ShortConvModelTest, RefusesTapsThatAreNoNumbers) {
  const std::string path = DamagedModel(kFile, "blk.1.shortconv.conv.weight", kNanFloat);
  ModelFixture fixture({.path = path});
  EXPECT_THAT(std::string(fixture.status().message()),
              HasSubstr("\"blk.1.shortconv.conv.weight\": row 0 of 40"));
}

// A config.json as published folders have it, but for the sizes.
Json Folder() {
  return {{"architectures", {"Lfm2ForCausalLM"}},
          {"block_auto_adjust_ff_dim", true},
          {"block_dim", 1024},
          {"block_ff_dim", 6656},
          {"block_ffn_dim_multiplier", 1.0},
          {"block_mlp_init_scale", 1.0},
          {"block_multiple_of", 256},
          {"block_norm_eps", 1e-5},
          {"block_out_init_scale", 1.0},
          {"block_use_swiglu", true},
          {"block_use_xavier_init", true},
          {"bos_token_id", 1},
          {"conv_L_cache", 3},
          {"conv_bias", false},
          {"conv_dim", 1024},
          {"conv_dim_out", 1024},
          {"conv_use_xavier_init", true},
          {"eos_token_id", 7},
          {"full_attn_idxs", {2}},
          {"hidden_size", 1024},
          {"initializer_range", 0.02},
          {"max_position_embeddings", 128000},
          {"model_type", "lfm2"},
          {"norm_eps", 1e-5},
          {"num_attention_heads", 16},
          {"num_heads", 16},
          {"num_hidden_layers", 4},
          {"num_key_value_heads", 8},
          {"pad_token_id", 0},
          {"rope_theta", 1000000.0},
          {"torch_dtype", "bfloat16"},
          {"use_cache", true},
          {"use_pos_enc", true},
          {"vocab_size", 65536}};
}

std::string KeysOf(const Json& json) {
  const auto config = ReadHfConfig(json.dump());
  EXPECT_TRUE(config.ok()) << config.status();
  if (!config.ok()) return "";
  const std::vector<std::byte> header = config->keys.Header();
  return {reinterpret_cast<const char*>(header.data()), header.size()};
}

TEST(ShortConvFolderTest, BothFormsOfAConfigGiveTheSameKeys) {
  const std::string old_keys = KeysOf(Folder());
  Json today = Folder();
  today["full_attn_idxs"] = nullptr;
  today["layer_types"] = {"conv", "conv", "full_attention", "conv"};
  today.erase("block_ff_dim");
  today["intermediate_size"] = 6656;
  today.erase("rope_theta");
  today["rope_parameters"] = {{"rope_theta", 1000000.0}, {"rope_type", "default"}};
  today["tie_embedding"] = true;
  today["tie_word_embeddings"] = true;
  EXPECT_EQ(KeysOf(today), old_keys);
  today["full_attn_idxs"] = {2};
  EXPECT_EQ(KeysOf(today), old_keys);
  today["intermediate_size"] = 4608;  // two thirds of 6656, rounded up to 256
  today["block_auto_adjust_ff_dim"] = false;
  EXPECT_EQ(KeysOf(today), old_keys);
  Json both = Folder();  // the older name holds
  both["intermediate_size"] = 8192;
  EXPECT_EQ(KeysOf(both), old_keys);
  Json exact = Folder();  // without a factor nothing is rounded
  exact["block_ff_dim"] = 6912;
  exact["block_ffn_dim_multiplier"] = nullptr;
  EXPECT_EQ(KeysOf(exact), old_keys);
}

TEST(ShortConvFolderTest, RefusesByTheKeyOfTheFolder) {
  struct Case {
    const char* key;
    Json value;
    const char* words;
  };
  for (const Case& test : {
           Case{"conv_bias", true, "conv_bias"},
           Case{"conv_L_cache", 0, "[2, 16]"},
           Case{"conv_L_cache", 1, "conv_L_cache"},
           Case{"conv_L_cache", 4000000000u, "[2, 16]"},
           Case{"conv_L_cache", "three", "conv_L_cache"},
           Case{"block_use_swiglu", false, "block_use_swiglu"},
           Case{"use_pos_enc", false, "use_pos_enc"},
           Case{"conv_dim", 512, "the 1024 of \"hidden_size\""},
           Case{"num_heads", 8, "the 16 of \"num_attention_heads\""},
           Case{"block_norm_eps", 1e-6, "norm_eps"},
           Case{"full_attn_idxs", {2, 4}, "numbers in [0, 4)"},
           Case{"full_attn_idxs", {-1}, "numbers in [0, 4)"},
           Case{"full_attn_idxs", 2, "full_attn_idxs"},
           Case{"layer_types", {"conv", "conv", "conv", "full_attention"}, "full_attn_idxs"},
           Case{"layer_types", {"conv", "full_attention"}, "a list of 4 texts"},
           Case{"layer_types",
                {"conv", "conv", "sliding_attention", "conv"},
                "conv or full_attention each"},
           Case{"block_multiple_of", 0, "block_multiple_of"},
           Case{"block_ffn_dim_multiplier", -1.0, "block_ffn_dim_multiplier"},
           Case{"block_ffn_dim_multiplier", 1e5, "block_ff_dim"},
           Case{"block_ff_dim", 0, "block_ff_dim"},
           Case{"sliding_window", 128, "sliding_window"},
           Case{"conv_width", 4, "conv_width"},
           Case{"num_hidden_layers", 4000000000u, "num_hidden_layers"},
           Case{"model_type", "lfm2_vl", "\"lfm2_vl\" is not supported"},
       }) {
    Json json = Folder();
    json[test.key] = test.value;
    const absl::Status status = ReadHfConfig(json.dump()).status();
    EXPECT_FALSE(status.ok()) << test.key;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.words)) << test.key;
  }
  Json tied = Folder();
  tied["tie_embedding"] = true;
  tied["tie_word_embeddings"] = false;
  EXPECT_THAT(std::string(ReadHfConfig(tied.dump()).status().message()),
              HasSubstr("tie_embedding"));
  Json other = Folder();  // of another architecture these keys are unknown
  other["model_type"] = "llama";
  EXPECT_FALSE(ReadHfConfig(other.dump()).ok());
}

}  // namespace
}  // namespace baton::model
