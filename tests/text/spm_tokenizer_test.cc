// SentencePiece-style tokenizers: against SentencePiece itself (spm_golden.json), against a naive
// program on random vocabularies, and the rules of spaces.
#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/text/chat_encoder.h"
#include "src/text/detokenizer.h"
#include "src/text/spm_encoder.h"
#include "src/text/tokenizer.h"
#include "src/text/utf8.h"
#include "tests/model/test_model.h"
#include "tests/text/golden_file.h"
#include "tests/text/test_spec.h"

namespace baton::text {

using model::GgufFile;
using model::ReadTokenizerMetadata;

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const nlohmann::json& Golden() {
  static const nlohmann::json golden = ReadGolden("spm_golden.json");
  return golden;
}

TokenizerSpec GoldenSpec(const std::string& name) {
  const nlohmann::json& entry = Golden()["vocabularies"][name];
  TokenizerSpec spec;
  spec.model = "llama";
  spec.tokens = entry["tokens"].get<std::vector<std::string>>();
  spec.scores = entry["scores"].get<std::vector<float>>();
  spec.token_types = entry["token_types"].get<std::vector<int32_t>>();
  spec.add_space_prefix = entry["add_space_prefix"].get<bool>();
  spec.unk_id = 0;
  spec.bos_id = 1;
  spec.eos_id = 2;
  return spec;
}

TEST(SpmTokenizerTest, GoldenVocabulariesDifferInTheirIds) {
  const nlohmann::json& all = Golden()["vocabularies"];
  for (const char* name : {"gemma", "ties", "unused"}) {
    size_t num_other = 0;
    for (size_t i = 0; i < all[name]["ids"].size(); ++i) {
      num_other += all[name]["ids"][i] != all["llama"]["ids"][i] ? 1 : 0;
    }
    EXPECT_GT(num_other, 10u) << name;
  }
}

class SpmGoldenTest : public testing::TestWithParam<std::string> {};

TEST_P(SpmGoldenTest, IdsAndTextsAreThoseOfSentencePiece) {
  const auto tokenizer = MakeTokenizer(GoldenSpec(GetParam()));
  const nlohmann::json& entry = Golden()["vocabularies"][GetParam()];
  ASSERT_EQ(entry["ids"].size(), HardStrings().size());
  ASSERT_GE(HardStrings().size(), 700u);
  for (size_t i = 0; i < HardStrings().size(); ++i) {
    const std::string& text = HardStrings()[i];
    const std::vector<TokenId> ids = tokenizer->Encode(text).value();
    EXPECT_EQ(HashOf(ids), entry["ids"][i].get<uint32_t>())
        << nlohmann::json(text) << " gives " << testing::PrintToString(ids);
    const std::string back = tokenizer->Decode(ids, false).value();
    EXPECT_EQ(HashOf(back), entry["decoded"][i].get<uint32_t>()) << nlohmann::json(text);
    EXPECT_EQ(back, WithPlainSpaces(text));
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, SpmGoldenTest,
                         testing::Values("llama", "gemma", "ties", "unused"),
                         [](const auto& info) { return info.param; });

TEST(SpmTokenizerTest, GgufFormOfUserDefinedSpacesGivesTheSameIds) {
  // Converters write the user-defined runs of spaces as plain spaces, with a score far below all.
  TokenizerSpec spec = GoldenSpec("gemma");
  size_t num_changed = 0;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (spec.token_types[id] != static_cast<int32_t>(TokenType::kUserDefined)) continue;
    num_changed += spec.tokens[id].find(kSpmSpace) == std::string::npos ? 0 : 1;
    spec.tokens[id] = WithPlainSpaces(spec.tokens[id]);
    spec.scores[id] = -1000;
  }
  ASSERT_EQ(num_changed, 7u);
  const auto tokenizer = MakeTokenizer(spec);
  const nlohmann::json& hashes = Golden()["vocabularies"]["gemma"]["ids"];
  for (size_t i = 0; i < HardStrings().size(); ++i) {
    EXPECT_EQ(HashOf(tokenizer->Encode(HardStrings()[i]).value()), hashes[i].get<uint32_t>());
  }
}

// The real vocabulary.
TEST(SpmTokenizerTest, Gemma3FileGivesTheIdsOfItsTokenizerJson) {
  const auto file = GgufFile::Open(model::Gemma3Path());
  ASSERT_TRUE(file.ok()) << file.status();
  const auto metadata = ReadTokenizerMetadata(**file);
  ASSERT_TRUE(metadata.ok()) << metadata.status();
  const auto tokenizer = MakeTokenizer(TokenizerSpecFrom(*metadata));
  EXPECT_TRUE(tokenizer->add_bos());
  EXPECT_TRUE(tokenizer->IsEog(106));  // <end_of_turn>
  const nlohmann::json golden = ReadGolden("folder_golden.json");
  const nlohmann::json& entry = golden["gemma3_real"];
  size_t num_left_out = 0;
  for (size_t i = 0; i < HardStrings().size(); ++i) {
    // tokenizer.json cuts a written run of U+2581 apart from the space before it; SentencePiece,
    // which the file is converted from, takes them as one run.
    if (HardStrings()[i].find(" \u2581\u2581") != std::string::npos) {
      ++num_left_out;
      continue;
    }
    const std::vector<TokenId> ids = tokenizer->Encode(HardStrings()[i]).value();
    EXPECT_EQ(HashOf(ids), entry["ids"][i].get<uint32_t>())
        << nlohmann::json(HardStrings()[i]) << " gives " << testing::PrintToString(ids);
    const std::string back = tokenizer->Decode(ids, false).value();
    EXPECT_EQ(HashOf(back), entry["decoded"][i].get<uint32_t>());
  }
  EXPECT_EQ(num_left_out, 1u);
}

// <unk> <s> </s>, the 256 bytes (id = byte + 3), then `pieces` with falling scores.
TokenizerSpec SpmSpec(const std::vector<std::string>& pieces) {
  TokenizerSpec spec;
  spec.model = "llama";
  const auto add = [&spec](const std::string& text, TokenType type, float score) {
    AddToken(spec, text, type);
    spec.scores.push_back(score);
  };
  add("<unk>", TokenType::kUnknown, 0);
  add("<s>", TokenType::kControl, 0);
  add("</s>", TokenType::kControl, 0);
  for (int byte = 0; byte < 256; ++byte) {
    add(fmt::format("<0x{:02X}>", byte), TokenType::kByte, 0);
  }
  float score = 0;
  for (const std::string& piece : pieces) add(piece, TokenType::kNormal, score -= 1);
  spec.bos_id = 1;
  spec.eos_id = 2;
  return spec;
}

constexpr TokenId kFirstPiece = 259;

TEST(SpmTokenizerTest, SpacePrefixFollowsTheModel) {
  // 259 "▁", 260 "a", 261 "▁a"
  TokenizerSpec spec = SpmSpec({"\u2581", "a", "\u2581a"});
  const TokenId tag = AddToken(spec, "<t>", TokenType::kUserDefined);
  spec.scores.push_back(0);
  const auto after_specials = MakeTokenizer(spec);  // the default
  EXPECT_THAT(after_specials->Encode("a").value(), ElementsAre(261));
  EXPECT_THAT(after_specials->Encode("").value(), ElementsAre());
  EXPECT_THAT(after_specials->Encode(" a").value(), ElementsAre(259, 261));
  EXPECT_THAT(after_specials->Encode("a<t>a").value(), ElementsAre(261, tag, 261));
  EXPECT_THAT(after_specials->Encode("a", {.add_special = true}).value(), ElementsAre(1, 261));
  EXPECT_THAT(after_specials->Encode("<s>a", {.parse_special = true}).value(), ElementsAre(1, 261));

  spec.space_prefix_at_start_only = true;
  const auto at_start = MakeTokenizer(spec);
  EXPECT_THAT(at_start->Encode("a<t>a").value(), ElementsAre(261, tag, 260));
  EXPECT_THAT(at_start->Encode("<t>a").value(), ElementsAre(tag, 260));
  EXPECT_THAT(at_start->Encode("a", {.add_special = true}).value(), ElementsAre(1, 261));
  EXPECT_THAT(at_start->Encode("<s>a", {.parse_special = true}).value(), ElementsAre(1, 260));

  spec.add_space_prefix = false;
  const auto never = MakeTokenizer(spec);
  EXPECT_THAT(never->Encode("a<t> a").value(), ElementsAre(260, tag, 261));
}

TEST(SpmTokenizerTest, TheSpaceBeforeATextIsTakenOffAgainAndOnlyThere) {
  TokenizerSpec spec = SpmSpec({"\u2581", "a", "\u2581a"});
  const auto tokenizer = MakeTokenizer(spec);
  const auto decode = [&](const std::vector<TokenId>& ids, bool skip_special) {
    return tokenizer->Decode(ids, skip_special).value();
  };
  EXPECT_EQ(decode({261, 261}, false), "a a");
  EXPECT_EQ(decode({259, 261}, false), " a");
  EXPECT_EQ(decode({1, 261}, true), "a");
  EXPECT_EQ(decode({1, 261}, false), "<s> a");
  EXPECT_EQ(decode({3 + ' ', 260}, false), "a") << "a space that came as a byte";
  Detokenizer answer(tokenizer.get(), true);
  EXPECT_EQ(answer.Push(261), " a") << "an answer continues its prompt";
  Detokenizer text(tokenizer.get(), true, /*begins_text=*/true);
  EXPECT_EQ(text.Push(1), "");
  EXPECT_EQ(text.Push(261), "a");
  EXPECT_EQ(text.Push(261), " a");
  spec.add_space_prefix = false;
  EXPECT_EQ(MakeTokenizer(spec)->Decode(std::vector<TokenId>{261}, false).value(), " a");
}

TEST(SpmTokenizerTest, BytesStandInForCharactersAndAreJoinedWhole) {
  const auto tokenizer = MakeTokenizer(SpmSpec({"\u2581", "a"}));
  const std::vector<TokenId> ids = tokenizer->Encode("a\u00e9\U0001f600").value();
  EXPECT_THAT(ids,
              ElementsAre(259, 260, 3 + 0xc3, 3 + 0xa9, 3 + 0xf0, 3 + 0x9f, 3 + 0x98, 3 + 0x80));
  Detokenizer detokenizer(tokenizer.get(), true, true);
  std::vector<std::string> parts;
  for (const TokenId id : ids) parts.push_back(detokenizer.Push(id));
  EXPECT_THAT(parts, ElementsAre("", "a", "", "\u00e9", "", "", "", "\U0001f600"));
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(SpmTokenizerTest, ASpaceWithoutATokenIsTheBytesOfItsMark) {
  TokenizerSpec spec = SpmSpec({"a"});
  spec.add_space_prefix = false;
  EXPECT_THAT(MakeTokenizer(spec)->Encode("a a").value(),
              ElementsAre(259, 3 + 0xe2, 3 + 0x96, 3 + 0x81, 259));
}

TEST(SpmTokenizerTest, DetokenizerGivesTheSameTextForAnySplit) {
  RandomText random(TestSeed());
  const auto tokenizer = MakeTokenizer(GoldenSpec("llama"));
  for (int round = 0; round < 500; ++round) {
    std::vector<TokenId> ids;
    for (size_t n = random.Below(30); n > 0; --n) {
      // Bytes often, so that characters are broken in every way.
      const size_t vocab = random.Below(2) == 0 ? 260 : tokenizer->vocab_size();
      ids.push_back(static_cast<TokenId>(random.Below(vocab)));
    }
    for (const bool skip : {false, true}) {
      Detokenizer detokenizer(tokenizer.get(), skip, true);
      std::string joined;
      for (const TokenId id : ids) {
        const std::string part = detokenizer.Push(id);
        EXPECT_EQ(ValidUtf8Prefix(part), part.size());
        joined += part;
      }
      joined += detokenizer.Flush();
      EXPECT_EQ(joined, tokenizer->Decode(ids, skip).value());
    }
  }
}

// SentencePiece's rule word for word: of all neighbours take the pair with the best score, of
// equals the leftmost, until none is left. O(n^3).
std::vector<TokenId> NaiveEncode(const TokenizerSpec& spec, const std::string& text) {
  std::map<std::string, TokenId> ids;
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (spec.token_types[id] == 1) ids[spec.tokens[id]] = static_cast<TokenId>(id);
  }
  for (size_t rank = spec.merges.size(); rank-- > 0;) {
    const size_t space = spec.merges[rank].find(' ');
    ranks[{spec.merges[rank].substr(0, space), spec.merges[rank].substr(space + 1)}] = rank;
  }
  std::vector<std::string> parts;
  for (size_t pos = 0; pos < text.size();) {
    const size_t size = CharacterSize(static_cast<uint8_t>(text[pos]));
    parts.push_back(text[pos] == ' ' ? std::string(kSpmSpace) : text.substr(pos, size));
    pos += size;
  }
  while (true) {
    std::optional<double> best;
    size_t best_at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      std::optional<double> goodness;
      if (spec.scores.empty()) {
        const auto found = ranks.find({parts[i], parts[i + 1]});
        if (found != ranks.end()) goodness = -static_cast<double>(found->second);
      } else if (const auto found = ids.find(parts[i] + parts[i + 1]); found != ids.end()) {
        goodness = spec.scores[found->second];
      }
      if (goodness && (!best || *goodness > *best)) {
        best = goodness;
        best_at = i;
      }
    }
    if (!best) break;
    parts[best_at] += parts[best_at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
  std::vector<TokenId> out;
  for (const std::string& part : parts) {
    const auto found = ids.find(part);
    if (found != ids.end()) {
      out.push_back(found->second);
      continue;
    }
    for (const char c : part) out.push_back(3 + static_cast<uint8_t>(c));
  }
  return out;
}

// A vocabulary of random pieces over few characters, so that everything overlaps.
TokenizerSpec RandomSpec(RandomText& random, bool by_merges) {
  const std::vector<std::string> letters = {"a", "b", "\u2581", "\u00e9", "c"};
  std::vector<std::string> pieces;
  const size_t num_letters = 2 + random.Below(4);  // the others are bytes
  for (size_t i = 0; i < num_letters; ++i) pieces.push_back(letters[i]);
  for (int i = 0; i < 40; ++i) {
    std::string piece = random.Join(letters, 6);
    if (piece.empty() || std::count(pieces.begin(), pieces.end(), piece) > 0) continue;
    pieces.push_back(piece);
  }
  TokenizerSpec spec = SpmSpec(pieces);
  spec.add_space_prefix = false;
  if (!by_merges) {
    for (float& score : spec.scores) score = -static_cast<float>(random.Below(12));
    return spec;
  }
  spec.scores.clear();
  for (const std::string& left : pieces) {
    for (const std::string& right : pieces) {
      const bool makes_piece = std::count(pieces.begin(), pieces.end(), left + right) > 0;
      if (makes_piece && random.Below(4) != 0) spec.merges.push_back(left + " " + right);
    }
  }
  for (size_t i = spec.merges.size(); i > 1; --i) {
    std::swap(spec.merges[i - 1], spec.merges[random.Below(i)]);
  }
  if (spec.merges.empty()) spec.scores.assign(spec.tokens.size(), 0);
  return spec;
}

TEST(SpmTokenizerTest, RandomVocabulariesAgreeWithTheNaiveProgram) {
  RandomText random(TestSeed());
  for (int round = 0; round < 300; ++round) {
    const TokenizerSpec spec = RandomSpec(random, /*by_merges=*/round % 2 == 1);
    const auto tokenizer = MakeTokenizer(spec);
    for (int i = 0; i < 20; ++i) {
      const std::string text = random.Join({"a", "b", " ", "\u00e9", "c", "ab", "  "}, 24);
      EXPECT_EQ(tokenizer->Encode(text).value(), NaiveEncode(spec, text)) << nlohmann::json(text);
    }
  }
}

// Files of gemma4 have scores, all alike, and merges, which decide.
TEST(SpmTokenizerTest, MergesDecideInFilesOfGemma4) {
  RandomText random(TestSeed());
  for (int round = 0; round < 50; ++round) {
    TokenizerSpec spec = RandomSpec(random, /*by_merges=*/true);
    if (spec.merges.empty()) continue;
    TokenizerSpec gemma4 = spec;
    gemma4.model = "gemma4";
    gemma4.scores.assign(spec.tokens.size(), -1000.0f);
    gemma4.add_space_prefix.reset();  // no space comes before a text all the same
    const auto wanted = MakeTokenizer(spec);
    const auto tokenizer = MakeTokenizer(gemma4);
    for (int i = 0; i < 20; ++i) {
      const std::string text = random.Join({"a", "b", " ", "\u00e9", "c", "ab", "\n", "  "}, 24);
      EXPECT_EQ(tokenizer->Encode(text).value(), wanted->Encode(text).value())
          << nlohmann::json(text);
    }
    gemma4.merges.clear();
    EXPECT_THAT(std::string(Tokenizer::Create(gemma4).status().message()),
                HasSubstr("\"gemma4\" needs tokenizer.ggml.merges"));
  }
}

TEST(SpmTokenizerTest, ControlTokensAreOutOfReachOfText) {
  TokenizerSpec spec = SpmSpec({"<", "s", ">", "<s", "/", "</", "</s", "\u2581"});
  spec.add_space_prefix = false;
  const auto tokenizer = MakeTokenizer(spec);
  const auto tokens = tokenizer->Encode("<s></s><unk><0x41>");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_FALSE(tokens->empty());
  for (const TokenId id : *tokens) {
    EXPECT_FALSE(tokenizer->IsSpecial(id));
    EXPECT_NE(id, 3 + 'A');
  }
  EXPECT_THAT(tokenizer->Encode("<s>", {.parse_special = true}).value(), ElementsAre(1));
}

TEST(SpmTokenizerTest, ChatPiecesFollowThePrefixRule) {
  TokenizerSpec spec = SpmSpec({"\u2581", "a", "\u2581a", "b", "\u2581b"});
  const auto chat_template =
      ChatTemplate::Create("{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}b", "", "");
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  const std::vector<ChatMessage> messages = {{"user", "a"}};
  // bos is in the template, so it is not added again.
  EXPECT_THAT(EncodeChat(*MakeTokenizer(spec), *chat_template, messages)->tokens,
              ElementsAre(1, 261, 2, 263));
  spec.space_prefix_at_start_only = true;
  EXPECT_THAT(EncodeChat(*MakeTokenizer(spec), *chat_template, messages)->tokens,
              ElementsAre(1, 260, 2, 262));
}

// The space of a control token may be written as U+2581, and is one to the model.
TEST(SpmTokenizerTest, UserTextWithMarkedSpacesHoldsNoControlToken) {
  TokenizerSpec spec = SpmSpec({"\u2581", "a"});
  const TokenId end = AddToken(spec, "\u2581<EOT>", TokenType::kControl);
  const TokenId inner = AddToken(spec, "<a\u2581b>", TokenType::kControl);
  const TokenId last = AddToken(spec, "<c\u2581", TokenType::kControl);
  spec.scores.resize(spec.tokens.size());
  const auto tokenizer = MakeTokenizer(spec);
  const auto chat_template =
      ChatTemplate::Create("{% for m in messages %}{{ m.content }} <EOT>{% endfor %}", "", "");
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  for (const std::string content : {"a", "a\u2581<EOT>a", "\u2581<EOT>", "<a\u2581b>", "<c\u2581a",
                                    "a\u2581", "a <EOT>", "<a b>"}) {
    const std::vector<ChatMessage> talk = {{"user", content}};
    const ChatPrompt prompt = EncodeChat(*tokenizer, *chat_template, talk).value();
    EXPECT_EQ(std::ranges::count(prompt.tokens, end), 1) << content;
    EXPECT_EQ(prompt.tokens.back(), end) << content;
    EXPECT_EQ(std::ranges::count(prompt.tokens, inner), 0) << content;
    EXPECT_EQ(std::ranges::count(prompt.tokens, last), 0) << content;
    EXPECT_EQ(prompt.text, content + " <EOT>");
  }
  // As a client asks for it by parse_special, the two are the same.
  EXPECT_THAT(tokenizer->Encode("a\u2581<EOT>", {.parse_special = true}).value(),
              ::testing::Contains(end));
}

TEST(SpmTokenizerTest, LongInputsAreNotQuadratic) {
  const auto tokenizer = MakeTokenizer(GoldenSpec("llama"));
  std::vector<std::string> runs;
  std::string run = "a";
  for (int i = 0; i < 12; ++i) runs.push_back(run += run);
  const auto all_runs = MakeTokenizer(SpmSpec(runs));
  for (const char* unit : {"a", " ", "\n", "l", "ab", "\u4e2d", "the quick brown fox "}) {
    const std::string_view piece = unit;
    std::string text;
    while (text.size() < (size_t{1} << 20)) text += piece;
    const auto start = std::chrono::steady_clock::now();
    const std::vector<TokenId> ids = tokenizer->Encode(text).value();
    EXPECT_EQ(tokenizer->Decode(ids, false).value(), text);
    EXPECT_TRUE(all_runs->Encode(text).ok());
    // A quadratic loop would take many minutes.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << unit;
  }
}

TEST(SpmTokenizerTest, BadVocabulariesAreRefusedWithTheValues) {
  const auto refusal = [](const TokenizerSpec& spec) {
    const auto tokenizer = Tokenizer::Create(spec);
    return tokenizer.ok() ? "accepted" : std::string(tokenizer.status().message());
  };
  const TokenizerSpec good = SpmSpec({"\u2581", "a", "b", "ab"});
  EXPECT_EQ(refusal(good), "accepted");
  TokenizerSpec spec = good;
  spec.scores.clear();
  EXPECT_THAT(refusal(spec), HasSubstr("scores or merges"));
  spec.merges = {"a b", "a c"};
  EXPECT_THAT(refusal(spec), HasSubstr("merges[1] is \"a c\", but \"c\" is not a token"));
  spec.merges = {"b a"};
  EXPECT_THAT(refusal(spec), HasSubstr("\"ba\" is not a token"));
  spec.merges = {" a"};
  EXPECT_THAT(refusal(spec), HasSubstr("merges[0]"));
  spec.merges = {"a "};
  EXPECT_THAT(refusal(spec), HasSubstr("merges[0]"));
  spec = good;
  spec.scores[260] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(refusal(spec), HasSubstr("scores[260] is not a number"));
  spec = good;
  spec.tokens[5] = "<0xZZ>";
  EXPECT_THAT(refusal(spec), HasSubstr("tokens[5]"));
  spec = good;
  spec.tokens[kFirstPiece + 1] = "b";
  EXPECT_THAT(refusal(spec), HasSubstr("tokens[260] and [261] are both \"b\""));
}

}  // namespace
}  // namespace baton::text
