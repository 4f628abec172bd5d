#include "src/text/grammar.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/text/test_spec.h"

namespace baton::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using wire::GrammarKind;

const GrammarVocabulary& DemoVocabulary() {
  static const GrammarVocabulary vocabulary = GrammarVocabulary::Create(DemoTokenizer()).value();
  return vocabulary;
}

StatusOr<Grammar> Compile(GrammarKind kind, std::string_view text) {
  return Grammar::Compile(DemoVocabulary(), kind, text);
}

GrammarState StateOf(GrammarKind kind, std::string_view text) {
  auto grammar = Compile(kind, text);
  if (!grammar.ok()) {
    ADD_FAILURE() << grammar.status();
    std::abort();
  }
  return GrammarState::Create(*grammar).value();
}

std::vector<TokenId> AllowedIn(GrammarState& state) {
  std::vector<uint32_t> words(DemoVocabulary().num_mask_words() + 1, ~0u);
  EXPECT_TRUE(state.FillMask(words).ok());
  std::vector<TokenId> allowed;
  for (size_t i = 0; i < words.size() * 32; ++i) {
    if ((words[i / 32] >> (i % 32) & 1) != 0) allowed.push_back(static_cast<TokenId>(i));
  }
  return allowed;
}

// Whether the generation may end here.
bool MayEnd(GrammarState& state) {
  return std::ranges::any_of(AllowedIn(state),
                             [](TokenId id) { return DemoTokenizer().IsEog(id); });
}

bool Takes(GrammarState state, std::string_view text) {
  const std::vector<TokenId> ids = DemoTokenizer().Encode(text).value();
  return state.Accept(ids).value() == ids.size() && MayEnd(state);
}

constexpr std::string_view kPerson =
    R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},)"
    R"("required":["age","name"],"additionalProperties":false})";

TEST(GrammarTest, ASchemaIsFollowedInTheOrderOfItsProperties) {
  const auto person = [] { return StateOf(GrammarKind::kSchemaStrict, kPerson); };
  EXPECT_TRUE(Takes(person(), R"({"name": "Ada", "age": 36})"));
  EXPECT_FALSE(Takes(person(), R"({"age": 36, "name": "Ada"})"));
  EXPECT_FALSE(Takes(person(), R"({"name": "Ada", "age": 36.5})"));
  EXPECT_FALSE(Takes(person(), R"({"name": "Ada"})"));
}

TEST(GrammarTest, EveryAllowedTokenIsTakenAndNoOther) {
  const Grammar person = Compile(GrammarKind::kSchemaStrict, kPerson).value();
  const std::vector<TokenId> begin = DemoTokenizer().Encode(R"({"name": "A)").value();
  GrammarState state = GrammarState::Create(person).value();
  ASSERT_EQ(state.Accept(begin).value(), begin.size());
  const std::vector<TokenId> allowed = AllowedIn(state);
  std::vector<TokenId> with_next = begin;
  with_next.push_back(0);
  size_t next = 0;
  for (size_t i = 0; i < DemoVocabulary().vocab_size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (next < allowed.size() && allowed[next] == id) {
      ++next;
      with_next.back() = id;
      GrammarState other = GrammarState::Create(person).value();
      ASSERT_EQ(other.Accept(with_next).value(), with_next.size()) << "token " << id;
    } else {
      ASSERT_EQ(state.Accept({&id, 1}).value(), 0u) << "token " << id;
    }
  }
  EXPECT_GT(allowed.size(), 1000u);
}

TEST(GrammarTest, AReplayOfTheTokensGivesTheSameMask) {
  GrammarState state = StateOf(GrammarKind::kSchemaStrict, kPerson);
  const std::vector<TokenId> tokens =
      DemoTokenizer().Encode(R"({"name": "Ada Lovelace", "age": 3)").value();
  std::vector<TokenId> taken;
  for (const TokenId id : tokens) {
    ASSERT_EQ(state.Accept({&id, 1}).value(), 1u) << id << " after " << taken.size() << " tokens";
    taken.push_back(id);
    GrammarState replayed = StateOf(GrammarKind::kSchemaStrict, kPerson);
    ASSERT_EQ(replayed.Accept(taken).value(), taken.size());
    EXPECT_EQ(AllowedIn(state), AllowedIn(replayed)) << "after " << taken.size() << " tokens";
  }
}

TEST(GrammarTest, AWholeTextAllowsTheEndOfTheGenerationOnly) {
  GrammarState state = StateOf(GrammarKind::kChoice, R"(["yes","no"])");
  EXPECT_FALSE(MayEnd(state));
  const std::vector<TokenId> yes = DemoTokenizer().Encode("yes").value();
  ASSERT_EQ(state.Accept(yes).value(), yes.size());
  const auto ends = DemoTokenizer().eog_ids();
  EXPECT_EQ(AllowedIn(state), std::vector<TokenId>(ends.begin(), ends.end()));
}

TEST(GrammarTest, StatesOfOneGrammarGoTheirOwnWays) {
  const Grammar grammar = Compile(GrammarKind::kRegex, "[ab]{3}").value();
  const std::vector<TokenId> a = DemoTokenizer().Encode("a").value();
  GrammarState state = GrammarState::Create(grammar).value();
  GrammarState other = GrammarState::Create(grammar).value();
  ASSERT_EQ(other.Accept(a).value(), 1u);
  EXPECT_TRUE(Takes(std::move(state), "aba"));
  EXPECT_FALSE(Takes(std::move(other), "aba"));
}

TEST(GrammarTest, ControlTokensAreNeverAllowed) {
  GrammarState state = StateOf(GrammarKind::kRegex, "(?s:.*)");
  for (const TokenId id : AllowedIn(state)) {
    EXPECT_TRUE(!DemoTokenizer().IsSpecial(id) || DemoTokenizer().IsEog(id)) << "token " << id;
  }
  EXPECT_THAT(Compile(GrammarKind::kLark, "start: <|im_start|>").status().message(),
              HasSubstr("line 1"));
}

TEST(GrammarTest, ABadSchemaSaysItsPlace) {
  const std::string bad = R"({"properties":{"a/b":{"minLength":-1}}})";
  const Status refused = Compile(GrammarKind::kSchemaStrict, bad).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "#/properties/a~1b/minLength: must be an integer of 0 or more, got -1");
}

TEST(GrammarTest, ALooseSchemaListsWhatItDoesNotEnforce) {
  const std::string schema = R"({"properties":{"a":{"type":"array","uniqueItems":true}}})";
  EXPECT_EQ(Compile(GrammarKind::kSchemaStrict, schema).status().message(),
            "#/properties/a/uniqueItems: the keyword is not supported");
  const auto loose = Compile(GrammarKind::kSchemaLoose, schema);
  ASSERT_TRUE(loose.ok()) << loose.status();
  EXPECT_THAT(loose->ignored(), ElementsAre("#/properties/a/uniqueItems"));
}

TEST(GrammarTest, ATriggerInFreeTextBeginsATag) {
  const std::string tag =
      R"({"triggers":["<f="],"structures":[{"begin":"<f=a>","schema":{"type":"integer"},)"
      R"("end":"</f>"}]})";
  const auto state = [&] { return StateOf(GrammarKind::kStructuralTag, tag); };
  EXPECT_TRUE(Takes(state(), "Only text."));
  EXPECT_TRUE(Takes(state(), "First <f=a>12</f> and on."));
  EXPECT_FALSE(Takes(state(), "First <f=a>no</f> and on."));
}

TEST(GrammarTest, ALimitIsFailedPrecondition) {
  GrammarLimits limits;
  limits.max_text_bytes = 10;
  const Status refused =
      Grammar::Compile(DemoVocabulary(), GrammarKind::kRegex, "[a-z]{1,100}", limits).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("12 bytes, more than 10"));
}

TEST(GrammarTest, AVocabularyWithoutAnEndIsRefused) {
  const auto tokenizer = MakeTokenizer(ByteSpec());
  EXPECT_EQ(GrammarVocabulary::Create(*tokenizer).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::text
