// Ollama's API: what requests become, lines of streams, whole answers, models, and refusals.
#include <regex>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/api/ollama_json.h"
#include "src/api/ollama_params.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using namespace router;  // NOLINT(google-build-using-namespace)
using scheduler::FinishReason;
using ::testing::EndsWith;
using ::testing::StartsWith;

namespace {

constexpr const char* kOllamaChat = "/api/chat";
constexpr const char* kOllamaGenerate = "/api/generate";

// Without times of the run.
std::string Fixed(std::string text) {
  text =
      std::regex_replace(text, std::regex(R"("created_at":"[0-9T:.-]+Z")"), R"("created_at":"T")");
  return std::regex_replace(text, std::regex(R"(,"timings":\{[^}]*\})"), "");
}

const std::string kAsk = R"("model":"toy","messages":[{"role":"user","content":"hello"}])";
const std::string kCounts =
    R"("total_duration":480600000,"load_duration":0,"prompt_eval_count":9,)"
    R"("prompt_eval_duration":61200000,"eval_count":2,"eval_duration":418100000})";

class OllamaTest : public HttpApiTest {};

TEST_F(OllamaTest, LinesOfAChat) {
  AnswerWith("Hi");
  const auto responder = Post(kOllamaChat, "{" + kAsk + "}");
  EXPECT_TRUE(responder->streamed) << "a stream unless the client says no";
  EXPECT_EQ(responder->Header("Content-Type"), "application/x-ndjson");
  const std::string head = R"({"model":"toy","created_at":"T","message":{"role":"assistant",)";
  EXPECT_EQ(Fixed(responder->body), head + R"("content":"H"},"done":false})" + "\n" + head +
                                        R"("content":"i"},"done":false})" + "\n" + head +
                                        R"("content":""},"done":true,"done_reason":"stop",)" +
                                        kCounts + "\n");
}

TEST_F(OllamaTest, WholeAnswers) {
  AnswerWith("Hi", FinishReason::kLength);
  const auto chat = Post(kOllamaChat, "{" + kAsk + R"(,"stream":false})");
  EXPECT_EQ(chat->Header("Content-Type"), "application/json");
  EXPECT_EQ(Fixed(chat->body),
            R"({"model":"toy","created_at":"T","message":{"role":"assistant","content":"Hi"},)"
            R"("done":true,"done_reason":"length",)" +
                kCounts);
  const auto generate = Post(kOllamaGenerate, R"({"model":"toy:latest","prompt":"hello",)"
                                              R"("stream":false})");
  EXPECT_EQ(Fixed(generate->body),
            R"({"model":"toy:latest","created_at":"T","response":"Hi","done":true,)"
            R"("done_reason":"length",)" +
                kCounts);
}

TEST_F(OllamaTest, RawIsThePromptAlone) {
  AnswerWith("Hi");
  Post(kOllamaGenerate, R"({"prompt":"hi","raw":true,"stream":false})");
  const auto request = submitter_.WaitSubmitted().request;
  EXPECT_EQ(request.prompt, BytesOf("hi"));
  EXPECT_EQ(request.sampling.max_tokens, kTestContext - 2) << "what the context leaves";
}

TEST_F(OllamaTest, OptionsReachTheRequest) {
  AnswerWith("Hi");
  const auto responder =
      Post(kOllamaChat,
           "{" + kAsk +
               R"(,"keep_alive":"5m","options":{"temperature":0.5,"num_predict":7,"seed":3,)"
               R"("top_k":5,"top_p":0.9,"min_p":0.1,"stop":["x"],"repeat_penalty":1.25,)"
               R"("num_ctx":4096,"mood":1}})");
  EXPECT_EQ(responder->status, 200) << responder->body;
  EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"),
            "options.num_ctx, options.mood, keep_alive");
  const auto request = submitter_.WaitSubmitted().request;
  EXPECT_EQ(request.sampling.max_tokens, 7u);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 5u);
  EXPECT_EQ(request.sampling.seed, 3u);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.25f);
}

TEST_F(OllamaTest, NoMessagesLoadAModel) {
  const auto chat = Post(kOllamaChat, R"({"model":"toy","messages":[],"keep_alive":-1})");
  EXPECT_EQ(Fixed(chat->body), R"({"model":"toy","created_at":"T","message":{"role":"assistant",)"
                               R"("content":""},"done":true,"done_reason":"load"})");
  const auto reason = [&](const char* path, const std::string& keep) {
    const auto responder = Post(path, R"({"model":"toy","messages":[],"keep_alive":)" + keep + "}");
    EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"), keep == "null" ? "" : "keep_alive");
    return Text(*responder, {"done_reason"});
  };
  for (const char* const keep :
       {"300", "0.5", R"("5m")", R"("-1")", R"("1h30m")", R"("1.5s")", R"("-1m")", "null"}) {
    EXPECT_EQ(reason(kOllamaChat, keep), "load") << keep;
  }
  for (const char* const keep : {"0", "0.0", R"("0")", R"("0s")", R"("0m0s")"}) {
    EXPECT_EQ(reason(kOllamaChat, keep), "unload") << keep;
  }
  EXPECT_EQ(Text(*Post(kOllamaGenerate, R"({"prompt":"","keep_alive":0})"), {"done_reason"}),
            "unload");
  const auto generate = Post(kOllamaGenerate, R"({"model":"toy"})");
  EXPECT_EQ(Text(*generate, {"done_reason"}), "load");
  std::string many = R"({"model":"toy")";
  for (int i = 10; i < 50; ++i) many += fmt::format(R"(,"f{}":1)", i);
  const std::string names = Post(kOllamaChat, many + "}")->Header("X-Baton-Ignored-Fields");
  EXPECT_THAT(names, StartsWith("f10, f11, "));
  EXPECT_THAT(names, EndsWith("f24, ...")) << "at most 16";
  EXPECT_EQ(submitter_.num_submitted(), 0u);
}

TEST_F(OllamaTest, CallsGoOutWhole) {
  AnswerPlan plan;
  plan.model = TestModel();
  const auto writer = MakeOllamaWriter(plan, OllamaForm::kChat, "m");
  std::string out;
  const auto push = [&](std::vector<ToolCallDelta> calls) {
    TokenText text;
    text.tool_calls = calls;
    writer->AddToken(TokenOutput{}, text, &out);
  };
  push({{0, "call_a", "f", ""}});
  push({{0, "", "", "{\"x\":"}});
  EXPECT_EQ(out, "");
  push({{0, "", "", "1}"}, {1, "call_b", "g", ""}});
  writer->EndChoice(0, {.finish = FinishReason::kStop}, nullptr, &out);
  const std::string head =
      R"({"model":"m","created_at":"T","message":{"role":"assistant","content":"","tool_calls":[)";
  EXPECT_EQ(Fixed(out),
            head + R"({"id":"call_a","function":{"index":0,"name":"f","arguments":{"x":1}}}]},)" +
                R"("done":false})" + "\n" + head +
                R"({"id":"call_b","function":{"index":1,"name":"g","arguments":{}}}]},)" +
                R"("done":false})" + "\n");
}

TEST_F(OllamaTest, ToolResultsFindTheirCalls) {
  JsonValue root;
  RequestError error;
  OllamaRequest request;
  ASSERT_TRUE(
      ParseJson(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"",)"
                R"("thinking":"hm","tool_calls":[{"function":{"name":"f","arguments":{"x":1}}}]},)"
                R"({"role":"tool","tool_name":"f","content":"one"}]})",
                &root, &error));
  ASSERT_TRUE(ReadOllama(root, OllamaForm::kChat, &request, &error)) << error.Message();
  std::string members;
  for (size_t i = 1; i < 3; ++i) {
    for (const auto& [name, value] : request.params.messages[i].members) {
      if (name == "role" || name == "content") continue;
      members += name + "=";
      AppendJson(value, &members);
    }
  }
  EXPECT_EQ(members,
            R"(reasoning_content="hm"tool_calls=[{"id":"call_00000000","type":"function",)"
            R"("function":{"name":"f","arguments":{"x":1}}}]name="f"tool_call_id="call_00000000")");
}

// A conversation has no more results than messages, so no more calls can be answered.
TEST_F(OllamaTest, CallsOfAConversationAreCounted) {
  const auto body = [](size_t num_calls) {
    std::string calls;
    for (size_t i = 0; i < num_calls; ++i) {
      calls += std::string(i > 0 ? "," : "") + R"({"function":{"name":"f","arguments":{}}})";
    }
    return R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[)" +
           calls + R"(]},{"role":"tool","content":"b"}]})";
  };
  JsonValue root;
  RequestError error;
  OllamaRequest request;
  ASSERT_TRUE(ParseJson(body(limits::kMaxMessages), &root, &error));
  EXPECT_TRUE(ReadOllama(root, OllamaForm::kChat, &request, &error)) << error.Message();
  ASSERT_TRUE(ParseJson(body(limits::kMaxMessages + 1), &root, &error));
  EXPECT_FALSE(ReadOllama(root, OllamaForm::kChat, &request, &error));
  EXPECT_EQ(error.param, "messages[1].tool_calls");
}

TEST_F(OllamaTest, WrongFieldsAreNamed) {
  struct Case {
    const char* path;
    std::string body;
    const char* words;
    int status = 400;
  };
  const std::vector<Case> cases = {
      {kOllamaChat, "{" + kAsk + R"(,"options":{"temperature":101}})", "'options.temperature'"},
      {kOllamaChat, "{" + kAsk + R"(,"options":{"num_predict":-3}})", "'options.num_predict'"},
      {kOllamaChat, "{" + kAsk + R"(,"options":{"num_ctx":"x"}})", "'options.num_ctx'"},
      {kOllamaChat, "{" + kAsk + R"(,"options":{"mirostat":2}})", "mirostat"},
      {kOllamaChat, "{" + kAsk + R"(,"options":7})", "'options'"},
      {kOllamaChat, "{" + kAsk + R"(,"temperature":0})",
       "'temperature' is not supported by this server: it must be absent; send "
       "options.temperature."},
      {kOllamaGenerate, R"({"prompt":"a","max_tokens":2})", "'max_tokens' is not supported"},
      {kOllamaGenerate, R"({"prompt":"a","max_tokens":2})", "send options.num_predict"},
      {kOllamaGenerate, R"({"prompt":"a","raw":true,"num_predict":2})", "send options.num_predict"},
      {kOllamaChat, "{" + kAsk + R"(,"repeat_penalty":2})", "send options.repeat_penalty"},
      {kOllamaChat, "{" + kAsk + R"(,"prompt":"x"})", "/api/generate takes it"},
      {kOllamaChat, R"({"model":"toy","prompt":"x"})", "/api/generate takes it"},
      {kOllamaChat, R"({"model":"toy","input":"x"})", "'input' is not supported"},
      {kOllamaGenerate, R"({"messages":[{"role":"user","content":"a"}]})", "/api/chat takes it"},
      {kOllamaChat, "{" + kAsk + R"(,"options":{"num_predict":"x"}})",
       "'options.num_predict' has the wrong type: it must be an integer from -2 to 2147483647"},
      {kOllamaChat, "{" + kAsk + R"(,"options":{"num_predict":2147483648}})",
       "from -2 to 2147483647"},
      {kOllamaChat, "{" + kAsk + R"(,"think":true})", "'think'"},
      {kOllamaChat, "{" + kAsk + R"(,"think":"much"})", "'think'"},
      {kOllamaChat, "{" + kAsk + R"(,"format":"xml"})", "'format'"},
      {kOllamaChat, "{" + kAsk + R"(,"stream":"yes"})", "'stream'"},
      {kOllamaChat, "{" + kAsk + R"(,"keep_alive":{}})", "'keep_alive'"},
      {kOllamaChat, "{" + kAsk + R"(,"keep_alive":"zz"})", "'keep_alive'"},
      {kOllamaChat, "{" + kAsk + R"(,"keep_alive":""})", "'keep_alive'"},
      {kOllamaChat, "{" + kAsk + R"(,"keep_alive":"5m3"})", "'keep_alive'"},
      {kOllamaChat, R"({"model":"toy","messages":[],"keep_alive":"5x"})", "'keep_alive'"},
      {kOllamaGenerate, R"({"model":"toy","keep_alive":"m"})", "'keep_alive'"},
      {kOllamaChat, "{" + kAsk + R"(,"options":{"top_k":-7}})", "'options.top_k'"},
      {kOllamaChat, "{" + kAsk + R"(,"options":{"top_k":"x"}})", "'options.top_k'"},
      {kOllamaChat, R"({"messages":[{"role":"user","content":"a","images":["AA=="]}]})",
       "'messages[0].images'"},
      {kOllamaChat, R"({"messages":[{"role":"robot","content":"a"}]})", "'messages[0].role'"},
      {kOllamaChat, R"({"messages":"a"})", "'messages'"},
      {kOllamaChat, R"({"model":"no","messages":[]})", "'model'", 404},
      {kOllamaGenerate, R"({"prompt":"a","suffix":"b"})", "'suffix'"},
      {kOllamaGenerate, R"({"prompt":"a","template":"b"})", "'template'"},
      {kOllamaGenerate, R"({"prompt":"a","context":[1]})", "'context'"},
      {kOllamaGenerate, R"({"prompt":"a","images":["AA=="]})", "'images'"},
      {kOllamaGenerate, R"({"prompt":"a","raw":true,"system":"b"})", "'system'"},
      {kOllamaGenerate, R"({"prompt":["a"]})", "'prompt'"},
      {"/api/pull", R"({"model":"a"})", "baton pull", 404},
  };
  for (const Case& c : cases) {
    const auto responder = Post(c.path, c.body);
    EXPECT_EQ(responder->status, c.status) << c.body << responder->body;
    EXPECT_NE(Text(*responder, {"error"}).find(c.words), std::string::npos)
        << c.body << responder->body;
  }
}

TEST_F(OllamaTest, WhatNothingReadsIsNamedAsItWasSent) {
  AnswerWith("{}");
  const std::string ask =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b",)"
      R"("thinking":"hm"},{"role":"user","content":"c"}],"stream":false)";
  const auto responder =
      Post(kOllamaChat, ask + R"(,"think":false,"format":{"type":"array","uniqueItems":true}})");
  ASSERT_EQ(responder->status, 200) << responder->body;
  EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"),
            "think, messages[1].thinking, format.uniqueItems");
}

TEST_F(OllamaTest, WhatARawPromptDoesNotReadIsNamed) {
  AnswerWith("Hi");
  const std::string raw = R"({"prompt":"hi","raw":true,"stream":false,)";
  const auto named = [&](const std::string& fields) {
    const auto responder = Post(kOllamaGenerate, raw + fields + "}");
    EXPECT_EQ(responder->status, 200) << fields << responder->body;
    return responder->Header("X-Baton-Ignored-Fields");
  };
  EXPECT_EQ(named(R"("think":false)"), "think");
  EXPECT_EQ(named(R"("top_logprobs":2)"), "top_logprobs");
  EXPECT_EQ(named(R"("logprobs":false,"top_logprobs":2)"), "top_logprobs");
  EXPECT_EQ(named(R"("logprobs":true,"top_logprobs":2)"), "");
}

TEST_F(OllamaTest, Models) {
  EXPECT_EQ(Text(*Send("GET", "/api/tags"), {"models", "0", "name"}), "toy");
  const auto running = Send("GET", "/api/ps");
  EXPECT_EQ(Text(*running, {"models", "0", "context_length"}), "512");
  const auto show = Post("/api/show", R"({"model":"toy"})");
  EXPECT_EQ(Text(*show, {"model_info", "baton.context_length"}), "512");
  EXPECT_EQ(Text(*show, {"capabilities", "0"}), "completion");
  EXPECT_EQ(Post("/api/show", R"({"name":"toy:latest"})")->status, 200);
  const auto unknown = Post("/api/show", R"({"name":"no","model":null})");
  EXPECT_EQ(unknown->status, 404);
  EXPECT_NE(unknown->body.find("'name'"), std::string::npos) << unknown->body;
  EXPECT_NE(Post("/api/show", R"({"name":7})")->body.find("'name'"), std::string::npos);
  const auto both = Post("/api/show", R"({"name":"toy","model":"no"})");
  EXPECT_EQ(both->status, 404);
  EXPECT_NE(both->body.find("'model'"), std::string::npos) << both->body;
  const auto verbose = Post("/api/show", R"({"name":"toy","model":"toy","verbose":true})");
  EXPECT_EQ(verbose->status, 200);
  EXPECT_EQ(verbose->Header("X-Baton-Ignored-Fields"), "verbose");
  EXPECT_NE(Text(*Send("GET", "/api/version"), {"version"}), "<absent>");
  EXPECT_EQ(Send("HEAD", "/")->status, 200);
}

TEST_F(OllamaTest, AFailureAmidTheStreamIsALine) {
  submitter_.answer = [](const GenerateRequest&, ResponseSink& sink) {
    PlayText(sink, "H", 0, FinishReason::kNone);
    sink.OnFailed(RequestError{ErrorCode::kWorkerLost});
  };
  const auto responder = Post(kOllamaChat, "{" + kAsk + "}");
  const size_t line = responder->body.find("{\"error\":\"");
  ASSERT_NE(line, std::string::npos);
  EXPECT_TRUE(responder->body.ends_with("\"}\n"));
  EXPECT_EQ(responder->body.find("\"done\":true"), std::string::npos);
}

}  // namespace
}  // namespace baton::api
