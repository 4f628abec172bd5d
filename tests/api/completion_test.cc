// The ends of a choice, and completions that repeat their prompt, over HTTP.
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/api/http_api_rig.h"

namespace baton::api {

using namespace router;  // NOLINT(google-build-using-namespace)
using scheduler::FinishReason;

namespace {

class CompletionTest : public HttpApiTest {
 protected:
  // Every request is answered with this one token.
  void EndWith(TokenId token, FinishReason finish, std::optional<size_t> stop_idx = {}) {
    submitter_.answer = [=](const GenerateRequest&, ResponseSink& sink) {
      TokenOutput output;
      output.token = token;
      output.finish = finish;
      output.stop_idx = stop_idx;
      output.is_last = true;
      sink.OnToken(output);
      sink.OnFinished(TestResult(1, 1));
    };
  }
};

TEST_F(CompletionTest, StopReasonSaysWhatOfTheRequestEndedAChoice) {
  struct Case {
    const char* what;
    std::string fields;
    TokenId token;
    FinishReason finish;
    std::optional<size_t> stop_idx;
    std::string expected;
  };
  const std::string stops = R"("stop":["a\"b","c"],"stop_token_ids":[120,256])";
  const Case cases[] = {
      {"first text", stops, 'x', FinishReason::kStop, 0, R"("a\"b")"},
      {"second text", stops, 'x', FinishReason::kStop, 1, R"("c")"},
      {"token of the request", stops, 'x', FinishReason::kStop, {}, "120"},
      {"end of generation", stops, kTestEos, FinishReason::kStop, {}, "null"},
      {"end as a token of the request",
       stops + R"(,"ignore_eos":true)",
       kTestEos,
       FinishReason::kStop,
       {},
       "256"},
      {"end of a form, which ignore_eos does not hold back",
       R"("structured_outputs":{"choice":["x"]},"ignore_eos":true)",
       kTestEos,
       FinishReason::kStop,
       {},
       "null"},
      {"length", stops, 'x', FinishReason::kLength, {}, "null"},
  };
  for (const Case& c : cases) {
    EndWith(c.token, c.finish, c.stop_idx);
    const std::string finish = c.finish == FinishReason::kStop ? "stop" : "length";
    const std::string wanted =
        R"("finish_reason":")" + finish + R"(","stop_reason":)" + c.expected + "}";
    for (const char* stream : {"", R"(,"stream":true)"}) {
      const auto chat = Post(kChatPath, kHello + "," + c.fields + stream + "}");
      EXPECT_NE(chat->body.find(wanted), std::string::npos) << c.what << chat->body;
      const auto completion = Post(kCompletionPath, R"({"prompt":"x",)" + c.fields + stream + "}");
      EXPECT_NE(completion->body.find(wanted), std::string::npos) << c.what << completion->body;
    }
  }
}

TEST_F(CompletionTest, ChunksBeforeTheLastHaveNoStopReason) {
  AnswerWith("abc");
  const auto responder = Post(kCompletionPath, R"({"prompt":"x","stream":true})");
  const auto events = Events(responder->body);
  ASSERT_EQ(events.size(), 5u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(events[i].find("stop_reason"), std::string::npos);
}

TEST_F(CompletionTest, EchoWithoutTokensIsThePromptAndNothingIsComputed) {
  for (const std::string prompt : {R"("hi")", "[104,105]", R"(["hi"])"}) {
    const std::string body = R"({"prompt":)" + prompt + R"(,"echo":true,"max_tokens":0)";
    const auto whole = Post(kCompletionPath, body + R"(,"n":2})");
    EXPECT_EQ(whole->status, 200) << whole->body;
    for (const char* choice : {"0", "1"}) {
      EXPECT_EQ(Text(*whole, {"choices", choice, "text"}), "hi");
      EXPECT_EQ(Text(*whole, {"choices", choice, "index"}), choice);
      EXPECT_EQ(Text(*whole, {"choices", choice, "finish_reason"}), "length");
    }
    EXPECT_EQ(Text(*whole, {"usage", "prompt_tokens"}), "2");
    EXPECT_EQ(Text(*whole, {"usage", "completion_tokens"}), "0");
    EXPECT_EQ(Text(*whole, {"usage", "total_tokens"}), "2");
    EXPECT_EQ(Text(*whole, {"timings", "path"}), "local");
  }
  EXPECT_EQ(submitter_.num_submitted(), 0u);
  EXPECT_EQ(submitter_.echoes(), (std::vector<uint32_t>{2, 2, 2})) << "counted with their choices";
}

TEST_F(CompletionTest, EchoWithoutTokensStreams) {
  const auto responder =
      Post(kCompletionPath, R"({"prompt":"hi","echo":true,"max_tokens":0,"n":2,"stream":true,)"
                            R"("stream_options":{"include_usage":true}})");
  const auto events = Events(responder->body);
  ASSERT_EQ(events.size(), 6u) << responder->body;
  for (const size_t choice : {0, 1}) {
    const std::string head = R"("choices":[{"index":)" + std::to_string(choice);
    EXPECT_NE(events[2 * choice].find(head + R"(,"text":"hi","logprobs":null,)" +
                                      R"("finish_reason":null}])"),
              std::string::npos)
        << events[2 * choice];
    EXPECT_NE(events[2 * choice + 1].find(head + R"(,"text":"","logprobs":null,)" +
                                          R"("finish_reason":"length","stop_reason":null}])"),
              std::string::npos)
        << events[2 * choice + 1];
  }
  EXPECT_NE(events[4].find(R"("choices":[],"usage":{"prompt_tokens":2,"completion_tokens":0,)"),
            std::string::npos);
  EXPECT_EQ(events[5], "[DONE]");
  EXPECT_EQ(submitter_.num_submitted(), 0u);
}

TEST_F(CompletionTest, NoTokensNeedEcho) {
  struct Case {
    const char* path;
    std::string body;
    const char* param;
    const char* message;
  };
  const Case cases[] = {
      {kCompletionPath, R"({"prompt":"x","max_tokens":0})", "max_tokens",
       "'max_tokens' does not fit the other fields: 0 needs echo to be true."},
      {kCompletionPath, R"({"prompt":"x","max_tokens":-1,"echo":true})", "max_tokens",
       "'max_tokens' is out of range: it must be an integer from 0 to 2147483647."},
      {kChatPath, kHello + R"(,"max_tokens":0,"echo":true})", "max_tokens",
       "'max_tokens' is out of range: it must be an integer from 1 to 2147483647."},
      {kCompletionPath, R"({"prompt":"x","max_tokens":0,"min_tokens":1,"echo":true})", "min_tokens",
       "'min_tokens' does not fit the other fields: it must be at most the 0 tokens of "
       "max_tokens."},
      {kChatPath, kHello + R"(,"max_completion_tokens":2,"min_tokens":3})", "min_tokens",
       "'min_tokens' does not fit the other fields: it must be at most the 2 tokens of "
       "max_completion_tokens."},
      {kCompletionPath, R"({"prompt":"x","min_tokens":17})", "min_tokens",
       "'min_tokens' does not fit the other fields: it must be at most the 16 tokens that are the "
       "default."},
  };
  for (const Case& c : cases) {
    const auto responder = Post(c.path, c.body);
    EXPECT_EQ(responder->status, 400) << c.body;
    EXPECT_EQ(Text(*responder, {"error", "param"}), c.param) << responder->body;
    EXPECT_EQ(Text(*responder, {"error", "message"}), c.message);
  }
  EXPECT_EQ(submitter_.num_submitted(), 0u);
}

// All echoes may be written at once, where no slow client is waited for.
TEST_F(CompletionTest, EchoesAreLimitedTogether) {
  auto model = std::make_shared<ModelInfo>(*submitter_.served[0]);
  model->max_context = 1'000'000;
  submitter_.served[0] = model;
  struct Case {
    size_t num_bytes;
    const char* fields;
    const char* param;  // "" = answered
  };
  const Case cases[] = {
      {4096, R"("n":128,"max_tokens":0)", ""},
      {4097, R"("n":128,"max_tokens":0)", "n"},
      {4097, R"("n":128,"max_tokens":0,"stream":true)", "n"},
      {4097, R"("n":1,"best_of":128,"max_tokens":1)", "best_of"},
      {524'288, R"("max_tokens":0)", ""},
      {524'289, R"("max_tokens":0)", "echo"},
  };
  for (const Case& c : cases) {
    const auto responder = Post(kCompletionPath, R"({"prompt":")" + std::string(c.num_bytes, 'x') +
                                                     R"(","echo":true,)" + c.fields + "}");
    const bool is_answered = *c.param == 0;
    EXPECT_EQ(responder->status, is_answered ? 200 : 400) << c.num_bytes << c.fields;
    if (is_answered) continue;
    EXPECT_EQ(Text(*responder, {"error", "param"}), c.param);
    EXPECT_EQ(Text(*responder, {"error", "message"}),
              "'" + std::string(c.param) + "' does not fit the other fields: the prompt of " +
                  std::to_string(c.num_bytes) +
                  " bytes is repeated for each choice, and echo has room for 524288 bytes.");
  }
}

TEST_F(CompletionTest, EchoComesBeforeEveryChoice) {
  AnswerWith("ab");
  const auto whole = Post(kCompletionPath, R"({"prompt":"x\u00e9","echo":true,"n":2})");
  const auto stream =
      Post(kCompletionPath, R"({"prompt":"x\u00e9","echo":true,"n":2,"stream":true})");
  std::vector<std::string> streamed(2);
  for (const std::string& event : Events(stream->body)) {
    JsonValue root;
    RequestError error;
    if (event == "[DONE]") continue;
    ASSERT_TRUE(ParseJson(event, &root, &error));
    int64_t index = 0;
    ASSERT_TRUE(At(root, {"choices", "0", "index"})->GetInteger(&index));
    streamed[index] += *At(root, {"choices", "0", "text"})->AsString();
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(Text(*whole, {"choices", std::to_string(i), "text"}),
              "x\u00e9"
              "ab");
    EXPECT_EQ(streamed[i],
              "x\u00e9"
              "ab");
  }
}

// Halves of characters are named by their bytes. Two tokens may have one text (here none): a key
// that came twice would hide the better one.
TEST_F(CompletionTest, AlternativesOfOneTextAreOneKey) {
  submitter_.answer = [](const GenerateRequest&, ResponseSink& sink) {
    const std::vector<TokenLogprob> top = {
        {0xc3, -0.5f}, {0xe2, -1.5f}, {100'000, -1.75f}, {'a', -2.5f}, {100'001, -3}};
    TokenOutput token;
    token.token = 0xe2;
    token.has_logprob = true;
    token.logprob = -1.5f;
    token.top_logprobs = &top;
    token.finish = FinishReason::kLength;
    token.is_last = true;
    sink.OnToken(token);
    sink.OnFinished(TestResult(1, 1));
  };
  const auto responder = Post(kCompletionPath, R"({"prompt":"x","logprobs":3})");
  EXPECT_NE(responder->body.find(R"("top_logprobs":[{"bytes:\\xc3":-0.5,"bytes:\\xe2":-1.5,)"
                                 R"("":-1.75,"a":-2.5}])"),
            std::string::npos)
      << responder->body;
}

// Offsets count code points of the choice's own text, also while a character is held back.
TEST_F(CompletionTest, StreamedLogprobsOfTwoChoices) {
  submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
    EXPECT_TRUE(request.sampling.logprobs);
    EXPECT_EQ(request.sampling.top_logprobs, 1u);
    const std::vector<TokenLogprob> top = {{'a', -0.25f}};
    const std::vector<std::string> texts = {"", "\u00e9", "a"};
    for (uint32_t index = 0; index < 3; ++index) {
      for (uint32_t choice = 0; choice < 2; ++choice) {
        TokenOutput token;
        token.choice = choice;
        token.index = index;
        token.token = 'a';
        token.text = texts[index];
        token.has_logprob = true;
        token.logprob = -0.25f;
        token.top_logprobs = &top;
        token.finish = index == 2 ? FinishReason::kLength : FinishReason::kNone;
        token.is_last = index == 2 && choice == 1;
        sink.OnToken(token);
      }
    }
    sink.OnFinished(TestResult(1, 6));
  };
  const auto responder =
      Post(kCompletionPath, R"({"prompt":"x","logprobs":1,"n":2,"stream":true})");
  const auto events = Events(responder->body);
  ASSERT_EQ(events.size(), 9u) << "six tokens, two ends, [DONE]";
  const std::vector<std::string> offsets = {"0", "0", "1", "1", "2", "2"};
  std::vector<std::string> tokens;
  for (const std::string& event : events) {
    if (event.find("\"text_offset\"") != std::string::npos) tokens.push_back(event);
  }
  ASSERT_EQ(tokens.size(), 6u);
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_NE(tokens[i].find(R"("logprobs":{"tokens":["a"],"token_logprobs":[-0.25],)"
                             R"("top_logprobs":[{"a":-0.25}],"text_offset":[)" +
                             offsets[i] + "]}"),
              std::string::npos)
        << tokens[i];
  }
}

}  // namespace
}  // namespace baton::api
