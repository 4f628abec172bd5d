// Hugging Face folders: against PyPI `tokenizers` (folder_golden.json), and what is refused.
#include "src/text/folder_tokenizer.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/text/tokenizer.h"
#include "tests/text/golden_file.h"

namespace baton::text {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

const Json& Golden() {
  static const Json golden = ReadGolden("folder_golden.json");
  return golden;
}

// The number of tokens of a tokenizer.json, added ones included.
size_t NumTokens(const Json& tokenizer) {
  size_t num_tokens = tokenizer["model"]["vocab"].size();
  for (const Json& added : tokenizer["added_tokens"]) {
    num_tokens += tokenizer["model"]["vocab"].contains(added["content"]) ? 0 : 1;
  }
  return num_tokens;
}

FolderTokenizerFiles GoldenFiles(const std::string& name) {
  FolderTokenizerFiles files;
  files.tokenizer_json = Golden()[name]["tokenizer_json"].dump();
  files.tokenizer_config_json = Golden()[name]["tokenizer_config"].dump();
  return files;
}

StatusOr<std::unique_ptr<Tokenizer>> Build(const FolderTokenizerFiles& files, size_t vocab_size) {
  BATON_ASSIGN_OR_RETURN(const TokenizerSpec spec, TokenizerSpecFromFolder(files, vocab_size));
  // As a worker sends it to the router.
  BATON_ASSIGN_OR_RETURN(const TokenizerSpec sent, TokenizerSpec::Parse(spec.Serialize()));
  EXPECT_EQ(sent, spec);
  return Tokenizer::Create(sent);
}

void ExpectGoldenIds(const Tokenizer& tokenizer, const Json& entry) {
  ASSERT_EQ(entry["ids"].size(), HardStrings().size());
  for (size_t i = 0; i < HardStrings().size(); ++i) {
    const std::string& text = HardStrings()[i];
    const std::vector<TokenId> ids = tokenizer.Encode(text).value();
    EXPECT_EQ(HashOf(ids), entry["ids"][i].get<uint32_t>())
        << Json(text) << " gives " << testing::PrintToString(ids);
    const std::string back = tokenizer.Decode(ids, false).value();
    EXPECT_EQ(HashOf(back), entry["decoded"][i].get<uint32_t>()) << Json(text) << Json(back);
  }
  EXPECT_EQ(tokenizer.Encode("Hello you", {.add_special = true}).value(),
            entry["with_special"].get<std::vector<TokenId>>());
}

class FolderGoldenTest : public testing::TestWithParam<std::string> {};

TEST_P(FolderGoldenTest, IdsAndTextsAreThoseOfTokenizers) {
  const Json& entry = Golden()[GetParam()];
  const auto tokenizer = Build(GoldenFiles(GetParam()), NumTokens(entry["tokenizer_json"]));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ExpectGoldenIds(**tokenizer, entry);
}

INSTANTIATE_TEST_SUITE_P(Folders, FolderGoldenTest,
                         testing::Values("llama_legacy", "llama_metaspace", "gemma", "qwen2",
                                         "smollm", "gpt2", "llama3"),
                         [](const auto& info) { return info.param; });

// The real folder's files, where BATON_TEST_GEMMA3_FOLDER says.
TEST(FolderTokenizerTest, Gemma3FolderGivesTheReferenceIds) {
  const char* folder = std::getenv("BATON_TEST_GEMMA3_FOLDER");
  if (folder == nullptr) GTEST_SKIP() << "BATON_TEST_GEMMA3_FOLDER is not set";
  const auto spec = LoadFolderTokenizer(folder, 262144);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto tokenizer = Tokenizer::Create(*spec);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ExpectGoldenIds(**tokenizer, Golden()["gemma3_real"]);
  EXPECT_TRUE((*tokenizer)->IsEog(106));
  EXPECT_FALSE(spec->chat_template.empty());
}

TEST(FolderTokenizerTest, ConfigFilesNameTheSpecialTokens) {
  FolderTokenizerFiles files = GoldenFiles("qwen2");
  const size_t vocab_size = NumTokens(Golden()["qwen2"]["tokenizer_json"]);
  const TokenizerSpec plain = TokenizerSpecFromFolder(files, vocab_size).value();
  const auto id_of = [&plain](std::string_view text) {
    const auto found = std::find(plain.tokens.begin(), plain.tokens.end(), text);
    return static_cast<uint32_t>(found - plain.tokens.begin());
  };
  EXPECT_EQ(plain.model, "gpt2");
  EXPECT_EQ(plain.pre, "qwen2");
  EXPECT_TRUE(plain.nfc);
  EXPECT_EQ(plain.eos_id, id_of("<|im_end|>"));
  EXPECT_EQ(plain.pad_id, id_of("<|endoftext|>"));
  EXPECT_EQ(plain.bos_id, std::nullopt);
  EXPECT_EQ(plain.token_types[id_of("<|im_start|>")], static_cast<int32_t>(TokenType::kControl));
  EXPECT_EQ(plain.token_types[id_of("<think>")], static_cast<int32_t>(TokenType::kUserDefined));

  files.tokenizer_config_json = R"({"chat_template": [{"name": "default", "template": "D"},)"
                                R"( {"name": "rag", "template": "R"}]})";
  files.generation_config_json = R"({"eos_token_id": [3, 5, 3, 999999]})";
  files.config_json = R"({"bos_token_id": 7, "eos_token_id": 9})";
  TokenizerSpec spec = TokenizerSpecFromFolder(files, vocab_size).value();
  EXPECT_EQ(spec.chat_template, "D");
  EXPECT_EQ(spec.named_templates, (std::vector<NamedChatTemplate>{{"rag", "R"}}));
  EXPECT_EQ(spec.bos_id, 7u);
  FolderTokenizerFiles without_bos = files;
  without_bos.tokenizer_config_json = R"({"bos_token": null})";
  EXPECT_EQ(TokenizerSpecFromFolder(without_bos, vocab_size)->bos_id, std::nullopt);
  EXPECT_EQ(spec.eos_id, 3u);
  EXPECT_EQ(spec.eot_id, 5u);
  EXPECT_EQ(spec.eom_id, 9u);
  EXPECT_EQ(spec.ToolTemplate(), "");
  // Files of their own go before the list of tokenizer_config.json.
  files.additional_templates = {{"tool_use", "T"}};
  EXPECT_EQ(TokenizerSpecFromFolder(files, vocab_size)->ToolTemplate(), "T");
  files.additional_templates.clear();
  files.chat_template_jinja = "J";
  spec = TokenizerSpecFromFolder(files, vocab_size).value();
  EXPECT_EQ(spec.chat_template, "J");
  EXPECT_TRUE(spec.named_templates.empty());
  files.config_json = R"({"eos_token_id": [9, 3, 11]})";
  EXPECT_EQ(
      std::string(TokenizerSpecFromFolder(files, vocab_size).status().message()),
      "eos_token_id: more than three tokens end a generation (3, 5, 9 and 11): not supported");
}

// As a model that was trained on with an end of its own: <|endoftext|> (700) and <|im_end|> (702)
// end a generation by their texts.
TEST(FolderTokenizerTest, EndsThatAllModelsKnowTakeNoPlace) {
  FolderTokenizerFiles files = GoldenFiles("smollm");
  const size_t vocab_size = NumTokens(Golden()["smollm"]["tokenizer_json"]);
  files.tokenizer_config_json = "{}";
  for (const char* ids :
       {"[9, 10, 11, 700, 702]", "[9, 700, 702, 10, 11]", "[9, 702, 10, 700, 11]"}) {
    files.generation_config_json = fmt::format(R"({{"eos_token_id": {}}})", ids);
    const auto spec = TokenizerSpecFromFolder(files, vocab_size);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto built = Tokenizer::Create(*spec);
    ASSERT_TRUE(built.ok()) << built.status();
    for (const TokenId id : {700, 702, 9, 10, 11})
      EXPECT_TRUE((*built)->IsEog(id)) << ids << " " << id;
  }
  files.generation_config_json = R"({"eos_token_id": [9, 10, 700, 11, 12]})";
  EXPECT_THAT(std::string(TokenizerSpecFromFolder(files, vocab_size).status().message()),
              HasSubstr("more than three tokens end a generation (9, 10, 11 and 12)"));
}

// One end too many is left out; a model that nothing would end is refused.
TEST(FolderTokenizerTest, AnEndBehindTheVocabularyMustNotBeTheOnlyOne) {
  FolderTokenizerFiles files = GoldenFiles("qwen2");
  const size_t vocab_size = NumTokens(Golden()["qwen2"]["tokenizer_json"]);
  files.tokenizer_config_json = "{}";
  files.generation_config_json = R"({"eos_token_id": 999999})";
  EXPECT_EQ(std::string(TokenizerSpecFromFolder(files, vocab_size).status().message()),
            "eos_token_id 999999 is none of the model's " + std::to_string(vocab_size) +
                " tokens, and no other token ends a generation");
  files.config_json = R"({"eos_token_id": 3})";
  EXPECT_EQ(TokenizerSpecFromFolder(files, vocab_size)->eos_id, 3u);
  // Some programs write -1 for "there is none".
  files.generation_config_json = R"({"bos_token_id": -1, "eos_token_id": [-1, 5]})";
  EXPECT_EQ(TokenizerSpecFromFolder(files, vocab_size)->eos_id, 5u);
  EXPECT_EQ(TokenizerSpecFromFolder(files, vocab_size)->bos_id, std::nullopt);
  files.generation_config_json = R"({"eos_token_id": -1})";
  files.config_json = R"({"eos_token_id": null})";
  EXPECT_THAT(std::string(TokenizerSpecFromFolder(files, vocab_size).status().message()),
              HasSubstr("eos_token_id -1 is none of the model's"));
}

// Passed over, such a value would let answers go on until max_tokens.
TEST(FolderTokenizerTest, AnEndThatIsNoIdIsRefused) {
  struct Case {
    const char* value;
    const char* said;
  };
  FolderTokenizerFiles files = GoldenFiles("qwen2");
  const size_t vocab_size = NumTokens(Golden()["qwen2"]["tokenizer_json"]);
  for (const Case& test :
       {Case{R"("</s>")", "\"</s>\""}, Case{R"([3, "<eos>"])", "\"<eos>\""}, Case{"2.5", "2.5"},
        Case{"true", "true"}, Case{"[[3]]", "a list or an object"},
        Case{R"({"id": 3})", "a list or an object"}, Case{"NaN", "a list or an object"}}) {
    for (const char* key : {"eos_token_id", "bos_token_id"}) {
      const std::string config = fmt::format(R"({{"{}": {}}})", key, test.value);
      const std::string said = fmt::format(
          "config.json: {} is {}, wanted an id of a token or a list of ids", key, test.said);
      files.generation_config_json = config;
      files.config_json = "{}";
      EXPECT_EQ(std::string(TokenizerSpecFromFolder(files, vocab_size).status().message()),
                "generation_" + said);
      files.generation_config_json = "";
      files.config_json = config;
      EXPECT_EQ(std::string(TokenizerSpecFromFolder(files, vocab_size).status().message()), said);
    }
  }
}

// GPT-2's <|endoftext|> is all three: begin, end and unknown.
TEST(FolderTokenizerTest, AnUnknownTokenThatEndsATextStillDoes) {
  Json tokenizer = Golden()["smollm"]["tokenizer_json"];
  const size_t num_tokens = NumTokens(tokenizer);
  tokenizer["model"]["unk_token"] = "<|endoftext|>";
  FolderTokenizerFiles files;
  files.tokenizer_json = tokenizer.dump();
  files.tokenizer_config_json = R"({"eos_token": "<|im_end|>"})";
  const auto spec = TokenizerSpecFromFolder(files, num_tokens);
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_TRUE(spec->unk_id.has_value());
  const auto built = Tokenizer::Create(*spec);
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_TRUE((*built)->IsEog(static_cast<TokenId>(*spec->unk_id)));
  EXPECT_TRUE((*built)->IsEog(static_cast<TokenId>(*spec->eos_id)));
}

// smollm's tokens, and fillers up to `num_tokens`.
Json FilledTokenizer(size_t num_tokens) {
  Json tokenizer = Golden()["smollm"]["tokenizer_json"];
  for (size_t id = NumTokens(tokenizer); id < num_tokens; ++id) {
    tokenizer["model"]["vocab"]["filler" + std::to_string(id)] = id;
  }
  return tokenizer;
}

TEST(FolderTokenizerTest, RowsThatRoundTheCountUpAreUnusedTokens) {
  FolderTokenizerFiles files;
  files.tokenizer_json = FilledTokenizer(16320).dump();
  // Without a token are 1/2041, 1/256, 1/128, 1/57, 1/43 (DeepSeek-V2-Lite), 1/32.4 of the rows.
  for (const size_t vocab_size : {16328, 16384, 16448, 16608, 16704, 16840}) {
    const auto spec = TokenizerSpecFromFolder(files, vocab_size);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->tokens.size(), vocab_size);
    EXPECT_EQ(spec->token_types[16319], static_cast<int32_t>(TokenType::kNormal));
    EXPECT_EQ(spec->token_types[16320], static_cast<int32_t>(TokenType::kUnused));
    EXPECT_EQ(spec->token_types[vocab_size - 1], static_cast<int32_t>(TokenType::kUnused));
    EXPECT_TRUE(Tokenizer::Create(*spec).ok());
  }
  // Not rounded: a token or two that the tokenizer of the base model lacks; too many; too few.
  for (const size_t vocab_size : {16321, 16322, 16324, 16848, 32640, 16319, 16256}) {
    EXPECT_THAT(std::string(TokenizerSpecFromFolder(files, vocab_size).status().message()),
                HasSubstr(fmt::format("16320 tokens, but the model has {}", vocab_size)));
  }
}

// o200k gives 199999 and 200018 to special tokens, and none to the ids between and before.
TEST(FolderTokenizerTest, AnIdAmongAddedTokensThatNoneHasIsUnused) {
  Json tokenizer = FilledTokenizer(16000);
  Json added = tokenizer["added_tokens"][0];
  for (const size_t id : {16001, 16020, 16021}) {
    added["id"] = id;
    added["content"] = "<|special" + std::to_string(id) + "|>";
    tokenizer["added_tokens"].push_back(added);
  }
  FolderTokenizerFiles files;
  files.tokenizer_json = tokenizer.dump();
  for (const size_t vocab_size : {16022, 16064}) {
    const auto spec = TokenizerSpecFromFolder(files, vocab_size);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->token_types[16000], static_cast<int32_t>(TokenType::kUnused));
    EXPECT_EQ(spec->token_types[16001], static_cast<int32_t>(TokenType::kControl));
    EXPECT_EQ(spec->token_types[16010], static_cast<int32_t>(TokenType::kUnused));
    const auto built = Tokenizer::Create(*spec);
    ASSERT_TRUE(built.ok()) << built.status();
    const std::vector<TokenId> free = {16000, 16010};
    const auto text = (*built)->Decode(free, /*skip_special=*/false);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, "");
  }
  EXPECT_THAT(std::string(TokenizerSpecFromFolder(files, 16023).status().message()),
              HasSubstr("16022 tokens, but the model has 16023"));
}

// A count that could be rounded up says nothing about rows in the middle.
TEST(FolderTokenizerTest, AHoleInTheVocabularyIsNoRounding) {
  Json tokenizer = FilledTokenizer(16384);
  FolderTokenizerFiles files;
  files.tokenizer_json = tokenizer.dump();
  EXPECT_TRUE(TokenizerSpecFromFolder(files, 16384).ok());
  for (const size_t hole : {9000, 16382}) {
    Json holed = tokenizer;
    holed["model"]["vocab"].erase("filler" + std::to_string(hole));
    files.tokenizer_json = holed.dump();
    EXPECT_EQ(std::string(TokenizerSpecFromFolder(files, 16384).status().message()),
              fmt::format("tokenizer.json: no token has the id {}, and an ordinary one has {}",
                          hole, hole + 1));
  }
  tokenizer["model"]["vocab"].erase("filler16383");
  files.tokenizer_json = tokenizer.dump();
  EXPECT_TRUE(TokenizerSpecFromFolder(files, 16384).ok()) << "one missing at the end";
}

TEST(FolderTokenizerTest, SpecialTokensBehindTheLastRowAreLeftOut) {
  Json tokenizer = Golden()["smollm"]["tokenizer_json"];
  const size_t num_tokens = NumTokens(tokenizer);
  Json added = tokenizer["added_tokens"][0];
  added["id"] = num_tokens;
  added["content"] = "<image>";
  tokenizer["added_tokens"].push_back(added);
  FolderTokenizerFiles files;
  files.tokenizer_json = tokenizer.dump();
  EXPECT_TRUE(TokenizerSpecFromFolder(files, num_tokens).ok());
  tokenizer["added_tokens"].back()["special"] = false;
  files.tokenizer_json = tokenizer.dump();
  EXPECT_THAT(
      std::string(TokenizerSpecFromFolder(files, num_tokens).status().message()),
      HasSubstr(fmt::format("{} tokens, but the model has {}", num_tokens + 1, num_tokens)));
}

// Only the normalizer makes a written U+2581 and a space the same.
TEST(FolderTokenizerTest, NormalizedTokensAreFoundBehindTheNormalizer) {
  Json tokenizer = Golden()["gemma"]["tokenizer_json"];
  const size_t num_tokens = NumTokens(tokenizer);
  const auto ids = [&tokenizer, num_tokens](const std::string& text) {
    FolderTokenizerFiles files;
    files.tokenizer_json = tokenizer.dump();
    const auto built = Build(files, num_tokens);
    EXPECT_TRUE(built.ok()) << built.status();
    return (*built)->Encode(text).value();
  };
  // Without the merges that make a run of spaces anyway.
  Json merges = Json::array();
  for (const Json& pair : tokenizer["model"]["merges"]) {
    if (!pair[0].get<std::string>().starts_with("\u2581")) merges.push_back(pair);
  }
  tokenizer["model"]["merges"] = merges;
  EXPECT_EQ(ids("\u2581\u2581").size(), 1u);
  EXPECT_EQ(ids("  ").size(), 2u);
  for (Json& added : tokenizer["added_tokens"]) added["normalized"] = !added["special"];
  EXPECT_EQ(ids("\u2581\u2581").size(), 1u);
  EXPECT_EQ(ids("  ").size(), 1u);
  for (Json& added : tokenizer["added_tokens"]) {
    if (added["content"] == "\u2581\u2581") added["normalized"] = false;
  }
  EXPECT_EQ(ids("\u2581\u2581").size(), 1u);
  EXPECT_EQ(ids("  ").size(), 2u);
  EXPECT_EQ(ids("   ").size(), 1u);
}

// Where transformers 4.57 and 5.24 take the template of a chat from, without tools and with them.
// They read chat_template.json for a processor alone.
TEST(FolderTokenizerTest, TemplatesComeFromWhereTransformersTakesThem) {
  struct Case {
    const char* name;
    const char* config;
    const char* jinja;
    const char* additional;  // the name of a template of the text "A", or ""
    const char* json;
    const char* plain;
    const char* with_tools;
  };
  const char* list = R"({"chat_template": [{"name": "default", "template": "D"},
                                           {"name": "tool_use", "template": "U"}]})";
  const Case cases[] = {
      {"json alone", "{}", "", "", R"({"chat_template": "J"})", "J", ""},
      {"json object", "{}", "", "", R"({"chat_template": {"default": "J", "tool_use": "K"}})", "J",
       "K"},
      {"jinja alone", "{}", "F", "", "", "F", ""},
      {"list", list, "", "", "", "D", "U"},
      {"object", R"({"chat_template": {"default": "D", "tool_use": "U"}})", "", "", "", "D", "U"},
      {"no default", R"({"chat_template": [{"name": "r", "template": "R"}]})", "", "", "", "", ""},
      {"list and jinja", list, "F", "", "", "F", ""},
      {"jinja files", "{}", "F", "tool_use", "", "F", "A"},
      {"tools alone", "{}", "", "tool_use", "", "", "A"},
      {"default alone", "{}", "", "default", "", "A", ""},
      {"default twice", "{}", "F", "default", "", "A", ""},
      {"other alone", "{}", "", "r", R"({"chat_template": "J"})", "", ""},
      {"list and tools", list, "", "tool_use", "", "", "A"},
      {"list and other", list, "", "r", "", "", ""},
      {"both", R"({"chat_template": "C"})", "", "", R"({"chat_template": "J"})", "C", ""},
  };
  const size_t vocab_size = NumTokens(Golden()["gpt2"]["tokenizer_json"]);
  for (const Case& test : cases) {
    FolderTokenizerFiles files = GoldenFiles("gpt2");
    files.tokenizer_config_json = test.config;
    files.chat_template_jinja = test.jinja;
    if (*test.additional != '\0') files.additional_templates = {{test.additional, "A"}};
    files.chat_template_json = test.json;
    const auto spec = TokenizerSpecFromFolder(files, vocab_size);
    ASSERT_TRUE(spec.ok()) << test.name << spec.status();
    EXPECT_EQ(spec->chat_template, test.plain) << test.name;
    EXPECT_EQ(spec->ToolTemplate(), test.with_tools) << test.name;
  }
  FolderTokenizerFiles files = GoldenFiles("gpt2");
  files.chat_template_json = R"({"chat_template": {"default": 7}})";
  EXPECT_EQ(std::string(TokenizerSpecFromFolder(files, vocab_size).status().message()),
            "chat_template.json: a chat_template has no name or template");
}

// Text would lose its exclamation marks: control tokens do not come of it.
TEST(FolderTokenizerTest, ATokenOfOrdinaryTextStaysOneWhateverItIsCalled) {
  FolderTokenizerFiles files = GoldenFiles("gpt2");
  const size_t vocab_size = NumTokens(Golden()["gpt2"]["tokenizer_json"]);
  const auto plain = Build(files, vocab_size);
  files.tokenizer_config_json =
      R"({"pad_token": "!", "additional_special_tokens": ["\u0120the", "<none>"]})";
  const auto named = Build(files, vocab_size);
  ASSERT_TRUE(named.ok()) << named.status();
  const std::string text = "the the!! the";
  EXPECT_EQ((*named)->Encode(text).value(), (*plain)->Encode(text).value());
  EXPECT_EQ((*named)->Decode((*named)->Encode(text).value(), true).value(), text);
}

// To look through all merges, or all added tokens, for each of them would take minutes.
TEST(FolderTokenizerTest, ManySpecialTokensAreLookedUpAtOnce) {
  Json tokenizer = Golden()["gpt2"]["tokenizer_json"];
  const size_t vocab_size = NumTokens(tokenizer);
  Json& merges = tokenizer["model"]["merges"];
  const Json merge = merges.back();
  for (int i = 0; i < 200'000; ++i) merges.push_back(merge);
  Json names = Json::array();
  for (int i = 0; i < 200'000; ++i) names.push_back("<none" + std::to_string(i) + ">");
  FolderTokenizerFiles files;
  files.tokenizer_json = tokenizer.dump();
  files.tokenizer_config_json = Json{{"additional_special_tokens", names}}.dump();
  ASSERT_LE(files.tokenizer_config_json.size(), kMaxConfigJsonBytes);
  const auto spec = TokenizerSpecFromFolder(files, vocab_size);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->merges.size(), merges.size());
}

// Characters that are no token would vanish from a text.
TEST(FolderTokenizerTest, SentencePieceWithoutItsBytesIsRefused) {
  const Json good = Golden()["gemma"]["tokenizer_json"];
  const auto refusal = [&good](const Json& tokenizer) {
    FolderTokenizerFiles files;
    files.tokenizer_json = tokenizer.dump();
    const auto spec = TokenizerSpecFromFolder(files, NumTokens(good));
    return spec.ok() ? "accepted" : std::string(spec.status().message());
  };
  EXPECT_EQ(refusal(good), "accepted");
  Json tokenizer = good;
  tokenizer["model"]["byte_fallback"] = false;
  EXPECT_THAT(refusal(tokenizer), HasSubstr("needs byte_fallback"));
  tokenizer = good;
  Json& vocab = tokenizer["model"]["vocab"];
  vocab["<no byte>"] = vocab["<0x41>"];
  vocab.erase("<0x41>");
  EXPECT_THAT(refusal(tokenizer), HasSubstr("of which 255 are used"));
}

// A bad folder: what is wrong with it, and what its error must name.
struct BadFolder {
  const char* name;
  std::function<void(Json&)> damage;
  StatusCode code;
  const char* message;
};

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
constexpr StatusCode kMissing = StatusCode::kUnimplemented;

const BadFolder kBadFolders[] = {
    {"model", [](Json& t) { t["model"]["type"] = "Unigram"; }, kMissing, "\"Unigram\""},
    {"wordpiece", [](Json& t) { t["model"]["type"] = "WordPiece"; }, kMissing, "\"WordPiece\""},
    {"suffix", [](Json& t) { t["model"]["end_of_word_suffix"] = "</w>"; }, kMissing,
     "end_of_word_suffix"},
    {"dropout", [](Json& t) { t["model"]["dropout"] = 0.1; }, kMissing, "dropout"},
    {"normalizer", [](Json& t) { t["normalizer"] = Json::parse(R"({"type": "Lowercase"})"); },
     kMissing, "normalizer \"Lowercase\""},
    {"sequence",
     [](Json& t) {
       t["normalizer"] =
           Json::parse(R"({"type": "Sequence", "normalizers": [{"type": "StripAccents"}]})");
     },
     kMissing, "normalizer \"StripAccents\""},
    {"pre", [](Json& t) { t["pre_tokenizer"] = Json::parse(R"({"type": "BertPreTokenizer"})"); },
     kMissing, "pre_tokenizer \"BertPreTokenizer\""},
    {"no pre", [](Json& t) { t["pre_tokenizer"] = nullptr; }, kMissing, "neither byte-level"},
    {"pattern",
     [](Json& t) {
       t["pre_tokenizer"]["pretokenizers"][0] = Json::parse(
           R"({"type": "Split", "pattern": {"Regex": "[a-z]+"}, "behavior": "Isolated"})");
     },
     kMissing, "\"[a-z]+\""},
    {"dropped rest",
     [](Json& t) {
       t["pre_tokenizer"]["pretokenizers"][0] = Json::parse(
           R"({"type": "Split", "pattern": {"Regex": "\\p{N}"}, "behavior": "Removed",
               "invert": true})");
     },
     kMissing, "\"Split\" is not supported"},
    {"two ids",
     [](Json& t) {
       t["post_processor"] = Json::parse(
           R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}},
               {"Sequence": {"id": "A"}}], "special_tokens": {"x": {"ids": [1, 2]}}})");
     },
     kMissing, "post_processor \"TemplateProcessing\""},
    {"far id",
     [](Json& t) {
       t["post_processor"] = Json::parse(
           R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}},
               {"Sequence": {"id": "A"}}], "special_tokens": {"x": {"ids": [70000]}}})");
     },
     kInvalid, "post_processor puts 70000"},
    {"processor",
     [](Json& t) { t["post_processor"] = Json::parse(R"({"type": "BertProcessing"})"); }, kMissing,
     "post_processor \"BertProcessing\""},
    {"same id", [](Json& t) { t["model"]["vocab"]["!"] = 5; }, kInvalid, "both have the id 5"},
    {"id", [](Json& t) { t["model"]["vocab"]["!"] = -1; }, kInvalid, "id for the token \"!\""},
    {"id text", [](Json& t) { t["model"]["vocab"]["!"] = "x"; }, kInvalid, "the token \"!\""},
    {"hole", [](Json& t) { t["model"]["vocab"].erase("!"); }, kInvalid, "no token has the id"},
    {"more", [](Json& t) { t["model"]["vocab"]["more"] = 100000; }, kInvalid, "but the model has"},
    {"empty part",
     [](Json& t) {
       t["model"]["merges"][3] = Json::array({"", "a"});
     },
     kInvalid, "merges[3] has an empty part"},
    {"old empty", [](Json& t) { t["model"]["merges"][3] = " a"; }, kInvalid,
     "merges[3] has an empty part"},
    {"one part", [](Json& t) { t["model"]["merges"][3] = "a"; }, kInvalid, "merges[3]"},
    {"three",
     [](Json& t) {
       t["model"]["merges"][3] = Json::array({"a", "b", "c"});
     },
     kInvalid, "merges[3]"},
    {"number", [](Json& t) { t["model"]["merges"][3] = 7; }, kInvalid, "merges[3]"},
    {"no token", [](Json& t) { t["model"]["merges"][3] = "a \u4e2d"; }, kInvalid,
     R"(merges[3] is "a \xe4\xb8\xad", but "\xe4\xb8\xad" is not a token)"},
    {"no merges", [](Json& t) { t["model"].erase("merges"); }, kInvalid, "no model.merges"},
    {"null merges", [](Json& t) { t["model"]["merges"] = nullptr; }, kInvalid, "no model.merges"},
    {"added", [](Json& t) { t["added_tokens"][0].erase("id"); }, kInvalid, "added_tokens"},
    {"added twice", [](Json& t) { t["added_tokens"][1]["id"] = t["added_tokens"][0]["id"]; },
     kInvalid, "both have the id"},
    {"added elsewhere", [](Json& t) { t["added_tokens"][0]["content"] = "!"; }, kInvalid, "\"!\""},
    {"no model", [](Json& t) { t.erase("model"); }, kMissing, "model \"\""},
};

TEST(FolderTokenizerTest, BadFilesGiveOneClearError) {
  const Json good = Golden()["smollm"]["tokenizer_json"];
  const size_t vocab_size = NumTokens(good);
  for (const BadFolder& bad : kBadFolders) {
    Json tokenizer = good;
    bad.damage(tokenizer);
    FolderTokenizerFiles files;
    files.tokenizer_json = tokenizer.dump();
    const auto built = Build(files, vocab_size);
    ASSERT_FALSE(built.ok()) << bad.name;
    EXPECT_EQ(built.status().code(), bad.code) << bad.name << ": " << built.status();
    EXPECT_THAT(std::string(built.status().message()), HasSubstr(bad.message)) << bad.name;
  }
}

TEST(FolderTokenizerTest, BadJsonIsRefusedWithThePlace) {
  const size_t num_tokens = NumTokens(Golden()["smollm"]["tokenizer_json"]) + 1;
  const auto refusal = [num_tokens](std::string text) {
    FolderTokenizerFiles files;
    files.tokenizer_json = std::move(text);
    const auto spec = TokenizerSpecFromFolder(files, num_tokens);
    return spec.ok() ? "accepted" : std::string(spec.status().message());
  };
  EXPECT_THAT(refusal("{\"model\": }"), HasSubstr("not JSON at byte 11"));
  EXPECT_THAT(refusal("[]"), HasSubstr("not an object"));
  EXPECT_THAT(refusal("{} x"), HasSubstr("not JSON at byte"));
  EXPECT_THAT(refusal(R"({"model":{"vocab":{"a":0},"vocab":{"a":1}}})"), HasSubstr("twice"));
  EXPECT_THAT(refusal(R"({"model":{"type":"BPE","type":"BPE"}})"), HasSubstr("twice"));
  EXPECT_THAT(refusal(std::string(1000, '[')), HasSubstr("nested above 64"));
  std::string many = "{\"x\":[0";
  for (size_t i = 0; i < (size_t{1} << 20); ++i) many += ",0";
  EXPECT_THAT(refusal(many + "]}"), HasSubstr("more than 1048576 values"));
  // One token stands twice: a reader that fills a map would not see it.
  std::string twice = Golden()["smollm"]["tokenizer_json"].dump();
  const size_t at = twice.find("\"vocab\":{") + 9;
  twice.insert(at, "\"!\":" + std::to_string(num_tokens - 1) + ",");
  EXPECT_THAT(refusal(twice), HasSubstr("\"!\""));
}

// transformers 4 let the class of Llama alone overrule the post_processor, 5 none.
TEST(FolderTokenizerTest, AddBosTokenIsHeardOnlyFromLlamasClass) {
  struct Case {
    const char* tokenizer_class;
    bool add_bos_token;
    const char* golden;  // llama3 has a bos in its post_processor, gpt2 none
    bool adds;
  };
  const Case cases[] = {
      {"PreTrainedTokenizerFast", false, "llama3", true},
      {"TokenizersBackend", true, "gpt2", false},
      {"GPT2Tokenizer", true, "gpt2", false},
      {"", false, "llama3", true},
      {"LlamaTokenizerFast", false, "llama3", false},
      {"LlamaTokenizer", true, "gpt2", true},
  };
  for (const Case& test : cases) {
    FolderTokenizerFiles files = GoldenFiles(test.golden);
    Json config = Golden()[test.golden]["tokenizer_config"];
    config["tokenizer_class"] = test.tokenizer_class;
    config["add_bos_token"] = test.add_bos_token;
    config["bos_token"] = config["eos_token"];
    files.tokenizer_config_json = config.dump();
    const auto spec =
        TokenizerSpecFromFolder(files, NumTokens(Golden()[test.golden]["tokenizer_json"]));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->add_bos, test.adds) << test.tokenizer_class << " " << test.golden;
  }
}

TEST(FolderTokenizerTest, LiteralsOfPythonAreRead) {
  FolderTokenizerFiles files = GoldenFiles("gpt2");
  files.tokenizer_config_json = R"({"eos_token":"<|endoftext|>","model_max_length":Infinity})";
  files.config_json = R"({"x":[NaN,-Infinity,1e999]})";
  const auto spec = TokenizerSpecFromFolder(files, NumTokens(Golden()["gpt2"]["tokenizer_json"]));
  EXPECT_TRUE(spec.ok()) << spec.status();
}

TEST(FolderTokenizerTest, FilesAreReadFromAFolder) {
  const std::string folder = testing::TempDir() + "/folder_tokenizer_test";
  std::filesystem::create_directories(folder);
  std::filesystem::remove(folder + "/tokenizer.json");
  EXPECT_EQ(LoadFolderTokenizer(folder, 600).status().code(), StatusCode::kNotFound);
  // Nobody writes into it: reading it would wait for ever.
  ASSERT_EQ(::mkfifo((folder + "/tokenizer.json").c_str(), 0600), 0);
  EXPECT_THAT(std::string(LoadFolderTokenizer(folder, 600).status().message()),
              HasSubstr("tokenizer.json: no regular file"));
  std::filesystem::remove(folder + "/tokenizer.json");
  const auto write = [&folder](const std::string& name, const std::string& text) {
    std::ofstream(folder + "/" + name, std::ios::binary) << text;
  };
  const FolderTokenizerFiles files = GoldenFiles("llama3");
  const size_t vocab_size = NumTokens(Golden()["llama3"]["tokenizer_json"]);
  write("tokenizer.json", files.tokenizer_json);
  write("tokenizer_config.json", files.tokenizer_config_json);
  // A cache of downloads that has lost a file: without its template the model would refuse chats.
  std::filesystem::create_symlink("blobs/gone", folder + "/chat_template.jinja");
  EXPECT_EQ(LoadFolderTokenizer(folder, vocab_size).status(),
            Unavailable("chat_template.jinja: a link to a file that is not there"));
  std::filesystem::remove(folder + "/chat_template.jinja");
  write("chat_template.json", R"({"chat_template": "J"})");
  EXPECT_EQ(LoadFolderTokenizer(folder, vocab_size)->chat_template, "J");
  write("chat_template.jinja", "T");
  std::filesystem::create_directories(folder + "/additional_chat_templates");
  write("additional_chat_templates/tool_use.jinja", "U");
  const auto spec = LoadFolderTokenizer(folder, vocab_size);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->chat_template, "T");
  EXPECT_EQ(spec->ToolTemplate(), "U");
  // The folder of templates alone.
  std::filesystem::remove(folder + "/chat_template.jinja");
  write("additional_chat_templates/default.jinja", "D");
  write("additional_chat_templates/rag.jinja", "R");
  write("additional_chat_templates/README.md", "no template");
  const auto additional = LoadFolderTokenizer(folder, vocab_size);
  ASSERT_TRUE(additional.ok()) << additional.status();
  EXPECT_EQ(additional->chat_template, "D");
  EXPECT_EQ(additional->named_templates,
            (std::vector<NamedChatTemplate>{{"rag", "R"}, {"tool_use", "U"}}));
  for (size_t i = 0; i < kMaxAdditionalTemplates; ++i) {
    write("additional_chat_templates/" + std::to_string(i) + ".jinja", "N");
  }
  EXPECT_EQ(LoadFolderTokenizer(folder, vocab_size).status(),
            InvalidArgument("additional_chat_templates has more than 64 templates"));
  std::filesystem::remove_all(folder + "/additional_chat_templates");
  std::filesystem::create_directories(folder + "/additional_chat_templates");
  write("additional_chat_templates/a.jinja", std::string(kMaxConfigJsonBytes - 1, ' '));
  write("additional_chat_templates/b.jinja", "BB");
  EXPECT_EQ(LoadFolderTokenizer(folder, vocab_size).status(),
            InvalidArgument("additional_chat_templates has more than 16777216 bytes of templates"));
  std::filesystem::remove_all(folder + "/additional_chat_templates");
  EXPECT_EQ(spec->ignore_merges, std::nullopt);  // llama 3's own rule
  EXPECT_EQ(spec->add_bos, true);
  std::filesystem::resize_file(folder + "/tokenizer_config.json", kMaxConfigJsonBytes + 1);
  EXPECT_THAT(std::string(LoadFolderTokenizer(folder, vocab_size).status().message()),
              HasSubstr("16777217 bytes, more than 16777216"));
  std::filesystem::resize_file(folder + "/tokenizer.json", kMaxTokenizerJsonBytes + 1);
  EXPECT_THAT(std::string(LoadFolderTokenizer(folder, vocab_size).status().message()),
              HasSubstr("67108865 bytes, more than 67108864"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace baton::text
