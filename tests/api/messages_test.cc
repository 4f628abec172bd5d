// Anthropic's Messages over HTTP: requests, whole answers, streams, counts and errors.
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/api/messages_read.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using namespace router;  // NOLINT(google-build-using-namespace)
using scheduler::FinishReason;

namespace {

constexpr const char* kMessagesPath = "/v1/messages";
const std::string kAsk = R"({"max_tokens":64,"messages":[{"role":"user","content":"hello"}])";

// Prints roles, texts, calls and results.
constexpr const char* kPrintsAll =
    "{% for m in messages %}<user>{{ m.role[0] }}:{{ m.content if m.content else '' }}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments.city }}]"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

class MessagesTest : public HttpApiTest {
 protected:
  MessagesTest() { submitter_.served = {ModelWith(kPrintsAll)}; }

  // The text of the prompt that a request with this body brought to the router.
  std::string PromptOf(const std::string& body) {
    AnswerWith("x");
    const size_t idx = submitter_.num_submitted();
    const auto responder = Post(kMessagesPath, body);
    EXPECT_EQ(responder->status, 200) << responder->body;
    if (responder->status != 200) return "";
    const auto prompt = submitter_.WaitSubmitted(idx).request.prompt;
    const std::vector<TokenId> tokens(prompt.begin(), prompt.end());
    return TestModel()->tokenizer->Decode(tokens, /*skip_special=*/false).value();
  }
  std::string TurnsOf(const std::string& messages) {
    return PromptOf(R"({"max_tokens":4,"messages":[)" + messages + "]}");
  }
  // The message of a 400, without its type.
  std::string RefusalOf(const std::string& body) {
    const auto responder = Post(kMessagesPath, body);
    EXPECT_EQ(responder->status, 400) << body;
    EXPECT_EQ(Text(*responder, {"error", "type"}), "invalid_request_error");
    return Text(*responder, {"error", "message"});
  }
};

TEST_F(MessagesTest, AWholeAnswerIsAMessage) {
  AnswerWith("hi there");
  const auto responder =
      Send("POST", kMessagesPath, kAsk + R"(,"model":"toy","metadata":{"user_id":"u-1"}})",
           {{"Content-Type", "application/json"},
            {"x-api-key", "sk-1"},
            {"anthropic-version", "2023-06-01"},
            {"anthropic-beta", "a-1,b-2"},
            {"X-Request-Id", "req-7"}});
  ASSERT_TRUE(responder->Wait());
  EXPECT_EQ(responder->status, 200);
  EXPECT_EQ(responder->Header("Content-Type"), "application/json");
  EXPECT_EQ(responder->Header("request-id"), "req-7");
  EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"), "");
  EXPECT_TRUE(Text(*responder, {"id"}).starts_with("msg_"));
  EXPECT_EQ(Text(*responder, {"type"}), "message");
  EXPECT_EQ(Text(*responder, {"role"}), "assistant");
  EXPECT_EQ(Text(*responder, {"model"}), "toy");
  EXPECT_EQ(Text(*responder, {"content", "0", "type"}), "text");
  EXPECT_EQ(Text(*responder, {"content", "0", "text"}), "hi there");
  EXPECT_EQ(Text(*responder, {"stop_reason"}), "end_turn");
  EXPECT_EQ(Text(*responder, {"stop_sequence"}), "null");
  EXPECT_EQ(Text(*responder, {"usage", "output_tokens"}), "8");
  EXPECT_EQ(Text(*responder, {"timings", "transport"}), "shm");
  const GenerateRequest request = submitter_.WaitSubmitted().request;
  EXPECT_EQ(request.sampling.max_tokens, 64u);
  EXPECT_TRUE(request.names_length);
}

TEST_F(MessagesTest, CachedTokensAreCountedApart) {
  submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
    PlayText(sink, "x");
    GenerateResult result = TestResult(static_cast<uint32_t>(request.prompt.size()), 1);
    result.timings.cached_tokens = 5;
    sink.OnFinished(result);
  };
  const auto whole = Post(kMessagesPath, kAsk + "}");
  const auto num_prompt = submitter_.WaitSubmitted().request.prompt.size();
  EXPECT_EQ(Text(*whole, {"usage", "input_tokens"}), std::to_string(num_prompt - 5));
  EXPECT_EQ(Text(*whole, {"usage", "cache_read_input_tokens"}), "5");
  EXPECT_EQ(Text(*whole, {"usage", "cache_creation_input_tokens"}), "0");
  const auto streamed = Post(kMessagesPath, kAsk + R"(,"stream":true})");
  EXPECT_NE(streamed->body.find("\"input_tokens\":" + std::to_string(num_prompt - 5) +
                                ",\"cache_creation_input_tokens\":0,"
                                "\"cache_read_input_tokens\":5,\"output_tokens\":1}"),
            std::string::npos)
      << streamed->body;
}

TEST_F(MessagesTest, TheEndHasItsReason) {
  AnswerWith("ab", FinishReason::kLength);
  auto responder =
      Post(kMessagesPath, R"({"max_tokens":2,"messages":[{"role":"user","content":"q"}]})");
  EXPECT_EQ(Text(*responder, {"stop_reason"}), "max_tokens");
  responder = Post(kMessagesPath, kAsk + "}");  // 64 were asked for, and the context gave two
  EXPECT_EQ(Text(*responder, {"stop_reason"}), "model_context_window_exceeded");
  submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
    TokenOutput token;
    token.token = 'x';
    token.text = "x";
    token.finish = FinishReason::kStop;
    token.stop_idx = 1;
    token.is_last = true;
    sink.OnToken(token);
    sink.OnFinished(TestResult(static_cast<uint32_t>(request.prompt.size()), 1));
  };
  responder = Post(kMessagesPath, kAsk + R"(,"stop_sequences":["A","B"]})");
  EXPECT_EQ(Text(*responder, {"stop_reason"}), "stop_sequence");
  EXPECT_EQ(Text(*responder, {"stop_sequence"}), "B");
  responder = Post(kMessagesPath, kAsk + R"(,"stream":true,"stop_sequences":["A","B"]})");
  EXPECT_NE(responder->body.find(R"("delta":{"stop_reason":"stop_sequence","stop_sequence":"B"})"),
            std::string::npos)
      << responder->body;
}

TEST_F(MessagesTest, AStreamBeginsWithAWorkerAndEndsWithAnError) {
  submitter_.answer = [](const GenerateRequest& /*request*/, ResponseSink& sink) {
    sink.OnTaken();
    PlayText(sink, "a", 0, FinishReason::kNone, false);
    sink.OnFailed(PlainError(ErrorCode::kWorkerLost));
  };
  const auto responder = Post(kMessagesPath, kAsk + R"(,"stream":true,"request_id":"r-1"})");
  EXPECT_EQ(responder->status, 200);
  EXPECT_EQ(responder->Header("Content-Type"), "text/event-stream");
  EXPECT_EQ(responder->filler, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
  EXPECT_TRUE(responder->body.starts_with("event: message_start\ndata: ")) << responder->body;
  EXPECT_TRUE(responder->body.ends_with(
      "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
      "\"message\":\"A worker was lost while it computed the answer; try again.\"},"
      "\"request_id\":\"r-1\"}\n\n"))
      << responder->body;
  EXPECT_TRUE(responder->closes);
}

TEST_F(MessagesTest, ErrorsHaveAnthropicsForm) {
  auto responder = Post(kMessagesPath, R"({"messages":[{"role":"user","content":"q"}]})");
  EXPECT_EQ(responder->status, 400);
  EXPECT_EQ(Text(*responder, {"type"}), "error");
  EXPECT_EQ(Text(*responder, {"error", "message"}),
            "'max_tokens' is required: an integer from 1 to 2147483647.");
  EXPECT_EQ(Text(*responder, {"request_id"}), responder->Header("request-id"));
  responder = Post(kMessagesPath, kAsk + R"(,"model":"other"})");
  EXPECT_EQ(responder->status, 404);
  EXPECT_EQ(Text(*responder, {"error", "type"}), "not_found_error");
  responder = Post(kMessagesPath, "{");
  EXPECT_EQ(Text(*responder, {"error", "type"}), "invalid_request_error");
  responder = Send("GET", kMessagesPath);
  EXPECT_EQ(responder->status, 405);
  EXPECT_EQ(Text(*responder, {"type"}), "error");
  submitter_.answer = [](const GenerateRequest& /*request*/, ResponseSink& sink) {
    sink.OnFailed(PlainError(ErrorCode::kQueueFull));
  };
  for (const char* stream : {"false", "true"}) {
    responder = Post(kMessagesPath, kAsk + R"(,"stream":)" + stream + "}");
    EXPECT_EQ(responder->status, 429);
    EXPECT_EQ(Text(*responder, {"error", "type"}), "rate_limit_error");
    EXPECT_NE(responder->Header("Retry-After"), "");
  }
}

// The tool runner of Anthropic's SDKs asks for a conversation that the server keeps. These details
// tell it to send the whole conversation instead; any other refusal ends its loop.
TEST_F(MessagesTest, AThreadIsRefusedSoThatClientsGoOnWithoutOne) {
  for (const char* thread :
       {R"({"type":"create"})", R"({"type":"continue","previous_message_id":"msg_1"})"}) {
    const auto responder = Post(kMessagesPath, kAsk + R"(,"thread":)" + thread + "}");
    EXPECT_EQ(responder->status, 400);
    EXPECT_EQ(Text(*responder, {"error", "type"}), "invalid_request_error");
    EXPECT_EQ(Text(*responder, {"error", "details", "error_code"}), "thread_unsupported_request");
    EXPECT_EQ(Text(*responder, {"error", "details", "unsupported", "0"}), "thread");
  }
  EXPECT_EQ(Text(*Post(kMessagesPath, kAsk + R"(,"container":"c"})"), {"error", "details"}),
            "<absent>");
}

// Coding agents look for the words.
TEST_F(MessagesTest, APromptBeyondTheContextIsTooLong) {
  const std::string body =
      R"({"max_tokens":1,"messages":[{"role":"user","content":")" + std::string(600, 'x') + "\"}]}";
  EXPECT_EQ(RefusalOf(body), "prompt is too long: 604 tokens > 511 maximum");
}

TEST_F(MessagesTest, CountsThePromptThatItWouldSend) {
  const std::string rest = R"("system":"s","messages":[{"role":"user","content":"hello"}]})";
  const auto counted = Post("/v1/messages/count_tokens", "{" + rest);
  EXPECT_EQ(counted->status, 200);
  EXPECT_EQ(PromptOf(R"({"max_tokens":1,)" + rest), "<user>s:s<user>u:hello<assistant>");
  EXPECT_EQ(counted->body, R"({"input_tokens":)" +
                               std::to_string(submitter_.WaitSubmitted().request.prompt.size()) +
                               "}");
  const auto refused = Post("/v1/messages/count_tokens", "{}");
  EXPECT_EQ(refused->status, 400);
  EXPECT_EQ(Text(*refused, {"type"}), "error");
  EXPECT_EQ(submitter_.num_submitted(), 1u) << "a count computes nothing";
}

TEST_F(MessagesTest, BlocksBecomeTurns) {
  EXPECT_EQ(TurnsOf(R"({"role":"user","content":[{"type":"text","text":"a"},)"
                    R"({"type":"text","text":"b","cache_control":{"type":"ephemeral"}}]})"),
            "<user>u:a\nb<assistant>");
  EXPECT_EQ(TurnsOf(R"({"role":"user","content":"a"},{"role":"user","content":"b"})"),
            "<user>u:a\nb<assistant>")
      << "messages of one role are one turn";
  EXPECT_EQ(TurnsOf(R"({"role":"user","content":"q"},{"role":"assistant","content":[)"
                    R"({"type":"thinking","thinking":"hm","signature":""},)"
                    R"({"type":"redacted_thinking","data":"xx"},{"type":"text","text":"a"}]},)"
                    R"({"role":"user","content":"r"})"),
            "<user>u:q<user>a:a(hm)<user>u:r<assistant>");
  EXPECT_EQ(TurnsOf(R"({"role":"user","content":"q"},{"role":"system","content":"now"})"),
            "<user>u:q<user>s:now<assistant>");
}

TEST_F(MessagesTest, CallsAndResultsBecomeTurns) {
  const std::string calls =
      R"({"role":"user","content":"w"},{"role":"assistant","content":[{"type":"text","text":"a"},)"
      R"({"type":"tool_use","id":"c1","name":"f","input":{"city":"Bern"}},)"
      R"({"type":"tool_use","id":"c2","name":"g","input":{"city":"Rome"}}]},)";
  EXPECT_EQ(TurnsOf(calls + R"({"role":"user","content":[{"type":"text","text":"so?"},)"
                            R"({"type":"tool_result","tool_use_id":"c1","content":"12"},)"
                            R"({"type":"tool_result","tool_use_id":"c2","is_error":true,)"
                            R"("content":[{"type":"text","text":"30"}]}]})"),
            "<user>u:w<user>a:a[f Bern][g Rome]<user>t:12<user>t:30<user>u:so?<assistant>");
  EXPECT_EQ(TurnsOf(calls + R"({"role":"user","content":[)"
                            R"({"type":"tool_result","tool_use_id":"c2"}]},)"
                            R"({"role":"user","content":[)"
                            R"({"type":"tool_result","tool_use_id":"c1","content":"12"}]})"),
            "<user>u:w<user>a:a[f Bern][g Rome]<user>t:<user>t:12<assistant>");
}

TEST_F(MessagesTest, ALastMessageOfTheAssistantIsContinued) {
  EXPECT_EQ(TurnsOf(R"({"role":"user","content":"q"},{"role":"assistant","content":"It is"})"),
            "<user>u:q<user>a:It is");
  EXPECT_EQ(TurnsOf(R"({"role":"user","content":"q"},{"role":"assistant","content":[]})"),
            "<user>u:q<assistant>")
      << "there is nothing to continue";
}

TEST_F(MessagesTest, SystemBlocksAreJoinedWithoutTheBillingLine) {
  const auto system = [&](const std::string& value) {
    return PromptOf(kAsk + R"(,"system":)" + value + "}");
  };
  const std::string line = "x-anthropic-billing-header: cc_version=2.1; cch=4f2a1;";
  const std::string plain = "<user>s:You are\nshort<user>u:hello<assistant>";
  EXPECT_EQ(system(R"([{"type":"text","text":"You are"},{"type":"text","text":"short"}])"), plain);
  EXPECT_EQ(system(R"([{"type":"text","text":")" + line +
                   R"("},{"type":"text","text":"You are"},{"type":"text","text":"short"}])"),
            plain);
  EXPECT_EQ(system(R"([{"type":"text","text":")" + line + R"(\nYou are\nshort"}])"), plain);
  EXPECT_EQ(system("\"" + line + R"(\nYou are\nshort")"), plain);
  EXPECT_EQ(system("\"" + line + "\""), "<user>u:hello<assistant>");
  EXPECT_EQ(system("\"\""), "<user>u:hello<assistant>");
  std::string many;
  for (int i = 0; i < 1000; ++i)
    many += std::string(i > 0 ? "," : "") + R"({"type":"text","text":""})";
  EXPECT_EQ(system("[" + many + "]"), "<user>u:hello<assistant>");
}

TEST_F(MessagesTest, FieldsGoWhereTheyBelong) {
  AnswerWith("x");
  Post(kMessagesPath,
       kAsk +
           R"(,"temperature":0.5,"top_p":0.9,"top_k":7,"seed":11,"min_p":0.1,"timeout_ms":5000})");
  const GenerateRequest request = submitter_.WaitSubmitted().request;
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(request.sampling.top_p, 0.9f);
  EXPECT_EQ(request.sampling.top_k, 7u);
  EXPECT_EQ(request.sampling.seed, 11u);
  EXPECT_FLOAT_EQ(request.sampling.min_p, 0.1f);
  EXPECT_EQ(request.timeout_us, 5'000'000);
  submitter_.served = {
      ModelWith("{{ enable_thinking }}{{ reasoning_effort }}|" + std::string(kPrintsAll))};
  EXPECT_EQ(PromptOf(kAsk + R"(,"thinking":{"type":"disabled"},"output_config":{"effort":"low"}})"),
            "Falselow|<user>u:hello<assistant>");
  EXPECT_EQ(PromptOf(R"({"max_tokens":2000,"messages":[{"role":"user","content":"q"}],)"
                     R"("thinking":{"type":"enabled","budget_tokens":1024}})"),
            "True|<user>u:q<assistant>");
  EXPECT_EQ(PromptOf(kAsk + R"(,"thinking":{"type":"adaptive"}})"), "|<user>u:hello<assistant>");
  const auto ignored = Post(
      kMessagesPath, kAsk + R"(,"service_tier":"standard_only","context_management":{"edits":[]},)"
                            R"("cache_control":{"type":"ephemeral"},"speed":"standard",)"
                            R"("output_config":{"task_budget":{"total":1}}})");
  EXPECT_EQ(ignored->Header("X-Baton-Ignored-Fields"),
            "service_tier, speed, output_config.task_budget, context_management");
}

TEST_F(MessagesTest, OnlyEditsThatTakeNothingAwayAreTaken) {
  AnswerWith("x");
  const auto edits = [](const std::string& list) {
    return kAsk + R"(,"context_management":{"edits":[)" + list + "]}}";
  };
  const std::string keeps = R"({"type":"clear_thinking_20251015","keep":"all"})";
  const auto taken = Post(kMessagesPath, edits(keeps));
  EXPECT_EQ(taken->status, 200) << taken->body;
  EXPECT_EQ(taken->Header("X-Baton-Ignored-Fields"), "context_management");
  for (const char* edit : {R"({"type":"clear_tool_uses_20250919"})", "{}", "5",
                           R"({"type":"clear_thinking_20251015"})",
                           R"({"type":"clear_thinking_20251015","keep":{"value":1}})"}) {
    EXPECT_TRUE(RefusalOf(edits(keeps + "," + edit))
                    .starts_with("'context_management.edits[1]' is not supported"))
        << edit;
  }
  EXPECT_TRUE(RefusalOf(kAsk + R"(,"context_management":5})").starts_with("'context_management'"));
  EXPECT_TRUE(RefusalOf(kAsk + R"(,"context_management":{"edits":{}}})")
                  .starts_with("'context_management.edits'"));
}

// The client's own names, not those of the chat that the request became.
TEST_F(MessagesTest, WhatTheTemplateDoesNotReadIsNamedByItsPath) {
  AnswerWith("x");
  submitter_.served = {ModelWith("{% for m in messages %}{{ m.content }}{% endfor %}<assistant>")};
  const auto ignored = [&](const std::string& body) {
    const auto responder = Post(kMessagesPath, body);
    EXPECT_EQ(responder->status, 200) << responder->body;
    return responder->Header("X-Baton-Ignored-Fields");
  };
  EXPECT_EQ(ignored(kAsk + R"(,"thinking":{"type":"disabled"}})"), "thinking");
  EXPECT_EQ(ignored(kAsk + R"(,"output_config":{"effort":"low"}})"), "output_config.effort");
  EXPECT_EQ(ignored(kAsk + R"(,"chat_template_kwargs":{"enable_thinking":false}})"),
            "chat_template_kwargs.enable_thinking");
  EXPECT_EQ(ignored(R"({"max_tokens":4,"messages":[{"role":"user","content":"a"},{"role":)"
                    R"("assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text",)"
                    R"("text":"b"}]},{"role":"user","content":"c"}]})"),
            "messages[1].content[0]");
  EXPECT_EQ(ignored(kAsk + R"(,"tools":[{"name":"f","input_schema":{"properties":{"a":{"type":)"
                           R"("array","uniqueItems":true}}}}],"tool_choice":{"type":"any"}})"),
            "tools[0].input_schema.properties.a.uniqueItems");
}

// Members of objects whose other members are read, each with its own name "x".
TEST_F(MessagesTest, MembersThatNothingReadsAreNamedByTheirPath) {
  AnswerWith("x");
  const std::string tool = R"("tools":[{"name":"f","input_schema":{"type":"object"},"x":1,)"
                           R"("cache_control":{"type":"ephemeral"}}])";
  const std::string format = R"({"type":"json_schema","schema":{"type":"object"},"x":1})";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("stream_options":null)", ""},
      {R"("metadata":{"user_id":"u","x":1})", "metadata.x"},
      {tool, "tools[0].x"},
      {tool + R"(,"tool_choice":{"type":"auto","x":1})", "tools[0].x, tool_choice.x"},
      {R"("output_config":{"format":)" + format + "}", "output_config.format.x"},
      {R"("output_format":)" + format, "output_format.x"},
      {R"("system":[{"type":"text","text":"s","x":1,"cache_control":{"type":"ephemeral"}}])",
       "system[0].x"}};
  for (const auto& [fields, ignored] : cases) {
    const auto responder = Post(kMessagesPath, kAsk + "," + fields + "}");
    ASSERT_EQ(responder->status, 200) << fields << responder->body;
    std::string named = responder->Header("X-Baton-Ignored-Fields");
    // The toy's template does not show tools.
    if (named.ends_with(", tools")) named.resize(named.size() - 7);
    EXPECT_EQ(named, ignored) << fields;
  }
}

TEST_F(MessagesTest, MembersOfBlocksThatNothingReadsAreNamedByTheirPath) {
  JsonValue body;
  router::RequestError error;
  ASSERT_TRUE(ParseJson(
      R"({"max_tokens":4,"messages":[{"role":"user","content":"a","x":1},{"role":"assistant",)"
      R"("content":[{"type":"thinking","thinking":"hm","signature":"","x":1},{"type":"text",)"
      R"("text":"b","citations":null,"x":1},{"type":"tool_use","id":"t","name":"f","input":{},)"
      R"("x":1}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","x":1,)"
      R"("content":[{"type":"text","text":"c","x":1}]}]}]})",
      &body, &error));
  ApiParams params;
  MessagesForm form;
  std::vector<std::string> ignored;
  ASSERT_TRUE(ReadMessages(body, &params, &form, &ignored, &error)) << error.Message();
  EXPECT_EQ(ignored, (std::vector<std::string>{
                         "messages[0].x", "messages[1].content[0].x", "messages[1].content[1].x",
                         "messages[1].content[2].x", "messages[2].content[0].content[0].x",
                         "messages[2].content[0].x"}));
}

// The toy's template shows no tools, so that the calls of its model are bare JSON.
TEST_F(MessagesTest, ACallIsABlockAndComesBackWithItsResult) {
  AnswerWith(R"({"name": "f", "arguments": {"city": "Bern"}})");
  const std::string tools =
      R"(,"tools":[{"name":"f","input_schema":{"type":"object"},"cache_control":null}])";
  const auto whole = Post(kMessagesPath, kAsk + tools + "}");
  EXPECT_EQ(Text(*whole, {"stop_reason"}), "tool_use") << whole->body;
  EXPECT_EQ(Text(*whole, {"content", "0", "type"}), "tool_use");
  EXPECT_EQ(Text(*whole, {"content", "0", "name"}), "f");
  EXPECT_EQ(Text(*whole, {"content", "0", "input", "city"}), "Bern");
  EXPECT_EQ(Text(*whole, {"content", "1"}), "<absent>");
  const std::string id = Text(*whole, {"content", "0", "id"});
  EXPECT_FALSE(id.empty());
  const auto streamed = Post(kMessagesPath, kAsk + tools + R"(,"stream":true})");
  EXPECT_NE(streamed->body.find(R"("content_block":{"type":"tool_use","id":")"), std::string::npos)
      << streamed->body;
  EXPECT_NE(streamed->body.find(R"("type":"input_json_delta","partial_json":")"),
            std::string::npos);
  EXPECT_NE(streamed->body.find(R"("delta":{"stop_reason":"tool_use","stop_sequence":null})"),
            std::string::npos);
  EXPECT_EQ(streamed->body.find("text_delta"), std::string::npos) << "a call is no text";
  AnswerWith("it is noon");
  const auto again =
      Post(kMessagesPath,
           R"({"max_tokens":9,"messages":[{"role":"user","content":"hello"},{"role":"assistant",)"
           R"("content":[{"type":"tool_use","id":")" +
               id + R"(","name":"f","input":{"city":"Bern"}}]},{"role":"user","content":[)" +
               R"({"type":"tool_result","tool_use_id":")" + id + R"(","content":"12"}]}])" + tools +
               "}");
  EXPECT_EQ(Text(*again, {"content", "0", "text"}), "it is noon") << again->body;
  EXPECT_EQ(Text(*again, {"stop_reason"}), "end_turn");
}

TEST_F(MessagesTest, AFormatIsTheGrammarOfTheAnswer) {
  AnswerWith("{}");
  const auto format = [&](const std::string& value) {
    return kAsk + R"(,"output_config":{"format":)" + value + "}}";
  };
  const auto responder =
      Post(kMessagesPath, format(R"({"type":"json_schema","schema":{"type":"object"}})"));
  EXPECT_EQ(responder->status, 200) << responder->body;
  const wire::SharedGrammar grammar = submitter_.WaitSubmitted().request.sampling.grammar;
  ASSERT_NE(grammar, nullptr);
  EXPECT_EQ(grammar->kind, wire::GrammarKind::kSchemaStrict);
  EXPECT_EQ(grammar->text, R"({"type":"object"})");
  for (const char* wrong : {R"("json")", R"({"type":"json_schema"})", R"({"type":"text"})",
                            R"({"type":"json_schema","schema":"{}"})",
                            R"({"type":"json_schema","schema":{"type":"text"}})"}) {
    EXPECT_TRUE(RefusalOf(format(wrong)).starts_with("'output_config.format'")) << wrong;
    EXPECT_TRUE(
        RefusalOf(kAsk + R"(,"output_format":)" + wrong + "}").starts_with("'output_format'"))
        << wrong;
  }
  // The name of the field while it was a beta.
  const std::string older = R"("output_format":{"type":"json_schema","schema":{"type":"object"}})";
  EXPECT_EQ(Post(kMessagesPath, kAsk + "," + older + "}")->status, 200);
  EXPECT_EQ(submitter_.WaitSubmitted(1).request.sampling.grammar->text, R"({"type":"object"})");
  EXPECT_TRUE(RefusalOf(kAsk + "," + older + R"(,"structured_outputs":{"regex":"a"}})")
                  .starts_with("'output_format'"));
}

TEST_F(MessagesTest, WhatIsNotServedIsRefusedByName) {
  const auto refused = [&](const std::string& fields) {
    const std::string message = RefusalOf(kAsk + "," + fields + "}");
    return message.substr(1, message.find('\'', 1) - 1);
  };
  EXPECT_EQ(refused(R"("stop":["x"])"), "stop");
  EXPECT_EQ(refused(R"("max_completion_tokens":5)"), "max_completion_tokens");
  EXPECT_EQ(refused(R"("n":2)"), "n");
  EXPECT_EQ(refused(R"("logprobs":true)"), "logprobs");
  EXPECT_EQ(refused(R"("response_format":{"type":"json_object"})"), "response_format");
  EXPECT_EQ(refused(R"("documents":[{"text":"x"}])"), "documents");
  EXPECT_EQ(refused(R"("guided_json":{"type":"object"})"), "guided_json");
  EXPECT_EQ(refused(R"("mcp_servers":[{"type":"url"}])"), "mcp_servers");
  EXPECT_EQ(refused(R"("container":"c")"), "container");
  EXPECT_EQ(refused(R"("speed":"fast")"), "speed");
  EXPECT_EQ(refused(R"("output_config":{"effort":"most"})"), "output_config.effort");
  EXPECT_EQ(refused(R"("thinking":{"type":"enabled","budget_tokens":5})"),
            "thinking.budget_tokens");
  EXPECT_EQ(refused(R"("thinking":{"type":"enabled","budget_tokens":4096})"),
            "thinking.budget_tokens");
  EXPECT_EQ(refused(R"("thinking":{"type":"sometimes"})"), "thinking.type");
  EXPECT_EQ(refused(R"("thinking":true)"), "thinking");
  EXPECT_EQ(refused(R"("metadata":"u")"), "metadata");
  EXPECT_EQ(refused(R"("metadata":{"user_id":5})"), "metadata.user_id");
  EXPECT_EQ(refused(R"("stop_sequences":[""])"), "stop_sequences");
  EXPECT_EQ(refused(R"("tools":[{"type":"web_search_20250305","name":"web_search"}])"),
            "tools[0].type");
  EXPECT_EQ(refused(R"("tools":[{"name":"f"}])"), "tools[0].input_schema");
  EXPECT_EQ(refused(R"("tools":[{"input_schema":{}}])"), "tools[0].name");
  EXPECT_EQ(refused(R"("tools":[{"name":"a b","input_schema":{}}])"), "tools[0].name");
  EXPECT_EQ(refused(R"("tools":[{"name":"f","input_schema":{"type":"array"}}])"),
            "tools[0].input_schema.type");
  EXPECT_EQ(refused(R"("tools":{})"), "tools");
  EXPECT_EQ(refused(R"("tool_choice":"auto")"), "tool_choice");
  EXPECT_EQ(refused(R"("tool_choice":{"type":"must"})"), "tool_choice.type");
  EXPECT_EQ(refused(R"("tool_choice":{"type":"tool","name":"f"})"), "tool_choice.name");
  EXPECT_EQ(refused(R"("tool_choice":{"type":"any"})"), "tool_choice");
  EXPECT_EQ(refused(R"("system":5)"), "system");
  EXPECT_EQ(refused(R"("system":[{"type":"text","text":"a"},{"type":"image"}])"), "system[1]");
}

TEST_F(MessagesTest, MessagesThatAreNoneAreRefusedByTheirPlace) {
  const auto refused = [&](const std::string& messages) {
    const std::string message = RefusalOf(R"({"max_tokens":4,"messages":[)" + messages + "]}");
    return message.substr(1, message.find('\'', 1) - 1);
  };
  const std::string ask = R"({"role":"user","content":"q"},)";
  const std::string call =
      ask +
      R"({"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{}}]})";
  const std::string result = R"({"type":"tool_result","tool_use_id":"c","content":"r"})";
  EXPECT_EQ(refused(""), "messages");
  EXPECT_EQ(refused("1"), "messages[0]");
  EXPECT_EQ(refused(R"({"role":"king","content":"q"})"), "messages[0].role");
  EXPECT_EQ(refused(R"({"role":"user"})"), "messages[0].content");
  EXPECT_EQ(refused(R"({"role":"user","content":5})"), "messages[0].content");
  EXPECT_EQ(refused(R"({"role":"user","content":[{"text":"q"}]})"), "messages[0].content[0]");
  EXPECT_EQ(refused(R"({"role":"user","content":[{"type":"text"}]})"),
            "messages[0].content[0].text");
  EXPECT_EQ(refused(R"({"role":"user","content":[{"type":"image","source":{}}]})"),
            "messages[0].content[0]");
  EXPECT_EQ(refused(R"({"role":"user","content":[{"type":"new_block"}]})"),
            "messages[0].content[0]");
  EXPECT_EQ(refused(ask + R"({"role":"assistant","content":[)" + result + "]}"),
            "messages[1].content[0]");
  EXPECT_EQ(refused(ask + R"({"role":"assistant","content":[{"type":"tool_use","id":"c",)"
                          R"("name":"f","input":"{}"}]})"),
            "messages[1].content[0].input");
  EXPECT_EQ(refused(call), "messages[1].content[0]") << "a call without a result";
  EXPECT_EQ(refused(call + R"(,{"role":"user","content":"r"})"), "messages[1].content[0]");
  EXPECT_EQ(refused(R"({"role":"user","content":[)" + result + "]}"),
            "messages[0].content[0].tool_use_id")
      << "a result without a call";
  EXPECT_EQ(refused(call + R"(,{"role":"user","content":[)" + result + "," + result + "]}"),
            "messages[2].content[1].tool_use_id");
  EXPECT_EQ(refused(ask + R"({"role":"assistant","content":[)"
                          R"({"type":"tool_use","id":"c","name":"f","input":{}},)"
                          R"({"type":"tool_use","id":"c","name":"f","input":{}}]})"),
            "messages[1].content[1].id");
  EXPECT_NE(RefusalOf(R"({"max_tokens":4,"messages":[{"role":"user","content":[)"
                      R"({"type":"document","source":{}}]}]})")
                .find("blocks of type document are not read"),
            std::string::npos);
}

TEST_F(MessagesTest, ModelsAreListedAsTheClientAsks) {
  const http::HttpHeaders version = {{"anthropic-version", "2023-06-01"}};
  EXPECT_EQ(Send("GET", "/v1/models", "", version)->body,
            R"({"data":[{"type":"model","id":"toy","display_name":"toy",)"
            R"("created_at":"2023-11-14T22:13:20Z","lifecycle":"active","max_input_tokens":512,)"
            R"("max_tokens":512}],"has_more":false,"first_id":"toy","last_id":"toy"})");
  EXPECT_EQ(Text(*Send("GET", "/v1/models/toy", "", version), {"display_name"}), "toy");
  const auto missing = Send("GET", "/v1/models/other", "", version);
  EXPECT_EQ(missing->status, 404);
  EXPECT_EQ(Text(*missing, {"error", "type"}), "not_found_error");
  EXPECT_EQ(Text(*Send("GET", "/v1/models"), {"object"}), "list");
}

TEST_F(MessagesTest, TheSurfaceIsDescribed) {
  const auto responder = Send("GET", "/openapi.json");
  const auto of = [&](const std::string& field, const std::string& what) {
    return Text(*responder,
                {"components", "schemas", "MessagesRequest", "properties", field, what});
  };
  EXPECT_NE(Text(*responder, {"paths", "/v1/messages", "post", "summary"}), "<absent>");
  EXPECT_NE(Text(*responder, {"paths", "/v1/messages/count_tokens", "post", "summary"}),
            "<absent>");
  EXPECT_EQ(of("max_tokens", "minimum"), "1");
  EXPECT_EQ(of("system", "description"),
            "a string or an array of blocks {\"type\":\"text\",\"text\":string}");
  EXPECT_EQ(of("stop", "description"), "<absent>");
  EXPECT_EQ(Text(*responder, {"components", "schemas", "MessagesRequest", "required", "1"}),
            "max_tokens");
}

}  // namespace
}  // namespace baton::api
