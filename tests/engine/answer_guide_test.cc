// Masks of one choice: after thoughts or before them, and equal however the tokens came.
#include "src/engine/answer_guide.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/text/byte_letters.h"
#include "src/text/grammar_cache.h"

namespace baton::engine {

using text::ByteLetter;
using text::GrammarCache;
using text::Tokenizer;
using text::TokenizerSpec;
using text::TokenType;
using wire::AnswerGrammar;
using wire::GrammarKind;
using wire::GrammarStart;

namespace {

constexpr TokenId kEos = 256;
constexpr TokenId kThink = 257;
constexpr TokenId kThinkEnd = 258;

// Bytes, an end, and the tags of thoughts.
std::shared_ptr<const Tokenizer> Bytes(bool has_tags) {
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    spec.tokens.push_back(ByteLetter(static_cast<uint8_t>(byte)));
  }
  spec.token_types.assign(spec.tokens.size(), static_cast<int32_t>(TokenType::kNormal));
  const auto add = [&spec](const char* text, TokenType type) {
    spec.tokens.emplace_back(text);
    spec.token_types.push_back(static_cast<int32_t>(type));
  };
  add("<eos>", TokenType::kControl);
  if (has_tags) add("<think>", TokenType::kUserDefined);
  if (has_tags) add("</think>", TokenType::kUserDefined);
  spec.eos_id = kEos;
  return std::shared_ptr<const Tokenizer>(Tokenizer::Create(spec).value());
}

struct Rig {
  explicit Rig(bool has_tags = true) : cache(Bytes(has_tags)) {}

  std::unique_ptr<AnswerGuide> Follow(GrammarStart start, const std::vector<TokenId>& tokens = {}) {
    return guides.Follow(std::make_shared<AnswerGrammar>(AnswerGrammar{
                             .kind = GrammarKind::kChoice, .start = start, .text = R"(["yes"])"}),
                         tokens);
  }

  GrammarCache cache;
  AnswerGuides guides{&cache};
};

std::vector<TokenId> Allowed(AnswerGuide& guide) {
  const auto mask = guide.Mask();
  std::vector<TokenId> allowed;
  if (!mask.ok()) {
    ADD_FAILURE() << mask.status();
    return allowed;
  }
  for (TokenId id = 0; id <= kThinkEnd; ++id) {
    const auto bit = static_cast<uint32_t>(id);
    if (bit / 32 < mask->size() && ((*mask)[bit / 32] >> (bit % 32) & 1) != 0)
      allowed.push_back(id);
  }
  return allowed;
}

void Say(AnswerGuide& guide, std::string_view text) {
  for (const char c : text) guide.Accept(static_cast<unsigned char>(c));
}

TEST(AnswerGuideTest, AGrammarHoldsFromTheFirstToken) {
  Rig rig;
  const auto guide = rig.Follow(GrammarStart::kFirstToken);
  EXPECT_EQ(Allowed(*guide), std::vector<TokenId>{'y'});
  Say(*guide, "ye");
  EXPECT_EQ(Allowed(*guide), std::vector<TokenId>{'s'});
  Say(*guide, "s");
  EXPECT_EQ(Allowed(*guide), std::vector<TokenId>{kEos});
  EXPECT_EQ(Allowed(*guide), std::vector<TokenId>{kEos}) << "asking changes nothing";
}

TEST(AnswerGuideTest, AfterOpenThoughtsAnythingButAnEndMayCome) {
  Rig rig;
  const auto guide = rig.Follow(GrammarStart::kAfterThoughts);
  EXPECT_EQ(Allowed(*guide).size(), 258u);
  EXPECT_THAT(Allowed(*guide), ::testing::Not(::testing::Contains(kEos)));
  Say(*guide, "no, </think >");
  EXPECT_EQ(Allowed(*guide).size(), 258u);
  guide->Accept(kThinkEnd);
  EXPECT_EQ(Allowed(*guide), std::vector<TokenId>{'y'});
}

TEST(AnswerGuideTest, TheEndOfThoughtsIsFoundInAnySpelling) {
  Rig rig(/*has_tags=*/false);
  const auto guide = rig.Follow(GrammarStart::kAfterThoughts);
  Say(*guide, "hm <</think>");
  EXPECT_EQ(Allowed(*guide), std::vector<TokenId>{'y'});
}

TEST(AnswerGuideTest, AModelMayThinkFirstOrNot) {
  Rig rig;
  const auto thinks = rig.Follow(GrammarStart::kMayThink);
  EXPECT_EQ(Allowed(*thinks), (std::vector<TokenId>{'y', kThink}));
  thinks->Accept(kThink);
  EXPECT_EQ(Allowed(*thinks).size(), 258u);
  thinks->Accept(kThinkEnd);
  EXPECT_EQ(Allowed(*thinks), std::vector<TokenId>{'y'});
  const auto answers = rig.Follow(GrammarStart::kMayThink);
  Say(*answers, "y");
  EXPECT_EQ(Allowed(*answers), std::vector<TokenId>{'e'});
}

TEST(AnswerGuideTest, ATagOfSeveralTokensIsWrittenToItsEnd) {
  Rig rig(/*has_tags=*/false);
  const auto guide = rig.Follow(GrammarStart::kMayThink);
  EXPECT_EQ(Allowed(*guide), (std::vector<TokenId>{'<', 'y'}));
  Say(*guide, "<th");
  EXPECT_EQ(Allowed(*guide), std::vector<TokenId>{'i'});
  Say(*guide, "ink> so </think>");
  EXPECT_EQ(Allowed(*guide), std::vector<TokenId>{'y'});
}

TEST(AnswerGuideTest, AReplayGivesTheSameMaskAtEveryToken) {
  Rig rig;
  std::vector<TokenId> tokens = {kThink, 'a', kThinkEnd, 'y', 'e', 's'};
  const auto guide = rig.Follow(GrammarStart::kMayThink);
  for (size_t i = 0; i < tokens.size(); ++i) {
    guide->Accept(tokens[i]);
    const auto replayed =
        rig.Follow(GrammarStart::kMayThink, std::vector(tokens.begin(), tokens.begin() + i + 1));
    EXPECT_EQ(Allowed(*guide), Allowed(*replayed)) << "after " << i + 1 << " tokens";
  }
}

TEST(AnswerGuideTest, ATokenOutsideTheGrammarIsAnErrorThatStays) {
  Rig rig;
  const auto guide = rig.Follow(GrammarStart::kFirstToken);
  Say(*guide, "x");
  EXPECT_EQ(guide->Mask().status().message(), "output token 120 does not follow the grammar");
  Say(*guide, "y");
  EXPECT_FALSE(guide->Mask().ok());
}

TEST(GrammarCacheTest, AGrammarIsCompiledOnceAndTheOldestGoesFirst) {
  Rig rig;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(rig.cache.Compile(GrammarKind::kRegex, "a+").ok());
  EXPECT_EQ(rig.cache.num_grammars(), 1u);
  EXPECT_FALSE(rig.cache.Compile(GrammarKind::kRegex, "(").ok());
  EXPECT_EQ(rig.cache.num_grammars(), 1u) << "what does not compile is not kept";
  for (size_t i = 0; i < GrammarCache::kMaxGrammars + 5; ++i) {
    ASSERT_TRUE(rig.cache.Compile(GrammarKind::kRegex, "b{" + std::to_string(i + 1) + "}").ok());
  }
  EXPECT_EQ(rig.cache.num_grammars(), GrammarCache::kMaxGrammars);
}

}  // namespace
}  // namespace baton::engine
