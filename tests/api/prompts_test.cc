// Several prompts in one completions request, over HTTP.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/api/prompt_fan_in.h"
#include "src/base/clock.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using namespace router;  // NOLINT(google-build-using-namespace)
using scheduler::FinishReason;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

class PromptsTest : public HttpApiTest {
 protected:
  // A list of so many one-letter prompts.
  static std::string Letters(size_t count) {
    std::string list;
    for (size_t i = 0; i < count; ++i) list += (i == 0 ? "[\"" : ",\"") + Letter(i) + "\"";
    return list + "]";
  }
  static std::string Letter(size_t i) { return std::string(1, static_cast<char>('a' + i % 26)); }
  // Each prompt is answered by itself, in capitals.
  void AnswerInCapitals() {
    submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
      std::string text;
      for (const TokenId token : request.prompt) text += static_cast<char>(token - 32);
      for (uint32_t choice = 0; choice < request.num_choices; ++choice) {
        PlayText(sink, text, choice, FinishReason::kLength, choice + 1 == request.num_choices);
      }
      const auto size = static_cast<uint32_t>(request.prompt.size());
      GenerateResult result = TestResult(size, size * request.num_choices);
      result.timings.decode_worker = "decode-" + text;
      sink.OnFinished(result);
    };
  }
};

TEST_F(PromptsTest, ChoicesStandInTheOrderOfPromptsAndUsageIsTheirSum) {
  AnswerInCapitals();
  for (const char* prompts : {R"(["ab","c"])", "[[97,98],[99]]"}) {
    const auto whole =
        Post(kCompletionPath, R"({"prompt":)" + std::string(prompts) + R"(,"n":2,"max_tokens":2})");
    ASSERT_EQ(whole->status, 200) << whole->body;
    const std::vector<std::string> texts = {"AB", "AB", "C", "C"};
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string at = std::to_string(i);
      EXPECT_EQ(Text(*whole, {"choices", at, "text"}), texts[i]);
      EXPECT_EQ(Text(*whole, {"choices", at, "index"}), at);
      EXPECT_EQ(Text(*whole, {"choices", at, "timings", "decode_worker"}), "decode-" + texts[i]);
    }
    EXPECT_EQ(Text(*whole, {"choices", "4", "text"}), "<absent>");
    EXPECT_EQ(Text(*whole, {"usage", "prompt_tokens"}), "3");
    EXPECT_EQ(Text(*whole, {"usage", "completion_tokens"}), "6");
    EXPECT_EQ(Text(*whole, {"usage", "total_tokens"}), "9");
    EXPECT_EQ(Text(*whole, {"usage", "prompt_tokens_details", "cached_tokens"}), "14");
    EXPECT_EQ(Text(*whole, {"timings", "kv_bytes"}), "23592960");
  }
  EXPECT_EQ(submitter_.num_submitted(), 4u);
}

TEST_F(PromptsTest, AnswersMayComeInAnyOrder) {
  const auto responder = Send("POST", kCompletionPath, R"({"prompt":["a","b","c"]})",
                              {{"Content-Type", "application/json"}});
  submitter_.WaitSubmitted(2);
  for (const size_t i : {2, 0, 1}) {
    const auto submitted = submitter_.WaitSubmitted(i);
    PlayText(*submitted.sink, "x" + Letter(i));
    submitted.sink->OnFinished(TestResult(1, 2));
  }
  ASSERT_TRUE(responder->Wait());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Text(*responder, {"choices", std::to_string(i), "text"}), "x" + Letter(i));
  }
}

// Writes down which of its functions were called, in order.
class OrderSink final : public AnswerSink {
 public:
  void OnTaken() override { calls += "taken "; }
  void OnToken(const TokenOutput&) override { calls += "token "; }
  void OnFinished(const GenerateResult&) override { calls += "finished"; }
  void OnFailed(const RequestError&) override { calls += "failed"; }
  size_t buffered_bytes() const override { return 0; }

  std::string calls;
};

TEST_F(PromptsTest, TakenIsToldBeforeTheFirstTokenOrNever) {
  for (const bool token_first : {false, true}) {
    std::vector<GenerateRequest> requests(2);
    for (GenerateRequest& request : requests) request.sampling.max_tokens = 1;
    const auto sink = std::make_shared<OrderSink>();
    const size_t first = submitter_.num_submitted();
    std::make_shared<PromptFanIn>(&submitter_, std::move(requests), sink,
                                  std::make_shared<CallCancellation>())
        ->Begin();
    ResponseSink& a = *submitter_.WaitSubmitted(first).sink;
    ResponseSink& b = *submitter_.WaitSubmitted(first + 1).sink;
    a.OnTaken();
    if (token_first) PlayText(a, "x");
    b.OnTaken();
    if (!token_first) PlayText(a, "x");
    a.OnFinished(TestResult(1, 1));
    b.OnFinished(TestResult(1, 1));
    EXPECT_EQ(sink->calls, token_first ? "token finished" : "taken token finished");
  }
}

TEST_F(PromptsTest, BestOfChoosesAmongThoseOfEachPrompt) {
  submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
    for (uint32_t choice = 0; choice < 2; ++choice) {
      TokenOutput token;
      token.choice = choice;
      token.token = request.prompt[0] + static_cast<TokenId>(choice);
      const std::string text(1, static_cast<char>(token.token));
      token.text = text;
      token.logprob = choice == 0 ? -2.0f : -1.0f;  // the second one is better
      token.finish = FinishReason::kLength;
      token.is_last = choice == 1;
      sink.OnToken(token);
    }
    sink.OnFinished(TestResult(1, 2));
  };
  const auto whole =
      Post(kCompletionPath, R"({"prompt":["a","p"],"best_of":2,"n":1,"max_tokens":1})");
  EXPECT_EQ(Text(*whole, {"choices", "0", "text"}), "b");
  EXPECT_EQ(Text(*whole, {"choices", "1", "text"}), "q");
  EXPECT_EQ(Text(*whole, {"choices", "2", "text"}), "<absent>");
}

TEST_F(PromptsTest, AStreamHasTheChoicesOfAllAndOneEnd) {
  AnswerInCapitals();
  const auto responder =
      Post(kCompletionPath, R"({"prompt":["ab","c"],"max_tokens":2,"stream":true,"echo":true,)"
                            R"("stream_options":{"include_usage":true}})");
  const auto events = Events(responder->body);
  // Echo, two letters and an end; echo, a letter and an end; usage; [DONE].
  ASSERT_EQ(events.size(), 9u) << responder->body;
  EXPECT_NE(events[0].find(R"("choices":[{"index":0,"text":"ab")"), std::string::npos);
  EXPECT_NE(events[1].find(R"("choices":[{"index":0,"text":"A")"), std::string::npos);
  EXPECT_NE(events[3].find(R"("finish_reason":"length","stop_reason":null,"timings":{)"),
            std::string::npos)
      << events[3];
  EXPECT_NE(events[3].find("decode-AB"), std::string::npos) << events[3];
  EXPECT_NE(events[4].find(R"("choices":[{"index":1,"text":"c")"), std::string::npos);
  EXPECT_NE(events[6].find("decode-C"), std::string::npos) << events[6];
  EXPECT_NE(events[7].find(R"("usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6,)"),
            std::string::npos)
      << events[7];
  EXPECT_EQ(events[8], "[DONE]");
}

TEST_F(PromptsTest, AFailingPromptFailsTheAnswerAndCancelsTheOthers) {
  const auto responder = Send("POST", kCompletionPath, R"({"prompt":["a","b","c"]})",
                              {{"Content-Type", "application/json"}});
  submitter_.WaitSubmitted(2);
  submitter_.WaitSubmitted(0).sink->OnFinished(TestResult(1, 0));
  submitter_.WaitSubmitted(1).sink->OnFailed(PlainError(ErrorCode::kWorkerLost));
  ASSERT_TRUE(responder->Wait());
  EXPECT_EQ(responder->status, 503);
  EXPECT_TRUE(submitter_.WaitCancelled(submitter_.WaitSubmitted(2).uid));
  submitter_.WaitSubmitted(2).sink->OnFailed(PlainError(ErrorCode::kCancelled));
  EXPECT_EQ(responder->status, 503) << "the first failure is the answer";
}

// The router has room for one prompt at a time, and refuses the others at once or after a wait.
TEST_F(PromptsTest, APromptWithoutRoomWaitsForThoseOfItsOwnAnswer) {
  const auto responder = Send("POST", kCompletionPath, R"({"prompt":["a","b","c","d"]})",
                              {{"Content-Type", "application/json"}});
  submitter_.WaitSubmitted(3);
  const auto first = submitter_.WaitSubmitted(0);
  submitter_.WaitSubmitted(1).sink->OnFailed(PlainError(ErrorCode::kQueueFull));
  submitter_.WaitSubmitted(2).sink->OnFailed(PlainError(ErrorCode::kQueueTimeout));
  submitter_.WaitSubmitted(3).sink->OnFailed(PlainError(ErrorCode::kRateLimited));
  EXPECT_EQ(submitter_.num_submitted(), 4u) << "nothing is tried while the first is under way";
  const auto finish = [](const FakeSubmitter::Submitted& part) {
    PlayText(*part.sink, "x" + std::string(1, static_cast<char>(part.request.prompt[0])));
    part.sink->OnFinished(TestResult(1, 2));
  };
  finish(first);
  const auto fifth = submitter_.WaitSubmitted(4);
  submitter_.WaitSubmitted(5).sink->OnFailed(PlainError(ErrorCode::kQueueFull));
  EXPECT_EQ(submitter_.num_submitted(), 6u) << "one place more than there was";
  finish(fifth);
  finish(submitter_.WaitSubmitted(6));
  finish(submitter_.WaitSubmitted(7));
  ASSERT_TRUE(responder->Wait());
  ASSERT_EQ(responder->status, 200) << responder->body;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Text(*responder, {"choices", std::to_string(i), "text"}), "x" + Letter(i));
  }
  EXPECT_EQ(submitter_.num_submitted(), 8u);
}

TEST_F(PromptsTest, WhereNothingOfTheAnswerIsUnderWayALackOfRoomIsItsEnd) {
  const auto responder = Send("POST", kCompletionPath, R"({"prompt":["a","b"]})",
                              {{"Content-Type", "application/json"}});
  submitter_.WaitSubmitted(1).sink->OnFailed(PlainError(ErrorCode::kQueueTimeout));
  EXPECT_EQ(responder->status, 0) << "the other one may be answered";
  submitter_.WaitSubmitted(0).sink->OnFailed(PlainError(ErrorCode::kQueueTimeout));
  ASSERT_TRUE(responder->Wait());
  EXPECT_EQ(responder->status, 429);
  EXPECT_EQ(Text(*responder, {"error", "code"}), "queue_timeout");
}

// Two prompts of a router that has room for one, on a clock of the test's own.
class WaitingPromptTest : public PromptsTest {
 protected:
  static constexpr int64_t kMs = 1'000;
  void Begin(int64_t timeout_us, std::shared_ptr<const IdempotencyKey> key = nullptr) {
    std::vector<GenerateRequest> requests(2);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].prompt = std::vector<TokenId>{static_cast<TokenId>(i + 1)};
      requests[i].sampling.max_tokens = 1;
      requests[i].sampling.prompt_logprobs = 1;
      requests[i].received_us = 70 * kMs;
      requests[i].timeout_us = timeout_us;
      requests[i].key = key;
    }
    std::make_shared<PromptFanIn>(&submitter_, std::move(requests), sink_,
                                  std::make_shared<CallCancellation>(), clock_)
        ->Begin();
    first_ = submitter_.WaitSubmitted(0);
    EXPECT_EQ(first_.request.received_us, 70 * kMs) << "nothing has waited";
    EXPECT_EQ(submitter_.WaitSubmitted(1).request.received_us, 70 * kMs);
    EXPECT_EQ(submitter_.WaitSubmitted(1).request.timeout_us, timeout_us);
  }
  void Refuse(size_t i, ErrorCode code = ErrorCode::kQueueTimeout) {
    submitter_.WaitSubmitted(i).sink->OnFailed(PlainError(code));
  }

  struct EndSink final : public AnswerSink {
    void OnLoggedPrompt(uint32_t prompt, std::shared_ptr<const PromptLogprobs>) override {
      logged.push_back(prompt);
    }
    void OnPromptProgress(uint32_t /*prompt*/, const PromptProgress& progress) override {
      processed.push_back(progress.processed);
    }
    void OnToken(const TokenOutput&) override {}
    void OnFinished(const GenerateResult&) override { has_finished = true; }
    void OnFailed(const RequestError& error) override { failed = error; }
    size_t buffered_bytes() const override { return 0; }
    std::vector<uint32_t> logged;
    std::vector<uint32_t> processed;
    bool has_finished = false;
    std::optional<RequestError> failed;
  };
  FakeClock clock_{5'000'000};
  const std::shared_ptr<EndSink> sink_ = std::make_shared<EndSink>();
  FakeSubmitter::Submitted first_;
};

TEST_F(WaitingPromptTest, ArrivesWhenItIsSubmittedAgainAndKeepsTheDeadlineOfTheAnswer) {
  Begin(1'000 * kMs);
  Refuse(1);
  clock_.AdvanceUs(400 * kMs);
  first_.sink->OnFinished(TestResult(1, 1));
  const auto again = submitter_.WaitSubmitted(2);
  EXPECT_EQ(again.request.received_us, 470 * kMs);
  EXPECT_EQ(again.request.timeout_us, 600 * kMs);
  again.sink->OnFailed(DeadlineError(again.request.fields.timeout, again.request.timeout_us));
  ASSERT_TRUE(sink_->failed.has_value());
  EXPECT_THAT(sink_->failed->Message(), HasSubstr("'timeout_ms' gave it 1000 ms"));
}

TEST_F(WaitingPromptTest, HasNoDeadlineWhereTheAnswerHasNone) {
  Begin(0);
  Refuse(1);
  clock_.AdvanceUs(400 * kMs);
  first_.sink->OnFinished(TestResult(1, 1));
  EXPECT_EQ(submitter_.WaitSubmitted(2).request.timeout_us, 0) << "none";
}

TEST_F(WaitingPromptTest, EndsAtOnceWhereTheDeadlineHasPassed) {
  Begin(300 * kMs);
  Refuse(1);
  clock_.AdvanceUs(400 * kMs);
  first_.sink->OnFinished(TestResult(1, 1));
  EXPECT_EQ(submitter_.WaitSubmitted(2).request.timeout_us, 1);
}

TEST_F(WaitingPromptTest, FindsNoRoomForHalfAnHourAtMost) {
  Begin(0);
  clock_.AdvanceUs(PromptFanIn::kRoomLimitUs - 1);
  Refuse(1);
  EXPECT_FALSE(sink_->failed.has_value()) << "the first one is under way";
  clock_.AdvanceUs(1);
  first_.sink->OnFinished(TestResult(1, 1));
  Refuse(2);
  ASSERT_TRUE(sink_->failed.has_value());
  EXPECT_EQ(HttpStatusOf(sink_->failed->code), 429);
  EXPECT_EQ(submitter_.num_submitted(), 3u);
  EXPECT_EQ(submitter_.num_put_back(), 1u);
}

// The router may hear late that the room of a finished prompt is free.
TEST_F(WaitingPromptTest, WaitsAgainWhileTheNewsOfFreedRoomMayBeLate) {
  Begin(0);
  first_.sink->OnFinished(TestResult(1, 1));
  clock_.AdvanceUs(PromptFanIn::kLateRoomUs - 1);
  for (const size_t i : {1, 2, 3}) {
    Refuse(i);
    EXPECT_FALSE(sink_->failed.has_value());
    EXPECT_TRUE(submitter_.WaitSubmitted(i + 1).request.skips_forecast) << "it waits in the queue";
  }
  clock_.AdvanceUs(1);
  Refuse(4);
  ASSERT_TRUE(sink_->failed.has_value());
  EXPECT_EQ(HttpStatusOf(sink_->failed->code), 429);
  EXPECT_EQ(submitter_.num_submitted(), 5u);
  EXPECT_EQ(submitter_.num_put_back(), 3u);
}

TEST_F(WaitingPromptTest, WaitsOnceMoreWhereTheFirstWaitWasLongerThanThat) {
  Begin(0);
  first_.sink->OnFinished(TestResult(1, 1));
  clock_.AdvanceUs(PromptFanIn::kLateRoomUs);
  Refuse(1);
  EXPECT_FALSE(sink_->failed.has_value());
  Refuse(2);
  EXPECT_TRUE(sink_->failed.has_value());
}

// Refusals at once would be followed by as many tries as the processor makes.
TEST_F(WaitingPromptTest, IsSubmittedOnceMoreWhereTheRouterDoesNotLetItWait) {
  Begin(0);
  first_.sink->OnFinished(TestResult(1, 1));
  Refuse(1, ErrorCode::kQueueFull);
  EXPECT_FALSE(sink_->failed.has_value());
  Refuse(2, ErrorCode::kQueueFull);
  EXPECT_TRUE(sink_->failed.has_value());
  EXPECT_EQ(submitter_.num_submitted(), 3u);
}

TEST_F(WaitingPromptTest, WaitsAgainForTheShareOfItsTenant) {
  Begin(0);
  first_.sink->OnFinished(TestResult(1, 1));
  for (const size_t i : {1, 2, 3}) Refuse(i, ErrorCode::kRateLimited);
  EXPECT_FALSE(sink_->failed.has_value());
  EXPECT_EQ(submitter_.num_submitted(), 5u);
  clock_.AdvanceUs(PromptFanIn::kLateRoomUs);
  Refuse(4, ErrorCode::kRateLimited);
  ASSERT_TRUE(sink_->failed.has_value());
  EXPECT_EQ(sink_->failed->code, ErrorCode::kRateLimited);
}

TEST_F(WaitingPromptTest, OneRefusalAtOnceAmongWaitsIsNoEnd) {
  Begin(0);
  first_.sink->OnFinished(TestResult(1, 1));
  Refuse(1);
  Refuse(2);
  Refuse(3, ErrorCode::kQueueFull);
  Refuse(4);
  EXPECT_FALSE(sink_->failed.has_value());
  EXPECT_TRUE(submitter_.WaitSubmitted(5).request.skips_forecast);
  Refuse(5, ErrorCode::kQueueFull);
  ASSERT_TRUE(sink_->failed.has_value());
  EXPECT_EQ(sink_->failed->code, ErrorCode::kQueueFull);
}

TEST_F(WaitingPromptTest, TriesAloneAreCounted) {
  Begin(0);
  first_.sink->OnFinished(TestResult(1, 1));
  for (size_t i = 1; i <= PromptFanIn::kMostTriesAlone; ++i) Refuse(i);
  EXPECT_FALSE(sink_->failed.has_value());
  Refuse(PromptFanIn::kMostTriesAlone + 1);
  EXPECT_TRUE(sink_->failed.has_value());
}

TEST_F(WaitingPromptTest, SkipsNoForecastBesideOthersOfItsAnswer) {
  Begin(0);
  Refuse(1);
  first_.sink->OnFinished(TestResult(1, 1));
  EXPECT_FALSE(submitter_.WaitSubmitted(2).request.skips_forecast);
}

// The router asks before it counts a failure.
TEST_F(WaitingPromptTest, SaysToTheRouterThatItTriesAgain) {
  Begin(0);
  const auto second = submitter_.WaitSubmitted(1);
  const RequestError no_room = PlainError(ErrorCode::kQueueTimeout);
  EXPECT_TRUE(second.sink->TriesAgain(no_room));
  EXPECT_EQ(submitter_.num_put_back(), 1u);
  second.sink->OnFailed(no_room);
  EXPECT_EQ(submitter_.num_put_back(), 1u) << "once for each";
  EXPECT_FALSE(first_.sink->TriesAgain(no_room)) << "nothing of the answer is under way";
  first_.sink->OnFailed(no_room);
  ASSERT_TRUE(sink_->failed.has_value());
  EXPECT_EQ(sink_->failed->code, ErrorCode::kQueueTimeout);
}

TEST_F(WaitingPromptTest, IsToldOfItsLogOnceAndItsProgressGoesOn) {
  Begin(0);
  const auto second = submitter_.WaitSubmitted(1);
  second.sink->OnProgress({.total = 9, .processed = 4});
  second.sink->OnPromptLogprobs(std::make_shared<PromptLogprobs>());
  Refuse(1);
  first_.sink->OnFinished(TestResult(1, 1));
  const auto again = submitter_.WaitSubmitted(2);
  EXPECT_FALSE(again.request.sampling.prompt_logprobs.has_value()) << "no worker computes it again";
  for (const uint32_t processed : {3, 4, 9}) {
    again.sink->OnProgress({.total = 9, .processed = processed});
  }
  EXPECT_THAT(sink_->logged, ElementsAre(1));
  EXPECT_THAT(sink_->processed, ElementsAre(4, 9));
}

TEST_F(WaitingPromptTest, KeepsItsLogToComputeWhereItWasNotTold) {
  Begin(0);
  Refuse(1);
  first_.sink->OnFinished(TestResult(1, 1));
  EXPECT_EQ(submitter_.WaitSubmitted(2).request.sampling.prompt_logprobs, 1u);
}

TEST_F(WaitingPromptTest, TakesTheTimeThatIsLeftToItsIdempotencyKey) {
  auto key = std::make_shared<IdempotencyKey>();
  key->scope = "scope";
  key->timeout_us = 1'000 * kMs;
  Begin(1'000 * kMs, key);
  Refuse(1);
  clock_.AdvanceUs(400 * kMs);
  first_.sink->OnFinished(TestResult(1, 1));
  const auto again = submitter_.WaitSubmitted(2);
  ASSERT_NE(again.request.key, nullptr);
  EXPECT_EQ(again.request.key->scope, "scope");
  EXPECT_EQ(again.request.key->timeout_us, 600 * kMs);
  EXPECT_EQ(key->timeout_us, 1'000 * kMs) << "the client's other tries have their own";
}

TEST_F(PromptsTest, AClientThatLeavesEndsPromptsThatWait) {
  const auto responder = Send("POST", kCompletionPath, R"({"prompt":["a","b"]})",
                              {{"Content-Type", "application/json"}});
  const auto first = submitter_.WaitSubmitted(0);
  submitter_.WaitSubmitted(1).sink->OnFailed(PlainError(ErrorCode::kQueueFull));
  ASSERT_TRUE(responder->WaitOnClosedSet());
  responder->Close();
  EXPECT_TRUE(submitter_.WaitCancelled(first.uid));
  first.sink->OnFinished(TestResult(1, 0));
  EXPECT_EQ(submitter_.num_submitted(), 2u);
}

TEST_F(PromptsTest, AClientThatLeavesCancelsAll) {
  const auto responder = Send("POST", kCompletionPath, R"({"prompt":["a","b","c"]})",
                              {{"Content-Type", "application/json"}});
  submitter_.WaitSubmitted(2);
  ASSERT_TRUE(responder->WaitOnClosedSet());
  responder->Close();
  for (const size_t i : {0, 1, 2}) {
    EXPECT_TRUE(submitter_.WaitCancelled(submitter_.WaitSubmitted(i).uid));
  }
}

TEST_F(PromptsTest, ManyPromptsAreUnderWayOneAfterTheOther) {
  constexpr size_t kNumPrompts = PromptFanIn::kAtOnce + 2;
  const auto responder = Send("POST", kCompletionPath, R"({"prompt":)" + Letters(kNumPrompts) + "}",
                              {{"Content-Type", "application/json"}});
  submitter_.WaitSubmitted(PromptFanIn::kAtOnce - 1);
  EXPECT_EQ(submitter_.num_submitted(), PromptFanIn::kAtOnce);
  for (size_t i = 0; i < kNumPrompts; ++i) {
    const auto submitted = submitter_.WaitSubmitted(i);
    EXPECT_EQ(submitted.request.prompt[0], static_cast<TokenId>(Letter(i)[0]));
    PlayText(*submitted.sink, Letter(i));
    submitted.sink->OnFinished(TestResult(1, 1));
  }
  ASSERT_TRUE(responder->Wait());
  EXPECT_EQ(Text(*responder, {"choices", std::to_string(kNumPrompts - 1), "text"}),
            Letter(kNumPrompts - 1));
}

TEST_F(PromptsTest, AsManyAsFitAreAnsweredAndMoreAreRefused) {
  AnswerInCapitals();
  const auto most = Post(kCompletionPath, R"({"prompt":)" + Letters(1024) + R"(,"max_tokens":1})");
  EXPECT_EQ(most->status, 200);
  EXPECT_EQ(Text(*most, {"choices", "1023", "text"}), "J");
  struct Case {
    std::string fields;
    const char* param;
  };
  const Case cases[] = {
      {R"("prompt":)" + Letters(1025), "prompt"},
      {R"("prompt":)" + Letters(10'000), "prompt"},
      {R"("prompt":)" + Letters(513) + R"(,"n":2)", "n"},
      {R"("prompt":)" + Letters(513) + R"(,"n":1,"best_of":2)", "best_of"},
      {R"("prompt":["a",[1]])", "prompt[1]"},
      {R"("prompt":[[1],"a"])", "prompt[1]"},
      {R"("prompt":["a",null])", "prompt[1]"},
      {R"("prompt":["a",""])", "prompt[1]"},
      {R"("prompt":[[1],[]])", "prompt[1]"},
      {R"("prompt":[[1],[-1]])", "prompt[1]"},
      {R"("prompt":[[1],[259]])", "prompt[1]"},
      {R"("prompt":["a",")" + std::string(kTestContext, 'x') + R"("])", "prompt[1]"},
      {R"("prompt":["a","b"],"prompt_token_ids":[1])", "prompt"},
      {R"("prompt":["a","b"],"suffix":"c")", "suffix"},
  };
  const size_t before = submitter_.num_submitted();
  for (const Case& c : cases) {
    const auto responder = Post(kCompletionPath, "{" + c.fields + "}");
    EXPECT_EQ(responder->status, 400) << responder->body;
    EXPECT_EQ(Text(*responder, {"error", "param"}), c.param) << responder->body;
  }
  EXPECT_EQ(submitter_.num_submitted(), before) << "no worker hears of them";
}

TEST_F(PromptsTest, EqualPromptsHaveSeedsOfTheirOwnUnlessTheClientGaveOne) {
  AnswerInCapitals();
  Post(kCompletionPath, R"({"prompt":["a","a"]})");
  EXPECT_NE(submitter_.WaitSubmitted(0).request.sampling.seed,
            submitter_.WaitSubmitted(1).request.sampling.seed);
  Post(kCompletionPath, R"({"prompt":["a","a"],"seed":7})");
  EXPECT_EQ(submitter_.WaitSubmitted(2).request.sampling.seed, 7u);
  EXPECT_EQ(submitter_.WaitSubmitted(3).request.sampling.seed, 7u);
}

TEST_F(PromptsTest, RoomIsTakenForAllPromptsBeforeOneIsSubmitted) {
  // At 20 + 8 * 20 bytes a token 1 MiB holds 10 prompts of 500 tokens, and not 20.
  AnswerBudget::Share taken;
  ASSERT_TRUE(answers_.TryTake(AnswerBudget::kMaxBytes - (size_t{1} << 20), &taken));
  const auto refused =
      Post(kCompletionPath, R"({"prompt":)" + Letters(20) + R"(,"max_tokens":500,"logprobs":20})");
  EXPECT_EQ(refused->status, 429) << refused->body;
  EXPECT_EQ(submitter_.num_submitted(), 0u);
  AnswerInCapitals();
  const auto fits =
      Post(kCompletionPath, R"({"prompt":)" + Letters(10) + R"(,"max_tokens":500,"logprobs":20})");
  EXPECT_EQ(fits->status, 200) << fits->body;
  EXPECT_EQ(submitter_.num_submitted(), 10u);
}

TEST_F(PromptsTest, EchoWithoutTokensComputesNothing) {
  const auto whole =
      Post(kCompletionPath, R"({"prompt":["hi","x"],"echo":true,"max_tokens":0,"n":2})");
  ASSERT_EQ(whole->status, 200) << whole->body;
  const std::vector<std::string> texts = {"hi", "hi", "x", "x"};
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(Text(*whole, {"choices", std::to_string(i), "text"}), texts[i]);
  }
  EXPECT_EQ(Text(*whole, {"usage", "total_tokens"}), "3");
  EXPECT_EQ(submitter_.num_submitted(), 0u);
}

TEST_F(PromptsTest, EachPromptOfAKeyIsAGenerationOfItsOwn) {
  AnswerInCapitals();
  const auto responder = Send("POST", kCompletionPath, R"({"prompt":["a","b"]})",
                              {{"Content-Type", "application/json"}, {"Idempotency-Key", "k"}});
  ASSERT_TRUE(responder->Wait());
  const auto first = submitter_.WaitSubmitted(0).request.key;
  const auto second = submitter_.WaitSubmitted(1).request.key;
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_NE(first->scope, second->scope);
  EXPECT_EQ(first->fingerprint, second->fingerprint);
}

TEST_F(PromptsTest, ProgressBeforeTheHeaderIsKeptForEachPrompt) {
  submitter_.answer = nullptr;
  const auto stream =
      Send("POST", kCompletionPath, R"({"prompt":["a","b"],"stream":true,"return_progress":true})",
           {{"Content-Type", "application/json"}});
  const auto first = submitter_.WaitSubmitted(0);
  const auto second = submitter_.WaitSubmitted(1);
  second.sink->OnProgress({.total = 8, .processed = 3});
  first.sink->OnProgress({.total = 9, .processed = 4});
  first.sink->OnProgress({.total = 9, .processed = 9});
  EXPECT_EQ(stream->body, "");
  first.sink->OnTaken();
  second.sink->OnTaken();
  PlayText(*first.sink, "x");
  first.sink->OnFinished(TestResult(9, 1));
  PlayText(*second.sink, "y");
  second.sink->OnFinished(TestResult(8, 1));
  ASSERT_TRUE(stream->Wait());
  const std::vector<std::string> events = Events(stream->body);
  EXPECT_THAT(events[0], HasSubstr(R"("total":9,"cache":0,"processed":9)"));
  EXPECT_THAT(events[0], HasSubstr(R"("choices":[{"index":0,)"));
  EXPECT_THAT(events[1], HasSubstr(R"("total":8,"cache":0,"processed":3)"));
  EXPECT_THAT(events[1], HasSubstr(R"("choices":[{"index":1,)"));
}

TEST_F(PromptsTest, ProgressNamesTheChoiceAndNeedsAStream) {
  const auto play = [](const GenerateRequest& request, ResponseSink& sink) {
    if (request.reports_progress) sink.OnProgress({.total = 9, .cache = 2, .processed = 4});
    sink.OnTaken();
    if (request.reports_progress) {
      sink.OnProgress({.total = 9, .cache = 2, .processed = 9, .time_ms = 7});
    }
    PlayText(sink, "x", 0, FinishReason::kStop, true);
    sink.OnFinished(TestResult(9, 1));
  };
  submitter_.answer = play;
  const auto one = Post(kCompletionPath, R"({"prompt":"a","stream":true,"return_progress":true})");
  const std::vector<std::string> events = Events(one->body);
  ASSERT_EQ(events.size(), 5u) << one->body;
  EXPECT_NE(events[0].find(R"("prompt_progress":{"total":9,"cache":2,"processed":4,"time_ms":0},)"
                           R"("choices":[{"index":0,"text":"","logprobs":null)"),
            std::string::npos)
      << events[0];
  EXPECT_NE(events[1].find(R"("processed":9,"time_ms":7})"), std::string::npos);
  const auto chat = Post(kChatPath, kHello + R"(,"stream":true,"return_progress":true})");
  EXPECT_NE(Events(chat->body)[0].find(R"("delta":{"role":"assistant","content":null})"),
            std::string::npos)
      << chat->body;
  const auto two =
      Post(kCompletionPath, R"({"prompt":["a","b"],"stream":true,"return_progress":true})");
  EXPECT_NE(two->body.find(R"("processed":9,"time_ms":7},"choices":[{"index":1,)"),
            std::string::npos)
      << two->body;
  const auto whole = Post(kCompletionPath, R"({"prompt":"a","return_progress":true})");
  EXPECT_EQ(whole->status, 200);
  EXPECT_EQ(whole->body.find("prompt_progress"), std::string::npos);
  EXPECT_EQ(whole->Header("X-Baton-Ignored-Fields"), "return_progress");
  EXPECT_EQ(one->Header("X-Baton-Ignored-Fields"), "");
  // A generation that others may be told too has no progress: none is computed.
  const auto keyed =
      Send("POST", kCompletionPath, R"({"prompt":["a","b"],"stream":true,"return_progress":true})",
           {{"Content-Type", "application/json"}, {"Idempotency-Key", "k"}});
  ASSERT_TRUE(keyed->Wait());
  EXPECT_EQ(keyed->Header("X-Baton-Ignored-Fields"), "return_progress");
  EXPECT_EQ(keyed->body.find("prompt_progress"), std::string::npos);
  const size_t num_submitted = submitter_.num_submitted();
  EXPECT_FALSE(submitter_.WaitSubmitted(num_submitted - 1).request.reports_progress);
  EXPECT_FALSE(submitter_.WaitSubmitted(num_submitted - 2).request.reports_progress);
}

}  // namespace
}  // namespace baton::api
