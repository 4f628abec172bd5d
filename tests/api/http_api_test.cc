// The HTTP endpoints: exact bodies, streams and errors.
#include "src/api/http_api.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/api/api_paths.h"
#include "src/api/read_json.h"
#include "src/base/version.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using http::HttpClientGone;
using http::HttpRequest;
using namespace router;  // NOLINT(google-build-using-namespace)
using scheduler::FinishReason;
using text::ChatTemplate;

namespace {

TEST_F(HttpApiTest, WholeChatAnswer) {
  AnswerWith("Hi");
  const auto responder = Post(kChatPath, kHello + "}");
  EXPECT_EQ(responder->status, 200);
  EXPECT_EQ(responder->Header("Content-Type"), "application/json");
  EXPECT_EQ(Text(*responder, {"object"}), "chat.completion");
  EXPECT_EQ(Text(*responder, {"id"}).substr(0, 9), "chatcmpl-");
  EXPECT_EQ(Text(*responder, {"model"}), "toy");
  EXPECT_EQ(Text(*responder, {"choices", "0", "message", "role"}), "assistant");
  EXPECT_EQ(Text(*responder, {"choices", "0", "message", "content"}), "Hi");
  EXPECT_EQ(Text(*responder, {"choices", "0", "finish_reason"}), "stop");
  EXPECT_EQ(Text(*responder, {"choices", "0", "logprobs"}), "null");
  // "<user>" and "<assistant>" are one token each, "u:" and "hello" one a byte.
  EXPECT_EQ(Text(*responder, {"usage", "prompt_tokens"}), "9");
  EXPECT_EQ(Text(*responder, {"usage", "completion_tokens"}), "2");
  EXPECT_EQ(Text(*responder, {"usage", "total_tokens"}), "11");
  EXPECT_EQ(Text(*responder, {"usage", "prompt_tokens_details", "cached_tokens"}), "7");
  const size_t timings = responder->body.find("\"timings\":");
  ASSERT_NE(timings, std::string::npos);
  EXPECT_EQ(responder->body.substr(timings),
            R"("timings":{"path":"disagg","prefill_worker":"prefill-0","decode_worker":"decode-0",)"
            R"("transport":"shm","kv_bytes":11796480,"queue_ms":0.4,"prefill_ms":61.2,)"
            R"("kv_wait_ms":0.9,"first_step_ms":6.1,"decode_ms":412,"cached_tokens":7,)"
            R"("prefix_source":"pool","resumes":0,"exact":true,"speculated":0,"accepted":0,)"
            R"("speculation":"off"}})");
  const auto submitted = submitter_.WaitSubmitted();
  EXPECT_EQ(submitted.request.sampling.temperature, 1.0f) << "the API's default";
  EXPECT_EQ(submitted.request.sampling.max_tokens, kTestContext - 9);
  EXPECT_FALSE(submitted.request.names_length) << "as much as the context leaves";
}

TEST_F(HttpApiTest, StreamBytesAreExact) {
  AnswerWith("Hi", FinishReason::kLength);
  const auto responder = Post(kChatPath, kHello + R"(,"stream":true})");
  EXPECT_EQ(responder->status, 200);
  EXPECT_EQ(responder->Header("Content-Type"), "text/event-stream");
  const auto events = Events(responder->body);
  ASSERT_EQ(events.size(), 5u) << responder->body;
  const std::string head = events[0].substr(0, events[0].find("\"choices\""));
  EXPECT_EQ(head.find(R"({"id":"chatcmpl-)"), 0u);
  EXPECT_NE(head.find(R"("object":"chat.completion.chunk","created":)"), std::string::npos);
  EXPECT_NE(head.find(R"("model":"toy",)"), std::string::npos);
  const std::vector<std::string> choices = {
      R"("choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,)"
      R"("finish_reason":null}]})",
      R"("choices":[{"index":0,"delta":{"content":"H"},"logprobs":null,"finish_reason":null}]})",
      R"("choices":[{"index":0,"delta":{"content":"i"},"logprobs":null,"finish_reason":null}]})",
  };
  for (size_t i = 0; i < choices.size(); ++i) EXPECT_EQ(events[i], head + choices[i]);
  EXPECT_EQ(events[3].find(head + R"("choices":[{"index":0,"delta":{},"logprobs":null,)"
                                  R"("finish_reason":"length","stop_reason":null}],)"
                                  R"("timings":{"path":"disagg")"),
            0u)
      << events[3];
  EXPECT_EQ(events[4], "[DONE]");
}

TEST_F(HttpApiTest, StreamWithUsageEndsInAUsageChunk) {
  AnswerWith("Hi");
  const auto responder =
      Post(kChatPath, kHello + R"(,"stream":true,"stream_options":{"include_usage":true}})");
  const auto events = Events(responder->body);
  ASSERT_EQ(events.size(), 6u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_NE(events[i].find(R"(}],"usage":null})"), std::string::npos) << events[i];
  }
  EXPECT_EQ(events[3].find("timings"), std::string::npos);
  EXPECT_NE(events[4].find(R"("choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,)"
                           R"("total_tokens":11,"prompt_tokens_details":{"cached_tokens":7},)"
                           R"("completion_tokens_details":{"reasoning_tokens":0}},"timings":{)"),
            std::string::npos)
      << events[4];
  EXPECT_EQ(events[5], "[DONE]");
}

TEST_F(HttpApiTest, StreamOfTwoChoicesOpensAndClosesEach) {
  AnswerWith("ab");
  const auto responder = Post(kChatPath, kHello + R"(,"stream":true,"n":2})");
  const auto events = Events(responder->body);
  ASSERT_EQ(events.size(), 9u);
  int roles = 0;
  int finishes = 0;
  for (const std::string& event : events) {
    roles += event.find("\"role\":\"assistant\"") != std::string::npos;
    finishes += event.find("\"finish_reason\":\"stop\"") != std::string::npos;
  }
  EXPECT_EQ(roles, 2);
  EXPECT_EQ(finishes, 2);
  EXPECT_EQ(events[3].find("timings"), std::string::npos) << "only the stream's last chunk";
  EXPECT_NE(events[7].find("timings"), std::string::npos);
}

TEST_F(HttpApiTest, FailureBeforeTheFirstByteIsAStatus) {
  for (const char* stream : {"false", "true"}) {
    submitter_.answer = [](const GenerateRequest&, ResponseSink& sink) {
      RequestError error{ErrorCode::kQueueTimeout};
      error.retry_after_s = 1;
      sink.OnFailed(error);
    };
    const auto responder = Post(kChatPath, kHello + R"(,"stream":)" + stream + "}");
    EXPECT_EQ(responder->status, 429);
    EXPECT_EQ(responder->Header("Retry-After"), "1");
    EXPECT_EQ(responder->Header("Content-Type"), "application/json");
    EXPECT_EQ(responder->body,
              R"({"error":{"message":"No worker had room within the server's --queue-wait-ms; try )"
              R"(again later.",)"
              R"("type":"rate_limit_error","param":null,"code":"queue_timeout"}})");
  }
}

TEST_F(HttpApiTest, FailureInMidStreamIsAnEventWithoutDone) {
  submitter_.answer = [](const GenerateRequest&, ResponseSink& sink) {
    PlayText(sink, "Hi", 0, FinishReason::kNone, false);
    sink.OnFailed(RequestError{ErrorCode::kWorkerLost});
  };
  const auto responder = Post(kChatPath, kHello + R"(,"stream":true})");
  EXPECT_EQ(responder->status, 200);
  const auto events = Events(responder->body);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[3].find(R"({"error":{"message":")"), 0u);
  EXPECT_EQ(responder->body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(responder->body.find("\"finish_reason\":\"stop\""), std::string::npos);
  EXPECT_TRUE(responder->closes);
  submitter_.answer = [](const GenerateRequest&, ResponseSink& sink) {
    sink.OnFailed(RequestError{ErrorCode::kWorkerLost});
  };
  const auto whole = Post(kChatPath, kHello + R"(,"stream":true})");
  EXPECT_EQ(whole->status, 503);
  EXPECT_FALSE(whole->closes) << "an error with a status of its own needs no close";
}

TEST_F(HttpApiTest, ChatLogprobs) {
  AnswerWith("a");
  const auto responder = Post(kChatPath, kHello + R"(,"logprobs":true,"top_logprobs":2})");
  const size_t at = responder->body.find("\"logprobs\":");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(responder->body.substr(at, responder->body.find(",\"finish_reason\"") - at),
            R"("logprobs":{"content":[{"token":"a","logprob":-0.25,"bytes":[97],"top_logprobs":[)"
            R"({"token":"a","logprob":-0.25,"bytes":[97]},)"
            R"({"token":"b","logprob":-1.5,"bytes":[98]}]}]})");
  const auto request = submitter_.WaitSubmitted().request;
  EXPECT_TRUE(request.sampling.logprobs);
  EXPECT_EQ(request.sampling.top_logprobs, 2u);
}

TEST_F(HttpApiTest, CompletionLogprobsEchoAndIds) {
  AnswerWith("ab");
  auto responder = Post(kCompletionPath, R"({"prompt":"x\u00e9","logprobs":2})");
  EXPECT_EQ(responder->status, 200);
  EXPECT_NE(responder->body.find(
                R"("logprobs":{"tokens":["a","b"],"token_logprobs":[-0.25,-0.25],"top_logprobs":[)"
                R"({"a":-0.25,"b":-1.5},{"a":-0.25,"b":-1.5}],"text_offset":[0,1]})"),
            std::string::npos)
      << responder->body;
  EXPECT_EQ(submitter_.WaitSubmitted(0).request.prompt, BytesOf("x\xc3\xa9"));
  EXPECT_EQ(submitter_.WaitSubmitted(0).request.sampling.max_tokens, 16u) << "OpenAI's default";
  EXPECT_TRUE(submitter_.WaitSubmitted(0).request.names_length);

  responder = Post(kCompletionPath, R"({"prompt":"x\u00e9","echo":true})");
  EXPECT_EQ(Text(*responder, {"choices", "0", "text"}),
            "x\xc3\xa9"
            "ab");
  EXPECT_EQ(Text(*responder, {"object"}), "text_completion");
  EXPECT_EQ(Text(*responder, {"id"}).substr(0, 5), "cmpl-");

  responder = Post(kCompletionPath, R"({"prompt":[104,105],"echo":true,"stream":true})");
  EXPECT_EQ(submitter_.WaitSubmitted(2).request.prompt, BytesOf("hi"));
  const auto events = Events(responder->body);
  ASSERT_EQ(events.size(), 5u);
  EXPECT_NE(events[0].find(R"("choices":[{"index":0,"text":"hi")"), std::string::npos);
  EXPECT_NE(events[1].find(R"("text":"a")"), std::string::npos);
  EXPECT_NE(events[3].find(R"("text":"","logprobs":null,"finish_reason":"stop")"),
            std::string::npos);
}

// A token's text may be held back for a stop text, and a character may be of several tokens.
TEST_F(HttpApiTest, TextOffsetsAreThePlacesOfTheTokens) {
  submitter_.answer = [](const GenerateRequest&, ResponseSink& sink) {
    static const std::vector<TokenLogprob> kNone;
    const std::string_view tokens = "ab\xc3\xa9z";
    for (uint32_t i = 0; i < tokens.size(); ++i) {
      TokenOutput token;
      token.index = i;
      token.token = static_cast<unsigned char>(tokens[i]);
      token.top_logprobs = &kNone;
      token.is_last = i + 1 == tokens.size();
      if (token.is_last) {
        token.text = tokens;
        token.finish = FinishReason::kLength;
      }
      sink.OnToken(token);
    }
    sink.OnFinished(TestResult(1, 5));
  };
  const auto responder = Post(kCompletionPath, R"({"prompt":"x","logprobs":0})");
  EXPECT_NE(responder->body.find(R"("text_offset":[0,1,2,3,3])"), std::string::npos)
      << responder->body;
  // Halves of a character have different names.
  EXPECT_NE(responder->body.find(R"("tokens":["a","b","bytes:\\xc3","bytes:\\xa9","z"])"),
            std::string::npos)
      << responder->body;
}

// Templates that print the date are told the time of the request, those that look for tools that
// there are none.
TEST_F(HttpApiTest, TemplatesAreToldWhatHuggingFaceTellsThem) {
  auto model = std::make_shared<ModelInfo>(*TestModel());
  model->chat_template = std::make_shared<const ChatTemplate>(
      ChatTemplate::Create("{{ strftime_now('%Y') }}{% if tools is not none %}tools{% endif %}"
                           "{{ messages[0].content }}",
                           "", "<eos>")
          .value());
  submitter_.served = {model};
  AnswerWith("a");
  const auto year_of = [](std::time_t now) {
    std::tm utc{};
    gmtime_r(&now, &utc);
    return std::to_string(utc.tm_year + 1900);
  };
  const std::string before = year_of(std::time(nullptr));
  EXPECT_EQ(Post(kChatPath, kHello + "}")->status, 200);
  const std::string applied = Post("/apply-template", kHello + "}")->body;
  const std::string after = year_of(std::time(nullptr));
  EXPECT_THAT(submitter_.WaitSubmitted(0).request.prompt,
              testing::AnyOf(BytesOf(before + "hello"), BytesOf(after + "hello")));
  EXPECT_THAT(applied, testing::AnyOf(R"({"prompt":")" + before + R"(hello"})",
                                      R"({"prompt":")" + after + R"(hello"})"));
}

TEST_F(HttpApiTest, TheTemplateSeesVariablesAndMembersOfMessages) {
  auto model = std::make_shared<ModelInfo>(*TestModel());
  model->chat_template = std::make_shared<const ChatTemplate>(
      ChatTemplate::Create("{{ mood }}{{ reasoning_effort }}{{ documents[0].text if documents }};"
                           "{% for m in messages %}{{ m.role }}:{{ m.content }}"
                           "{% for c in m.tool_calls %}{{ c.function.arguments.zone }}{% endfor %};"
                           "{% endfor %}{{ 'A' if add_generation_prompt }}",
                           "", "<eos>")
          .value());
  submitter_.served = {model};
  const std::string past =
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},)"
      R"({"type":"text","text":"b"}]},{"role":"assistant","content":null,"tool_calls":[)"
      R"({"id":"1","type":"function","function":{"name":"f","arguments":"{\"zone\":\"L\"}"}}]},)"
      R"({"role":"developer","content":"c"}])";
  const std::string rest = R"(;user:a\nb;assistant:NoneL;system:c;)";
  struct Case {
    std::string fields;
    int status;
    std::string answer;  // the prompt, or the field at fault
  };
  for (const Case& c : {
           Case{"", 200, rest + "A"},
           Case{R"(,"chat_template_kwargs":{"mood":"m"},"reasoning_effort":"low")", 200,
                "mlow" + rest + "A"},
           Case{R"(,"documents":[{"text":"d"}],"add_generation_prompt":false)", 200, "d" + rest},
           Case{R"(,"continue_final_message":true)", 200, rest.substr(0, rest.size() - 1)},
           Case{R"(,"continue_final_message":true,"add_generation_prompt":true)", 400,
                "continue_final_message"},
           Case{R"(,"chat_template_kwargs":{"messages":[]})", 400, "chat_template_kwargs.messages"},
           Case{R"(,"chat_template_kwargs":{"a b":1})", 400, "chat_template_kwargs"},
           Case{R"(,"chat_template_kwargs":[])", 400, "chat_template_kwargs"},
           Case{R"(,"reasoning_effort":"some")", 400, "reasoning_effort"},
           Case{R"(,"reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":"high"})",
                400, "chat_template_kwargs.reasoning_effort"},
           Case{R"(,"documents":["d"])", 400, "documents"},
       }) {
    const auto responder = Post("/apply-template", past + c.fields + "}");
    EXPECT_EQ(responder->status, c.status) << c.fields << responder->body;
    if (c.status == 200) {
      EXPECT_EQ(responder->body, "{\"prompt\":\"" + c.answer + "\"}") << c.fields;
    } else {
      EXPECT_EQ(Text(*responder, {"error", "param"}), c.answer) << responder->body;
    }
  }
}

TEST_F(HttpApiTest, ATemplatesOwnReasonReachesTheClient) {
  const auto responder = Post(kChatPath, R"({"messages":[{"role":"tool","content":"x"}]})");
  EXPECT_EQ(responder->status, 400);
  EXPECT_EQ(Text(*responder, {"error", "message"}),
            "'messages' is out of range: it must be a conversation that the model's chat template "
            "accepts; chat template: no tools (line 1 of the template).");
}

// OpenAI's legacy rule: up to one alternative more than asked for.
TEST_F(HttpApiTest, SampledTokenIsAmongTheAlternativesOfACompletion) {
  AnswerWith("c");  // the alternatives are 'a' and 'b'
  for (const bool stream : {false, true}) {
    const auto responder =
        Post(kCompletionPath, std::string(R"({"prompt":"x","logprobs":2,"stream":)") +
                                  (stream ? "true}" : "false}"));
    EXPECT_NE(responder->body.find(R"("top_logprobs":[{"a":-0.25,"b":-1.5,"c":-0.25}])"),
              std::string::npos)
        << responder->body;
  }
}

TEST_F(HttpApiTest, BatchOfOnePromptIsThatPrompt) {
  AnswerWith("a");
  EXPECT_EQ(Post(kCompletionPath, R"({"prompt":["hi"]})")->status, 200);
  EXPECT_EQ(Post(kCompletionPath, R"({"prompt":[[104,105]]})")->status, 200);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(submitter_.WaitSubmitted(i).request.prompt, BytesOf("hi"));
  }
  for (const char* prompt : {"[[1,[2]]]", "[[\"a\"]]", "[{}]"}) {
    const auto responder = Post(kCompletionPath, std::string(R"({"prompt":)") + prompt + "}");
    EXPECT_EQ(responder->status, 400) << prompt;
    EXPECT_EQ(Text(*responder, {"error", "param"}), "prompt") << prompt;
  }
}

TEST_F(HttpApiTest, BestOfReturnsTheLikeliest) {
  submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
    ASSERT_EQ(request.num_choices, 3u);
    ASSERT_TRUE(request.sampling.logprobs) << "needed for the ranking";
    for (uint32_t choice = 0; choice < 3; ++choice) {
      TokenOutput token;
      const std::vector<TokenLogprob> none;
      const std::string text(1, static_cast<char>('a' + choice));
      token.choice = choice;
      token.text = text;
      token.has_logprob = true;
      token.logprob = choice == 1 ? -0.1f : -2.0f;
      token.top_logprobs = &none;
      token.finish = FinishReason::kLength;
      token.is_last = choice == 2;
      sink.OnToken(token);
    }
    sink.OnFinished(TestResult(1, 3));
  };
  const auto responder = Post(kCompletionPath, R"({"prompt":"x","best_of":3})");
  EXPECT_EQ(Text(*responder, {"choices", "0", "text"}), "b");
  EXPECT_EQ(Text(*responder, {"choices", "0", "index"}), "0");
  EXPECT_EQ(Text(*responder, {"choices", "1"}), "<absent>");
  EXPECT_EQ(Text(*responder, {"choices", "0", "logprobs"}), "null") << "not asked for";
  EXPECT_EQ(Text(*responder, {"usage", "completion_tokens"}), "3");
}

TEST_F(HttpApiTest, ErrorsOfTheRequest) {
  struct Case {
    const char* path;
    std::string body;
    int status;
    std::string param;
    std::string code;
  };
  const Case cases[] = {
      {kChatPath, "{}", 400, "messages", "missing_required_parameter"},
      {kChatPath, "[]", 400, "null", "invalid_json"},
      {kChatPath, "nope", 400, "null", "invalid_json"},
      {kChatPath, R"({"temperature":NaN})", 400, "temperature", "invalid_json"},
      {kChatPath, "", 400, "null", "invalid_json"},
      {kChatPath, "{\"a\":\"\xff\"}", 400, "a", "invalid_utf8"},
      {kChatPath, R"({"model":1,"model":2})", 400, "model", "duplicate_key"},
      {kChatPath, kHello + R"(,"model":"other"})", 404, "model", "model_not_found"},
      {kChatPath, kHello + R"(,"temperature":-1})", 400, "temperature", "invalid_value"},
      {kChatPath, kHello + R"(,"temperature":"hot"})", 400, "temperature", "invalid_type"},
      {kChatPath, kHello + R"(,"top_logprobs":3})", 400, "top_logprobs", "invalid_combination"},
      {kChatPath, kHello + R"(,"stream_options":{}})", 400, "stream_options",
       "invalid_combination"},
      {kChatPath, kHello + R"(,"max_tokens":5,"min_tokens":6})", 400, "min_tokens",
       "invalid_combination"},
      {kChatPath, kHello + R"(,"tools":[{}]})", 400, "tools[0].type", "missing_required_parameter"},
      {kChatPath, kHello + R"(,"tool_choice":"required"})", 400, "tool_choice",
       "invalid_combination"},
      {kChatPath, kHello + R"(,"response_format":{"type":"yaml"}})", 400, "response_format",
       "invalid_value"},
      {kChatPath, kHello + R"(,"response_format":{"type":"json_object"},"guided_regex":"a"})", 400,
       "guided_regex", "invalid_combination"},
      {kChatPath, kHello + R"(,"logit_bias":{"259":1}})", 400, "logit_bias", "invalid_value"},
      {kChatPath, kHello + R"(,"stop_token_ids":[259]})", 400, "stop_token_ids", "invalid_value"},
      {kChatPath, R"({"messages":[{"role":"tool","content":"x"}]})", 400, "messages",
       "invalid_value"},
      {kChatPath, R"({"messages":[{"role":"user","content":")" + std::string(600, 'x') + "\"}]}",
       400, "messages", "context_length_exceeded"},
      {kCompletionPath, "{}", 400, "prompt", "missing_required_parameter"},
      {kCompletionPath, R"({"prompt":""})", 400, "prompt", "invalid_value"},
      {kCompletionPath, R"({"prompt":[]})", 400, "prompt", "invalid_value"},
      {kCompletionPath, R"({"prompt":[259]})", 400, "prompt", "invalid_value"},
      {kCompletionPath, R"({"prompt":"x","prompt_token_ids":[1]})", 400, "prompt",
       "invalid_combination"},
      {kCompletionPath, R"({"prompt":"x","n":3,"best_of":2})", 400, "best_of",
       "invalid_combination"},
      {kCompletionPath, R"({"prompt":"x","best_of":2,"stream":true})", 400, "best_of",
       "invalid_combination"},
      {"/tokenize", "{}", 400, "content", "missing_required_parameter"},
      {"/tokenize", R"({"content":5})", 400, "content", "invalid_type"},
      {"/tokenize", R"({"content":"x","add_special":1})", 400, "add_special", "invalid_type"},
      {"/tokenize", R"({"content":"x","model":"other"})", 404, "model", "model_not_found"},
      {"/detokenize", "{}", 400, "tokens", "missing_required_parameter"},
      {"/detokenize", R"({"tokens":[259]})", 400, "tokens", "invalid_value"},
      {"/detokenize", R"({"tokens":["a"]})", 400, "tokens", "invalid_type"},
      {"/apply-template", "{}", 400, "messages", "missing_required_parameter"},
      {"/apply-template", R"({"messages":[]})", 400, "messages", "invalid_value"},
  };
  for (const Case& c : cases) {
    const auto responder = Post(c.path, c.body);
    EXPECT_EQ(responder->status, c.status) << c.path << " " << c.body << " " << responder->body;
    EXPECT_EQ(Text(*responder, {"error", "param"}), c.param) << responder->body;
    EXPECT_EQ(Text(*responder, {"error", "code"}), c.code) << responder->body;
    EXPECT_EQ(Text(*responder, {"error", "type"}), "invalid_request_error");
    EXPECT_NE(responder->Header("X-Request-Id"), "");
  }
  EXPECT_EQ(submitter_.num_submitted(), 0u);
  EXPECT_EQ(submitter_.refused().size(), std::size(cases)) << "each is counted once";
}

TEST_F(HttpApiTest, ContextLengthErrorHasTheNumbers) {
  const auto responder =
      Post(kCompletionPath, R"({"prompt":")" + std::string(kTestContext, 'x') + "\"}");
  EXPECT_EQ(responder->status, 400);
  EXPECT_EQ(Text(*responder, {"error", "n_prompt_tokens"}), std::to_string(kTestContext));
  EXPECT_EQ(Text(*responder, {"error", "n_ctx"}), std::to_string(kTestContext));
  EXPECT_EQ(Text(*responder, {"error", "message"}),
            "'prompt' has 512 tokens, but prompt and answer together fit 512 tokens "
            "(max_model_len): the prompt must be at most 511 tokens, which leaves one for the "
            "answer.");
  AnswerWith("x");
  const auto fits =
      Post(kCompletionPath, R"({"prompt":")" + std::string(kTestContext - 1, 'x') + "\"}");
  EXPECT_EQ(fits->status, 200);
  EXPECT_EQ(submitter_.WaitSubmitted().request.sampling.max_tokens, 1u)
      << "max_tokens is cut to what the context leaves";
  EXPECT_FALSE(submitter_.WaitSubmitted().request.names_length);
}

// The router refuses what no pool holds in the words of the client.
TEST_F(HttpApiTest, RequestCarriesTheNamesOfItsOwnFields) {
  struct Case {
    const char* path;
    std::string body;
    RequestFields fields;
  };
  const Case cases[] = {
      {kChatPath, kHello + "}", {"messages", "max_tokens", "n"}},
      {kChatPath,
       kHello + R"(,"max_completion_tokens":5,"n":2})",
       {"messages", "max_completion_tokens", "n"}},
      {kCompletionPath, R"({"prompt":"x","best_of":3})", {"prompt", "max_tokens", "best_of"}},
  };
  AnswerWith("x");
  for (size_t i = 0; i < std::size(cases); ++i) {
    const Case& c = cases[i];
    EXPECT_EQ(Post(c.path, c.body)->status, 200);
    const RequestFields fields = submitter_.WaitSubmitted(i).request.fields;
    EXPECT_EQ(fields.prompt, c.fields.prompt);
    EXPECT_EQ(fields.max_tokens, c.fields.max_tokens);
    EXPECT_EQ(fields.choices, c.fields.choices);
  }
}

TEST_F(HttpApiTest, RequestIdIsHonouredAndEchoed) {
  AnswerWith("x");
  auto responder = Send("POST", kChatPath, kHello + "}",
                        {{"Content-Type", "application/json"}, {"X-Request-Id", "my-id-1"}});
  ASSERT_TRUE(responder->Wait());
  EXPECT_EQ(responder->Header("X-Request-Id"), "my-id-1");
  EXPECT_EQ(submitter_.WaitSubmitted().request.request_id, "my-id-1");
  responder = Send("POST", kChatPath, "{}",
                   {{"Content-Type", "application/json"}, {"X-Request-Id", "bad id\x01"}});
  ASSERT_TRUE(responder->Wait());
  EXPECT_EQ(responder->Header("X-Request-Id").size(), 32u) << "replaced by one of our own";
  for (const char* id : {"bad id", "n\xC3\xA4me", "a\tb"}) {
    responder = Send("POST", kChatPath, kHello + "}",
                     {{"Content-Type", "application/json"}, {"X-Request-Id", id}});
    ASSERT_TRUE(responder->Wait());
    EXPECT_EQ(responder->status, 200);
    EXPECT_EQ(responder->Header("X-Request-Id").size(), 32u);
    EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"), "X-Request-Id") << id;
  }
}

TEST_F(HttpApiTest, AnUnusableRequestIdIsNamedOnEveryPath) {
  AnswerWith("x");
  const http::HttpHeaders bad = {{"Content-Type", "application/json"}, {"X-Request-Id", "bad id"}};
  const http::HttpHeaders good = {{"Content-Type", "application/json"}, {"X-Request-Id", "id"}};
  const auto named = [this](const std::string& method, const std::string& path,
                            const std::string& body, const http::HttpHeaders& headers) {
    const auto responder = Send(method, path, body, headers);
    EXPECT_TRUE(responder->Wait());
    return responder->Header("X-Baton-Ignored-Fields");
  };
  for (const ApiPath& row : kApiPaths) {
    const std::string path = std::string(row.path) + (row.last.empty() ? "" : "toy");
    for (const char* method : {"GET", "HEAD", "POST"}) {
      EXPECT_THAT(named(method, path, "{}", bad), testing::StartsWith("X-Request-Id")) << path;
      EXPECT_THAT(named(method, path, "{}", good), testing::Not(testing::HasSubstr("X-Request-Id")))
          << path;
    }
  }
  EXPECT_EQ(named("GET", "/nothing", "", bad), "X-Request-Id");
  EXPECT_EQ(named("POST", kChatPath, kHello + R"(,"nick":1})", bad), "X-Request-Id, nick");
  EXPECT_EQ(named("POST", "/tokenize", R"({"prompt":"a","nick":1})", bad), "X-Request-Id, nick");
}

TEST_F(HttpApiTest, AModelWithoutANameIsToldTheNames) {
  const auto named = Post(kChatPath, kHello + R"(,"model":"other"})");
  const auto unnamed = Post(kChatPath, kHello + R"(,"model":""})");
  EXPECT_EQ(unnamed->status, 404);
  EXPECT_EQ(Text(*unnamed, {"error", "message"}), Text(*named, {"error", "message"}));
}

TEST_F(HttpApiTest, ARefusalHasTheNameThatTheAnswerWouldHave) {
  const auto responder =
      Send("POST", kChatPath, kHello + R"(,"request_id":"of-body","model":"other"})",
           {{"Content-Type", "application/json"}, {"X-Request-Id", "of-header"}});
  ASSERT_TRUE(responder->Wait());
  EXPECT_EQ(responder->status, 404);
  EXPECT_EQ(responder->Header("X-Request-Id"), "of-body");
}

TEST_F(HttpApiTest, APenaltyBeyondTwoIsServedAndWarned) {
  AnswerWith("Hi");
  const std::pair<const char*, const char*> cases[] = {
      {R"("presence_penalty":2,"frequency_penalty":-2)", ""},
      {R"("presence_penalty":2.5)", "presence_penalty beyond 2"},
      {R"("presence_penalty":-3,"frequency_penalty":100)",
       "presence_penalty beyond 2, frequency_penalty beyond 2"},
  };
  for (const auto& [fields, warnings] : cases) {
    for (const char* stream : {"", R"(,"stream":true)"}) {
      const auto responder = Post(kChatPath, kHello + "," + fields + stream + "}");
      EXPECT_EQ(responder->status, 200) << fields;
      EXPECT_EQ(responder->Header("X-Baton-Warnings"), warnings) << fields << stream;
    }
  }
}

TEST_F(HttpApiTest, IgnoredFieldsAreNamedInAHeader) {
  AnswerWith("x");
  const auto responder = Post(kChatPath, kHello + R"(,"store":true,"suffix":null,"metadata":{}})");
  EXPECT_EQ(responder->status, 200);
  EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"), "store, metadata");
}

TEST_F(HttpApiTest, UnreadMembersOfToolsAreNamed) {
  const auto ignored = [this](const std::string& tools) {
    AnswerWith("x");
    const auto responder = Post(kChatPath, kHello + R"(,"tools":[)" + tools + "]}");
    EXPECT_EQ(responder->status, 200) << responder->body;
    return std::string(responder->Header("X-Baton-Ignored-Fields"));
  };
  const std::string plain =
      R"({"type":"function","function":{"name":"f","description":"d","strict":false,)"
      R"("parameters":{"type":"object","properties":{"x":{"type":"string"}}}}})";
  EXPECT_EQ(ignored(plain), "");
  EXPECT_EQ(ignored(plain + R"(,{"type":"function","cache_control":{"type":"ephemeral"},"id":null,)"
                            R"("function":{"name":"g","returns":{},"r w":1}})"),
            "tools[1].cache_control, tools[1].function.returns, tools[1].function.r?w");
}

// A name that is left out may be that of a schema's keyword.
TEST_F(HttpApiTest, NamesThatAreLeftOutAreSaidToBe) {
  const auto ignored_of = [this](size_t num_tools) {
    std::string tools;
    for (size_t i = 0; i < num_tools; ++i) {
      tools += fmt::format(R"({}{{"type":"function","x":1,"function":{{"name":"f{}"}}}})",
                           i == 0 ? "" : ",", i);
    }
    AnswerWith("x");
    const auto responder = Post(kChatPath, kHello + R"(,"tools":[)" + tools + "]}");
    return std::string(responder->Header("X-Baton-Ignored-Fields"));
  };
  std::string most;
  for (size_t i = 0; i + 1 < kMaxIgnoredNames; ++i) {
    most += fmt::format("{}tools[{}].x", i == 0 ? "" : ", ", i);
  }
  EXPECT_EQ(ignored_of(kMaxIgnoredNames - 1), most);
  EXPECT_EQ(ignored_of(kMaxIgnoredNames), most + ", ...");
  EXPECT_EQ(ignored_of(kMaxIgnoredNames + 2), most + ", ...");
}

TEST_F(HttpApiTest, IgnoredFieldsOfTheTextEndpointsAreNamedToo) {
  struct Case {
    const char* path;
    const char* body;
    const char* ignored;
  };
  for (const Case& c : {
           Case{"/tokenize", R"({"content":"a","count":true})", "count"},
           Case{"/tokenize",
                R"({"messages":[{"role":"user","content":"a"}],"add_special_tokens":false})", ""},
           Case{"/detokenize", R"({"tokens":[1],"content":"a","x y":1})", "content, x?y"},
           Case{"/apply-template",
                R"({"messages":[{"role":"user","content":"a","nick":"b"}],)"
                R"("tools":[],"temperature":1,"parallel_tool_calls":true,"guided_choice":[]})",
                "temperature, parallel_tool_calls, guided_choice, messages[0].nick"},
       }) {
    const auto responder = Post(c.path, c.body);
    EXPECT_EQ(responder->status, 200) << c.path << responder->body;
    EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"), c.ignored) << c.path;
  }
}

TEST_F(HttpApiTest, ContentTypeIsChecked) {
  AnswerWith("x");
  const std::string body = kHello + "}";
  for (const char* type : {"application/json", "application/json; charset=utf-8",
                           "Application/JSON", "application/vnd.api+json"}) {
    const auto responder = Send("POST", kChatPath, body, {{"Content-Type", type}});
    ASSERT_TRUE(responder->Wait());
    EXPECT_EQ(responder->status, 200) << type;
  }
  for (const char* type : {"text/plain", "application/x-www-form-urlencoded", "json",
                           "multipart/form-data; boundary=x"}) {
    const auto responder = Send("POST", kChatPath, body, {{"Content-Type", type}});
    ASSERT_TRUE(responder->Wait());
    EXPECT_EQ(responder->status, 415) << type;
    EXPECT_EQ(Text(*responder, {"error", "code"}), "unsupported_media_type");
  }
  for (const auto& [coding, status] : {std::pair{"gzip", 415}, {"br", 415}, {"Identity", 200}}) {
    const auto responder = Send("POST", kChatPath, body, {{"Content-Encoding", coding}});
    ASSERT_TRUE(responder->Wait());
    EXPECT_EQ(responder->status, status) << coding;
  }
}

TEST_F(HttpApiTest, PathsAndMethods) {
  for (const char* path :
       {"/metrics", "/debug/requests", "/debug/blocks", "/v1/model", "/v1/chat", "/livez"}) {
    const auto responder = Send("GET", path);
    ASSERT_TRUE(responder->Wait()) << path;
    EXPECT_EQ(responder->status, 404) << path;
    EXPECT_EQ(Text(*responder, {"error", "code"}), "not_found");
  }
  const auto get = Send("GET", kChatPath);
  EXPECT_EQ(get->status, 405);
  EXPECT_EQ(Text(*get, {"error", "code"}), "method_not_allowed");
  EXPECT_EQ(get->Header("Allow"), "POST");
  const auto post = Send("POST", "/v1/models", "{}");
  EXPECT_EQ(post->status, 405);
  EXPECT_EQ(post->Header("Allow"), "GET, HEAD");
  EXPECT_EQ(submitter_.refused().size(), 8u);
  EXPECT_EQ(submitter_.refused().back(), 405);
}

TEST_F(HttpApiTest, VersionIsTold) {
  EXPECT_EQ(Send("GET", "/version")->body, "{\"version\":\"" + std::string(kVersion) + "\"}");
  EXPECT_EQ(Send("POST", "/version", "{}")->status, 405);
}

// The length, or the model, is at fault, and not that the template does not like the text.
TEST_F(HttpApiTest, WhatIsWrongWithAConversationIsNamed) {
  const std::string text(5 << 20, 'a');
  const std::string body = R"({"messages":[{"role":"user","content":")" + text + R"("}]})";
  auto responder = Post(kChatPath, body);
  EXPECT_EQ(responder->status, 400);
  EXPECT_NE(responder->body.find("at most 4194304 bytes of text, these have 5242880"),
            std::string::npos)
      << responder->body;
  std::string lists = "[0]";
  for (int i = 0; i < 100'000; ++i) lists += ",[0]";
  responder = Post(kChatPath, kHello + R"(,"documents":[{"x":[)" + lists + "]}]}");
  EXPECT_EQ(responder->status, 400);
  EXPECT_NE(responder->body.find("at most 100000 JSON values"), std::string::npos)
      << responder->body;
  EXPECT_NE(responder->body.find("'documents'"), std::string::npos) << responder->body;
  auto broken = std::make_shared<ModelInfo>(*submitter_.served[0]);
  broken->chat_template = nullptr;
  submitter_.served = {broken};
  responder = Post(kChatPath, kHello + "}");
  EXPECT_EQ(responder->status, 400);
  EXPECT_NE(responder->body.find("a model that has a chat template"), std::string::npos);
  broken->has_broken_template = true;
  responder = Post(kChatPath, kHello + "}");
  EXPECT_EQ(responder->status, 400);
  EXPECT_NE(responder->body.find("chat template is not broken"), std::string::npos)
      << responder->body;
}

TEST_F(HttpApiTest, TextEndpoints) {
  auto responder = Post("/tokenize", R"({"content":"hi<eos>"})");
  EXPECT_EQ(responder->body, R"({"tokens":[104,105,60,101,111,115,62]})")
      << "the name of a special token in a text stays text";
  responder = Post("/tokenize", R"({"content":"hi<eos>","parse_special":true})");
  EXPECT_EQ(responder->body, R"({"tokens":[104,105,256]})");
  responder = Post("/detokenize", R"({"tokens":[104,105,195]})");
  EXPECT_EQ(responder->body, "{\"content\":\"hi\xef\xbf\xbd\",\"prompt\":\"hi\xef\xbf\xbd\"}");
  responder = Post("/apply-template", R"({"messages":[{"role":"user","content":"<eos>"}]})");
  EXPECT_EQ(responder->body, R"({"prompt":"<user>u:<eos><assistant>"})");
}

TEST_F(HttpApiTest, TopologyHasTheRouterFirst) {
  ProcessView worker;
  worker.role = "prefill";
  worker.worker_id = "prefill-0";
  worker.ready = true;
  worker.kv_blocks = {{"free", 3}, {"cached", 0}};
  worker.links = {{"decode-0", Incarnation(7), LinkKind::kShm, 5, true},
                  {"decode-2", Incarnation(8), LinkKind::kUnspecified, 0, false, "another secret"}};
  worker.not_paired = {{"decode-1", "they have no --transport in common"}};
  submitter_.topology.model = "toy";
  submitter_.topology.processes = {worker};
  const auto responder = Send("GET", "/v1/topology");
  EXPECT_TRUE(responder->Wait());
  EXPECT_EQ(responder->status, 200);
  EXPECT_EQ(Text(*responder, {"model"}), "toy");
  EXPECT_EQ(Text(*responder, {"processes", "0", "worker_id"}), "router-0");
  EXPECT_EQ(Text(*responder, {"processes", "0", "http"}), "127.0.0.1:8080");
  EXPECT_EQ(Text(*responder, {"processes", "1", "kv_blocks", "free"}), "3");
  EXPECT_EQ(Text(*responder, {"processes", "1", "links", "0", "transport"}), "shm");
  EXPECT_EQ(Text(*responder, {"processes", "1", "links", "1", "why"}), "another secret");
  EXPECT_EQ(Text(*responder, {"processes", "1", "not_paired", "0", "with"}), "decode-1");
  EXPECT_EQ(Text(*responder, {"processes", "1", "not_paired", "0", "why"}),
            "they have no --transport in common");
}

TEST_F(HttpApiTest, DisconnectCancels) {
  auto responder = Send("POST", kChatPath, kHello + R"(,"stream":true})",
                        {{"Content-Type", "application/json"}});
  const auto submitted = submitter_.WaitSubmitted();
  ASSERT_TRUE(responder->WaitOnClosedSet());
  responder->Close();
  EXPECT_TRUE(submitter_.WaitCancelled(submitted.uid));
  // A client that left before its request was read is cancelled as soon as it is submitted.
  HttpRequest request;
  request.method = "POST";
  request.path = kChatPath;
  request.body = kHello + "}";
  auto gone = std::make_shared<FakeResponder>();
  gone->Close();
  api_.Handle(std::move(request), gone);
  EXPECT_TRUE(submitter_.WaitCancelled(submitter_.WaitSubmitted(1).uid));
  EXPECT_EQ(submitter_.last_cause, CancelCause::kClientLeft);
}

TEST_F(HttpApiTest, AClientThatTakesNothingIsSlow) {
  auto responder = Send("POST", kChatPath, kHello + R"(,"stream":true})",
                        {{"Content-Type", "application/json"}});
  const auto submitted = submitter_.WaitSubmitted();
  ASSERT_TRUE(responder->WaitOnClosedSet());
  responder->Close(HttpClientGone::kStalled);
  EXPECT_TRUE(submitter_.WaitCancelled(submitted.uid));
  EXPECT_EQ(submitter_.last_cause, CancelCause::kSlowClient);
}

// A client that only ended its input may still read: 499 is a number of ours, not of HTTP.
TEST_F(HttpApiTest, ACancelledRequestIsNotAnswered) {
  for (const char* stream : {"true", "false"}) {
    submitter_.answer = [](const GenerateRequest&, ResponseSink& sink) {
      sink.OnFailed(PlainError(ErrorCode::kCancelled));
    };
    const auto responder = Send("POST", kChatPath, kHello + R"(,"stream":)" + stream + "}",
                                {{"Content-Type", "application/json"}});
    EXPECT_TRUE(responder->Wait());
    EXPECT_TRUE(responder->aborted);
    EXPECT_EQ(responder->status, 0);
  }
}

TEST_F(HttpApiTest, TextThatIsTooLongNamesItsOwnField) {
  const std::string text((4 << 20) + 1, 'x');
  auto responder = Post(kCompletionPath, R"({"prompt":")" + text + R"("})");
  EXPECT_EQ(responder->status, 400);
  EXPECT_EQ(Text(*responder, {"error", "param"}), "prompt");
  responder = Post("/tokenize", R"({"content":")" + text + R"("})");
  EXPECT_EQ(responder->status, 400);
  EXPECT_EQ(Text(*responder, {"error", "param"}), "content");
}

}  // namespace
}  // namespace baton::api
