// Model folders: the same weights as a GGUF file give the same bits, and whatever is wrong with a
// folder gives one typed error.
#include "src/model/hf_folder.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/model/folder_error.h"
#include "src/model/safetensors.h"
#include "tests/model/model_fixture.h"
#include "tests/model/test_model.h"

namespace baton::model {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using E = FolderErrorCode;
namespace fs = std::filesystem;

std::string ReadText(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void WriteText(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
}

class FolderGoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(FolderGoldenTest, GivesTheBitsOfTheSameWeightsInAFile) {
  const std::string stem = GoldenPath(std::string("tiny_") + GetParam());
  ModelFixture file({.path = stem + ".gguf"});
  ModelFixture folder({.path = stem});
  ASSERT_TRUE(file.status().ok()) << file.status();
  ASSERT_TRUE(folder.status().ok()) << folder.status();
  EXPECT_EQ(folder.model().weights_id(), file.model().weights_id());
  EXPECT_EQ(folder.model().numerics_id(), file.model().numerics_id());
  std::vector<TokenId> tokens;
  for (TokenId i = 0; i < 80; ++i) tokens.push_back((i * 37 + 5) % 263);
  const auto a = file.Run({{0, 0, tokens}}, true);
  const auto b = folder.Run({{0, 0, tokens}}, true);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(std::memcmp(a->data(), b->data(), a->size() * sizeof(float)), 0);
  EXPECT_EQ(file.KvBytes(0, 80), folder.KvBytes(0, 80));
}

INSTANTIATE_TEST_SUITE_P(Architectures, FolderGoldenTest,
                         ::testing::Values("llama_linear", "llama_yarn", "llama_llama3", "qwen2",
                                           "qwen3", "qwen3moe", "gemma3", "smollm3", "granite",
                                           "lfm2", "lfm2moe", "gptoss", "gptoss_mxfp4", "phi3",
                                           "phi3_plain", "olmo2", "mistral3", "gemma4",
                                           "gemma4_dense", "deepseek2", "deepseek2_lite", "qwen35",
                                           "qwen35moe", "nemotron_h", "nemotron_h_plain"),
                         [](const auto& info) { return std::string(info.param); });

// A copy of a golden folder, which a test then spoils.
class Folder {
 public:
  explicit Folder(const std::string& golden)
      : path_(::testing::TempDir() + "baton_folder_" + golden) {
    fs::remove_all(path_);
    fs::copy(GoldenPath("tiny_" + golden), path_, fs::copy_options::recursive);
  }
  ~Folder() { fs::remove_all(path_); }

  fs::path File(const std::string& name) const { return path_ / name; }
  // Changes a JSON file.
  void Edit(const std::string& name, const std::function<void(Json&)>& change) const {
    Json json = Json::parse(ReadText(File(name)));
    change(json);
    WriteText(File(name), json.dump());
  }
  // All that Model::Load would check, without packing.
  absl::Status Open() const {
    const auto file = OpenModelFile(path_.string());
    return file.ok() ? ReadModelConfig(**file).status() : file.status();
  }

 private:
  const fs::path path_;
};

// One way to spoil config.json of a golden folder, and the reason that must be given.
struct ConfigCase {
  const char* words;
  E code;
  const char* golden;
  std::function<void(Json&)> change;
};

void ExpectConfigErrors(const std::vector<ConfigCase>& cases) {
  for (const ConfigCase& test : cases) {
    const Folder folder(test.golden);
    folder.Edit("config.json", test.change);
    const absl::Status status = folder.Open();
    EXPECT_EQ(FolderErrorOf(status), test.code) << test.words << ": " << status;
    EXPECT_FALSE(status.ok()) << test.words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.words));
  }
}

TEST(HfFolderTest, RefusesConfigsByName) {
  ExpectConfigErrors({
      {"\"mamba\"", E::kUnknownArchitecture, "qwen2", [](Json& j) { j["model_type"] = "mamba"; }},
      {"model_type", E::kMissingKey, "qwen2", [](Json& j) { j.erase("model_type"); }},
      {"model_type", E::kBadValue, "qwen2", [](Json& j) { j["model_type"] = 7; }},
      {"hidden_size", E::kMissingKey, "qwen2", [](Json& j) { j.erase("hidden_size"); }},
      {"hidden_size", E::kMissingKey, "qwen2", [](Json& j) { j["hidden_size"] = nullptr; }},
      {"hidden_size", E::kBadValue, "qwen2", [](Json& j) { j["hidden_size"] = -1; }},
      {"hidden_size", E::kBadValue, "qwen2", [](Json& j) { j["hidden_size"] = 1ull << 40; }},
      {"[1, 2]", E::kBadValue, "qwen2",
       [](Json& j) {
         j["hidden_size"] = {1, 2};
       }},
      {"num_attention_heads", E::kBadValue, "qwen2", [](Json& j) { j["num_attention_heads"] = 0; }},
      {"head_dim", E::kBadValue, "qwen2", [](Json& j) { j["head_dim"] = 1000; }},
      {"\"eetq\"", E::kQuantized, "qwen2",
       [](Json& j) { j["quantization_config"]["quant_method"] = "eetq"; }},
      {"no \"bits\"", E::kMissingKey, "qwen2",
       [](Json& j) { j["quantization_config"]["quant_method"] = "gptq"; }},
      {"hidden_act", E::kUnsupportedValue, "qwen2", [](Json& j) { j["hidden_act"] = "relu"; }},
      {"\"sliding_window\" is 16", E::kUnsupportedValue, "qwen2",
       [](Json& j) {
         j.update({{"use_sliding_window", true}, {"sliding_window", 16}, {"max_window_layers", 1}});
       }},
      {"partial_rotary_factor", E::kUnsupportedValue, "qwen3",
       [](Json& j) { j["partial_rotary_factor"] = 0.5; }},
      {"query_pre_attn_scalar", E::kUnsupportedValue, "gemma3",
       [](Json& j) { j["query_pre_attn_scalar"] = 17; }},
      {"final_logit_softcapping", E::kUnsupportedValue, "gemma3",
       [](Json& j) { j["final_logit_softcapping"] = 30.0; }},
      {"layer_types", E::kBadValue, "gemma3", [](Json& j) { j["layer_types"] = {"x"}; }},
      {"\"mlp_only_layers\" is [0]", E::kUnsupportedValue, "qwen3moe",
       [](Json& j) { j["mlp_only_layers"] = {0}; }},
      {"8 experts up to number 7, config.json says 9", E::kMissingExpert, "qwen3moe",
       [](Json& j) { j["num_experts"] = 9; }},
      {"tie_word_embeddings false", E::kTiedMismatch, "qwen2",
       [](Json& j) { j["tie_word_embeddings"] = false; }},
      {"leaves it at tie_word_embeddings false", E::kTiedMismatch, "qwen2",
       [](Json& j) { j.erase("tie_word_embeddings"); }},
      {"Qwen2ForSequenceClassification", E::kUnsupportedValue, "qwen2",
       [](Json& j) { j["architectures"] = {"Qwen2ForSequenceClassification"}; }},
      {"LlamaForTokenClassification", E::kUnsupportedValue, "qwen2",
       [](Json& j) { j["architectures"] = {"LlamaForTokenClassification"}; }},
      {"Qwen2ForQuestionAnswering", E::kUnsupportedValue, "qwen2",
       [](Json& j) { j["architectures"] = {"Qwen2ForQuestionAnswering"}; }},
      {"Qwen2ForRewardModel", E::kUnsupportedValue, "qwen2",
       [](Json& j) { j["architectures"] = {"Qwen2ForRewardModel"}; }},
      {"LlamaRewardModel", E::kUnsupportedValue, "qwen2",
       [](Json& j) { j["architectures"] = {"LlamaRewardModel"}; }},
      {"\"architectures\" is 3", E::kBadValue, "qwen2", [](Json& j) { j["architectures"] = 3; }},
      {"tie_word_embeddings true", E::kTiedMismatch, "qwen3",
       [](Json& j) { j["tie_word_embeddings"] = true; }},
      {"\"decoder_sparse_step\" is 1", E::kUnsupportedValue, "qwen3moe",
       [](Json& j) { j["model_type"] = "qwen3"; }},
  });
}

TEST(HfFolderTest, RefusesRopeScalingsByName) {
  ExpectConfigErrors({
      {"\"longrope\"", E::kUnknownRopeType, "llama_yarn",
       [](Json& j) { j["rope_scaling"]["type"] = "longrope"; }},
      {"\"rope_type\" is \"dynamic\"", E::kBadValue, "llama_yarn",
       [](Json& j) { j["rope_scaling"]["rope_type"] = "dynamic"; }},
      {"\"mrope_section\" is [4, 4]", E::kUnsupportedValue, "llama_yarn",
       [](Json& j) {
         j["rope_scaling"]["mrope_section"] = {4, 4};
       }},
      {"factor", E::kMissingKey, "llama_linear",
       [](Json& j) { j["rope_scaling"].erase("factor"); }},
      {"rope_scaling", E::kBadValue, "llama_linear", [](Json& j) { j["rope_scaling"] = 4; }},
      {"low_freq_factor", E::kBadValue, "llama_llama3",
       [](Json& j) { j["rope_scaling"]["low_freq_factor"] = 4.0; }},
      {"low_freq_factor", E::kMissingKey, "llama_llama3",
       [](Json& j) { j["rope_scaling"].erase("low_freq_factor"); }},
      {"rope_theta", E::kBadValue, "qwen2", [](Json& j) { j["rope_theta"] = 0; }},
      {"rope_parameters", E::kBadValue, "qwen2", [](Json& j) { j["rope_parameters"] = 3; }},
  });
}

TEST(HfFolderTest, RefusesConfigsThatDisagreeWithTheWeights) {
  const std::vector<std::pair<const char*, std::function<void(Json&)>>> cases = {
      {"token_embd.weight", [](Json& j) { j["vocab_size"] = 264; }},
      {"blk.2.attn_norm.weight", [](Json& j) { j["num_hidden_layers"] = 3; }},
      {"blk.1.", [](Json& j) { j["num_hidden_layers"] = 1; }},
      {"blk.0.ffn_gate.weight", [](Json& j) { j["intermediate_size"] = 96; }},
      {"blk.0.attn_q.weight", [](Json& j) { j["num_attention_heads"] = 6; }},
      {"\"factor\" is 0",
       [](Json& j) {
         j["rope_scaling"] = {{"type", "linear"}, {"factor", 0}};
       }},
  };
  for (const auto& [words, change] : cases) {
    const Folder folder("qwen2");
    folder.Edit("config.json", change);
    EXPECT_THAT(std::string(folder.Open().message()), HasSubstr(words));
  }
}

TEST(HfFolderTest, YarnMayBeginWithinAPair) {
  const Folder folder("llama_yarn");
  folder.Edit("config.json", [](Json& j) { j["rope_scaling"]["truncate"] = false; });
  const auto file = OpenModelFile(folder.File("").string());
  ASSERT_TRUE(file.ok()) << file.status();
  const auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->rope_scaling.truncates);
  EXPECT_THAT(CanonicalText(*config), HasSubstr(":exact"));
}

TEST(HfFolderTest, ReadsTheNewerFormOfRopeAndLayerTypes) {
  const Folder folder("gemma3");
  const auto read = [&] {
    const auto file = OpenModelFile(folder.File("").string());
    EXPECT_TRUE(file.ok()) << file.status();
    return CanonicalText(*ReadModelConfig(**file));
  };
  const std::string before = read();
  folder.Edit("config.json", [](Json& j) {
    for (const char* key : {"rope_theta", "rope_local_base_freq", "sliding_window_pattern"}) {
      j.erase(key);
    }
    j["rope_parameters"]["full_attention"] = {{"rope_theta", 1e6}, {"rope_type", "default"}};
    j["rope_parameters"]["sliding_attention"] = {{"rope_theta", 1e4}, {"rope_type", "default"}};
    for (int i = 0; i < 7; ++i) {
      j["layer_types"].push_back(i == 5 ? "full_attention" : "sliding_attention");
    }
  });
  EXPECT_EQ(read(), before);
}

TEST(HfFolderTest, RefusesFilesThatAreMissingOrNotJson) {
  struct Case {
    const char* words;
    E code;
    std::function<void(const Folder&)> spoil;
  };
  const std::string shard = "model-00002-of-00003.safetensors";
  const std::string index = "model.safetensors.index.json";
  const std::vector<Case> cases = {
      {"config.json", E::kMissingFile, [](const Folder& f) { fs::remove(f.File("config.json")); }},
      {"config.json", E::kBadJson, [](const Folder& f) { WriteText(f.File("config.json"), "{"); }},
      {"config.json", E::kBadJson,
       [](const Folder& f) { WriteText(f.File("config.json"), std::string(500000, '[')); }},
      {"config.json", E::kFileTooLarge,
       [](const Folder& f) { WriteText(f.File("config.json"), std::string(1 << 21, ' ')); }},
      {"neither", E::kMissingFile, [&](const Folder& f) { fs::remove(f.File(index)); }},
      {"model-00002-of-00003.safetensors", E::kMissingShard,
       [&](const Folder& f) { fs::remove(f.File(shard)); }},
      {"weight_map", E::kBadJson, [&](const Folder& f) { WriteText(f.File(index), "[]"); }},
      {".safetensors file", E::kBadIndex,
       [&](const Folder& f) {
         f.Edit(index, [](Json& j) { j["weight_map"]["model.norm.weight"] = "../x.safetensors"; });
       }},
      {".safetensors file", E::kBadIndex,
       [&](const Folder& f) {
         f.Edit(index, [](Json& j) { j["weight_map"]["model.norm.weight"] = 3; });
       }},
      {"disagree about tensor", E::kBadIndex,
       [&](const Folder& f) {
         f.Edit(index, [](Json& j) { j["weight_map"].erase("model.norm.weight"); });
       }},
      {"disagree about tensor \"no.such\"", E::kBadIndex,
       [&](const Folder& f) {
         f.Edit(index, [&](Json& j) { j["weight_map"]["no.such"] = shard; });
       }},
      {"model-00002-of-00003.safetensors", E::kTruncated,
       [&](const Folder& f) { fs::resize_file(f.File(shard), 100); }},
      {"model-00002-of-00003.safetensors", E::kDataOutOfFile,
       [&](const Folder& f) { fs::resize_file(f.File(shard), fs::file_size(f.File(shard)) - 1); }},
  };
  for (const Case& test : cases) {
    const Folder folder("llama_llama3");
    ASSERT_TRUE(folder.Open().ok()) << folder.Open();
    test.spoil(folder);
    const absl::Status status = folder.Open();
    EXPECT_EQ(FolderErrorOf(status), test.code) << test.words << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.words));
  }
}

// transformers saves one file beside the index of the shards that were there before.
TEST(HfFolderTest, AnIndexThatDoesNotNameTheOneFileIsNotRead) {
  const std::string index = "model.safetensors.index.json";
  const std::string single = "model.safetensors";
  const auto names = [](const std::string& file) {
    return R"({"weight_map":{"model.norm.weight":")" + file + "\"}}";
  };
  const Folder folder("qwen2");
  for (const std::string& text : {names("model-00001-of-00002.safetensors"), std::string("[]")}) {
    WriteText(folder.File(index), text);
    EXPECT_TRUE(folder.Open().ok()) << text << folder.Open();
  }
  WriteText(folder.File(index), names(single));
  EXPECT_EQ(FolderErrorOf(folder.Open()), E::kBadIndex) << "it names the file, but few tensors";
  fs::remove(folder.File(single));
  EXPECT_EQ(FolderErrorOf(folder.Open()), E::kMissingShard);
}

// A cache of downloads keeps links to its files, which may be gone.
TEST(HfFolderTest, WhatIsThereAndCannotBeReadIsNotCalledMissing) {
  struct Case {
    std::string name;
    const char* target;  // of a link; null for a folder of that name
    const char* said;
  };
  const std::string single = "model.safetensors";
  const std::string index = "model.safetensors.index.json";
  for (const Case& test :
       {Case{single, "gone", "\"model.safetensors\": cannot open: No such file"},
        Case{single, single.c_str(), "\"model.safetensors\": cannot open: Too many"},
        Case{single, nullptr, "\"model.safetensors\": not a regular file"},
        Case{index, "gone", "model.safetensors.index.json: cannot open: No such file"},
        Case{index, nullptr, "model.safetensors.index.json: not a regular file"},
        Case{"config.json", "gone", "config.json: cannot open: No such file"},
        Case{"hf_quant_config.json", "gone", "hf_quant_config.json: cannot open: No such file"},
        Case{"1_Pooling/config.json", "gone", "1_Pooling/config.json: cannot open: No such"}}) {
    const Folder folder("qwen2");
    fs::remove(folder.File(test.name == index ? single : test.name));
    fs::create_directories(folder.File(test.name).parent_path());
    if (test.target == nullptr) {
      fs::create_directory(folder.File(test.name));
    } else {
      fs::create_symlink(test.target, folder.File(test.name));
    }
    const absl::Status status = folder.Open();
    EXPECT_EQ(FolderErrorOf(status), E::kMissingFile) << test.name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.said));
    EXPECT_THAT(std::string(status.message()), HasSubstr("; the folder is not whole"));
  }
}

// Changes the header of a safetensors file.
void EditHeader(const fs::path& path, const std::function<void(Json&)>& change) {
  const std::string whole = ReadText(path);
  uint64_t size = 0;
  std::memcpy(&size, whole.data(), sizeof size);
  Json header = Json::parse(whole.substr(sizeof size, size));
  const std::string data = whole.substr(sizeof size + size);
  change(header);
  const std::string text = header.dump();
  size = text.size();
  std::string out(sizeof size, '\0');
  std::memcpy(out.data(), &size, sizeof size);
  WriteText(path, out + text + data);
}

// A user looks for the names and shapes that the files have.
TEST(HfFolderTest, ErrorsNameTensorsAsTheFolderDoes) {
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  const Folder folder("qwen2");
  const fs::path path = folder.File("model.safetensors");
  const std::string whole = ReadText(path);
  EditHeader(path, [&](Json& h) { h[up]["shape"] = {h[up]["shape"][1], h[up]["shape"][0]}; });
  EXPECT_THAT(std::string(folder.Open().message()),
              HasSubstr("tensor \"blk.0.ffn_up.weight\" (in the folder \"" + up +
                        "\") is [32, 64], the model needs [64, 32]"));
  WriteText(path, whole);
  EditHeader(path, [&](Json& h) {
    h["model.layers.0.self_attn.rotary_emb.inv_freq"] = h[up];  // which nobody reads
    h.erase(up);
  });
  EXPECT_THAT(
      std::string(folder.Open().message()),
      HasSubstr("tensor \"blk.0.ffn_up.weight\" is missing; of another layer the folder has "
                "\"model.layers.1.mlp.up_proj.weight\""));
}

// The bytes of a safetensors file with this header and so much data.
std::vector<std::byte> Safetensors(std::string_view header, size_t data_bytes) {
  std::vector<std::byte> out(8 + header.size() + data_bytes);
  const uint64_t size = header.size();
  std::memcpy(out.data(), &size, 8);
  std::memcpy(out.data() + 8, header.data(), header.size());
  return out;
}

TEST(SafetensorsTest, RefusesEachKindOfDamage) {
  struct Case {
    E code;
    const char* header;
    size_t data_bytes;
  };
  const std::vector<Case> cases = {
      {E::kNone, R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8},
      {E::kNone,
       R"({"__metadata__":{"x":"y"},"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[4,8]},)"
       R"("a":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}}   )",
       8},
      {E::kBadJson, "", 0},
      {E::kBadJson, "[]", 0},
      {E::kBadJson, R"({"a":3})", 0},
      {E::kBadJson, R"({"a":{}})", 0},
      {E::kBadJson, R"({"a":{"dtype":"F32","shape":[2]}})", 8},
      {E::kBadJson, R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8},
      {E::kBadJson, R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8},
      {E::kBadJson, R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", 8},
      {E::kBadJson, R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8},
      {E::kBadJson, R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}x)", 8},
      {E::kBadJson, R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4},
      {E::kNone, R"({"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}})", 2},
      {E::kBadDtype, R"({"a":{"dtype":"F8_E5M2","shape":[2],"data_offsets":[0,2]}})", 2},
      {E::kNone, R"({"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}})", 8},
      {E::kBadDtype, R"({"a":{"dtype":"U32","shape":[2],"data_offsets":[0,8]}})", 8},
      {E::kNone, R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4},
      {E::kBadShape, R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", 0},
      {E::kNone, R"({"a":{"dtype":"F32","shape":[1,1,1,1,1],"data_offsets":[0,4]}})", 4},
      {E::kBadShape, R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4},
      {E::kBadShape,
       R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0},
      {E::kBadOffsets, R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 8},
      {E::kBadOffsets, R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8},
      {E::kBadOffsets, R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8},
      {E::kBadOffsets, R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8},
      {E::kBadOffsets, R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8},
      {E::kBadOffsets,
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       4},
      {E::kBadOffsets,
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8},
      {E::kDataOutOfFile, R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7},
      {E::kDataOutOfFile,
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551608,)"
       R"(18446744073709551612]}})",
       8},
      {E::kDuplicateTensor,
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8},
  };
  for (const Case& test : cases) {
    const std::vector<std::byte> bytes = Safetensors(test.header, test.data_bytes);
    const absl::Status status = SafetensorsFile::FromBytes(bytes).status();
    EXPECT_EQ(FolderErrorName(FolderErrorOf(status)), FolderErrorName(test.code))
        << test.header << ": " << status;
    EXPECT_EQ(status.ok(), test.code == E::kNone) << status;
  }
  std::vector<std::byte> huge(8, std::byte{0xFF});
  EXPECT_EQ(FolderErrorOf(SafetensorsFile::FromBytes(huge).status()), E::kFileTooLarge);
  EXPECT_EQ(FolderErrorOf(SafetensorsFile::FromBytes({}).status()), E::kTruncated);
}

TEST(SafetensorsTest, CutAnywhereOrChangedAtRandomItNeverCrashes) {
  const std::string whole = ReadText(GoldenPath("tiny_qwen2/model.safetensors"));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, whole.data(), 8);
  const auto parse = [](std::string_view text) {
    // A copy of exactly the size, so that a sanitizer sees a read beyond it.
    const auto bytes = std::as_bytes(std::span(text));
    const std::vector<std::byte> copy(bytes.begin(), bytes.end());
    return SafetensorsFile::FromBytes(copy).status();
  };
  EXPECT_TRUE(parse(whole).ok());
  for (size_t size = 0; size < header_bytes + 8; size += 3) {
    EXPECT_NE(FolderErrorOf(parse(std::string_view(whole).substr(0, size))), E::kNone) << size;
  }
  std::mt19937_64 random(20);
  int num_refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string changed = whole.substr(0, header_bytes + 8);
    for (int k = 0; k < 3; ++k) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    num_refused += !parse(changed).ok();
  }
  EXPECT_EQ(num_refused, 3000);  // the data is not there
}

TEST(HfFolderTest, NanWeightsAreRefused) {
  const Folder folder("qwen3");
  const fs::path path = folder.File("model.safetensors");
  std::string bytes = ReadText(path);
  for (size_t i = bytes.size() - 64; i < bytes.size(); ++i) bytes[i] = '\xFF';  // f16 NaN
  WriteText(path, bytes);
  const ModelFixture fixture({.path = folder.File("").string()});
  EXPECT_EQ(fixture.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(fixture.status().message()),
      HasSubstr(
          "\"blk.1.ffn_down.weight\" (in the folder \"model.layers.1.mlp.down_proj.weight\"): "
          "row 31 of 32 has an element that is not finite"));
}

}  // namespace
}  // namespace baton::model
