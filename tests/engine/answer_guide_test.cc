// Masks of one choice: after thoughts or before them, and equal however the tokens came.
#include "src/engine/answer_guide.h"

#include <future>
#include <memory>
#include <string>
#include <thread>
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
    return guides
        .Follow(std::make_shared<AnswerGrammar>(AnswerGrammar{
                    .kind = GrammarKind::kChoice, .start = start, .text = R"(["yes"])"}),
                tokens)
        .value();
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

// Grammars whose vocabulary is not there until Release.
struct SlowRig {
  ~SlowRig() { Release(); }
  void Release() {
    if (!std::exchange(released, true)) release.set_value();
  }
  StatusOr<std::unique_ptr<AnswerGuide>> Follow(AnswerGuide::OnReady on_ready) {
    return guides.Follow(std::make_shared<AnswerGrammar>(
                             AnswerGrammar{.kind = GrammarKind::kChoice, .text = R"(["yes"])"}),
                         {}, std::move(on_ready));
  }

  bool released = false;
  std::promise<void> release;
  GrammarCache cache{
      [done = release.get_future().share()]() -> StatusOr<std::shared_ptr<const Tokenizer>> {
        done.wait();
        return Bytes(/*has_tags=*/true);
      }};
  AnswerGuides guides{&cache};
};

TEST(AnswerGuideTest, ACompilationIsNotWaitedForAndItsEndIsTold) {
  SlowRig rig;
  std::promise<void> told;
  const auto guide = rig.Follow([&told] { told.set_value(); }).value();
  EXPECT_FALSE(guide->IsReady(0));
  guide->Accept('y');
  EXPECT_FALSE(guide->IsReady(1'000));
  rig.Release();
  told.get_future().wait();
  EXPECT_TRUE(guide->IsReady(0));
  EXPECT_EQ(Allowed(*guide), std::vector<TokenId>{'e'});
  guide->Accept('e');
  EXPECT_TRUE(guide->IsReady(0)) << "what takes microseconds is computed at once";
  EXPECT_EQ(Allowed(*guide), std::vector<TokenId>{'s'});
}

TEST(AnswerGuideTest, AGuideThatHasEndedIsToldNothing) {
  SlowRig rig;
  bool is_told = false;
  auto guide = rig.Follow([&is_told] { is_told = true; }).value();
  EXPECT_FALSE(guide->IsReady(0));
  guide.reset();
  rig.Release();
  rig.guides.Stop();
  EXPECT_FALSE(is_told);
}

TEST(AnswerGuideTest, NoMoreGuidesWaitForTheirGrammarThanTheLimit) {
  SlowRig rig;
  std::vector<std::unique_ptr<AnswerGuide>> guides;
  // One more than the limit may be with the thread.
  for (size_t i = 0; i < AnswerGuides::kMaxQueued + 2; ++i) {
    auto guide = rig.Follow(nullptr);
    if (!guide.ok()) {
      EXPECT_EQ(guide.status().code(), StatusCode::kResourceExhausted);
      break;
    }
    guides.push_back(*std::move(guide));
  }
  EXPECT_GE(guides.size(), AnswerGuides::kMaxQueued);
  EXPECT_LE(guides.size(), AnswerGuides::kMaxQueued + 1);
  rig.Release();
  EXPECT_EQ(Allowed(*guides.back()), std::vector<TokenId>{'y'});
}

TEST(GrammarCacheTest, EqualTextsThatArriveTogetherAreCompiledOnce) {
  SlowRig rig;
  std::vector<std::future<bool>> results;
  for (int i = 0; i < 8; ++i) {
    results.push_back(std::async(std::launch::async, [&rig, i] {
      return rig.cache.Compile(GrammarKind::kRegex, i < 4 ? "a+" : "(").ok();
    }));
  }
  while (rig.cache.num_compilations() < 2) std::this_thread::yield();
  rig.Release();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(results[i].get(), i < 4);
  EXPECT_EQ(rig.cache.num_grammars(), 1u);
  EXPECT_TRUE(rig.cache.Compile(GrammarKind::kRegex, "a+").ok());
  EXPECT_GE(rig.cache.num_compilations(), 2u);
  EXPECT_LE(rig.cache.num_compilations(), 5u) << "one of the good text, none kept of the bad one";
}

// The router tells the client of a failed precondition, and places the request again after others.
TEST(AnswerGuideTest, AFaultOfTheWorkerIsNoneOfTheGrammar) {
  EXPECT_EQ(GuideFailure(InvalidArgument("(")), FailedPrecondition("("));
  EXPECT_EQ(GuideFailure(FailedPrecondition("no token")), FailedPrecondition("no token"));
  EXPECT_EQ(GuideFailure(Internal("panic: 7")), Internal("panic: 7"));
  EXPECT_EQ(GuideFailure(Unavailable("8 earlier")), Unavailable("8 earlier"));
}

TEST(GrammarCacheTest, KeptTextsHaveALimitInBytes) {
  Rig rig;
  constexpr size_t kTextBytes = 900'000;
  for (int i = 0; i < 6; ++i) {
    const std::string text = R"({"type":"string","description":")" +
                             std::string(kTextBytes, static_cast<char>('a' + i)) + "\"}";
    const Status status = rig.cache.Compile(GrammarKind::kSchemaLoose, text).status();
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(rig.cache.num_grammars(), GrammarCache::kMaxTextBytes / (kTextBytes + 34));
}

// With a limit that one grammar is above already.
TEST(GrammarCacheTest, WhatAllGrammarsHaveIsCountedAndBounded) {
  GrammarCache cache([tokenizer = Bytes(/*has_tags=*/true)] { return tokenizer; },
                     /*max_bytes=*/1);
  EXPECT_EQ(cache.memory().total(), 0u);
  auto guides = std::make_unique<AnswerGuides>(&cache);
  auto guide = guides
                   ->Follow(std::make_shared<AnswerGrammar>(
                                AnswerGrammar{.kind = GrammarKind::kChoice, .text = R"(["yes"])"}),
                            {})
                   .value();
  EXPECT_EQ(Allowed(*guide), std::vector<TokenId>{'y'});
  EXPECT_GT(cache.memory().mask_bytes, 0u);
  EXPECT_GT(cache.memory().lexer_bytes, 0u);
  for (const char* text : {"a+", "b+", "b+"}) {
    ASSERT_TRUE(cache.Compile(GrammarKind::kRegex, text).ok());
    EXPECT_EQ(cache.num_grammars(), 2u) << text;
  }
  EXPECT_EQ(cache.num_compilations(), 3u) << "the last one stays";
  ASSERT_TRUE(cache.Compile(GrammarKind::kChoice, R"(["yes"])").ok());
  EXPECT_EQ(cache.num_compilations(), 3u) << "an answer follows it: another one would be more";
  Say(*guide, "ye");
  EXPECT_EQ(Allowed(*guide), std::vector<TokenId>{'s'}) << "an answer keeps its grammar";
  EXPECT_GT(cache.memory().mask_bytes, 0u);
  guide.reset();
  guides.reset();
  ASSERT_TRUE(cache.Compile(GrammarKind::kRegex, "a+").ok());
  EXPECT_EQ(cache.num_grammars(), 1u) << "nobody follows the others";
  EXPECT_EQ(cache.memory().mask_bytes, 0u) << "nobody has asked for a mask of the kept one";
  EXPECT_GT(cache.memory().lexer_bytes, 0u);
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
