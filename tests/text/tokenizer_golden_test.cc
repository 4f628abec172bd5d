// Token ids against tests/golden/tokenizer_golden.json, made by a program that shares no code with
// ours (tests/golden/make_tokenizer_golden.py).
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/text/tokenizer.h"
#include "tests/text/golden_file.h"
#include "tests/text/test_spec.h"

namespace baton::text {
namespace {

const nlohmann::json& Golden() {
  static const nlohmann::json golden = ReadGolden("tokenizer_golden.json");
  return golden;
}

TEST(TokenizerGoldenTest, DemoModelIdsAreTheReferences) {
  const Tokenizer& tokenizer = DemoTokenizer();
  size_t num_checked = 0;
  for (const nlohmann::json& entry : Golden()["cases"]) {
    const std::string text = entry["text"];
    const auto ids = tokenizer.Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, entry["ids"].get<std::vector<TokenId>>()) << entry["text"];
    ++num_checked;
  }
  EXPECT_GE(num_checked, 600u);
}

TEST(TokenizerGoldenTest, SpecialsAreParsedWhereAsked) {
  const Tokenizer& tokenizer = DemoTokenizer();
  size_t num_with_specials = 0;
  for (const nlohmann::json& entry : Golden()["cases"]) {
    const std::string text = entry["text"];
    const auto ids = tokenizer.Encode(text, {.parse_special = true});
    ASSERT_TRUE(ids.ok()) << ids.status();
    const bool differs = entry.contains("parse_special");
    const auto& expected = differs ? entry["parse_special"] : entry["ids"];
    EXPECT_EQ(*ids, expected.get<std::vector<TokenId>>()) << entry["text"];
    num_with_specials += differs ? 1 : 0;
  }
  EXPECT_GE(num_with_specials, 20u);
}

TEST(TokenizerGoldenTest, DecodingGivesTheTextBack) {
  const Tokenizer& tokenizer = DemoTokenizer();
  size_t num_whole = 0;
  for (const nlohmann::json& entry : Golden()["cases"]) {
    const std::string text = entry["text"];
    std::string expected;
    // The bytes that the demo model has no token for.
    for (const char c : text) {
      if (std::string_view("\x04\x06\x13\x14\x16\x1d").find(c) == std::string_view::npos) {
        expected += c;
      }
    }
    num_whole += expected == text ? 1 : 0;
    const auto back = tokenizer.Decode(entry["ids"].get<std::vector<TokenId>>(), false);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, expected) << entry["text"];
  }
  EXPECT_GE(num_whole, 600u);
}

// A vocabulary whose merges cross every kind of boundary, so that a wrong cut shows in the ids.
TokenizerSpec ToySpec(const std::string& pre) {
  TokenizerSpec spec = ByteSpec();
  spec.pre = pre;
  spec.tokens.resize(256);
  std::set<std::string> known(spec.tokens.begin(), spec.tokens.end());
  spec.merges.clear();
  for (const nlohmann::json& merge : Golden()["toy_merges"]) {
    std::string joined = merge;
    spec.merges.push_back(joined);
    joined.erase(joined.find(' '), 1);
    if (known.insert(joined).second) spec.tokens.push_back(joined);
  }
  spec.token_types.assign(spec.tokens.size(), 1);
  return spec;
}

class SplitRuleTest : public testing::TestWithParam<std::string> {};

TEST_P(SplitRuleTest, CutsWhereTheReferenceDoes) {
  const auto tokenizer = Tokenizer::Create(ToySpec(GetParam()));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const nlohmann::json& cases = Golden()["cases"];
  const nlohmann::json& hashes = Golden()["toy_hashes"][GetParam()];
  ASSERT_EQ(hashes.size(), cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string text = cases[i]["text"];
    const auto ids = (*tokenizer)->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(HashOf(*ids), hashes[i].get<uint32_t>())
        << cases[i]["text"] << " gives " << testing::PrintToString(*ids);
    EXPECT_EQ((*tokenizer)->Decode(*ids, false).value(), text);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, SplitRuleTest,
                         testing::Values("smollm", "gpt-2", "llama-bpe", "qwen2", "qwen35",
                                         "tekken", "gpt-4o", "deepseek-llm", "deepseek-v3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace baton::text
