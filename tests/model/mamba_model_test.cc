// Models whose layers are of Mamba-2, of attention, or feed-forward layers alone (nemotron_h):
// which layer is what and where the states lie, in files and in folders; and what is refused by
// name.
#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/model/folder_error.h"
#include "src/model/hf_config.h"
#include "src/model/hf_folder.h"
#include "src/model/hf_json.h"
#include "src/model/hf_mamba.h"
#include "src/model/model_report.h"
#include "src/model/state_map.h"
#include "tests/model/changed_file.h"
#include "tests/model/model_fixture.h"
#include "tests/model/test_model.h"
#include "tests/model/told_slices.h"

namespace baton::model {

using kernels::DeltaRule;
using kernels::DeltaShape;
using kv::KvDtype;
using kv::KvLayout;

namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kFile = "tiny_nemotron_h.gguf";
constexpr const char* kFolder = "tiny_nemotron_h";
constexpr const char* kFfn = "nemotron_h.feed_forward_length";
constexpr const char* kKvHeads = "nemotron_h.attention.head_count_kv";

TEST(MambaModelTest, EachLayerIsOfOneKind) {
  const auto file = GgufFile::Open(GoldenPath(kFile));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_layers, 9u);
  EXPECT_EQ(config->layer_is_delta,
            (std::vector<bool>{true, false, true, false, false, true, false, true, false}));
  EXPECT_EQ(config->ffn_sizes, (std::vector<uint32_t>{0, 64, 0, 0, 64, 0, 0, 0, 64}));
  EXPECT_EQ(config->num_attention_layers(), 2u);
  EXPECT_EQ(config->num_kv_heads, 1u);
  EXPECT_EQ(config->delta, (DeltaShape{2, 4, 16, 32, 4, DeltaRule::kAdd}));
  EXPECT_EQ(config->projected_size(0), 192u + 128 + 8) << "C, B and x; z; the step and its decay";
  EXPECT_EQ(config->projected_size(1), 0u);
  EXPECT_EQ(config->projected_size(3), 64u);
  EXPECT_EQ(config->mixed_size(0), 128u);
  EXPECT_EQ(config->mixed_size(1), 0u);
  EXPECT_EQ(config->last_storing_layer(), 7u) << "a feed-forward layer stores nothing";
  EXPECT_FALSE(config->traits->rotates);
  EXPECT_FALSE(config->has_second_rope());
  EXPECT_THAT(CanonicalText(*config), HasSubstr(" delta=2x16:4x32 taps=4 delta_nets=101001010"));
  EXPECT_THAT(CanonicalText(*config), HasSubstr(" ffn_sizes=0,64,0,0,64,0,0,0,64"));
}

// The places of the states, by layer.
std::vector<StatePlace> PlacesOf(const ModelConfig& config, const StateMap& map) {
  std::vector<StatePlace> places;
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.IsDelta(layer)) places.push_back(map.places[layer]);
  }
  return places;
}

TEST(MambaModelTest, StatesLieInTheSlicesOfAttention) {
  const auto file = GgufFile::Open(GoldenPath(kFile));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status();
  const size_t state = (4 * 16 * 32 + 3 * 192) * 4;
  EXPECT_EQ(config->delta.state_bytes(), state);
  EXPECT_EQ(config->num_slices(), 2u);
  const StateMap map = StateMapOf(*config);
  EXPECT_EQ(PlacesOf(*config, map),
            (std::vector<StatePlace>{{0, 0}, {0, state}, {1, 0}, {1, state}}));
  EXPECT_EQ(map.used_bytes, (std::vector<size_t>{2 * state, 2 * state}));
  EXPECT_EQ(map.num_stored, (std::vector<uint32_t>{0, 0, 0, 1, 1, 1, 1, 2, 2}))
      << "the second slice is whole with the last layer of Mamba-2, before the last layer";
  const KvLayout layout = KvLayoutOf(*config, KvDtype::kBf16, 16);
  EXPECT_EQ(layout.num_layers, 2u);
  EXPECT_EQ(layout.BytesPerToken(), 2u * 2 * 16 * 2) << "of attention alone";
  EXPECT_EQ(layout.state_blocks, (2 * state + 1023) / 1024);
}

// A model of layers as hybrid_override_pattern names them: M, * and -.
ModelConfig ConfigOfPattern(std::string_view pattern, const DeltaShape& shape) {
  ModelConfig config;
  config.traits = FindArchitecture("nemotron_h");
  config.architecture = "nemotron_h";
  config.num_layers = static_cast<uint32_t>(pattern.size());
  config.num_heads = 8;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.delta = shape;
  config.layer_is_local.assign(pattern.size(), false);
  for (const char kind : pattern) {
    config.layer_is_delta.push_back(kind == 'M');
    config.ffn_sizes.push_back(kind == '-' ? 64 : 0);
  }
  return config;
}

// Eight states stand before the first layer of attention of Nemotron Nano 2, and eight after the
// last: 12 would lie in the last of four slices.
TEST(MambaModelTest, NoSliceHasMoreStatesThanItMust) {
  const ModelConfig config =
      ConfigOfPattern("M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
                      {8, 128, 128, 80, 4, DeltaRule::kAdd});
  ASSERT_EQ(config.num_delta_layers(), 27u);
  ASSERT_EQ(config.num_slices(), 4u);
  const size_t state = (128 * 128 * 80 + 3 * (128 * 80 + 2 * 8 * 128)) * 4;
  ASSERT_EQ(config.delta.state_bytes(), state);
  const StateMap map = StateMapOf(config);
  EXPECT_EQ(map.used_bytes, (std::vector<size_t>{7 * state, 6 * state, 7 * state, 7 * state}));
  const KvLayout layout = KvLayoutOf(config, KvDtype::kBf16, 16);
  EXPECT_EQ(layout.state_blocks, (7 * state - 1) / layout.SliceBytes() + 1);
  // States of the last two slices wait for two layers of Mamba-2 and for one after attention.
  std::vector<uint32_t> firsts;  // layers after which one more slice is final
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    while (firsts.size() < map.num_stored[layer]) firsts.push_back(layer);
  }
  EXPECT_EQ(firsts, (std::vector<uint32_t>{14, 25, 41, 54}));
}

TEST(MambaModelTest, StatesNeverMissASliceAndKeepTheirOrder) {
  constexpr std::array<std::string_view, 9> kPatterns = {
      "M*", "*M", "*MMM*", "MMM**", "**MMM", "*-MM*M-*", "MMMMM*M*M", "*M***M", "*M*MM*MMM*MMMM"};
  for (const std::string_view pattern : kPatterns) {
    SCOPED_TRACE(pattern);
    const ModelConfig config = ConfigOfPattern(pattern, {2, 4, 16, 32, 4, DeltaRule::kAdd});
    const StateMap map = StateMapOf(config);
    const size_t state = config.delta.state_bytes();
    const size_t most = (config.num_delta_layers() - 1) / config.num_slices() + 1;
    std::vector<size_t> used(config.num_slices(), 0);
    uint32_t last_slice = 0;
    for (const StatePlace& place : PlacesOf(config, map)) {
      ASSERT_LT(place.slice, config.num_slices());
      EXPECT_GE(place.slice, last_slice);
      EXPECT_EQ(place.offset, used[place.slice]);
      used[place.slice] += state;
      last_slice = place.slice;
    }
    EXPECT_EQ(map.used_bytes, used);
    for (const size_t bytes : used) EXPECT_LE(bytes, most * state);
    // A slice is final with its layer of attention and its last state, whichever is later, and not
    // before those of the slices before it.
    for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
      uint32_t final_slices = config.FirstSlice(layer + 1);
      for (uint32_t later = layer + 1; later < config.num_layers; ++later) {
        if (config.IsDelta(later)) final_slices = std::min(final_slices, map.places[later].slice);
      }
      EXPECT_EQ(map.num_stored[layer], final_slices) << layer;
    }
    EXPECT_EQ(map.num_stored.back(), config.num_slices());
  }
}

// The layers of the tiny file in another order, *-M*M-MM-: all states stand after the first layer
// of attention, and three of four after the last.
std::string WriteUneven() {
  constexpr std::array<uint32_t, 9> kOldLayers = {3, 1, 0, 6, 2, 4, 5, 7, 8};
  ChangedFile changed(kFile);
  for (TensorCopy& tensor : changed.tensors()) {
    constexpr std::string_view kBlock = "blk.";
    if (!tensor.name.starts_with(kBlock)) continue;
    const size_t dot = tensor.name.find('.', kBlock.size());
    const int old_layer = std::stoi(tensor.name.substr(kBlock.size(), dot - kBlock.size()));
    const auto at = std::find(kOldLayers.begin(), kOldLayers.end(), old_layer);
    const auto layer = at - kOldLayers.begin();
    tensor.name = std::string(kBlock) + std::to_string(layer) + tensor.name.substr(dot);
  }
  changed.SetInts(kFfn, {0, 64, 0, 0, 0, 64, 0, 0, 64});
  changed.SetInts(kKvHeads, {1, 0, 0, 1, 0, 0, 0, 0, 0});
  return changed.Write("mamba_uneven.gguf");
}

TEST(MambaModelTest, SpreadStatesHaveTheSameBitsWholeAndByToken) {
  const std::string path = WriteUneven();
  std::vector<TokenId> tokens(40);
  std::iota(tokens.begin(), tokens.end(), 5);
  const std::span<const TokenId> all(tokens);
  for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kF32}) {
    ModelFixture fixture({.path = path, .num_threads = 2, .kv_dtype = dtype});
    ASSERT_TRUE(fixture.status().ok()) << fixture.status();
    const ModelConfig& config = fixture.model().config();
    const StateMap map = StateMapOf(config);
    const size_t state = config.delta.state_bytes();
    EXPECT_EQ(PlacesOf(config, map),
              (std::vector<StatePlace>{{0, 0}, {0, state}, {1, 0}, {1, state}}));
    EXPECT_EQ(map.num_stored, (std::vector<uint32_t>{0, 0, 0, 0, 1, 1, 1, 2, 2}));
    EXPECT_EQ(fixture.model().layout().state_blocks, dtype == KvDtype::kBf16 ? 21u : 11u);
    ToldSlices slices(fixture, 40);
    const auto whole = fixture.Run({{0, 0, all}}, /*all_rows=*/true, &slices);
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_EQ(fixture.model().layout().num_layers, 2u);
    slices.ExpectAllFinal();
    const auto last = fixture.Run({{2, 0, all}});
    ASSERT_TRUE(last.ok()) << last.status();
    EXPECT_EQ(*last, std::vector<float>(whole->end() - last->size(), whole->end()))
        << "the last layer of Mamba-2 and the layer after it compute one row";
    std::vector<float> by_token;
    for (uint32_t i = 0; i < 40; ++i) {
      const auto row = fixture.Run({{1, i, all.subspan(i, 1)}});
      ASSERT_TRUE(row.ok()) << row.status();
      by_token.insert(by_token.end(), row->begin(), row->end());
    }
    EXPECT_EQ(by_token, *whole);
    EXPECT_EQ(fixture.KvBytes(1, 40), fixture.KvBytes(0, 40));
  }
  std::filesystem::remove(path);
}

ModelConfig ConfigOfFile() {
  const auto file = GgufFile::Open(GoldenPath(kFile));
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return {};
  const auto config = ReadModelConfig(**file);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(ModelConfig());
}

TEST(MambaModelTest, TakesNoTableOfAnglesAndNoRoomForGates) {
  const auto bytes_of = [](const FixtureOptions& options) {
    ModelFixture fixture(options);
    EXPECT_TRUE(fixture.status().ok()) << fixture.status();
    return static_cast<const Model&>(fixture.model()).workspace_bytes();
  };
  FixtureOptions options{.path = GoldenPath(kFile), .max_rows = 128, .max_context = 128};
  const size_t bytes = bytes_of(options);
  options.max_context = 256;
  EXPECT_EQ(bytes_of(options), bytes);
  options.max_rows = 256;
  // hidden x 2, q k v or the input of Mamba-2, what it mixes, the feed-forward layer; and the
  // widest of them as int16 with six numbers for each 32 elements.
  const size_t floats = 2 * size_t{ConfigOfFile().hidden_size} + 328 + 128 + 64;
  EXPECT_EQ(bytes_of(options) - bytes, 128 * (4 * floats + 2 * 128 + 6 * 4 * 4));
}

TEST(MambaModelTest, IsDescribed) {
  const auto file = GgufFile::Open(GoldenPath(kFile));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string text = DescribeModelFile(**file, CheckServable(**file));
  EXPECT_THAT(text, HasSubstr("Mamba-2       in 4 of 9 layers, 4 heads of 16 x 32, 4 tokens"));
  EXPECT_THAT(text, HasSubstr("attention in 2 layers, feed-forward layers alone in 3"));
  EXPECT_THAT(text, HasSubstr("recurrent: fixed state in 4 layers, 41984 bytes a sequence (f32)\n"
                              "              43008 bytes a sequence in 21 blocks"));
  EXPECT_THAT(text, HasSubstr("rope          none: positions change no layer"));
  EXPECT_THAT(text, HasSubstr("unsupported   nothing"));
}

std::string RefusalOf(const ChangedFile& changed) {
  const std::vector<std::byte> bytes = changed.Bytes();
  const auto file = GgufFile::FromBytes(bytes);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return "";
  const std::string message(CheckServable(**file).message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(MambaModelTest, RefusesListsOfLayersByName) {
  struct Case {
    const char* key;
    std::vector<int32_t> values;
    const char* words;
  };
  for (const Case& test : {
           Case{kFfn, {0, 64}, "feed_forward_length\" has 2 numbers, the model has 9 layers"},
           Case{kFfn, {0, 0, 0, 0, 0, 0, 0, 0, 0}, "feed_forward_length\" is 0 in every layer"},
           Case{kKvHeads, {0, 0, 0, 0, 0, 0, 0, 0, 0}, "head_count_kv\" is 0 in every layer"},
           Case{kKvHeads, {0, 1, 0, 1, 0, 0, 1, 0, 0}, "are 64 and 1 in layer 1: supported are"},
           Case{kKvHeads, {0, 0, 0, 1, 0, 0, 2, 0, 0}, "is 2 in layer 6, supported are 0 and one"},
           Case{kFfn,
                {0, 0, 0, 0, 64, 0, 0, 0, 64},
                "makes layer 1 one of Mamba-2, but it has the tensor \"blk.1.ffn_up.weight\""},
           Case{
               kFfn,
               {64, 64, 0, 0, 64, 0, 0, 0, 64},
               "makes layer 0 a feed-forward layer, but it has the tensor \"blk.0.ssm_in.weight\""},
           Case{kKvHeads,
                {0, 0, 1, 1, 0, 0, 1, 0, 0},
                "makes layer 2 one of attention, but it has the tensor \"blk.2.ssm_in.weight\""},
           Case{kFfn, {0, 48, 0, 0, 64, 0, 0, 0, 64}, "blk.1.ffn_up.weight"},
       }) {
    ChangedFile changed(kFile);
    changed.SetInts(test.key, test.values);
    EXPECT_THAT(RefusalOf(changed), HasSubstr(test.words));
  }
}

TEST(MambaModelTest, RefusesNumbersByName) {
  struct Case {
    const char* key;
    uint32_t value;
    const char* words;
  };
  for (const Case& test : {
           Case{"ssm.state_size", 24, "is 24, supported are multiples of 16"},
           Case{"ssm.group_count", 3, "time_step_rank\" is 4, supported are multiples of 3"},
           Case{"ssm.inner_size", 100, "inner_size\" is 100, supported are multiples of 64"},
           Case{"ssm.conv_kernel", 1, "is 1, supported is [2, 16]"},
           Case{"ssm.conv_kernel", 3, "blk.0.ssm_conv1d.weight"},
           Case{"ssm.group_count", 1, "blk.0.ssm_in.weight"},
           Case{"attention.head_count", 3, "blk.3.attn_q.weight"},
           Case{"expert_count", 8, "expert_count\" is 8, supported is only 0"},
       }) {
    ChangedFile changed(kFile);
    changed.SetU32(std::string("nemotron_h.") + test.key, test.value);
    EXPECT_THAT(RefusalOf(changed), HasSubstr(test.words)) << test.key;
  }
}

TEST(MambaModelTest, RefusesTensorsThatItDoesNotComputeAndNumbersThatAreNone) {
  ChangedFile biased(kFile);
  biased.tensors().push_back({"blk.1.ffn_norm.bias", {64}, 0, std::vector<std::byte>(64 * 4)});
  EXPECT_THAT(RefusalOf(biased), HasSubstr("\"blk.1.ffn_norm.bias\" is not part of a nemotron_h"));
  for (const char* name : {"blk.0.ssm_a", "blk.2.ssm_d", "blk.5.ssm_norm.weight",
                           "blk.7.ssm_conv1d.bias", "blk.0.ssm_dt.bias"}) {
    ChangedFile changed(kFile);
    const float bad = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(changed.Find(name).data.data(), &bad, sizeof(bad));
    const std::string path = changed.Write("mamba_without_numbers.gguf");
    ModelFixture fixture({.path = path});
    EXPECT_THAT(std::string(fixture.status().message()), HasSubstr(name));
    std::filesystem::remove(path);
  }
}

// The config.json of a tiny folder, with the form of infinity that can be written again.
Json ConfigOf(const std::string& folder) {
  std::ifstream in(GoldenPath(folder) + "/config.json");
  const std::string text(std::istreambuf_iterator<char>(in), {});
  const auto json = ParseHfConfigJson(text);
  EXPECT_TRUE(json.ok()) << json.status();
  Json config = json.value_or(Json());
  if (config.contains("time_step_limit")) {
    config["time_step_limit"][1] = {{"__float__", "Infinity"}};
  }
  return config;
}

std::string RefusalOf(const std::string& key, const Json& value,
                      const std::string& folder = kFolder) {
  Json json = ConfigOf(folder);
  json[key] = value;
  const auto config = ReadHfConfig(json.dump());
  return config.ok() ? "" : std::string(config.status().message());
}

TEST(MambaModelTest, RefusesFoldersByTheirListsOfLayers) {
  constexpr const char* kPattern = "hybrid_override_pattern";
  EXPECT_EQ(RefusalOf(kPattern, "M-M*-M*M-"), "");
  EXPECT_THAT(RefusalOf(kPattern, "M-M*-M*ME"),
              HasSubstr("layers of experts (nemotron_h_moe) are not computed"));
  EXPECT_THAT(RefusalOf(kPattern, "M-M*-M*Mx"), HasSubstr("M, * and - alone"));
  EXPECT_THAT(RefusalOf(kPattern, "M-*"), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(RefusalOf(kPattern, ""), HasSubstr(kPattern));
  EXPECT_THAT(RefusalOf("layers_block_type", {"mlp", "mamba"}),
              HasSubstr("the layers of \"hybrid_override_pattern\""));
  constexpr const char* kList = "layers_block_type";
  const std::string plain = "tiny_nemotron_h_plain";
  EXPECT_EQ(RefusalOf(kList, {"attention", "mlp", "mamba", "mamba"}, plain), "") << "older names";
  EXPECT_THAT(RefusalOf(kList, {"full_attention", "mlp", "moe", "mlp"}, plain),
              HasSubstr("layers of experts (nemotron_h_moe) are not computed"));
  EXPECT_THAT(RefusalOf(kList, {"full_attention", "conv"}, plain),
              HasSubstr("linear_attention, full_attention or mlp each"));
  EXPECT_THAT(RefusalOf(kList, "mlp", plain), HasSubstr("a list of texts"));
  Json neither = ConfigOf(kFolder);
  neither.erase(kPattern);
  EXPECT_EQ(FolderErrorOf(ReadHfConfig(neither.dump()).status()), FolderErrorCode::kMissingKey);
}

TEST(MambaModelTest, RefusesFoldersByKey) {
  struct Case {
    const char* key;
    Json value;
    const char* words;
  };
  const Json infinite = {{"__float__", "Infinity"}};
  for (const Case& test : {
           Case{"mlp_hidden_act", "silu", "mlp_hidden_act"},
           Case{"mamba_hidden_act", "gelu", "mamba_hidden_act"},
           Case{"use_bias", true, "use_bias"},
           Case{"mamba_proj_bias", true, "mamba_proj_bias"},
           Case{"attention_bias", true, "attention_bias"},
           Case{"time_step_limit", Json::array({0.0, 0.1}), "[0, Infinity]"},
           Case{"time_step_limit", Json::array({0.001, infinite}), "[0, Infinity]"},
           Case{"ssm_state_size", 20, "a multiple of 16 in [16, 256]"},
           Case{"mamba_head_dim", 24, "a multiple of 16 in [16, 1024]"},
           Case{"n_groups", 3, "a multiple of the 3 of \"n_groups\""},
           Case{"conv_kernel", 1, "conv_kernel"},
           Case{"intermediate_size", 0, "intermediate_size"},
           Case{"sliding_window", 16, "sliding_window"},
           Case{"rms_norm_eps", 1e-5, "rms_norm_eps"},
           Case{"head_dim", 32, "attention_head_dim"},
           Case{"num_nextn_predict_layers", 1, "num_nextn_predict_layers"},
           Case{"new_key", 1, "new_key"},
       }) {
    EXPECT_THAT(RefusalOf(test.key, test.value), HasSubstr(test.words)) << test.key;
  }
  EXPECT_EQ(RefusalOf("time_step_limit", Json::array({0.0, infinite})), "");
}

TEST(MambaModelTest, RefusesAFolderWhoseConvolutionsLackABias) {
  const std::filesystem::path folder = ::testing::TempDir() + "mamba_bias";
  std::filesystem::remove_all(folder);
  std::filesystem::copy(GoldenPath(kFolder), folder);
  Json json = ConfigOf(kFolder);
  json["use_conv_bias"] = false;
  std::ofstream(folder / "config.json") << json.dump();
  EXPECT_THAT(std::string(OpenModelFile(folder.string()).status().message()),
              HasSubstr("\"use_conv_bias\" wants mixer.conv1d.bias in 0 layers, 4 have it"));
  std::filesystem::remove_all(folder);
}

TEST(MambaModelTest, TensorsHaveTheNamesOfOtherModels) {
  EXPECT_EQ(NameOfBackbone("backbone.embeddings.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(NameOfBackbone("model.embeddings.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(NameOfBackbone("backbone.norm_f.weight"), "model.norm.weight");
  EXPECT_EQ(NameOfBackbone("backbone.layers.3.norm.weight"), "model.layers.3.norm.weight");
  EXPECT_EQ(NameOfBackbone("lm_head.weight"), "lm_head.weight");
}

}  // namespace
}  // namespace baton::model
