// The added tokens of Hugging Face folders: against PyPI `tokenizers` (added_golden.json), in the
// forms of the families that are served.
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/text/chat_encoder.h"
#include "src/text/detokenizer.h"
#include "src/text/folder_tokenizer.h"
#include "src/text/tokenizer.h"
#include "tests/text/golden_file.h"
#include "tests/text/test_spec.h"

namespace baton::text {
namespace {

using Json = nlohmann::json;

// BATON_TEST_ADDED_GOLDEN names a file of more texts that make_added_golden.py wrote.
const Json& Golden() {
  static const Json golden = [] {
    const char* other = std::getenv("BATON_TEST_ADDED_GOLDEN");
    if (other == nullptr) return ReadGolden("added_golden.json");
    std::ifstream file(other);
    return Json::parse(file);
  }();
  return golden;
}

// The tokenizer.json of a case.
Json FileOf(const Json& entry) {
  static const Json folders = ReadGolden("folder_golden.json");
  Json file = folders[entry["base"].get<std::string>()]["tokenizer_json"];
  for (const auto& [key, value] : entry["changes"].items()) file[key] = value;
  return file;
}

// The tokenizer of a case, sent to the router as a worker does.
std::unique_ptr<Tokenizer> Build(const Json& entry) {
  FolderTokenizerFiles files;
  files.tokenizer_json = FileOf(entry).dump();
  files.tokenizer_config_json = entry["config"].dump();
  const auto spec = TokenizerSpecFromFolder(files, entry["num_tokens"].get<size_t>());
  EXPECT_TRUE(spec.ok()) << spec.status();
  if (!spec.ok()) return nullptr;
  const auto sent = TokenizerSpec::Parse(spec->Serialize());
  EXPECT_TRUE(sent.ok()) << sent.status();
  EXPECT_EQ(*sent, *spec);
  return MakeTokenizer(*sent);
}

std::string Streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  Detokenizer detokenizer(&tokenizer, /*skip_special=*/false, /*begins_text=*/true);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Flush();
}

TEST(AddedTokensTest, IdsAndTextsAreThoseOfTokenizers) {
  const std::vector<std::string> texts = Golden()["texts"].get<std::vector<std::string>>();
  ASSERT_GE(texts.size(), 150u);
  ASSERT_GE(Golden()["cases"].size(), 20u);
  for (const auto& [name, entry] : Golden()["cases"].items()) {
    SCOPED_TRACE(name);
    const auto tokenizer = Build(entry);
    if (tokenizer == nullptr) continue;
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::vector<TokenId> parsed =
          tokenizer->Encode(texts[i], {.parse_special = true}).value();
      EXPECT_EQ(HashOf(parsed), entry["parsed"][i].get<uint32_t>())
          << Json(texts[i]) << " gives " << testing::PrintToString(parsed);
      const std::vector<TokenId> plain = tokenizer->Encode(texts[i]).value();
      EXPECT_EQ(HashOf(plain), entry["plain"][i].get<uint32_t>())
          << "as user text " << Json(texts[i]) << " gives " << testing::PrintToString(plain);
      const std::string back = tokenizer->Decode(plain, false).value();
      EXPECT_EQ(HashOf(back), entry["decoded"][i].get<uint32_t>()) << Json(texts[i]) << Json(back);
      EXPECT_EQ(Streamed(*tokenizer, plain), back);
    }
    EXPECT_EQ(tokenizer->Encode("Hello you", {.add_special = true}).value(),
              entry["with_special"].get<std::vector<TokenId>>());
  }
}

// model.vocab lacks both. Where Prepend hides the one, and a letter beside it the other, they are
// bytes; ids by tokenizers 0.23.3.
TEST(AddedTokensTest, OneCharacterThatIsNotFoundIsItsBytes) {
  struct Case {
    const char* text;
    std::vector<TokenId> legacy;
    std::vector<TokenId> metaspace;
  };
  const std::vector<Case> cases = {
      {"€", {1000}, {1000}},
      {"x€", {489, 229, 133, 175}, {489, 1000}},
      {"x €", {489, 1000}, {489, 629, 1000}},
      {"中", {1001}, {1001}},
      {"a中", {272, 231, 187, 176}, {272, 231, 187, 176}},
      {"a 中 b", {272, 629, 1001, 629, 295}, {272, 629, 1001, 295}},
  };
  for (const char* base : {"llama_legacy", "llama_metaspace"}) {
    Json entry = {{"base", base}, {"changes", Json::object()}, {"config", Json::object()}};
    Json added = FileOf(entry)["added_tokens"];
    for (const auto& [id, text, is_normalized] :
         {std::tuple(1000, "€", true), std::tuple(1001, "中", false)}) {
      added.push_back({{"id", id},
                       {"content", text},
                       {"special", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"single_word", !is_normalized},
                       {"normalized", is_normalized}});
    }
    entry["changes"]["added_tokens"] = added;
    entry["num_tokens"] = 1002;
    const auto tokenizer = Build(entry);
    ASSERT_NE(tokenizer, nullptr);
    for (const Case& test : cases) {
      const bool is_legacy = std::string_view(base) == "llama_legacy";
      EXPECT_EQ(tokenizer->Encode(test.text).value(), is_legacy ? test.legacy : test.metaspace)
          << base << " " << test.text;
    }
  }
}

TEST(AddedTokensTest, ChatsLoseTheBlanksThatTheirTokensTake) {
  const auto tokenizer = Build(Golden()["cases"]["phi3"]);
  const auto chat_template = ChatTemplate::Create(
      "{% for m in messages %}<|user|>\n{{ m.content }}<|end|>\n{% endfor %}[INST]", "", "");
  const auto id_of = [&tokenizer](std::string_view text) {
    return tokenizer->Encode(text, {.parse_special = true}).value().at(0);
  };
  // The last characters could begin a control token, and the first could end one: both are guarded.
  for (const std::string content : {"Hello", "|> <|end", "<|end|> x"}) {
    const std::vector<ChatMessage> talk = {{"user", " \u3000" + content + "\n"}};
    const ChatPrompt prompt = EncodeChat(*tokenizer, *chat_template, talk).value();
    std::vector<TokenId> expected = {id_of("<|user|>")};
    const std::vector<TokenId> inner = tokenizer->Encode(content + "\n").value();
    expected.insert(expected.end(), inner.begin(), inner.end());
    expected.push_back(id_of("<|end|>"));
    expected.push_back(id_of("[INST]"));
    EXPECT_EQ(prompt.tokens, expected) << content;
    EXPECT_EQ(prompt.text, "<|user|>\n \u3000" + content + "\n<|end|>\n[INST]");
  }
}

// A GGUF file and the folder of one model must read a text alike.
TEST(AddedTokensTest, Phi3TakesBlanksFromAGgufFileToo) {
  model::TokenizerMetadata metadata;
  metadata.architecture = "phi3";
  metadata.model = "llama";
  metadata.tokens = {"<unk>", "<s>", "</s>", "a", "<|endoftext|>", "<|user|>"};
  using Type = model::GgufTokenType;
  metadata.token_types = {Type::kUnknown, Type::kControl, Type::kUserDefined,
                          Type::kNormal,  Type::kControl, Type::kControl};
  const std::vector<int32_t> taking = {0, 0, kTakesBlanksAfter, 0, 0, kTakesBlanksAfter};
  EXPECT_EQ(TokenizerSpecFrom(metadata).token_traits, taking);
  metadata.token_traits.assign(6, 0);  // `baton convert` wrote them
  EXPECT_EQ(TokenizerSpecFrom(metadata).token_traits, metadata.token_traits);
  metadata.token_traits.clear();
  metadata.no_token_traits = true;
  EXPECT_THAT(TokenizerSpecFrom(metadata).token_traits, ::testing::IsEmpty());
  metadata.no_token_traits = false;
  metadata.architecture = "llama";
  EXPECT_THAT(TokenizerSpecFrom(metadata).token_traits, ::testing::IsEmpty());
  metadata.architecture = "phi3";
  metadata.model = "gpt2";  // Phi-4
  EXPECT_THAT(TokenizerSpecFrom(metadata).token_traits, ::testing::IsEmpty());
}

}  // namespace
}  // namespace baton::text
