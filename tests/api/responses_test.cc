// OpenAI's Responses: what a request becomes, whole answers, the bytes of streams, and refusals.
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/api/responses_params.h"
#include "src/api/responses_writer.h"
#include "src/api/schema.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using namespace router;  // NOLINT(google-build-using-namespace)
using scheduler::FinishReason;
using text::ChatTemplate;

namespace {

constexpr const char* kPath = "/v1/responses";

// Members that an answer repeats from a request that has an input alone.
const std::string kRepeated =
    R"("background":false,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,)"
    R"("metadata":{},"parallel_tool_calls":true,"previous_response_id":null,)"
    R"("reasoning":{"effort":null,"summary":null},"service_tier":"default","store":false,)"
    R"("temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},)"
    R"("tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"truncation":"disabled",)"
    R"("user":null)";
const std::string kUsage =
    R"("usage":{"input_tokens":9,)"
    R"("input_tokens_details":{"cached_tokens":7,"cache_write_tokens":0},)"
    R"("output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":11})";

// Without names and times that differ from run to run.
std::string Fixed(std::string text) {
  text = std::regex_replace(text, std::regex("_[0-9a-f]{32}"), "_N");
  text = std::regex_replace(text, std::regex(R"("created_at":[0-9]+)"), R"("created_at":0)");
  return std::regex_replace(text, std::regex(R"(,"timings":\{[^}]*\})"), "");
}

std::string Response(const std::string& status, const std::string& output,
                     const std::string& usage) {
  return R"({"id":"resp_N","object":"response","created_at":0,"status":")" + status +
         R"(","error":null,"incomplete_details":null,"model":"toy","output":[)" + output + "]," +
         usage + "," + kRepeated + "}";
}

std::string Event(const std::string& type, int number, const std::string& members) {
  return "event: " + type + "\ndata: {\"type\":\"" + type +
         "\",\"sequence_number\":" + std::to_string(number) + "," + members + "}\n\n";
}

// The types of a stream's events, in order.
std::string TypesOf(const std::string& body) {
  std::string types;
  const std::regex line("event: (response\\.)?([^\n]*)\n");
  for (std::sregex_iterator it(body.begin(), body.end(), line), end; it != end; ++it) {
    types += (types.empty() ? "" : " ") + (*it)[2].str();
  }
  return types;
}

class ResponsesTest : public HttpApiTest {};

TEST_F(ResponsesTest, BytesOfAWholeStream) {
  AnswerWith("Hi");
  const auto responder = Post(kPath, R"({"input":"hello","stream":true})");
  EXPECT_EQ(responder->Header("Content-Type"), "text/event-stream");
  const std::string begun = R"("response":)" + Response("in_progress", "", R"("usage":null)");
  const std::string part = R"("item_id":"msg_N_0","output_index":0,"content_index":0,)";
  const std::string text = R"({"type":"output_text","annotations":[],"text":"Hi","logprobs":[]})";
  const std::string item = R"({"type":"message","id":"msg_N_0","status":"completed",)"
                           R"("role":"assistant","content":[)" +
                           text + "]}";
  EXPECT_EQ(
      Fixed(responder->body),
      Event("response.created", 0, begun) + Event("response.in_progress", 1, begun) +
          Event("response.output_item.added", 2,
                R"("output_index":0,"item":{"type":"message","id":"msg_N_0",)"
                R"("status":"in_progress","role":"assistant","content":[]})") +
          Event(
              "response.content_part.added", 3,
              part + R"("part":{"type":"output_text","annotations":[],"text":"","logprobs":[]})") +
          Event("response.output_text.delta", 4, part + R"("delta":"H","logprobs":[])") +
          Event("response.output_text.delta", 5, part + R"("delta":"i","logprobs":[])") +
          Event("response.output_text.done", 6, part + R"("text":"Hi","logprobs":[])") +
          Event("response.content_part.done", 7, part + R"("part":)" + text) +
          Event("response.output_item.done", 8, R"("output_index":0,"item":)" + item) +
          Event("response.completed", 9, R"("response":)" + Response("completed", item, kUsage)));
}

TEST_F(ResponsesTest, WholeAnswerEqualsTheLastEventOfItsStream) {
  AnswerWith("Hi");
  const std::string whole = Fixed(Post(kPath, R"({"input":"hello"})")->body);
  const std::string stream = Fixed(Post(kPath, R"({"input":"hello","stream":true})")->body);
  EXPECT_NE(stream.find(R"("response":)" + whole + "}\n\n"), std::string::npos) << whole;
  EXPECT_NE(whole.find("\"status\":\"completed\""), std::string::npos);
}

TEST_F(ResponsesTest, LengthIsIncomplete) {
  AnswerWith("Hi", FinishReason::kLength);
  const auto whole = Post(kPath, R"({"input":"hello","max_output_tokens":2})");
  EXPECT_EQ(Text(*whole, {"status"}), "incomplete");
  EXPECT_EQ(Text(*whole, {"incomplete_details", "reason"}), "max_output_tokens");
  EXPECT_EQ(Text(*whole, {"output", "0", "status"}), "incomplete");
  EXPECT_EQ(Text(*whole, {"max_output_tokens"}), "2");
  EXPECT_EQ(submitter_.WaitSubmitted().request.sampling.max_tokens, 2u);
  EXPECT_EQ(submitter_.WaitSubmitted().request.fields.max_tokens, "max_output_tokens");
  EXPECT_EQ(submitter_.WaitSubmitted().request.fields.prompt, "input");
  const auto stream = Post(kPath, R"({"input":"hello","max_output_tokens":2,"stream":true})");
  EXPECT_TRUE(TypesOf(stream->body).ends_with("output_item.done incomplete"));
}

class ThoughtsTest : public ResponsesTest {
 protected:
  ThoughtsTest() {
    auto info = std::make_shared<ModelInfo>(*TestModel());
    info->chat_template = std::make_shared<const ChatTemplate>(
        ChatTemplate::Create("{% for m in messages %}<user>{{ m.content.split('</think>')[-1] }}"
                             "{% endfor %}<assistant>",
                             "", "<eos>")
            .value());
    submitter_.served = {info};
    AnswerWith("<think>a</think>b");
  }
};

TEST_F(ThoughtsTest, AreAnItem) {
  const auto whole = Post(kPath, R"({"input":"x"})");
  EXPECT_EQ(Text(*whole, {"output", "0", "type"}), "reasoning");
  EXPECT_EQ(Text(*whole, {"output", "0", "content", "0", "type"}), "reasoning_text");
  EXPECT_EQ(Text(*whole, {"output", "0", "content", "0", "text"}), "a");
  EXPECT_EQ(Text(*whole, {"output", "1", "content", "0", "text"}), "b");
  EXPECT_EQ(TypesOf(Post(kPath, R"({"input":"x","stream":true})")->body),
            "created in_progress output_item.added content_part.added reasoning_text.delta "
            "reasoning_text.done content_part.done output_item.done output_item.added "
            "content_part.added output_text.delta output_text.done content_part.done "
            "output_item.done completed");
}

// @ai-sdk/openai and LangChain show summaries alone.
TEST_F(ThoughtsTest, AreTheSummaryWhereOneIsAskedFor) {
  const std::string ask = R"({"input":"x","reasoning":{"summary":"detailed"})";
  const std::string item =
      R"({"type":"reasoning","id":"rs_N_0","status":"completed","encrypted_content":null,)"
      R"("content":[],"summary":[{"type":"summary_text","text":"a"}]})";
  const auto whole = Post(kPath, ask + "}");
  EXPECT_NE(Fixed(whole->body).find(R"("output":[)" + item), std::string::npos) << whole->body;
  EXPECT_EQ(Text(*whole, {"reasoning", "summary"}), "detailed");
  const std::string stream = Post(kPath, ask + R"(,"stream":true})")->body;
  EXPECT_TRUE(TypesOf(stream).starts_with(
      "created in_progress output_item.added reasoning_summary_part.added "
      "reasoning_summary_text.delta reasoning_summary_text.done reasoning_summary_part.done "
      "output_item.done output_item.added content_part.added output_text.delta"))
      << stream;
  const std::string place = R"("item_id":"rs_N_0","output_index":0,"summary_index":0,)";
  for (const std::string& event :
       {Event("response.reasoning_summary_part.added", 3,
              place + R"("part":{"type":"summary_text","text":""})"),
        Event("response.reasoning_summary_text.delta", 4, place + R"("delta":"a")"),
        Event("response.reasoning_summary_text.done", 5, place + R"("text":"a")"),
        Event("response.output_item.done", 7, R"("output_index":0,"item":)" + item)}) {
    EXPECT_NE(Fixed(stream).find(event), std::string::npos) << event << stream;
  }
  // It comes back in a later request.
  const auto again = Post(kPath, R"({"input":[{"role":"user","content":"x"},{"type":"reasoning",)"
                                 R"("summary":[{"type":"summary_text","text":"a"}],"content":[]},)"
                                 R"({"role":"assistant","content":"b"},)"
                                 R"({"role":"user","content":"y"}]})");
  EXPECT_EQ(again->status, 200) << again->body;
  EXPECT_EQ(again->Header("X-Baton-Ignored-Fields"), "input[1]") << "its template drops thoughts";
}

TEST_F(ResponsesTest, LogprobsOfTheMessage) {
  AnswerWith("a");
  const auto whole = Post(kPath, R"({"input":"x","include":["message.output_text.logprobs"],)"
                                 R"("top_logprobs":2})");
  EXPECT_NE(whole->body.find(R"("logprobs":[{"token":"a","logprob":-0.25,"bytes":[97],)"
                             R"("top_logprobs":[{"token":"a")"),
            std::string::npos)
      << whole->body;
}

TEST_F(ResponsesTest, AFailureAmidTheStreamIsAnEvent) {
  submitter_.answer = [](const GenerateRequest&, ResponseSink& sink) {
    PlayText(sink, "H", 0, FinishReason::kNone);
    sink.OnFailed(RequestError{ErrorCode::kWorkerLost});
  };
  const auto responder = Post(kPath, R"({"input":"hello","stream":true})");
  EXPECT_TRUE(TypesOf(responder->body).ends_with("output_text.delta failed error"));
  EXPECT_NE(responder->body.find(R"("status":"failed","error":{"code":"server_error")"),
            std::string::npos);
  EXPECT_EQ(responder->body.find("response.completed"), std::string::npos);
  EXPECT_TRUE(responder->closes);
}

TEST_F(ResponsesTest, CallsAreItemsOfTheirOwn) {
  AnswerPlan plan;
  plan.id = "resp_1";
  plan.model = TestModel();
  const auto writer = MakeResponsesWriter(plan, {});
  std::string out;
  writer->Begin(&out);
  const auto push = [&](std::vector<ToolCallDelta> calls) {
    TokenText text;
    text.tool_calls = calls;
    writer->AddToken(TokenOutput{}, text, &out);
  };
  push({{0, "call_a", "f", ""}});
  push({{0, "", "", "{\"x\":"}});
  push({{0, "", "", "1}"}, {1, "call_b", "g", ""}});
  push({{1, "", "", "{}"}});
  writer->EndChoice(0, {.finish = FinishReason::kStop}, nullptr, &out);
  writer->Finish(TestResult(3, 4), 0, &out);
  EXPECT_EQ(TypesOf(out),
            "created in_progress output_item.added function_call_arguments.delta "
            "function_call_arguments.delta function_call_arguments.done output_item.done "
            "output_item.added function_call_arguments.delta function_call_arguments.done "
            "output_item.done completed");
  EXPECT_NE(out.find(R"("item":{"type":"function_call","id":"fc_1_0","status":"completed",)"
                     R"("call_id":"call_a","name":"f","arguments":"{\"x\":1}"})"),
            std::string::npos)
      << out;
}

// Reads a body and gives its messages as "role:content", with calls and thoughts.
std::string MessagesOf(const std::string& body) {
  JsonValue root;
  RequestError error;
  ResponsesRequest request;
  EXPECT_TRUE(ParseJson(body, &root, &error)) << body;
  if (!ReadResponses(root, nullptr, &request, &error)) return "error: " + error.Message();
  std::string text;
  for (const text::ChatMessage& message : request.params.messages) {
    text += message.role + ":" + message.content;
    for (const auto& [name, value] : message.members) {
      if (name == "role" || name == "content") continue;
      text += " " + name + "=";
      AppendJson(value, &text);
    }
    text += ";";
  }
  return text;
}

TEST_F(ResponsesTest, ItemsBecomeMessages) {
  EXPECT_EQ(MessagesOf(R"({"instructions":"Be brief.","input":"hi"})"),
            "system:Be brief.;user:hi;");
  EXPECT_EQ(
      MessagesOf(R"({"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},)"
                 R"({"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":null,)"
                 R"("content":[{"type":"reasoning_text","text":"hm"}]},)"
                 R"({"type":"message","id":"msg_1","role":"assistant","status":"completed",)"
                 R"("content":[{"type":"output_text","text":"b","annotations":[],"logprobs":[]}]},)"
                 R"({"type":"function_call","id":"fc_1","call_id":"c1","name":"f",)"
                 R"("arguments":"{\"x\":1}"},)"
                 R"({"type":"function_call","call_id":"c2","name":"g","arguments":""},)"
                 R"({"type":"function_call_output","call_id":"c1","output":"one"},)"
                 R"({"type":"function_call_output","call_id":"c2",)"
                 R"("output":[{"type":"input_text","text":"two"}]}]})"),
      R"(user:a;assistant:b reasoning_content="hm" tool_calls=[{"id":"c1","type":"function",)"
      R"("function":{"name":"f","arguments":{"x":1}}},{"id":"c2","type":"function",)"
      R"("function":{"name":"g","arguments":{}}}];tool:one tool_call_id="c1";)"
      R"(tool:two tool_call_id="c2";)");
}

TEST_F(ResponsesTest, WrongFieldsAreNamed) {
  struct Case {
    const char* body;
    const char* param;
    ErrorCode code;
  };
  const std::vector<Case> cases = {
      {R"({})", "input", ErrorCode::kMissingField},
      {R"({"input":7})", "input", ErrorCode::kInvalidType},
      {R"({"input":[]})", "input", ErrorCode::kInvalidValue},
      {R"({"input":[{"role":"tool","content":"x"}]})", "input[0].role", ErrorCode::kInvalidValue},
      {R"({"input":[{"content":"x"}]})", "input[0].role", ErrorCode::kMissingField},
      {R"({"input":[{"role":"user"}]})", "input[0].content", ErrorCode::kMissingField},
      {R"({"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]})",
       "input[0].content[0]", ErrorCode::kUnsupported},
      {R"({"input":[{"type":"item_reference","id":"x"}]})", "input[0].id",
       ErrorCode::kInvalidValue},
      {R"({"input":[{"type":"item_reference"}]})", "input[0].id", ErrorCode::kMissingField},
      {R"({"input":[{"type":"web_search_call","id":"x"}]})", "input[0].type",
       ErrorCode::kUnsupported},
      {R"({"input":[{"type":"function_call_output","call_id":"x","output":"y"}]})",
       "input[0].call_id", ErrorCode::kInvalidValue},
      {R"({"input":[{"role":"user","content":"a"},)"
       R"({"type":"function_call","call_id":"x","name":"f","arguments":"{"}]})",
       "input[1].arguments", ErrorCode::kInvalidValue},
      {R"({"input":"a","previous_response_id":"resp_1"})", "previous_response_id",
       ErrorCode::kUnsupported},
      {R"({"input":"a","conversation":"conv_1"})", "conversation", ErrorCode::kUnsupported},
      {R"({"input":"a","background":true})", "background", ErrorCode::kUnsupported},
      {R"({"input":"a","store":1})", "store", ErrorCode::kInvalidType},
      {R"({"input":"a","truncation":"x"})", "truncation", ErrorCode::kInvalidValue},
      {R"({"input":"a","metadata":{"a":1}})", "metadata", ErrorCode::kInvalidValue},
      {R"({"input":"a","tools":[{"type":"web_search"}]})", "tools[0].type",
       ErrorCode::kUnsupported},
      {R"({"input":"a","tools":[{"type":"function"}]})", "tools[0].name", ErrorCode::kMissingField},
      {R"({"input":"a","tool_choice":{"type":"mcp"}})", "tool_choice.type",
       ErrorCode::kUnsupported},
      {R"({"input":"a","text":{"format":{"type":"grammar"}}})", "text.format.type",
       ErrorCode::kUnsupported},
      {R"({"input":"a","reasoning":{"effort":"huge"}})", "reasoning.effort",
       ErrorCode::kInvalidValue},
      {R"({"input":"a","text":{"verbosity":"low"}})", "text.verbosity", ErrorCode::kUnsupported},
      {R"({"input":"a","include":["x"]})", "include[0]", ErrorCode::kInvalidValue},
      {R"({"input":"a","max_output_tokens":0})", "max_output_tokens", ErrorCode::kInvalidValue},
      {R"({"input":"a","temperature":101})", "temperature", ErrorCode::kInvalidValue},
      {R"({"input":"a","messages":[]})", "messages", ErrorCode::kUnsupported},
      {R"({"input":"a","max_tokens":5})", "max_tokens", ErrorCode::kUnsupported},
      {R"({"input":"a","n":2})", "n", ErrorCode::kUnsupported},
      {R"({"input":"a","prompt_logprobs":0})", "prompt_logprobs", ErrorCode::kUnsupported},
      {R"({"input":"a","stream_options":true})", "stream_options", ErrorCode::kInvalidType},
      {R"({"input":"a","stream_options":{"include_obfuscation":1}})",
       "stream_options.include_obfuscation", ErrorCode::kInvalidType},
      {R"({"input":"a","max_tool_calls":1e400})", "max_tool_calls", ErrorCode::kInvalidValue},
      {R"({"input":"a","max_tool_calls":-1})", "max_tool_calls", ErrorCode::kInvalidValue},
      {R"({"input":"a","max_tool_calls":1.5})", "max_tool_calls", ErrorCode::kInvalidValue},
      {R"({"input":"a","max_tool_calls":"3"})", "max_tool_calls", ErrorCode::kInvalidType},
      {R"({"input":"a","system":"b"})", "system", ErrorCode::kUnsupported},
      {R"({"input":"a","format":"json"})", "format", ErrorCode::kUnsupported},
      {R"({"input":"a","audio":{"voice":"x"}})", "audio", ErrorCode::kUnsupported},
  };
  for (const Case& c : cases) {
    JsonValue root;
    RequestError error;
    ResponsesRequest request;
    ASSERT_TRUE(ParseJson(c.body, &root, &error)) << c.body;
    EXPECT_FALSE(ReadResponses(root, nullptr, &request, &error)) << c.body;
    EXPECT_EQ(error.param, c.param) << c.body;
    EXPECT_EQ(error.code, c.code) << c.body << error.Message();
  }
}

TEST_F(ResponsesTest, FieldsThatChangeNothingAreTaken) {
  AnswerWith("Hi");
  const auto responder =
      Post(kPath, R"({"model":"toy","input":"hello","store":true,"truncation":"auto",)"
                  R"("include":["reasoning.encrypted_content"],"metadata":{"a":"b"},)"
                  R"("background":false,"previous_response_id":null,"max_tool_calls":3,)"
                  R"("reasoning":{"summary":"auto"},"text":{"format":{"type":"text"}}})");
  EXPECT_EQ(responder->status, 200) << responder->body;
  EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"), "store");
  EXPECT_EQ(Text(*responder, {"metadata", "a"}), "b");
  EXPECT_NE(responder->body.find(R"("store":false)"), std::string::npos);
}

TEST_F(ResponsesTest, WhatNothingReadsIsNamedAsItWasSent) {
  AnswerWith("{}");
  const auto responder = Post(
      kPath, R"({"input":[{"role":"user","content":"a"},{"type":"reasoning","summary":[],)"
             R"("content":[{"type":"reasoning_text","text":"hm"}]},{"role":"assistant",)"
             R"("content":"b"},{"role":"user","content":"c"}],"reasoning":{"effort":"low","x":1},)"
             R"("text":{"y":1,"format":{"type":"json_schema","name":"f","schema":{"type":"array",)"
             R"("uniqueItems":true}}}})");
  ASSERT_EQ(responder->status, 200) << responder->body;
  EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"),
            "text.y, reasoning.x, reasoning.effort, input[1], text.format.schema.uniqueItems");
}

// Members of objects whose other members are read, each with its own name "x".
TEST_F(ResponsesTest, MembersThatNothingReadsAreNamedByTheirPath) {
  AnswerWith("a");
  const std::string tool = R"("tools":[{"type":"function","name":"f","x":1}])";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("stream_options":{"include_obfuscation":false})", ""},
      {R"("stream_options":{"include_obfuscation":true})", "stream_options.include_obfuscation"},
      {R"("stream_options":{"include_usage":true,"x":null})", "stream_options.include_usage"},
      {R"("text":{"format":{"type":"text","x":1}})", "text.format.x"},
      {R"("text":{"format":{"type":"json_object","schema":{}}})", "text.format.schema"},
      {R"("text":{"format":{"type":"json_schema","name":"n","schema":{},"x":1}})", "text.format.x"},
      {tool, "tools[0].x"},
      {tool + R"(,"tool_choice":{"type":"function","name":"f","x":1})",
       "tools[0].x, tool_choice.x"},
      {tool + R"(,"tool_choice":{"type":"allowed_tools","mode":"auto","x":1,)"
              R"("tools":[{"type":"function","name":"f","x":1}]})",
       "tools[0].x, tool_choice.x, tool_choice.tools[0].x"},
  };
  for (const auto& [fields, ignored] : cases) {
    const auto responder = Post(kPath, R"({"input":"hello",)" + fields + "}");
    ASSERT_EQ(responder->status, 200) << fields << responder->body;
    std::string named = responder->Header("X-Baton-Ignored-Fields");
    // The toy's template does not show tools.
    if (const size_t at = named.find(", tools,"); at != std::string::npos) named.erase(at, 7);
    if (named.ends_with(", tools")) named.resize(named.size() - 7);
    EXPECT_EQ(named, ignored) << fields;
  }
}

TEST_F(ResponsesTest, MembersOfItemsThatNothingReadsAreNamedByTheirPath) {
  JsonValue root;
  RequestError error;
  ResponsesRequest request;
  ASSERT_TRUE(ParseJson(
      R"({"input":[{"role":"user","x":1,"content":[{"type":"input_text","text":"a","x":1}]},)"
      R"({"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"","x":1}],)"
      R"("encrypted_content":"e"},)"
      R"({"type":"function_call","call_id":"c","name":"f","arguments":"{}","x":1},)"
      R"({"type":"function_call_output","call_id":"c","output":"o","x":1,"status":null}]})",
      &root, &error));
  ASSERT_TRUE(ReadResponses(root, nullptr, &request, &error)) << error.Message();
  EXPECT_EQ(
      request.ignored,
      (std::vector<std::string>{"input[0].content[0].x", "input[0].x", "input[1].encrypted_content",
                                "input[1].summary[0].x", "input[2].x", "input[3].x"}));
}

// A new field of a chat must be looked at: an answer of this surface has what it asks for, or the
// field is refused, or named.
TEST_F(ResponsesTest, EachFieldOfAChatIsPassedOnOrRefused) {
  const std::set<std::string_view> passed = {"model",
                                             "temperature",
                                             "top_p",
                                             "top_k",
                                             "min_p",
                                             "seed",
                                             "stop",
                                             "stop_token_ids",
                                             "presence_penalty",
                                             "logit_bias",
                                             "frequency_penalty",
                                             "repetition_penalty",
                                             "top_logprobs",
                                             "priority",
                                             "return_progress",
                                             "stream",
                                             "structured_outputs",
                                             "guided_json",
                                             "guided_regex",
                                             "guided_choice",
                                             "guided_grammar",
                                             "tool_parser",
                                             "reasoning_format",
                                             "parallel_tool_calls",
                                             "documents",
                                             "cache_salt",
                                             "chat_template_kwargs",
                                             "user",
                                             "ignore_eos",
                                             "add_generation_prompt",
                                             "min_tokens",
                                             "timeout_ms",
                                             "continue_final_message",
                                             "path",
                                             "request_id"};
  std::set<std::string_view> seen;
  for (const ParamRow& row : ParamTable()) {
    if (!row.AppliesTo(Endpoint::kChat) || IsRefusedByResponses(row.name)) continue;
    if (!HasField(ResponsesFields(), row.name)) seen.insert(row.name);
  }
  EXPECT_EQ(seen, passed);
}

TEST_F(ResponsesTest, ProgressHasNoEventAndIsNamed) {
  AnswerWith("Hi");
  for (const char* stream : {"true", "false"}) {
    const std::string body =
        std::string(R"({"input":"hello","return_progress":true,"stream":)") + stream + "}";
    const auto responder = Post(kPath, body);
    ASSERT_EQ(responder->status, 200) << responder->body;
    EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"), "return_progress") << body;
    const size_t num_submitted = submitter_.num_submitted();
    EXPECT_FALSE(submitter_.WaitSubmitted(num_submitted - 1).request.reports_progress) << body;
  }
}

TEST_F(ResponsesTest, ALaterRequestNamesAnItemInsteadOfSendingIt) {
  AnswerWith("Hi");
  const std::string begin = R"({"input":[{"role":"user","content":"hello"},)";
  const std::string end = R"(,{"role":"user","content":"more"}]})";
  size_t num_sent = 0;
  for (const char* stream : {"false", "true"}) {
    const std::string asked = R"({"input":"hello","stream":)" + std::string(stream);
    const auto refer = [&](const std::string& fields) {
      const auto answer = Post(kPath, asked + fields + "}");
      ++num_sent;
      std::smatch id;
      EXPECT_TRUE(std::regex_search(answer->body, id, std::regex("msg_[0-9a-f]{32}_0")));
      return Post(kPath, begin + R"({"type":"item_reference","id":")" + id.str() + "\"}" + end);
    };
    const auto named = refer("");
    EXPECT_EQ(named->status, 200) << named->body;
    const auto sent = Post(kPath, begin + R"({"role":"assistant","content":"Hi"})" + end);
    EXPECT_EQ(submitter_.WaitSubmitted(num_sent).request.prompt,
              submitter_.WaitSubmitted(num_sent + 1).request.prompt);
    num_sent += 2;
    const auto unkept = refer(R"(,"store":false)");
    EXPECT_EQ(unkept->status, 400);
    EXPECT_EQ(Text(*unkept, {"error", "param"}), "input[1].id");
  }
}

TEST_F(ResponsesTest, ACallThatIsNamedMayHaveItsOutput) {
  StoredItems items;
  AnswerPlan plan;
  plan.id = "resp_1";
  plan.model = TestModel();
  const auto shared = std::shared_ptr<StoredItems>(&items, [](StoredItems*) {});
  const auto writer = MakeResponsesWriter(plan, {}, shared);
  std::string out;
  const std::vector<ToolCallDelta> calls = {{0, "call_a", "f", ""}, {0, "", "", "{}"}};
  TokenText text;
  text.tool_calls = calls;
  writer->AddToken(TokenOutput{}, text, &out);
  writer->EndChoice(0, {.finish = FinishReason::kStop}, nullptr, &out);
  writer->Finish(TestResult(3, 4), 0, &out);
  JsonValue root;
  RequestError error;
  ResponsesRequest request;
  ASSERT_TRUE(ParseJson(R"({"input":[{"role":"user","content":"a"},)"
                        R"({"type":"item_reference","id":"fc_1_0"},)"
                        R"({"type":"function_call_output","call_id":"call_a","output":"b"}]})",
                        &root, &error));
  ASSERT_TRUE(ReadResponses(root, &items, &request, &error)) << error.Message();
  ASSERT_EQ(request.params.messages.size(), 3u);
  EXPECT_EQ(request.params.messages[1].role, "assistant");
  EXPECT_EQ(request.params.messages[2].content, "b");
}

TEST_F(ResponsesTest, CountsThePromptThatItWouldSend) {
  constexpr const char* kCountPath = "/v1/responses/input_tokens";
  AnswerWith("Hi");
  const auto answered = Post(kPath, R"({"input":"hello"})");
  const std::string item = Text(*answered, {"output", "0", "id"});
  const std::string body = R"({"model":"toy","instructions":"s","input":[)"
                           R"({"role":"user","content":"hello"},{"type":"item_reference","id":")" +
                           item + R"("},{"role":"user","content":"more"}]})";
  const auto counted = Post(kCountPath, body);
  EXPECT_EQ(submitter_.num_submitted(), 1u) << "a count computes nothing";
  EXPECT_EQ(Post(kPath, body)->status, 200);
  const size_t num_tokens = submitter_.WaitSubmitted(1).request.prompt.size();
  EXPECT_EQ(counted->body, R"({"object":"response.input_tokens","input_tokens":)" +
                               std::to_string(num_tokens) + "}");
  const auto refused = Post(kCountPath, R"({"input":[{"role":"robot","content":"x"}]})");
  EXPECT_EQ(refused->status, 400);
  EXPECT_EQ(Text(*refused, {"error", "param"}), "input[0].role");
  EXPECT_EQ(Text(*Post(kCountPath, "{}"), {"error", "param"}), "input");
  const auto unread = Post(kCountPath, R"({"input":"x","reasoning":{"effort":"low"},"mood":1})");
  EXPECT_EQ(unread->Header("X-Baton-Ignored-Fields"), "mood, reasoning.effort");
  EXPECT_EQ(Send("GET", kCountPath)->status, 405);
}

TEST_F(ResponsesTest, NothingIsStored) {
  for (const char* method : {"GET", "DELETE"}) {
    const auto responder = Send(method, "/v1/responses/resp_1");
    EXPECT_EQ(responder->status, 404);
    EXPECT_NE(responder->body.find("No response is stored"), std::string::npos);
  }
}

}  // namespace
}  // namespace baton::api
