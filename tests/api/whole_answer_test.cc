// Answers that are sent whole: what they take in memory, and that an answer in pieces is the same
// text.
#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"

#include "src/api/answer_budget.h"
#include "src/api/http_sinks.h"
#include "src/api/openai_json.h"
#include "src/api/openai_surface.h"
#include "src/api/token_log.h"
#include "tests/api/http_api_rig.h"
#include "tests/http/raw_client.h"
#include "tests/http/test_server.h"
#include "tests/test_seed.h"

namespace baton::api {

using namespace http;    // NOLINT(google-build-using-namespace)
using namespace router;  // NOLINT(google-build-using-namespace)
using scheduler::FinishReason;

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

// 128 choices of 150 tokens have 128 logs with a free end each.
TEST(TokenLogTest, FreeEndsAreAnEighthOfAnAnswerAtMost) {
  const std::vector<TokenLogprob> alternatives(20);
  for (const size_t num_top : {0, 1, 5, 20}) {
    TokenLog log;
    for (size_t i = 1; i <= 8160; ++i) {
      log.Add(
          {.token = 1, .logprob = -1.0f, .top_logprobs = std::span(alternatives).first(num_top)});
      const size_t needed_bytes = i * TokenLog::BytesOf(num_top);
      ASSERT_GE(log.memory_bytes(), needed_bytes);
      ASSERT_LE(log.memory_bytes(), needed_bytes * 9 / 8 + 2048) << i << " tokens, " << num_top;
    }
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

// The answer as one piece.
std::string WholeText(const AnswerPlan& plan, const AnswerCollector& answer,
                      const GenerateResult& result) {
  return AnswerPieces(plan, answer, result).Next(std::numeric_limits<size_t>::max());
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
      const std::string whole = WholeText(plan, answer, result);
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

TEST(AnswerPiecesTest, ALongTextIsCutBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 20'000; ++i)
    text += i % 7 == 0 ? "\xe2\x82\xac" : i % 5 == 0 ? "\xc3\xa9" : "\n";
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    AnswerPlan plan = PlanOf(endpoint, /*logprobs=*/false);
    plan.num_choices = 1;
    AnswerCollector answer(plan, 1);
    TokenOutput token;
    token.text = text;
    token.finish = FinishReason::kLength;
    EXPECT_TRUE(answer.Add(token));
    AnswerPieces pieces(plan, answer, {});
    std::string joined;
    for (std::string piece = pieces.Next(100); !piece.empty(); piece = pieces.Next(100)) {
      EXPECT_LE(piece.size(), 100u + (24u << 10));
      joined += piece;
    }
    EXPECT_EQ(joined, WholeText(plan, answer, {}));
    EXPECT_EQ(joined.find("\xef\xbf\xbd"), std::string::npos) << "no character was cut in two";
    JsonWriter whole;
    whole.String(text);
    EXPECT_NE(joined.find(whole.text()), std::string::npos);
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
  built.request.names_length = true;
  return built;
}

TEST(AnswerBudgetTest, ARequestThatFitsNeverIsRefusedByItsNumbers) {
  AnswerBudget budget;
  AnswerRoom room;
  RequestError error;
  EXPECT_TRUE(ReserveAnswer(Built(128, 8160, 20), AnswerForm::kJson, &budget, &room, &error));
  for (int i = 0; i < 128 * 8160; ++i) ASSERT_TRUE(room.AddToken(&error)) << i;
  EXPECT_EQ(budget.used(), 128u * 8160 * AnswerBytesPerToken(AnswerForm::kJson, 20));
  AnswerRoom second;
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
  AnswerRoom first;
  RequestError error;
  ASSERT_TRUE(ReserveAnswer(Built(128, 8160, 20), AnswerForm::kJson, &budget, &first, &error));
  AnswerRoom second;
  AnswerRoom third;
  ASSERT_TRUE(ReserveAnswer(Built(128, 8160, 20), AnswerForm::kJson, &budget, &second, &error));
  EXPECT_FALSE(ReserveAnswer(Built(128, 8160, 20), AnswerForm::kJson, &budget, &third, &error));
  EXPECT_EQ(HttpStatusOf(error.code), 429);
  EXPECT_GT(error.retry_after_s, 0u);
}

TEST(AnswerBudgetTest, AnAnswerWithoutALengthTakesRoomAsItsTokensCome) {
  AnswerBudget budget;
  BuiltRequest built = Built(1, 131'072, 20);
  built.request.names_length = false;
  AnswerRoom room;
  RequestError error;
  ASSERT_TRUE(ReserveAnswer(built, AnswerForm::kProto, &budget, &room, &error)) << error.Message();
  EXPECT_EQ(budget.used(), AnswerRoom::kStepBytes);
  const size_t per_token = AnswerBytesPerToken(AnswerForm::kProto, 20);
  size_t num_tokens = 0;
  while (num_tokens < 131'072 && room.AddToken(&error)) {
    ++num_tokens;
    ASSERT_GE(budget.used(), num_tokens * per_token);
    ASSERT_LT(budget.used(), num_tokens * per_token + AnswerRoom::kStepBytes);
  }
  EXPECT_EQ(num_tokens, AnswerBudget::kMaxBytesOfOne / per_token);
  EXPECT_EQ(HttpStatusOf(error.code), 400);
  EXPECT_NE(error.Message().find("256 MiB"), std::string::npos) << error.Message();
  room = {};
}

TEST(AnswerBudgetTest, AnAnswerWithoutALengthEndsWhereOthersHoldTheRest) {
  AnswerBudget budget;
  AnswerBudget::Share others;
  ASSERT_TRUE(budget.TryTake(AnswerBudget::kMaxBytes - AnswerRoom::kStepBytes, &others));
  BuiltRequest built = Built(1, 131'072, 20);
  built.request.names_length = false;
  AnswerRoom room;
  RequestError error;
  ASSERT_TRUE(ReserveAnswer(built, AnswerForm::kJson, &budget, &room, &error));
  while (room.AddToken(&error)) {
  }
  EXPECT_EQ(HttpStatusOf(error.code), 429);
  EXPECT_EQ(budget.used(), AnswerBudget::kMaxBytes);
}

TEST(AnswerBudgetTest, RetryAfterIsHowLongSharesAreHeld) {
  FakeClock clock;
  AnswerBudget budget(&clock);
  EXPECT_EQ(budget.FullError().retry_after_s, 1u);
  {
    AnswerBudget::Share share;
    ASSERT_TRUE(budget.TryTake(1, &share));
    clock.AdvanceMs(1100);
  }
  EXPECT_EQ(budget.FullError().retry_after_s, 2u);
  AnswerBudget::Share shares[4];
  for (AnswerBudget::Share& share : shares) ASSERT_TRUE(budget.TryTake(1, &share));
  EXPECT_EQ(budget.FullError().retry_after_s, 1u) << "one of four comes back sooner";
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
      Post(kChatPath, kHello + R"(,"logprobs":true,"top_logprobs":20,"max_tokens":500})");
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
  EXPECT_EQ(answers_.used(),
            500u * AnswerBytesPerToken(AnswerForm::kJson, 20) + AnswerRoom::kStepBytes)
      << "reserved as long as the answer is kept, and a step for more tokens than it named";
}

TEST_F(WholeAnswerTest, ASmallAnswerHasALength) {
  submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
    Play(request, sink, 20);
  };
  const auto responder = Post(kChatPath, kHello + R"(,"logprobs":true,"top_logprobs":20})");
  EXPECT_EQ(responder->status, 200);
  EXPECT_FALSE(responder->streamed);
}

TEST_F(WholeAnswerTest, AnAnswerThatFindsNoRoomIsCancelledAndSaysSo) {
  AnswerBudget::Share others;
  ASSERT_TRUE(answers_.TryTake(AnswerBudget::kMaxBytes - AnswerRoom::kStepBytes, &others));
  std::vector<TokenLogprob> top(20);
  submitter_.answer = [&](const GenerateRequest&, ResponseSink& sink) {
    TokenOutput token;
    token.has_logprob = true;
    token.top_logprobs = &top;
    for (; token.index < 10'000; ++token.index) sink.OnToken(token);
  };
  const std::string body = kHello + R"(,"logprobs":true,"top_logprobs":20})";
  const auto responder = Send("POST", kChatPath, body, {{"Content-Type", "application/json"}});
  const FakeSubmitter::Submitted submitted = submitter_.WaitSubmitted();
  ASSERT_TRUE(submitter_.WaitCancelled(submitted.uid));
  EXPECT_EQ(answers_.used(), others.num_bytes()) << "its room is given back at once";
  ASSERT_NE(submitted.sink->own_failure(), nullptr) << "the router counts 429, not 499";
  EXPECT_EQ(HttpStatusOf(submitted.sink->own_failure()->code), 429);
  submitted.sink->OnFailed(PlainError(ErrorCode::kCancelled));
  ASSERT_TRUE(responder->Wait());
  EXPECT_EQ(responder->status, 429);
  EXPECT_NE(responder->Header("Retry-After"), "");
}

// Nothing nests and nothing waits: the client reads as fast as is written, and no thread helps.
TEST_F(WholeAnswerTest, ALargeAnswerIsWrittenWithoutThreads) {
  AnswerPlan plan = PlanOf(Endpoint::kChat, /*logprobs=*/true);
  plan.num_choices = 1;
  auto responder = std::make_shared<FakeResponder>();
  workers_.Stop();
  auto sink = std::make_shared<HttpWholeSink>(
      AnswerTarget{kChatSurface, MakeOpenAiWriter(plan), HttpHeaders{}, responder}, 1,
      ApiParts{.submitter = &submitter_, .workers = &workers_, .answers = &answers_});
  GenerateRequest request;
  request.sampling.logprobs = true;
  Play(request, *sink, 20'000);
  EXPECT_TRUE(responder->Wait());
  EXPECT_GT(responder->body.size(), size_t{16} << 20);
  EXPECT_TRUE(responder->body.ends_with('}'));
}

// Answers over a real socket, which are larger than its buffers.
class SocketAnswerTest : public HttpApiTest {
 protected:
  static constexpr uint32_t kNumTokens = 30'000;  // some 25 MiB of JSON

  void Start(HttpServerOptions options = {}) {
    submitter_.keeps_sinks = false;
    submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
      Play(request, sink, kNumTokens);
    };
    server_ = StartTestServer(api_.AsHandler(), std::move(options));
    client_ = std::make_unique<RawClient>(server_->port());
    const std::string body = kHello + R"(,"logprobs":true,"top_logprobs":20})";
    client_->Send(
        fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
                    kChatPath, body.size(), body));
    client_->ReceiveUntil("\r\n\r\n");
    ASSERT_TRUE(Eventually([&] { return workers_.num_busy() == 0; })) << "it waits for its client";
    ASSERT_GT(answers_.used(), 0u);
  }
  bool AllComesBack() {
    return Eventually([&] { return answers_.used() == 0 && workers_.num_busy() == 0; });
  }

  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<RawClient> client_;
};

TEST_F(SocketAnswerTest, AClientThatReadsGetsAll) {
  Start();
  EXPECT_TRUE(client_->ReceiveAll().ends_with("}\r\n0\r\n\r\n"));
  EXPECT_TRUE(AllComesBack());
}

TEST_F(SocketAnswerTest, AClientThatLeavesFreesItsAnswer) {
  Start();
  client_->Close();
  EXPECT_TRUE(AllComesBack());
}

TEST_F(SocketAnswerTest, AClientThatStallsFreesItsAnswer) {
  HttpServerOptions options;
  options.write_stall_timeout_ms = 200;
  Start(std::move(options));
  EXPECT_TRUE(AllComesBack());
}

TEST_F(SocketAnswerTest, AServerThatStopsFreesItsAnswers) {
  Start();
  workers_.Stop();
  server_->Stop();
  EXPECT_TRUE(AllComesBack());
}

TEST_F(SocketAnswerTest, AnAnswerIsCompletedAfterTheThreadsHaveStopped) {
  Start();
  workers_.Stop();
  EXPECT_TRUE(client_->ReceiveAll().ends_with("}\r\n0\r\n\r\n"));
  EXPECT_TRUE(AllComesBack());
}

TEST_F(SocketAnswerTest, OneTextMayBeLargerThanAConnectionBuffers) {
  constexpr size_t kNumBytes = size_t{6} << 20;
  submitter_.answer = [](const GenerateRequest&, ResponseSink& sink) {
    const std::string text(kNumBytes, '~');
    TokenOutput token;
    token.text = text;
    token.finish = FinishReason::kLength;
    token.is_last = true;
    sink.OnToken(token);
    sink.OnFinished({.num_prompt_tokens = 1, .num_completion_tokens = 1});
  };
  server_ = StartTestServer(api_.AsHandler());
  RawClient client(server_->port());
  const std::string body = kHello + "}";
  client.Send(
      fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n"
                  "Connection: close\r\n\r\n{}",
                  kChatPath, body.size(), body));
  const std::string answer = client.ReceiveAll();
  EXPECT_EQ(static_cast<size_t>(std::count(answer.begin(), answer.end(), '~')), kNumBytes);
  EXPECT_TRUE(answer.ends_with("}\r\n0\r\n\r\n"));
}

}  // namespace
}  // namespace baton::api
