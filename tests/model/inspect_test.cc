// `baton inspect`: exit code, and exactly one line on stderr for any file that serve would refuse.
#include "src/cli/inspect.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/model/damaged_model.h"
#include "tests/model/gguf_builder.h"
#include "tests/model/test_model.h"

namespace baton::model {

using cli::RunInspect;

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The output and the exit code of one run.
struct InspectRun {
  int code;
  std::string out;
  std::string err;
};

InspectRun Inspect(const std::string& path, const Status& name = OkStatus()) {
  std::ostringstream out;
  std::ostringstream err;
  const int code = RunInspect("inspect", path, name, out, err);
  return {code, out.str(), err.str()};
}

TEST(InspectTest, ARefusalBeginsWithTheSubcommandThatWasGiven) {
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(RunInspect("show", "/nowhere/m.gguf", OkStatus(), out, err), 1);
  EXPECT_THAT(err.str(), ::testing::StartsWith("baton show: "));
}

InspectRun InspectBytes(const std::vector<std::byte>& bytes) {
  const std::string path = ::testing::TempDir() + "baton_inspect_test.gguf";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  return Inspect(path);
}

void ExpectRefused(const InspectRun& run, const std::string& words) {
  EXPECT_EQ(run.code, 1);
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  EXPECT_EQ(std::count_if(run.err.begin(), run.err.end(), is_control), 1) << run.err;
  EXPECT_EQ(run.err.back(), '\n');
  EXPECT_THAT(run.err, HasSubstr(words));
}

TEST(InspectTest, DescribesTheDemoModel) {
  const InspectRun run = Inspect(DemoModelPath());
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  for (const char* words :
       {"llama: 30 layers, hidden 576", "23040 bytes a token (bf16)", "Q4_1", "210", "Q8_0", "F32",
        "unsupported   nothing", "general.quantization_version u32 2", "tokenizer.ggml.pre"}) {
    EXPECT_THAT(run.out, HasSubstr(words));
  }
}

TEST(InspectTest, DescribesWhatHasABadName) {
  const InspectRun run = Inspect(DemoModelPath(), InvalidArgument("no name for a model"));
  ExpectRefused(run, "no name for a model");
  EXPECT_THAT(run.out, HasSubstr("llama: 30 layers"));
}

TEST(InspectTest, AcceptsEveryTinyModel) {
  for (const char* name : {"f32",
                           "f16",
                           "bf16",
                           "q4_0",
                           "q4_1",
                           "q8_0",
                           "mixed_rope",
                           "q5_0",
                           "q5_1",
                           "q4_k",
                           "q5_k",
                           "q6_k",
                           "mxfp4",
                           "llama_yarn",
                           "qwen2",
                           "qwen3",
                           "qwen3moe",
                           "gemma3",
                           "smollm3",
                           "granite",
                           "lfm2",
                           "lfm2moe",
                           "deepseek2",
                           "deepseek2_lite",
                           "deepseek2_q8_0",
                           "deepseek2_split_q8_0",
                           "lfm2_q8_0",
                           "iq4_nl",
                           "iq4_xs",
                           "q3_k",
                           "q2_k",
                           "gptoss",
                           "gptoss_mxfp4",
                           "phi3",
                           "phi3_short",
                           "phi3_plain",
                           "olmo2",
                           "mistral3",
                           "gemma4",
                           "gemma4_q8_0",
                           "gemma4_dense",
                           "qwen35",
                           "qwen35_q8_0",
                           "qwen35moe",
                           "qwen35moe_q8_0",
                           "nemotron_h",
                           "nemotron_h_plain",
                           "nemotron_h_q8_0"}) {
    const InspectRun run = Inspect(GoldenPath(std::string("tiny_") + name + ".gguf"));
    EXPECT_EQ(run.code, 0) << name << ": " << run.err;
  }
}

TEST(InspectTest, AcceptsFoldersAndSplitFiles) {
  for (const char* name :
       {"llama_yarn",   "llama_linear", "llama_llama3",   "qwen2",      "qwen3",
        "qwen3moe",     "gemma3",       "smollm3",        "granite",    "lfm2",
        "lfm2moe",      "deepseek2",    "deepseek2_lite", "gptoss",     "gptoss_mxfp4",
        "phi3",         "phi3_plain",   "olmo2",          "mistral3",   "gemma4",
        "gemma4_dense", "qwen35",       "qwen35moe",      "nemotron_h", "nemotron_h_plain"}) {
    const InspectRun run = Inspect(GoldenPath(std::string("tiny_") + name));
    EXPECT_EQ(run.code, 0) << name << ": " << run.err;
    EXPECT_THAT(run.out, HasSubstr("file          folder"));
  }
  EXPECT_EQ(Inspect(GoldenPath("tiny_split-00001-of-00003.gguf")).code, 0);
  ExpectRefused(Inspect(GoldenPath("tiny_split-00002-of-00003.gguf")), "00001-of-00003");
}

// A copy of a golden folder in which `from` is replaced by `to` in one file.
std::string ChangedFolder(const std::string& name, const std::string& file, const std::string& from,
                          const std::string& to) {
  namespace fs = std::filesystem;
  const std::string folder = ::testing::TempDir() + "baton_inspect_folder";
  fs::remove_all(folder);
  fs::copy(GoldenPath(name), folder);
  std::ifstream in(folder + "/" + file, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  std::ofstream(folder + "/" + file, std::ios::binary) << text;
  return folder;
}

// It is served, for completions: chats are told when they come.
TEST(InspectTest, SaysWhyThereAreNoChats) {
  const InspectRun broken =
      Inspect(ChangedFolder("tiny_qwen2", "tokenizer_config.json", "{% endfor %}", "{% endfo %}"));
  EXPECT_EQ(broken.code, 0) << broken.err;
  EXPECT_THAT(broken.out, HasSubstr("no chats      "));
  const InspectRun refusing = Inspect(ChangedFolder("tiny_qwen2", "tokenizer_config.json",
                                                    "{% endfor %}", "{% endfor %}{{ 1 | gone }}"));
  EXPECT_EQ(refusing.code, 0) << refusing.err;
  EXPECT_THAT(refusing.out, HasSubstr("no chats      "));
  const InspectRun none = Inspect(
      ChangedFolder("tiny_qwen2", "tokenizer_config.json", "\"chat_template\"", "\"unread\""));
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_THAT(none.out, HasSubstr("no chats      the model has no chat template\n"));
  EXPECT_THAT(Inspect(GoldenPath("tiny_qwen2")).out, Not(HasSubstr("no chats")));
}

// Served too, but no answer ends before max_tokens.
TEST(InspectTest, SaysThatNoTokenEndsAnAnswer) {
  constexpr const char* kLine =
      "no end        no token ends an answer: it goes on until max_tokens\n";
  const std::string eos = "tokenizer.ggml.eos_token_id";
  GgufBuilder none = TinyLlama({.left_out_key = eos});
  EXPECT_THAT(InspectBytes(none.Build()).out, HasSubstr(kLine));
  EXPECT_THAT(Inspect(GoldenPath("tiny_qwen2")).out, Not(HasSubstr("no end")));
}

TEST(InspectTest, RefusesBadFoldersWithOneLine) {
  const auto config = [](const std::string& from, const std::string& to) {
    return Inspect(ChangedFolder("tiny_qwen2", "config.json", from, to));
  };
  ExpectRefused(config("\"qwen2\"", "\"mamba\""), "mamba");
  ExpectRefused(
      config("\"hidden_act\"", "\"rope_scaling\": {\"rope_type\": \"spiral\"}, \"hidden_act\""),
      "spiral");
  ExpectRefused(config("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false"),
                "lm_head.weight");
  ExpectRefused(config("\"vocab_size\": 263", "\"vocab_size\": 264"), "token_embd.weight");
  const auto tokenizer = [](const std::string& from, const std::string& to) {
    return Inspect(ChangedFolder("tiny_qwen2", "tokenizer.json", from, to));
  };
  ExpectRefused(tokenizer("\"hello\": 262", "\"hello\": 262, \"more\": 263"),
                "tokenizer.json has 264 tokens, but the model has 263");
  ExpectRefused(tokenizer("\"hello\": 262", "\"he\": 262"), "the token \"he\" has the ids");
  ExpectRefused(tokenizer("\"hello\": 262", "\"hello\": 261"), "both have the id 261");
  ExpectRefused(tokenizer("\"hello\": 262", R"("\n\u001b[2J": -1)"),
                R"(the token "\n\x1b[2J" that is not a number)");
  ExpectRefused(tokenizer("\"hello\": 262", R"("\n\u001b[2J": 261)"),
                R"("\n\x1b[2J" both have the id 261)");
  ExpectRefused(tokenizer("\"model\": {", R"("a\nb": 1, "a\nb": 2, "model": {)"),
                R"(has the key "a\nb" twice)");
  ExpectRefused(tokenizer("\"hell o\"", "\" hello\""), "joining it would never end");
  ExpectRefused(tokenizer("\"hell o\"", "\"o hell\""), "\"ohell\" is not a token");
  ExpectRefused(Inspect(ChangedFolder("tiny_llama_llama3", "model.safetensors.index.json",
                                      "model-00002-of-00003", "model-00009-of-00003")),
                "disagree about tensor");
}

// serve would refuse it too: it packs every tensor.
TEST(InspectTest, RefusesWeightsThatAreNoNumbers) {
  ExpectRefused(Inspect(DamagedModel("tiny_f32.gguf", "blk.0.attn_norm.weight", kNanFloat)),
                "element 0 of tensor \"blk.0.attn_norm.weight\" is nan");
  ExpectRefused(Inspect(DamagedModel("tiny_mixed_rope.gguf", "rope_freqs.weight", 0.0f)),
                "is 0, not a positive number");
  for (const char* type : {"q4_0", "q4_1", "q8_0", "q5_0", "q5_1", "q4_k", "q5_k"}) {
    const std::string path =
        DamagedModel(std::string("tiny_") + type + ".gguf", "blk.1.ffn_up.weight", kNanHalf);
    ExpectRefused(Inspect(path), "tensor \"blk.1.ffn_up.weight\": row 0 of");
  }
  // Wherever in a block the scale lies.
  std::array<uint8_t, 136> ones;
  ones.fill(0xFF);
  for (const char* type : {"mxfp4", "iq4_nl", "iq4_xs", "q3_k", "q2_k"}) {
    const std::string path =
        DamagedModel(std::string("tiny_") + type + ".gguf", "blk.1.ffn_up.weight", ones);
    ExpectRefused(Inspect(path), "tensor \"blk.1.ffn_up.weight\": row 0 of");
  }
  // A block of MXFP4 whose power is NaN, or finite and its product with a digit is not.
  const std::pair<uint8_t, const char*> powers[] = {
      {255, "row 0 of"}, {254, "has an infinite element"}, {253, "has an infinite element"}};
  for (const auto& [power, words] : powers) {
    const std::array<uint8_t, 17> block = {power, 0x07};
    ExpectRefused(Inspect(DamagedModel("tiny_mxfp4.gguf", "blk.1.ffn_up.weight", block)), words);
  }
  for (const uint8_t digit : {0x05, 0x50}) {  // 6 at 2^125 is a number
    const std::array<uint8_t, 17> block = {253, digit};
    ExpectRefused(Inspect(DamagedModel("tiny_mxfp4.gguf", "blk.1.ffn_up.weight", block)),
                  "the first token cannot be computed");
  }
}

// serve makes the table of all positions that the file names.
TEST(InspectTest, RefusesRopeThatTurnsTooFar) {
  ExpectRefused(Inspect(DamagedModel("tiny_mixed_rope.gguf", "rope_freqs.weight", 1e-5f)),
                "is outside (0, 1647099]");
}

// Every weight is a number; serve would refuse it by its first token.
TEST(InspectTest, RefusesWeightsWhoseFirstTokenIsNoNumber) {
  for (const char* model : {"tiny_f32.gguf", "tiny_q4_0.gguf"}) {
    const InspectRun run = Inspect(DamagedModel(model, "blk.0.attn_norm.weight", 3e38f));
    ExpectRefused(run, "the first token cannot be computed: logit 0 at position ");
    EXPECT_THAT(run.out, HasSubstr("unsupported   the first token"));
  }
}

TEST(InspectTest, RefusesMatricesOfFloatsThatAreNotFinite) {
  const std::string_view matrix = "blk.1.ffn_up.weight";
  const auto inspect = [matrix](const char* model, const auto& first_bits) {
    return Inspect(DamagedModel(model, matrix, first_bits));
  };
  const char* const words = "row 0 of 64 has an element that is not finite in bf16";
  for (const uint32_t bits : {0x7FC00000u, 0x7F800001u, 0x7F800000u, 0xFF800000u, 0x7F7F8000u}) {
    ExpectRefused(inspect("tiny_f32.gguf", bits), words);
  }
  for (const uint16_t bits : {0x7E00, 0x7C00, 0xFC00}) {
    ExpectRefused(inspect("tiny_f16.gguf", bits), words);
  }
  for (const uint16_t bits : {0x7FC0, 0x7F80, 0xFF80}) {
    ExpectRefused(inspect("tiny_bf16.gguf", bits), words);
  }
  // The largest that are, which f32 sums of products do not always survive.
  EXPECT_EQ(inspect("tiny_f16.gguf", uint16_t{0x7BFF}).code, 0);
  ExpectRefused(inspect("tiny_f32.gguf", 0xFF7F7FFFu), "the first token cannot be computed");
  EXPECT_EQ(inspect("tiny_bf16.gguf", uint16_t{0x7F7F}).code, 0);
}

TEST(InspectTest, RefusesWithOneLine) {
  ExpectRefused(Inspect("/nonexistent\nfile.gguf"), "cannot open");
  ExpectRefused(Inspect("/proc"), "config.json");
  ExpectRefused(Inspect("/dev/null"), "not a regular file");
  ExpectRefused(InspectBytes({}), "empty");
  ExpectRefused(InspectBytes(std::vector<std::byte>(1000, std::byte{'x'})), "magic");
  ExpectRefused(InspectBytes(TinyLlama({.architecture = "ma\nmba"}).Build()), "architecture");
  GgufBuilder unknown = TinyLlama();
  unknown.AddTensor("output.weight", {256, 1}, 21, 110);
  const InspectRun run = InspectBytes(unknown.Build());
  ExpectRefused(run, "IQ3_S");
  EXPECT_THAT(run.out, HasSubstr("NOT SUPPORTED"));
  // The model is fine; its tokenizer is not: byte-level BPE whose merges name no token.
  ExpectRefused(InspectBytes(TinyLlama({.merges = {"no such"}}).Build()), "merge");
  // Without the list every text would be cut into single bytes.
  ExpectRefused(InspectBytes(TinyLlama({.left_out_key = "tokenizer.ggml.merges"}).Build()),
                "\"tokenizer.ggml.merges\" is missing");
  GgufBuilder bytes = TinyLlama();
  std::vector<std::byte> cut = bytes.Build();
  cut.resize(cut.size() / 2);
  ExpectRefused(InspectBytes(cut), "the file has");
}

}  // namespace
}  // namespace baton::model
