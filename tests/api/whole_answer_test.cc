// Answers that are sent whole: what they take in memory, and that an answer in pieces is the same
// text.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/api/answer_budget.h"
#include "src/api/openai_json.h"
#include "src/api/token_log.h"
#include "tests/api/http_api_rig.h"
#include "tests/test_seed.h"

namespace baton {
namespace {

struct Logged {
  TokenId token;
  float logprob;
  std::vector<TokenLogprob> top;
  uint32_t offset;
};

Logged DrawToken(std::mt19937_64& random) {
  Logged logged{.token = static_cast<TokenId>(random() % 256),
                .logprob = -static_cast<float>(random() % 100) / 8,
                .top = {},
                .offset = static_cast<uint32_t>(random() % 1000)};
  const size_t num_top = random() % 21;
  for (size_t i = 0; i < num_top; ++i) {
    logged.top.push_back({static_cast<TokenId>(random() % 256), -static_cast<float>(i)});
  }
  return logged;
}

TEST(TokenLogTest, EveryTokenIsReadAsItWasAdded) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<Logged> model;
  TokenLog log;
  for (int i = 0; i < 5000; ++i) {
    model.push_back(DrawToken(random));
    const Logged& last = model.back();
    log.Add({last.token, last.logprob, last.top, last.offset});
  }
  ASSERT_EQ(log.size(), model.size());
  for (size_t i = 0; i < model.size(); ++i) {
    const LoggedToken token = log.at(i);
    EXPECT_EQ(token.token, model[i].token);
    EXPECT_EQ(token.logprob, model[i].logprob);
    EXPECT_EQ(token.text_offset, model[i].offset);
    EXPECT_EQ(std::vector<TokenLogprob>(token.top_logprobs.begin(), token.top_logprobs.end()),
              model[i].top);
  }
}

// An answer of several choices with everything that a choice may have.
AnswerPlan PlanOf(Endpoint endpoint, bool logprobs) {
  AnswerPlan plan;
  plan.endpoint = endpoint;
  plan.model = TestModel();
  plan.id = "chatcmpl-1";
  plan.num_choices = 3;
  plan.logprobs = logprobs;
  return plan;
}

void Fill(std::mt19937_64& random, AnswerCollector* answer) {
  for (uint32_t choice = 0; choice < 3; ++choice) {
    const uint32_t num_tokens = choice == 1 ? 1 : 40;
    for (uint32_t i = 0; i < num_tokens; ++i) {
      const Logged logged = DrawToken(random);
      TokenOutput token;
      token.choice = choice;
      token.index = i;
      token.token = logged.token;
      token.text = "t\"\n";
      token.has_logprob = true;
      token.logprob = logged.logprob;
      token.top_logprobs = &logged.top;
      if (i + 1 == num_tokens) token.finish = FinishReason::kLength;
      answer->Add(token);
    }
  }
}

TEST(AnswerPiecesTest, PiecesOfAnySizeAreTheWholeText) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(seed);
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    for (const bool logprobs : {true, false}) {
      std::mt19937_64 random(seed);
      const AnswerPlan plan = PlanOf(endpoint, logprobs);
      AnswerCollector answer(plan, plan.num_choices);
      Fill(random, &answer);
      const GenerateResult result{.num_prompt_tokens = 3, .num_completion_tokens = 81};
      const std::string whole = AnswerJson(plan, answer, result);
      JsonValue parsed;
      RequestError error;
      ASSERT_TRUE(ParseJson(whole, &parsed, &error)) << whole;
      for (const size_t num_bytes : {1, 7, 100, 4096, 1 << 20}) {
        AnswerPieces pieces(plan, answer, result);
        std::string joined;
        while (true) {
          const std::string piece = pieces.Next(num_bytes);
          if (piece.empty()) break;
          joined += piece;
        }
        EXPECT_EQ(joined, whole) << num_bytes;
      }
    }
  }
}

TEST(AnswerBudgetTest, WhatIsTakenComesBackAndNoMoreThanAllIsTaken) {
  AnswerBudget budget;
  {
    AnswerBudget::Share share;
    EXPECT_TRUE(budget.TryTake(AnswerBudget::kMaxBytes - 10, &share));
    AnswerBudget::Share other;
    EXPECT_FALSE(budget.TryTake(11, &other));
    EXPECT_TRUE(budget.TryTake(10, &other));
    AnswerBudget::Share moved = std::move(other);
    EXPECT_EQ(budget.used(), AnswerBudget::kMaxBytes);
  }
  EXPECT_EQ(budget.used(), 0u);
}

BuiltRequest Built(uint32_t num_choices, uint32_t max_tokens, uint32_t num_top) {
  BuiltRequest built;
  built.plan = PlanOf(Endpoint::kChat, true);
  built.plan.top_logprobs = num_top;
  built.request.num_choices = num_choices;
  built.request.sampling.max_tokens = max_tokens;
  return built;
}

TEST(AnswerBudgetTest, ARequestThatFitsNeverIsRefusedByItsNumbers) {
  AnswerBudget budget;
  AnswerBudget::Share share;
  RequestError error;
  EXPECT_TRUE(ReserveAnswer(Built(128, 8160, 20), AnswerForm::kJson, &budget, &share, &error));
  AnswerBudget::Share second;
  EXPECT_FALSE(ReserveAnswer(Built(128, 131'072, 20), AnswerForm::kJson, &budget, &second, &error));
  EXPECT_EQ(HttpStatusOf(error.code), 400);
  EXPECT_EQ(error.param, "n");
  EXPECT_NE(error.Message().find("2880 MiB"), std::string::npos) << error.Message();
  EXPECT_NE(error.Message().find("256 MiB"), std::string::npos) << error.Message();
  BuiltRequest streamed = Built(128, 131'072, 20);
  streamed.plan.stream = true;
  EXPECT_TRUE(ReserveAnswer(streamed, AnswerForm::kJson, &budget, &second, &error));
  BuiltRequest bare = Built(128, 131'072, 0);
  bare.plan.logprobs = false;
  EXPECT_TRUE(ReserveAnswer(bare, AnswerForm::kProto, &budget, &second, &error));
}

TEST(AnswerBudgetTest, ARequestWaitsForOthersByComingAgain) {
  AnswerBudget budget;
  AnswerBudget::Share first;
  RequestError error;
  ASSERT_TRUE(ReserveAnswer(Built(128, 8160, 20), AnswerForm::kJson, &budget, &first, &error));
  AnswerBudget::Share second;
  AnswerBudget::Share third;
  ASSERT_TRUE(ReserveAnswer(Built(128, 8160, 20), AnswerForm::kJson, &budget, &second, &error));
  EXPECT_FALSE(ReserveAnswer(Built(128, 8160, 20), AnswerForm::kJson, &budget, &third, &error));
  EXPECT_EQ(HttpStatusOf(error.code), 429);
  EXPECT_GT(error.retry_after_s, 0u);
}

class WholeAnswerTest : public HttpApiTest {};

// Plays `num_tokens` tokens with 20 alternatives.
void Play(const GenerateRequest& request, ResponseSink& sink, uint32_t num_tokens) {
  std::vector<TokenLogprob> top;
  for (TokenId i = 0; i < 20; ++i) top.push_back({'a' + i, -static_cast<float>(i)});
  for (uint32_t i = 0; i < num_tokens; ++i) {
    TokenOutput token;
    token.index = i;
    token.token = 'a';
    token.text = "a";
    token.has_logprob = request.sampling.logprobs;
    token.top_logprobs = &top;
    if (i + 1 == num_tokens) token.finish = FinishReason::kLength;
    token.is_last = i + 1 == num_tokens;
    sink.OnToken(token);
  }
  sink.OnFinished({.num_prompt_tokens = 1, .num_completion_tokens = num_tokens});
}

TEST_F(WholeAnswerTest, ALargeAnswerIsWrittenAsTheClientTakesIt) {
  submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
    Play(request, sink, 2000);
  };
  const auto responder =
      Post(kChatPath, kHello + R"(,"logprobs":true,"top_logprobs":20,"max_tokens":400})");
  EXPECT_EQ(responder->status, 200);
  EXPECT_EQ(responder->Header("Content-Type"), "application/json");
  EXPECT_TRUE(responder->streamed);
  EXPECT_GT(responder->num_pauses, 0) << "it does not run ahead of its client";
  JsonValue parsed;
  RequestError error;
  ASSERT_TRUE(ParseJson(responder->body, &parsed, &error));
  size_t num_tokens = 0;
  for (size_t at = responder->body.find("\"top_logprobs\""); at != std::string::npos;
       at = responder->body.find("\"top_logprobs\"", at + 1)) {
    ++num_tokens;
  }
  EXPECT_EQ(num_tokens, 2000u);
  EXPECT_EQ(answers_.used(), 400u * AnswerBytesPerToken(AnswerForm::kJson, 20))
      << "reserved as long as the answer is kept";
}

TEST_F(WholeAnswerTest, ASmallAnswerHasALength) {
  submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
    Play(request, sink, 20);
  };
  const auto responder = Post(kChatPath, kHello + R"(,"logprobs":true,"top_logprobs":20})");
  EXPECT_EQ(responder->status, 200);
  EXPECT_FALSE(responder->streamed);
}

}  // namespace
}  // namespace baton
