#include "src/text/tokenizer.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "src/text/pre_tokenizer.h"
#include "tests/text/test_spec.h"

namespace baton::text {

using limits::kMaxEncodeBytes;

namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

TEST(TokenizerTest, DemoModelIsWhatItsFileSays) {
  const Tokenizer& tokenizer = DemoTokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 49152u);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_EQ(tokenizer.pad_id(), 2);
  EXPECT_FALSE(tokenizer.add_bos());
  EXPECT_THAT(std::vector<TokenId>(tokenizer.eog_ids().begin(), tokenizer.eog_ids().end()),
              ElementsAre(0, 2));
  EXPECT_THAT(EogTokensOf(DemoSpec()).value(), ElementsAre(0, 2));
  EXPECT_TRUE(tokenizer.IsSpecial(1));
  EXPECT_FALSE(tokenizer.IsEog(1));
  EXPECT_FALSE(tokenizer.IsSpecial(17));
  EXPECT_EQ(tokenizer.TokenBytes(2), "<|im_end|>");
}

TEST(TokenizerTest, IdsOutsideTheVocabularyAreHarmless) {
  const Tokenizer& tokenizer = DemoTokenizer();
  for (const TokenId id : {-1, 49152, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(tokenizer.IsValid(id));
    EXPECT_FALSE(tokenizer.IsSpecial(id));
    EXPECT_FALSE(tokenizer.IsEog(id));
    EXPECT_EQ(tokenizer.TokenBytes(id), "");
    const std::vector<TokenId> ids = {5, id};
    EXPECT_THAT(std::string(tokenizer.Decode(ids, false).status().message()),
                HasSubstr(std::to_string(id)));
  }
}

TEST(TokenizerTest, EveryTokenIsDecodedAsItsLettersSay) {
  const Tokenizer& tokenizer = DemoTokenizer();
  for (TokenId id = 0; id < 49152; ++id) {
    const std::string& text = DemoSpec().tokens[id];
    std::string letters;
    for (const char c : tokenizer.TokenBytes(id)) letters += ByteLetter(static_cast<uint8_t>(c));
    EXPECT_EQ(tokenizer.IsSpecial(id) ? std::string(tokenizer.TokenBytes(id)) : letters, text);
  }
}

TEST(TokenizerTest, UserTextNeverGivesControlTokens) {
  RandomText random(TestSeed());
  std::vector<std::string> parts = {" ", "a", "\n", "<", "|", ">", "<|", "|>", "im_end", "é"};
  for (TokenId id = 0; id < 17; ++id) parts.push_back(DemoSpec().tokens[id]);
  for (int round = 0; round < 3000; ++round) {
    const std::string text = random.Join(parts, 12);
    const std::vector<TokenId> ids = DemoTokenizer().Encode(text).value();
    for (const TokenId id : ids) EXPECT_FALSE(DemoTokenizer().IsSpecial(id)) << text;
    EXPECT_EQ(DemoTokenizer().Decode(ids, false).value(), text);
    EXPECT_EQ(DemoTokenizer().Decode(ids, true).value(), text);
  }
}

TEST(TokenizerTest, ControlTokensAreOutOfReachOfMergesToo) {
  TokenizerSpec spec = ByteSpec();
  const TokenId control = AddToken(spec, "xy", TokenType::kControl);
  const TokenId after = AddToken(spec, "xyz", TokenType::kNormal);
  const TokenId unknown = AddToken(spec, "uv", TokenType::kUnknown);
  spec.merges.insert(spec.merges.end(), {"x y", "xy z", "u v"});
  for (const char* pre : {"gpt-2", "llama-bpe"}) {
    spec.pre = pre;
    const auto tokenizer = MakeTokenizer(spec);
    EXPECT_THAT(tokenizer->Encode("xy").value(), ElementsAre('x', 'y'));
    EXPECT_THAT(tokenizer->Encode("uv").value(), ElementsAre('u', 'v'));
    EXPECT_THAT(tokenizer->Encode("xy", {.parse_special = true}).value(), ElementsAre(control));
    EXPECT_THAT(tokenizer->Encode("uv", {.parse_special = true}).value(), ElementsAre(unknown));
    // As a piece of its own it is a token under ignore_merges; by merging it cannot be reached.
    if (spec.pre == "gpt-2") {
      EXPECT_THAT(tokenizer->Encode("xyz").value(), ElementsAre('x', 'y', 'z'));
    } else {
      EXPECT_THAT(tokenizer->Encode("xyz").value(), ElementsAre(after));
    }
  }
}

TEST(TokenizerTest, UserDefinedTokensComeOutOfAllTextLongestFirst) {
  TokenizerSpec spec = ByteSpec();
  const TokenId think = AddToken(spec, "<think>", TokenType::kUserDefined);
  const TokenId two = AddToken(spec, "\n\n", TokenType::kUserDefined);
  const TokenId four = AddToken(spec, "\n\n\n\n", TokenType::kUserDefined);
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_THAT(tokenizer->Encode("a<think>ab").value(), ElementsAre('a', think, 256));
  EXPECT_THAT(tokenizer->Encode("\n\n\n\n\n\n\n").value(), ElementsAre(four, two, '\n'));
  EXPECT_EQ(tokenizer->TokenBytes(two), "\n\n");
  EXPECT_FALSE(tokenizer->IsSpecial(think));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("<think>\n\n").value(), true).value(),
            "<think>\n\n");
}

TEST(TokenizerTest, BosAndEosAreAddedWhereAsked) {
  TokenizerSpec spec = ByteSpec();
  spec.bos_id = AddToken(spec, "<s>", TokenType::kControl);
  spec.eos_id = AddToken(spec, "</s>", TokenType::kControl);
  const TokenId bos = *spec.bos_id, eos = *spec.eos_id;
  EXPECT_THAT(MakeTokenizer(spec)->Encode("a", {.add_special = true}).value(), ElementsAre('a'));
  spec.add_bos = spec.add_eos = true;
  const auto both = MakeTokenizer(spec);
  EXPECT_THAT(both->Encode("a", {.add_special = true}).value(), ElementsAre(bos, 'a', eos));
  EXPECT_THAT(both->Encode("", {.add_special = true}).value(), ElementsAre(bos, eos));
  EXPECT_THAT(both->Encode("a").value(), ElementsAre('a'));
  EXPECT_EQ(both->Decode(std::vector<TokenId>{bos, 'a', eos}, true).value(), "a");
  // The llama-bpe rule's own default, and the file's word against it.
  spec.pre = "llama-bpe";
  spec.add_bos = spec.add_eos = std::nullopt;
  EXPECT_THAT(MakeTokenizer(spec)->Encode("a", {.add_special = true}).value(),
              ElementsAre(bos, 'a'));
  spec.add_bos = false;
  EXPECT_THAT(MakeTokenizer(spec)->Encode("a", {.add_special = true}).value(), ElementsAre('a'));
}

TEST(TokenizerTest, EndOfGenerationIsWhatEndsATurn) {
  TokenizerSpec spec = ByteSpec();
  const TokenId eos = AddToken(spec, "<eos>", TokenType::kControl);
  const TokenId eot = AddToken(spec, "<t>", TokenType::kControl);
  const TokenId eom = AddToken(spec, "<m>", TokenType::kControl);
  const TokenId known = AddToken(spec, "<|eot_id|>", TokenType::kControl);
  const TokenId mistyped = AddToken(spec, "<|im_end|>", TokenType::kUserDefined);
  const TokenId normal = AddToken(spec, "<end_of_turn>", TokenType::kNormal);
  AddToken(spec, "<other>", TokenType::kControl);
  spec.eos_id = eos;
  spec.eot_id = eot;
  spec.eom_id = eom;
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_THAT(std::vector<TokenId>(tokenizer->eog_ids().begin(), tokenizer->eog_ids().end()),
              ElementsAre(eos, eot, eom, known, mistyped, normal));
  for (const TokenId id : {mistyped, normal}) {
    EXPECT_TRUE(tokenizer->IsSpecial(id));
    const std::vector<TokenId> alone = {id};
    const std::string& text = spec.tokens[static_cast<size_t>(id)];
    EXPECT_NE(tokenizer->Encode(text).value(), alone);
    EXPECT_EQ(tokenizer->Encode(text, {.parse_special = true}).value(), alone);
  }
  EXPECT_THAT(EogTokensOf(spec).value(), ElementsAreArray(tokenizer->eog_ids()));
  spec.token_types.clear();
  EXPECT_TRUE(MakeTokenizer(spec)->IsEog(known)) << "types are optional";
  EXPECT_THAT(EogTokensOf(spec).value(), ElementsAreArray(MakeTokenizer(spec)->eog_ids()));
}

TEST(TokenizerTest, HarmonyEndIsNotTheEnd) {
  TokenizerSpec spec = ByteSpec();
  const TokenId end = AddToken(spec, "<|end|>", TokenType::kControl);
  EXPECT_TRUE(MakeTokenizer(spec)->IsEog(end));
  const TokenId ret = AddToken(spec, "<|return|>", TokenType::kControl);
  const TokenId call = AddToken(spec, "<|call|>", TokenType::kControl);
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_FALSE(tokenizer->IsEog(end));
  EXPECT_TRUE(tokenizer->IsEog(ret));
  EXPECT_TRUE(tokenizer->IsEog(call));
  EXPECT_THAT(EogTokensOf(spec).value(), ElementsAre(ret, call));
  spec.eot_id = end;
  EXPECT_TRUE(MakeTokenizer(spec)->IsEog(end)) << "the file says so";
  EXPECT_THAT(EogTokensOf(spec).value(), ElementsAre(end, ret, call));
}

TEST(TokenizerTest, BadTextIsRefusedWithItsPlace) {
  const auto invalid = DemoTokenizer().Encode("abc\xff");
  EXPECT_EQ(invalid.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(invalid.status().message()), HasSubstr("byte 3"));
  const auto surrogate = DemoTokenizer().Encode("\xED\xA0\x80");
  EXPECT_EQ(surrogate.status().code(), StatusCode::kInvalidArgument);
  const auto huge = DemoTokenizer().Encode(std::string(kMaxEncodeBytes + 1, 'a'));
  EXPECT_THAT(std::string(huge.status().message()), HasSubstr("4194304"));
}

// The worst runs for the split rules' backtracking engine, at the largest size that is let through.
TEST(TokenizerTest, TheLargestTextsAreEncoded) {
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen35", "tekken", "gpt-4o",
                          "deepseek-llm", "deepseek-v3"}) {
    TokenizerSpec spec = ByteSpec();
    spec.pre = pre;
    const auto tokenizer = MakeTokenizer(spec);
    for (const std::string unit : {" ", "Z"}) {
      std::string text;
      while (text.size() + 1 < kMaxEncodeBytes) text += unit;
      text += "x";
      const auto ids = tokenizer->Encode(text);
      ASSERT_TRUE(ids.ok()) << pre << " " << testing::PrintToString(unit) << ids.status();
      EXPECT_EQ(ids->size(), text.size());
    }
  }
}

// Spaces that the rule for the end of a text meets before its end.
TEST(TokenizerTest, ALongRunOfSpacesWithinATextIsEncoded) {
  TokenizerSpec spec = ByteSpec();
  spec.pre = "deepseek-llm";
  const auto ids = MakeTokenizer(spec)->Encode(std::string(kMaxEncodeBytes - 3, ' ') + "中");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->size(), kMaxEncodeBytes);
}

TEST(TokenizerTest, ThreadsShareOneTokenizer) {
  const Tokenizer& tokenizer = DemoTokenizer();
  const std::string text = "The quick brown fox, 12 naïve 日本語 <|im_end|> tokens.";
  const std::vector<TokenId> expected = tokenizer.Encode(text).value();
  std::vector<int> num_wrong(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::string suffix = " word" + std::to_string(t * 1000 + i);
        const auto ids = tokenizer.Encode(text + suffix);
        const bool same = ids.ok() && ids->size() > expected.size() &&
                          std::equal(expected.begin(), expected.end(), ids->begin());
        num_wrong[t] += same ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(num_wrong, ElementsAre(0, 0, 0, 0));
}

// Encoding is a function of the text: any text of the vocabulary's letters comes back.
TEST(TokenizerTest, RandomTextComesBack) {
  RandomText random(TestSeed());
  TokenizerSpec spec = DemoSpec();
  const std::vector<std::string> parts = {"the", " model", "é",      "中文", "😀",
                                          "\n",  "\t",     "  ",     "12",   "'s",
                                          "!",   "\u0301", "\u200d", "ـ",    "가"};
  for (const char* pre : {"smollm", "gpt-2", "llama-bpe", "qwen2", "qwen35", "tekken", "gpt-4o",
                          "deepseek-llm", "deepseek-v3"}) {
    spec.pre = pre;
    const auto tokenizer = MakeTokenizer(spec);
    for (int round = 0; round < 300; ++round) {
      const std::string text = random.Join(parts, 30);
      const auto ids = tokenizer->Encode(text);
      ASSERT_TRUE(ids.ok());
      EXPECT_EQ(tokenizer->Decode(*ids, false).value(), text) << pre;
    }
  }
}

// A bad spec: what is wrong with it, and what its error must name.
struct BadSpec {
  const char* name;
  std::function<void(TokenizerSpec&)> damage;
  StatusCode code;
  const char* message;
};

// Each token within its limit, all together above theirs.
void LengthenTokens(TokenizerSpec& spec) {
  spec.token_types.clear();
  for (int i = 0; i < 17000; ++i) {
    spec.tokens.push_back(std::to_string(i) + std::string(4000, 'x'));
  }
}

// 1025 user-defined tokens of 4096 bytes.
void AddLongSpecials(TokenizerSpec& spec) {
  for (int i = 0; i <= 1024; ++i) {
    AddToken(spec, fmt::format("{:04096}", i), TokenType::kUserDefined);
  }
}

TEST(TokenizerTest, BadSpecsGiveOneClearError) {
  const StatusCode kInvalid = StatusCode::kInvalidArgument;
  const StatusCode kMissing = StatusCode::kUnimplemented;
  const BadSpec cases[] = {
      {"wpm", [](auto& s) { s.model = "t5"; }, kMissing, "\"t5\""},
      {"bert", [](auto& s) { s.model = "bert"; }, kMissing, "\"bert\""},
      {"no model", [](auto& s) { s.model = ""; }, kMissing, "tokenizer.ggml.model \"\""},
      {"pre", [](auto& s) { s.pre = "falcon"; }, kMissing,
       "gpt-2, starcoder, llama-bpe, qwen2, qwen35, tekken, gpt-4o, deepseek-llm, deepseek-v3"},
      {"far pre", [](auto& s) { s.pre = "bloom"; }, kMissing, "\"bloom\""},
      {"no tokens", [](auto& s) { s.tokens.clear(); }, kInvalid, "0 entries"},
      {"types", [](auto& s) { s.token_types.pop_back(); }, kInvalid, "256 entries for 257 tokens"},
      {"scores", [](auto& s) { s.scores = {1.0f}; }, kInvalid, "1 entries for 257 tokens"},
      {"type", [](auto& s) { s.token_types[9] = 7; }, kInvalid, "token_type[9] is 7"},
      {"type -1", [](auto& s) { s.token_types[9] = -1; }, kInvalid, "token_type[9] is -1"},
      {"duplicate", [](auto& s) { s.tokens[256] = "a"; }, kInvalid, "[97] and [256]"},
      {"utf-8", [](auto& s) { s.tokens[256] = "\xff"; }, kInvalid, "tokens[256] is not UTF-8"},
      {"long", [](auto& s) { s.tokens[256].assign(5000, 'x'); }, kInvalid, "5000 bytes"},
      {"all long", [](auto& s) { LengthenTokens(s); }, kInvalid, "more than 67108864 bytes"},
      {"long control", [](auto& s) { AddToken(s, std::string(257, 'x'), TokenType::kControl); },
       kInvalid, "control token 257 has 257 bytes, more than 256"},
      {"specials", [](auto& s) { AddLongSpecials(s); }, kInvalid, "more than 4194304 bytes"},
      {"traits",
       [](auto& s) {
         s.token_traits = {0, 1};
       },
       kInvalid, "2 entries for 257 tokens"},
      {"trait", [](auto& s) { s.token_traits.assign(257, 32); }, kInvalid, "[0] is 32, outside"},
      {"merge",
       [](auto& s) {
         s.merges = {"a b", "ab"};
       },
       kInvalid, "merges[1] is \"ab\""},
      {"merge ''", [](auto& s) { s.merges = {""}; }, kInvalid, "merges[0]"},
      {"merge end", [](auto& s) { s.merges = {"a "}; }, kInvalid, "merges[0]"},
      // Merges make longer tokens of shorter ones; only an empty part could turn in a circle.
      {"merge cycle", [](auto& s) { s.merges = {" a"}; }, kInvalid, "merges[0]"},
      {"merge left", [](auto& s) { s.merges = {"qq b"}; }, kInvalid, "\"qq\" is not a token"},
      {"merge right", [](auto& s) { s.merges = {"a qq"}; }, kInvalid, "\"qq\" is not a token"},
      {"merge result", [](auto& s) { s.merges = {"b a"}; }, kInvalid, "\"ba\" is not a token"},
      {"bos", [](auto& s) { s.bos_id = 257; }, kInvalid, "bos_token_id is 257"},
      {"eos", [](auto& s) { s.eos_id = 0xffffffff; }, kInvalid, "eos_token_id is 4294967295"},
      {"eot", [](auto& s) { s.eot_id = 999; }, kInvalid, "eot_token_id is 999"},
      {"eom", [](auto& s) { s.eom_id = 999; }, kInvalid, "eom_token_id is 999"},
      {"unk", [](auto& s) { s.unk_id = 999; }, kInvalid, "unknown_token_id is 999"},
      {"pad", [](auto& s) { s.pad_id = 999; }, kInvalid, "padding_token_id is 999"},
      {"add bos", [](auto& s) { s.add_bos = true; }, kInvalid, "no bos_token_id"},
      {"add eos", [](auto& s) { s.add_eos = true; }, kInvalid, "no eos_token_id"},
  };
  size_t num_seen_by_both = 0;
  for (const BadSpec& bad : cases) {
    TokenizerSpec spec = ByteSpec();
    ASSERT_TRUE(Tokenizer::Create(spec).ok());
    bad.damage(spec);
    const auto tokenizer = Tokenizer::Create(spec);
    ASSERT_FALSE(tokenizer.ok()) << bad.name;
    EXPECT_EQ(tokenizer.status().code(), bad.code) << bad.name;
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(bad.message)) << bad.name;
    // Faults of tokens and merges are not looked for.
    const auto ends = EogTokensOf(spec);
    if (!ends.ok()) {
      EXPECT_EQ(ends.status(), tokenizer.status()) << bad.name;
    }
    num_seen_by_both += ends.ok() ? 0 : 1;
  }
  EXPECT_GE(num_seen_by_both, 20u);
}

TEST(TokenizerTest, OddButUsableSpecsAreTaken) {
  TokenizerSpec spec = ByteSpec();
  spec.merges.push_back("a b");            // twice: the first place counts
  AddToken(spec, "", TokenType::kUnused);  // padding of the vocabulary
  AddToken(spec, "", TokenType::kControl);
  AddToken(spec, "日本", TokenType::kNormal);  // not in the alphabet: stands for itself
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_THAT(tokenizer->Encode("ab").value(), ElementsAre(256));
  EXPECT_EQ(tokenizer->TokenBytes(259), "日本");
  EXPECT_EQ(tokenizer->TokenBytes(258), "");
  for (const char* pre : {"", "default"}) {
    spec.pre = pre;
    EXPECT_THAT(MakeTokenizer(spec)->Encode("ab 12").value(), ElementsAre(256, ' ', '1', '2'));
  }
  spec.token_types.clear();
  EXPECT_TRUE(Tokenizer::Create(spec).ok()) << "types are optional";
}

TEST(TokenizerTest, RandomSpecsNeverCrash) {
  RandomText random(TestSeed());
  const std::vector<std::string> parts = {"a", "b", "ab", " ", "Ġ", "é", "<", ">", "\n", ""};
  size_t num_built = 0;
  for (int round = 0; round < 1500; ++round) {
    TokenizerSpec spec;
    spec.model = "gpt2";
    spec.pre = "qwen2";
    const size_t num_tokens = 1 + random.Below(12);
    for (size_t i = 0; i < num_tokens; ++i) {
      spec.tokens.push_back(random.Join(parts, 3));
      spec.token_types.push_back(static_cast<int32_t>(random.Below(7)));
    }
    for (size_t i = random.Below(3); i > 0; --i) {
      spec.merges.push_back(spec.tokens[random.Below(num_tokens)] + " " +
                            spec.tokens[random.Below(num_tokens)]);
    }
    if (random.Below(3) == 0) spec.bos_id = static_cast<uint32_t>(random.Below(14));
    if (random.Below(3) == 0) spec.eot_id = static_cast<uint32_t>(random.Below(num_tokens));
    const auto tokenizer = Tokenizer::Create(spec);
    if (!tokenizer.ok()) continue;
    ++num_built;
    EXPECT_THAT(EogTokensOf(spec).value(), ElementsAreArray((*tokenizer)->eog_ids()));
    const auto ids = (*tokenizer)->Encode("ab <é>\n ab", {.parse_special = random.Below(2) == 0});
    ASSERT_TRUE(ids.ok()) << ids.status();
    for (const TokenId id : *ids) EXPECT_TRUE((*tokenizer)->IsValid(id));
  }
  EXPECT_GT(num_built, 100u);
}

TEST(PreTokenizerTest, AllNamesOfATableRowShareTheRule) {
  const std::vector<std::vector<std::string>> rows = {
      {"gpt-2", "phi-2", "mpt", "olmo", "jais"},
      {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"},
      {"llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2", "pixtral"},
      {"qwen2", "stablelm2", "hunyuan"},
      {"qwen35"},
      {"tekken"},
      {"dbrx", "smaug-bpe"},
      {"gpt-4o", "o200k", "llama4"},
      {"deepseek-llm"},
      {"deepseek-v3"}};
  for (const auto& row : rows) {
    const auto first = FindPreTokenizer(row[0]);
    ASSERT_TRUE(first.ok());
    for (const std::string& name : row) {
      const auto rule = FindPreTokenizer(name);
      ASSERT_TRUE(rule.ok()) << name;
      EXPECT_EQ(rule->patterns.data(), first->patterns.data()) << name;
    }
    const bool ignores = row[0] == "llama-bpe" || row[0] == "tekken" || row[0] == "gpt-4o";
    EXPECT_EQ(first->ignore_merges, ignores) << row[0];
  }
  // Digits one by one are the last of the six splits of DeepSeek-V2's tokenizer.json.
  const auto six = FindPreTokenizer("deepseek-llm");
  ASSERT_TRUE(six.ok());
  std::vector<std::string> patterns(six->patterns.begin(), six->patterns.end());
  EXPECT_EQ(patterns[3], R"((?<!\s)\s+$)") << "as fast for a run of spaces within a text";
  patterns[3] = R"(\s+$)";  // in the file
  EXPECT_EQ(patterns.back(), kSingleDigitPattern);
  EXPECT_EQ(FindRuleByPatterns(patterns).value(), "deepseek-llm");
  EXPECT_THAT(std::string(FindPreTokenizer("gemma4").status().message()), HasSubstr("gemma4"));
}

}  // namespace
}  // namespace baton::text
