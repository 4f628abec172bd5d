// Log-probabilities of prompts over HTTP: echo with logprobs, and prompt_logprobs in vLLM's form.
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using namespace router;  // NOLINT(google-build-using-namespace)
using scheduler::FinishReason;
using testing::HasSubstr;
using testing::Not;

namespace {

class PromptLogprobsTest : public HttpApiTest {
 protected:
  // Answers "x"; each token of the prompt after the first has log-probability -0.5 and rank 2, and
  // 'q' is likeliest with -0.25.
  PromptLogprobsTest() {
    submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
      if (request.sampling.prompt_logprobs.has_value()) {
        auto log = std::make_shared<PromptLogprobs>();
        for (size_t i = 1; i < request.prompt.size(); ++i) {
          const std::vector<TokenLogprob> likeliest = {{'q', -0.25f}, {request.prompt[i], -0.5f}};
          for (size_t k = 0; k < std::min<size_t>(2, *request.sampling.prompt_logprobs); ++k) {
            log->top.push_back(likeliest[k]);
          }
          log->rows.push_back({-0.5f, 2, static_cast<uint32_t>(log->top.size())});
        }
        sink.OnPromptLogprobs(std::move(log));
      }
      for (uint32_t choice = 0; choice < request.num_choices; ++choice) {
        PlayText(sink, "x", choice, FinishReason::kStop, choice + 1 == request.num_choices);
      }
      sink.OnFinished(TestResult(static_cast<uint32_t>(request.prompt.size()),
                                 request.has_tokens() ? request.num_choices : 0));
    };
  }
};

TEST_F(PromptLogprobsTest, EchoPutsThemBeforeThoseOfTheAnswer) {
  for (const char* prompt : {R"("ab")", "[97,98]"}) {
    const auto answer = Post(kCompletionPath, R"({"prompt":)" + std::string(prompt) +
                                                  R"(,"echo":true,"logprobs":1,"max_tokens":1})");
    ASSERT_EQ(answer->status, 200) << answer->body;
    EXPECT_EQ(Text(*answer, {"choices", "0", "text"}), "abx");
    EXPECT_NE(answer->body.find(R"("logprobs":{"tokens":["a","b","x"],)"
                                R"("token_logprobs":[null,-0.5,-0.25],)"
                                R"("top_logprobs":[null,{"q":-0.25,"b":-0.5},{"a":-0.25,)"),
              std::string::npos)
        << answer->body;
    EXPECT_NE(answer->body.find(R"("text_offset":[0,1,2]})"), std::string::npos) << answer->body;
    EXPECT_EQ(Text(*answer, {"usage", "completion_tokens"}), "1");
  }
}

TEST_F(PromptLogprobsTest, WithoutTokensOnlyThePromptIsTold) {
  const auto answer = Post(
      kCompletionPath, R"({"prompt":["ab","c"],"echo":true,"logprobs":0,"max_tokens":0,"n":2})");
  ASSERT_EQ(answer->status, 200) << answer->body;
  EXPECT_EQ(submitter_.num_submitted(), 2u);
  EXPECT_EQ(submitter_.WaitSubmitted(0).request.sampling.max_tokens, 1u);
  EXPECT_FALSE(submitter_.WaitSubmitted(1).request.sampling.prompt_logprobs.has_value())
      << "its one token has none";
  for (const char* choice : {"0", "1"}) {
    EXPECT_EQ(Text(*answer, {"choices", choice, "text"}), "ab");
    EXPECT_EQ(Text(*answer, {"choices", choice, "finish_reason"}), "length");
  }
  EXPECT_NE(answer->body.find(R"("tokens":["a","b"],"token_logprobs":[null,-0.5],)"
                              R"("top_logprobs":[null,{"b":-0.5}],"text_offset":[0,1]})"),
            std::string::npos)
      << answer->body;
  EXPECT_NE(answer->body.find(R"("tokens":["c"],"token_logprobs":[null],"top_logprobs":[null],)"),
            std::string::npos)
      << answer->body;
  EXPECT_EQ(Text(*answer, {"usage", "prompt_tokens"}), "3");
  EXPECT_EQ(Text(*answer, {"usage", "completion_tokens"}), "0");
}

TEST_F(PromptLogprobsTest, PromptLogprobsHaveTheFormOfVllm) {
  const std::string expected =
      R"("prompt_logprobs":[null,{"98":{"logprob":-0.5,"rank":2,"decoded_token":"b"},)"
      R"("113":{"logprob":-0.25,"rank":1,"decoded_token":"q"}}])";
  const auto completion =
      Post(kCompletionPath, R"({"prompt":"ab","prompt_logprobs":2,"max_tokens":1})");
  ASSERT_EQ(completion->status, 200) << completion->body;
  EXPECT_NE(completion->body.find(R"("stop_reason":120,)" + expected + "}]"), std::string::npos)
      << completion->body;
  const auto chat = Post(kChatPath, kHello + R"(,"prompt_logprobs":0})");
  ASSERT_EQ(chat->status, 200) << chat->body;
  EXPECT_NE(chat->body.find(R"(}],"prompt_logprobs":[null,{)"), std::string::npos) << chat->body;
  const auto plain = Post(kCompletionPath, R"({"prompt":"ab","max_tokens":1})");
  EXPECT_EQ(plain->body.find("prompt_logprobs"), std::string::npos);
}

TEST_F(PromptLogprobsTest, EachOfTheTwoFieldsHasItsOwnAlternatives) {
  const auto answer = Post(kCompletionPath, R"({"prompt":"ab","echo":true,"logprobs":1,)"
                                            R"("prompt_logprobs":2,"max_tokens":0})");
  ASSERT_EQ(answer->status, 200) << answer->body;
  EXPECT_EQ(submitter_.WaitSubmitted(0).request.sampling.prompt_logprobs, 2u);
  EXPECT_NE(answer->body.find(R"("top_logprobs":[null,{"q":-0.25,"b":-0.5}])"), std::string::npos)
      << answer->body;
}

TEST_F(PromptLogprobsTest, AStreamBeginsWithThePromptAndItsLogprobs) {
  const auto answer =
      Post(kCompletionPath, R"({"prompt":["ab","c"],"n":2,"echo":true,"logprobs":1,)"
                            R"("prompt_logprobs":0,"max_tokens":1,"stream":true})");
  ASSERT_EQ(answer->status, 200) << answer->body;
  const std::vector<std::string> events = Events(answer->body);
  ASSERT_EQ(events.size(), 13u) << "three for each choice, and the end";
  for (const size_t first : {0u, 3u}) {
    EXPECT_THAT(events[first],
                HasSubstr(R"("text":"ab","logprobs":{"tokens":["a","b"],)"
                          R"("token_logprobs":[null,-0.5],"top_logprobs":[null,{"q":-0.25,)"
                          R"("b":-0.5}],"text_offset":[0,1]},"finish_reason":null,)"
                          R"("prompt_logprobs":[null,{"98":{"logprob":-0.5,"rank":2,)"
                          R"("decoded_token":"b"}}]}])"));
    EXPECT_THAT(events[first + 1], HasSubstr(R"("text":"x","logprobs":{"tokens":["x"],)"));
    EXPECT_THAT(events[first + 1], HasSubstr(R"("text_offset":[2])"));
    EXPECT_THAT(events[first + 1], Not(HasSubstr("prompt_logprobs")));
  }
  EXPECT_THAT(events[6],
              HasSubstr(R"("text":"c","logprobs":{"tokens":["c"],"token_logprobs":[null],)"))
      << "one token has none";
  EXPECT_EQ(answers_.used(), 0u) << "all choices are open";
}

TEST_F(PromptLogprobsTest, AStreamOfNoTokensIsThePromptAlone) {
  for (const char* echo : {R"("echo":true,"logprobs":0)", R"("prompt_logprobs":0)"}) {
    const auto answer = Post(kCompletionPath, R"({"prompt":"ab","max_tokens":0,"stream":true,)" +
                                                  std::string(echo) + "}");
    ASSERT_EQ(answer->status, 200) << answer->body;
    const std::vector<std::string> events = Events(answer->body);
    ASSERT_EQ(events.size(), 3u) << answer->body;
    EXPECT_THAT(events[0], HasSubstr("-0.5"));
    EXPECT_THAT(events[1], HasSubstr(R"("text":"","logprobs":null,"finish_reason":"length")"));
    EXPECT_THAT(events[1], HasSubstr(R"("stop_reason":null)"));
    EXPECT_EQ(answer->body.find(R"("x")"), std::string::npos);
  }
}

TEST_F(PromptLogprobsTest, AStreamedChatTellsThemInItsFirstChunkAlone) {
  const auto answer = Post(kChatPath, kHello + R"(,"prompt_logprobs":0,"n":2,"stream":true})");
  ASSERT_EQ(answer->status, 200) << answer->body;
  const std::vector<std::string> events = Events(answer->body);
  EXPECT_THAT(events[0], HasSubstr(R"(,"prompt_logprobs":[null,{)"));
  EXPECT_THAT(events[0], HasSubstr(R"(}}],"choices":[{"index":0,"delta":{"role":"assistant")"));
  for (size_t i = 1; i < events.size(); ++i) {
    EXPECT_THAT(events[i], Not(HasSubstr("prompt_logprobs"))) << i;
  }
}

// They come before a worker has taken the request. What fails then still has its status.
TEST_F(PromptLogprobsTest, AStreamWaitsWithThemForItsFirstToken) {
  submitter_.answer = nullptr;
  const auto headers = http::HttpHeaders{{"Content-Type", "application/json"}};
  const auto stream =
      Send("POST", kCompletionPath,
           R"({"prompt":"ab","echo":true,"logprobs":0,"max_tokens":2,"stream":true})", headers);
  const auto submitted = submitter_.WaitSubmitted();
  auto log = std::make_shared<PromptLogprobs>();
  log->rows.push_back({-0.5f, 1, 0});
  submitted.sink->OnPromptLogprobs(log);
  EXPECT_EQ(stream->status, 0);
  EXPECT_GT(answers_.used(), 0u);
  submitted.sink->OnFailed(PlainError(ErrorCode::kWorkerLost));
  ASSERT_TRUE(stream->Wait());
  EXPECT_EQ(stream->status, 503) << stream->body;
}

TEST_F(PromptLogprobsTest, AFaultAfterThemIsAnEventAndTellsThemOnce) {
  submitter_.answer = [](const GenerateRequest&, ResponseSink& sink) {
    auto log = std::make_shared<PromptLogprobs>();
    log->rows.push_back({-0.5f, 1, 0});
    sink.OnPromptLogprobs(std::move(log));
    PlayText(sink, "x", 0, FinishReason::kNone, false);
    sink.OnFailed(PlainError(ErrorCode::kWorkerLost));
  };
  const auto answer = Post(kCompletionPath, R"({"prompt":"ab","echo":true,"logprobs":0,)"
                                            R"("max_tokens":2,"stream":true})");
  ASSERT_EQ(answer->status, 200);
  const std::vector<std::string> events = Events(answer->body);
  ASSERT_EQ(events.size(), 3u) << answer->body;
  EXPECT_THAT(events[0], HasSubstr(R"("token_logprobs":[null,-0.5])"));
  EXPECT_THAT(events[1], HasSubstr(R"("tokens":["x"])"));
  EXPECT_THAT(events[2], HasSubstr(R"({"error":)"));
}

// The event has to fit what waits for one client.
TEST_F(PromptLogprobsTest, AStreamHasFewerAndTheyFitItsConnection) {
  auto model = std::make_shared<ModelInfo>(*submitter_.served[0]);
  model->max_context = 1'000'000;
  submitter_.served[0] = model;
  const auto ask = [&](size_t num_tokens) {
    return Post(kCompletionPath, R"({"prompt":")" + std::string(num_tokens, 'x') +
                                     R"(","echo":true,"logprobs":1,"prompt_logprobs":1,)"
                                     R"("max_tokens":1,"stream":true})");
  };
  const size_t most = kMaxStreamedPromptLogprobs / 2;
  const auto answer = ask(most);
  ASSERT_EQ(answer->status, 200) << answer->body;
  EXPECT_LT(Events(answer->body)[0].size(), kMaxOpeningBytes);
  const auto refused = ask(most + 1);
  EXPECT_EQ(refused->status, 400);
  EXPECT_EQ(Text(*refused, {"error", "param"}), "echo");
  EXPECT_EQ(Text(*refused, {"error", "message"}),
            "'echo' does not fit the other fields: a prompt of 8193 tokens has 16386 "
            "log-probabilities with 1 alternatives each, and a stream has at most 16384; ask for a "
            "whole answer or fewer alternatives.");
}

// Few log-probabilities of long tokens: the event would not fit, and the connection must not end
// without a word.
TEST_F(PromptLogprobsTest, AStreamWhoseEventIsTooLargeFailsWithItsBytes) {
  text::TokenizerSpec spec = TestSpec();
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += text::ByteLetter('\n');
  spec.tokens.push_back(lines);
  spec.token_types.push_back(static_cast<int32_t>(text::TokenType::kNormal));
  auto model = std::make_shared<ModelInfo>(*submitter_.served[0]);
  model->tokenizer = text::Tokenizer::Create(spec).value();
  model->vocab_size = static_cast<uint32_t>(spec.tokens.size());
  model->max_context = 1'000'000;
  submitter_.served[0] = model;
  const auto ask = [&](size_t num_tokens) {
    std::string ids = std::to_string(model->vocab_size - 1);
    for (size_t i = 1; i < num_tokens; ++i) ids += ',' + std::to_string(model->vocab_size - 1);
    return Post(kCompletionPath,
                R"({"prompt":[)" + ids + R"(],"prompt_logprobs":0,"max_tokens":1,"stream":true})");
  };
  const auto fits = ask(7'000);
  ASSERT_EQ(fits->status, 200) << fits->body;
  const std::vector<std::string> events = Events(fits->body);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_GT(events[0].size(), 7'000u * 400);
  const auto large = ask(9'000);
  EXPECT_TRUE(submitter_.WaitCancelled(submitter_.WaitSubmitted(1).uid)) << "nobody needs the rest";
  EXPECT_THAT(large->body,
              HasSubstr("'prompt_logprobs' does not fit the other fields: the prompt's "
                        "log-probabilities make an event of "));
  EXPECT_THAT(large->body, HasSubstr("ask for a whole answer or fewer alternatives"));
  EXPECT_THAT(large->body, Not(HasSubstr("[DONE]")));
  EXPECT_EQ(answers_.used(), 0u);
}

// The router's thread serves all streams. It waits with the first token, as for a slow client.
TEST_F(PromptLogprobsTest, ALargeEventIsBuiltOnAThreadOfTheApi) {
  auto model = std::make_shared<ModelInfo>(*submitter_.served[0]);
  model->max_context = 1'000'000;
  submitter_.served[0] = model;
  submitter_.answer = nullptr;
  const auto stream = Send("POST", kCompletionPath,
                           R"({"prompt":")" + std::string(8'000, 'x') +
                               R"(","n":2,"echo":true,"logprobs":1,"max_tokens":1,"stream":true})",
                           {{"Content-Type", "application/json"}});
  const auto submitted = submitter_.WaitSubmitted();
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(workers_.TryPost(0, [released](bool) { released.wait(); }));
  }
  auto log = std::make_shared<PromptLogprobs>();
  for (int i = 1; i < 8'000; ++i) log->rows.push_back({-0.5f, 1, 0});
  submitted.sink->OnPromptLogprobs(log);
  submitted.sink->OnTaken();
  EXPECT_GT(submitted.sink->buffered_bytes(), kPauseBytes);
  release.set_value();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (submitted.sink->buffered_bytes() > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(submitted.sink->buffered_bytes(), 0u);
  for (uint32_t choice = 0; choice < 2; ++choice) {
    PlayText(*submitted.sink, "x", choice, FinishReason::kStop, choice == 1);
  }
  submitted.sink->OnFinished(TestResult(8'000, 2));
  ASSERT_TRUE(stream->Wait());
  const std::vector<std::string> events = Events(stream->body);
  ASSERT_EQ(events.size(), 7u);
  for (const size_t first : {0u, 3u}) {
    EXPECT_THAT(events[first], HasSubstr(R"("token_logprobs":[null,-0.5,-0.5,)"));
    EXPECT_GT(events[first].size(), 8'000u * 10);
  }
  EXPECT_EQ(answers_.used(), 0u);
}

TEST_F(PromptLogprobsTest, TooManyAndRememberedOnesAreRefused) {
  auto model = std::make_shared<ModelInfo>(*submitter_.served[0]);
  model->max_context = 1'000'000;
  submitter_.served[0] = model;
  const std::string text(limits::kMaxPromptLogprobs / 21 + 1, 'x');
  const auto large = Post(kCompletionPath, R"({"prompt":")" + text + R"(","prompt_logprobs":20})");
  EXPECT_EQ(large->status, 400) << large->body;
  EXPECT_EQ(Text(*large, {"error", "param"}), "prompt_logprobs");
  const auto keyed = Send("POST", kCompletionPath, R"({"prompt":"ab","prompt_logprobs":1})",
                          {{"Content-Type", "application/json"}, {"Idempotency-Key", "k"}});
  ASSERT_TRUE(keyed->Wait());
  EXPECT_EQ(keyed->status, 400) << keyed->body;
  for (const char* value : {"-1", "21", "1e309", "true", "\"1\"", "[]"}) {
    const auto bad =
        Post(kCompletionPath, R"({"prompt":"ab","prompt_logprobs":)" + std::string(value) + "}");
    EXPECT_EQ(bad->status, 400) << value;
    EXPECT_EQ(Text(*bad, {"error", "param"}), "prompt_logprobs");
  }
  EXPECT_EQ(submitter_.num_submitted(), 0u);
}

}  // namespace
}  // namespace baton::api
