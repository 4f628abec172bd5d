// Tools over HTTP: what the router is asked for, and how calls look in answers and streams.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/wire/answer_grammar.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using router::GenerateRequest;
using router::ModelInfo;
using router::RequestError;
using scheduler::FinishReason;
using wire::GrammarKind;

namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

const std::string kTurns =
    "{% for m in messages %}<user>{{ m.role[0] }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}{% endfor "
    "%}<assistant>";
const std::string kHermes =
    "{% if tools %}{{ tools | tojson }}<tool_call>{\"name\": n, \"arguments\": a}{% endif %}" +
    kTurns;
const std::string kLlama =
    "{% if tools %}{{ tools | tojson }}<|start_header_id|>{\"name\": n, \"parameters\": p}"
    "{% endif %}" +
    kTurns;
const std::string kXml =
    "{% if tools %}{{ tools | tojson }}<tool_call>\n<function=f>\n<parameter=p>{% endif %}" +
    kTurns;

const std::string kCity =
    R"({"type":"function","function":{"name":"weather","description":"of a city","parameters":)"
    R"({"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}})";
const std::string kClock = R"({"type":"function","function":{"name":"clock"}})";
const std::string kTools = R"(,"tools":[)" + kCity + "," + kClock + "]";
const std::string kNamed = R"(,"tool_choice":{"type":"function","function":{"name":"clock"}})";
const std::string kCall =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";

class ToolsTest : public HttpApiTest {
 protected:
  ToolsTest() { submitter_.served = {ModelWith(kHermes)}; }

  // The request that the router got for these fields, which begin with a comma.
  GenerateRequest Sent(const std::string& fields) {
    const auto responder = Post(kChatPath, kHello + fields + "}");
    EXPECT_EQ(responder->status, 200) << fields << responder->body;
    if (responder->status != 200) return {};
    return submitter_.WaitSubmitted(num_sent_++).request;
  }
  std::string SentGrammar(const std::string& fields) {
    const GenerateRequest request = Sent(fields);
    if (request.sampling.grammar == nullptr) return "";
    EXPECT_EQ(request.sampling.grammar->kind, GrammarKind::kStructuralTag);
    return request.sampling.grammar->text;
  }
  // Answers every request with `text`, which ends before the first of its stop texts.
  void AnswerUpToAStop(const std::string& text) {
    submitter_.answer = [text](const GenerateRequest&, router::ResponseSink& sink) {
      const std::string_view last = std::string_view(text).substr(text.size() - 1);
      PlayText(sink, text.substr(0, text.size() - 1), 0, FinishReason::kNone, false);
      router::TokenOutput token;
      token.index = static_cast<uint32_t>(text.size() - 1);
      token.token = static_cast<unsigned char>(last[0]);
      token.text = last;
      token.finish = FinishReason::kStop;
      token.stop_idx = 0;
      token.is_last = true;
      sink.OnToken(token);
      sink.OnFinished(TestResult(1, token.index + 1));
    };
  }
  static std::string PromptOf(const GenerateRequest& request) {
    std::string text;
    for (const TokenId token : request.prompt) {
      if (token < 256) text.push_back(static_cast<char>(token));
    }
    return text;
  }
  size_t num_sent_ = 0;
};

TEST_F(ToolsTest, AWholeAnswerHasItsCalls) {
  AnswerWith(kCall);
  const auto responder = Post(kChatPath, kHello + kTools + "}");
  EXPECT_EQ(responder->status, 200);
  const std::vector<std::string> message = {"choices", "0", "message"};
  const auto at = [&](std::vector<std::string> rest) {
    std::vector<std::string> path = message;
    path.insert(path.end(), rest.begin(), rest.end());
    return Text(*responder, path);
  };
  EXPECT_EQ(at({"content"}), "null");
  EXPECT_EQ(at({"tool_calls", "0", "type"}), "function");
  EXPECT_EQ(at({"tool_calls", "0", "function", "name"}), "weather");
  EXPECT_EQ(at({"tool_calls", "0", "function", "arguments"}), R"({"city": "Paris"})");
  EXPECT_THAT(at({"tool_calls", "0", "id"}), MatchesRegex("call_[0-9a-f]{24}"));
  EXPECT_EQ(at({"tool_calls", "1", "id"}), "<absent>");
  EXPECT_EQ(Text(*responder, {"choices", "0", "finish_reason"}), "tool_calls");
}

TEST_F(ToolsTest, AStreamSaysTheSameWithTheNameFirst) {
  AnswerWith("Hm.\n" + kCall);
  const auto responder = Post(kChatPath, kHello + kTools + R"(,"stream":true})");
  std::string content;
  std::string arguments;
  std::string answer_id;
  int num_begins = 0;
  for (const std::string& event : Events(responder->body)) {
    JsonValue root;
    RequestError error;
    if (event == "[DONE]") continue;
    ASSERT_TRUE(ParseJson(event, &root, &error)) << event;
    answer_id = *At(root, {"id"})->AsString();
    const JsonValue* text = At(root, {"choices", "0", "delta", "content"});
    if (text != nullptr) content += *text->AsString();
    const JsonValue* call = At(root, {"choices", "0", "delta", "tool_calls", "0"});
    if (call == nullptr) continue;
    int64_t index = -1;
    EXPECT_TRUE(At(*call, {"index"})->GetInteger(&index));
    EXPECT_EQ(index, 0);
    const bool begins = At(*call, {"id"}) != nullptr;
    EXPECT_EQ(begins, num_begins == 0) << event;
    num_begins += begins ? 1 : 0;
    if (begins) {
      EXPECT_EQ(*At(*call, {"id"})->AsString(),
                ToolCallId(answer_id, 0, 0, text::ToolStyle::kHermes));
      EXPECT_EQ(*At(*call, {"type"})->AsString(), "function");
      EXPECT_EQ(*At(*call, {"function", "name"})->AsString(), "weather");
      EXPECT_EQ(*At(*call, {"function", "arguments"})->AsString(), "");
    }
    // OpenAI's clients join the entries of a chunk by their places.
    EXPECT_EQ(At(root, {"choices", "0", "delta", "tool_calls", "1"}), nullptr) << event;
    if (begins) continue;
    EXPECT_EQ(At(*call, {"function", "name"}), nullptr);
    arguments += *At(*call, {"function", "arguments"})->AsString();
  }
  EXPECT_EQ(content, "Hm.");
  EXPECT_EQ(arguments, R"({"city": "Paris"})");
  EXPECT_EQ(num_begins, 1);
  EXPECT_THAT(responder->body, HasSubstr(R"("finish_reason":"tool_calls")"));
}

TEST_F(ToolsTest, ACutCallEndsByItsLength) {
  AnswerWith(kCall.substr(0, kCall.size() - 16), FinishReason::kLength);
  const auto responder = Post(kChatPath, kHello + kTools + "}");
  EXPECT_EQ(Text(*responder, {"choices", "0", "finish_reason"}), "length");
  EXPECT_EQ(Text(*responder, {"choices", "0", "message", "tool_calls", "0", "function", "name"}),
            "weather");
}

// Every place at which the length may cut two demanded calls.
TEST_F(ToolsTest, DemandedCallsThatAreCutLeaveNoMarkupInTheContent) {
  const std::string second =
      "\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>";
  const std::string both = kCall + second;
  for (size_t size = 1; size <= both.size(); ++size) {
    AnswerWith(both.substr(0, size), FinishReason::kLength);
    const std::string body = kHello + kTools + R"(,"tool_choice":"required")";
    const auto whole = Post(kChatPath, body + "}");
    ASSERT_EQ(whole->status, 200) << whole->body;
    const std::string content = Text(*whole, {"choices", "0", "message", "content"});
    EXPECT_TRUE(content.empty() || content == "null") << size << ": " << content;
    EXPECT_EQ(Text(*whole, {"choices", "0", "finish_reason"}), "length") << size;
    const auto stream = Post(kChatPath, body + R"(,"stream":true})");
    EXPECT_EQ(stream->body.find("tool_call>"), std::string::npos) << size << stream->body;
  }
  // A model that may answer in words keeps the bytes of what was no call.
  AnswerWith(kCall + second.substr(0, 20), FinishReason::kLength);
  const auto words = Post(kChatPath, kHello + kTools + "}");
  EXPECT_THAT(Text(*words, {"choices", "0", "message", "content"}), HasSubstr("<tool_call>"));
}

// Every place at which a stop of the request may cut two demanded calls.
TEST_F(ToolsTest, ACallThatAStopCutsAwaitsNoResult) {
  const std::string second =
      "\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>";
  const std::string both = kCall + second;
  const size_t first_is_whole = kCall.find("}}") + 1;
  const size_t second_begins = kCall.size() + second.find("{}");
  const std::string body = kHello + kTools + R"(,"tool_choice":"required","stop":["x"])";
  for (size_t size = 1; size <= both.size(); ++size) {
    AnswerUpToAStop(both.substr(0, size));
    const bool is_cut = size < first_is_whole || size == second_begins + 1;
    const std::string finish = is_cut ? "stop" : "tool_calls";
    const auto whole = Post(kChatPath, body + "}");
    EXPECT_EQ(Text(*whole, {"choices", "0", "finish_reason"}), finish) << size << whole->body;
    EXPECT_EQ(Text(*whole, {"choices", "0", "stop_reason"}), "x");
    const std::string content = Text(*whole, {"choices", "0", "message", "content"});
    EXPECT_TRUE(content.empty() || content == "null") << size << ": " << content;
    const auto stream = Post(kChatPath, body + R"(,"stream":true})");
    EXPECT_THAT(stream->body, HasSubstr("\"finish_reason\":\"" + finish + '"')) << size;
  }
}

TEST_F(ToolsTest, ACallThatTheModelBrokeIsStillForItsClient) {
  const std::string rest = "{\"name\": \"clock\", \"arguments\": {x: 1}}\n</tool_call>";
  AnswerWith("<tool_call>\n" + rest);
  const auto whole = Post(kChatPath, kHello + kTools + "}");
  EXPECT_EQ(Text(*whole, {"choices", "0", "finish_reason"}), "tool_calls");
}

TEST_F(ToolsTest, OtherSurfacesSayThatAStopCutACall) {
  const std::string call = R"({"name":"weather","description":"of a city",)";
  const std::string schema = R"({"type":"object"})";
  AnswerWith(kCall.substr(0, kCall.find("}}")), FinishReason::kStop);  // a token of the request
  const std::string messages =
      kHello + R"(,"max_tokens":99,"tools":[)" + call + R"("input_schema":)" + schema + "}]";
  const auto message = Post("/v1/messages", messages + "}");
  EXPECT_EQ(Text(*message, {"stop_reason"}), "end_turn") << message->body;
  EXPECT_THAT(Post("/v1/messages", messages + R"(,"stream":true})")->body,
              HasSubstr(R"("stop_reason":"end_turn")"));

  const std::string input = R"({"input":"hello","tools":[{"type":"function",)" + call.substr(1) +
                            R"("parameters":)" + schema + "}]";
  const auto response = Post("/v1/responses", input + "}");
  EXPECT_EQ(Text(*response, {"status"}), "completed") << response->body;
  EXPECT_EQ(Text(*response, {"output", "0", "type"}), "function_call");
  EXPECT_EQ(Text(*response, {"output", "0", "status"}), "incomplete");
  const auto stream = Post("/v1/responses", input + R"(,"stream":true})");
  EXPECT_THAT(stream->body, HasSubstr("event: response.completed"));
  EXPECT_THAT(stream->body, Not(HasSubstr(R"("status":"completed","call_id")")));

  const auto chat = Post("/api/chat", kHello + R"(,"stream":false,"tools":[)" + kCity + "]}");
  EXPECT_EQ(Text(*chat, {"message", "tool_calls"}), "<absent>") << chat->body;
  EXPECT_EQ(Text(*chat, {"done_reason"}), "stop");
}

TEST_F(ToolsTest, EachCallIsCountedOnceByItsResult) {
  const auto num = [this](const std::string& result) {
    const std::string page = registry_.Expose();
    const std::string row = "style=\"hermes\",result=\"" + result + "\"} ";
    const size_t at = page.find(row);
    return at == std::string::npos ? -1 : std::stoi(page.substr(at + row.size()));
  };
  for (const char* result : {"ok", "malformed", "cut"}) EXPECT_EQ(num(result), 0) << result;
  const std::string bad = "<tool_call>\n{\"name\": \"clock\", \"arguments\": {x: 1}}\n</tool_call>";
  AnswerWith(kCall + "\n" + bad + "\n" + kCall);
  for (const char* stream : {"}", R"(,"stream":true})"}) {
    EXPECT_EQ(Post(kChatPath, kHello + kTools + stream)->status, 200);
  }
  EXPECT_EQ(num("ok"), 4);
  EXPECT_EQ(num("malformed"), 2);
  AnswerWith(kCall.substr(0, kCall.size() - 16), FinishReason::kLength);
  EXPECT_EQ(Post(kChatPath, kHello + kTools + "}")->status, 200);
  EXPECT_EQ(num("cut"), 1);
  AnswerUpToAStop(kCall.substr(0, kCall.size() - 16));
  EXPECT_EQ(Post(kChatPath, kHello + kTools + R"(,"stop":"x"})")->status, 200);
  EXPECT_EQ(num("cut"), 2);
  AnswerWith("no call");
  EXPECT_EQ(Post(kChatPath, kHello + kTools + "}")->status, 200);
  EXPECT_EQ(num("ok") + num("malformed") + num("cut"), 8);
}

TEST_F(ToolsTest, TextIsContentAndNoneReadsNoCalls) {
  AnswerWith("It is late.");
  auto responder = Post(kChatPath, kHello + kTools + "}");
  EXPECT_EQ(Text(*responder, {"choices", "0", "message", "content"}), "It is late.");
  EXPECT_EQ(Text(*responder, {"choices", "0", "message", "tool_calls"}), "<absent>");
  EXPECT_EQ(Text(*responder, {"choices", "0", "finish_reason"}), "stop");
  AnswerWith(kCall);
  for (const char* off : {R"(,"tool_choice":"none"})", R"(,"tool_parser":"none"})"}) {
    responder = Post(kChatPath, kHello + kTools + off);
    EXPECT_EQ(Text(*responder, {"choices", "0", "message", "content"}), kCall) << off;
    EXPECT_EQ(Text(*responder, {"choices", "0", "finish_reason"}), "stop") << off;
  }
}

TEST_F(ToolsTest, OneCallIsKeptWithoutParallelCalls) {
  AnswerWith(kCall + "\n" + kCall);
  auto responder = Post(kChatPath, kHello + kTools + "}");
  const std::vector<std::string> second = {"choices", "0", "message", "tool_calls", "1", "type"};
  EXPECT_EQ(Text(*responder, second), "function");
  responder = Post(kChatPath, kHello + kTools + R"(,"parallel_tool_calls":false})");
  EXPECT_EQ(Text(*responder, second), "<absent>");
}

TEST_F(ToolsTest, ADemandedCallIsForcedInTheStyleOfTheTemplate) {
  AnswerWith(kCall);
  const std::string required = SentGrammar(kTools + R"(,"tool_choice":"required")");
  EXPECT_THAT(required, HasSubstr(R"("at_least_one":true,"max_tags":16)"));
  EXPECT_THAT(required, HasSubstr(R"("begin":"<tool_call>\u000a{\"name\": \"weather\", )"));
  EXPECT_THAT(required, HasSubstr(R"(\"name\": \"clock\", )"));
  EXPECT_THAT(required, HasSubstr(R"("schema":{"properties":{"city":{"type":"string"}},)"
                                  R"("required":["city"],"type":"object",)"
                                  R"("additionalProperties":false})"));
  const std::string named = SentGrammar(kTools + kNamed);
  EXPECT_THAT(named, HasSubstr(R"("max_tags":1,)"));
  EXPECT_THAT(named, Not(HasSubstr("weather")));
  submitter_.served = {ModelWith(kLlama)};
  EXPECT_THAT(SentGrammar(kTools + kNamed),
              HasSubstr(R"("begin":"{\"name\": \"clock\", \"parameters\": ")"));
  submitter_.served = {ModelWith(kXml)};
  EXPECT_THAT(SentGrammar(kTools + kNamed), HasSubstr(R"("content":"qwen_xml")"));
  // Control tokens have no text in a grammar, so other styles are forced as bare JSON.
  for (const char* style : {"gemma", "mistral", "harmony", "generic"}) {
    EXPECT_THAT(SentGrammar(kTools + kNamed + R"(,"tool_parser":")" + style + "\""),
                HasSubstr(R"("begin":"{\"name\": \"clock\", \"arguments\": ")"))
        << style;
  }
  EXPECT_EQ(SentGrammar(kTools), "") << "nothing is forced where the model may choose";
}

std::string ToolF(const std::string& parameters) {
  return R"(,"tools":[{"type":"function","function":{"name":"f","parameters":)" + parameters +
         "}}]";
}

// A grammar writes a text beside other types as JSON; a model that is free writes it as it is.
TEST_F(ToolsTest, AForcedValueOfSeveralTypesIsJson) {
  submitter_.served = {ModelWith(kXml)};
  const auto value = [](const std::string& key, const std::string& text) {
    return "<parameter=" + key + ">\n" + text + "\n</parameter>\n";
  };
  AnswerWith("<tool_call>\n<function=f>\n" + value("u", "\"5\"") + value("r", "\"6\"") +
             value("o", "\"a\"") + value("n", "null") + value("s", "7") +
             "</function>\n</tool_call>");
  const std::string text = R"({"type":"string","maxLength":9})";
  const std::string optional = R"({"anyOf":[)" + text + R"(,{"type":"null"}],"default":null})";
  const std::string tools =
      ToolF(R"({"type":"object","properties":{"u":{"type":["string","integer"]},"r":)"
            R"({"type":"string","pattern":"[0-9]"},"o":)" +
            optional + R"(,"n":)" + optional + R"(,"s":)" + text + "}}");
  const std::vector<std::string> arguments = {"choices", "0",        "message",  "tool_calls",
                                              "0",       "function", "arguments"};
  auto responder = Post(kChatPath, kHello + tools + R"(,"tool_choice":"required"})");
  EXPECT_EQ(Text(*responder, arguments),
            R"({"u": "5", "r": "6", "o": "\"a\"", "n": null, "s": "7"})");
  responder = Post(kChatPath, kHello + tools + "}");
  EXPECT_EQ(Text(*responder, arguments),
            R"({"u": "\"5\"", "r": "\"6\"", "o": "\"a\"", "n": null, "s": "7"})");
}

TEST_F(ToolsTest, ASchemaBeyondAListOfParametersIsForcedAsBareJson) {
  submitter_.served = {ModelWith(kXml)};
  AnswerWith(R"({"name": "f", "arguments": {"a": 1}})");
  const std::string bare = R"("begin":"{\"name\": \"f\", \"arguments\": ")";
  for (const char* parameters :
       {R"({"$ref":"#/$defs/d","$defs":{"d":{"properties":{"a":{"const":1}}}}})",
        R"({"anyOf":[{"properties":{"a":{"const":1}}},{"properties":{"b":{"const":2}}}]})",
        R"({"allOf":[{"properties":{"a":{"const":1}}}]})",
        R"({"additionalProperties":{"type":"integer"}})", R"({"patternProperties":{"a":{}}})",
        R"({"propertyNames":{"enum":["a"]}})", R"({"minProperties":1})",
        R"({"properties":{"a":{}},"required":["z"]})", R"({"properties":{"a>b":{}}})"}) {
    const std::string tools = ToolF(parameters);
    EXPECT_THAT(SentGrammar(tools + R"(,"tool_choice":"required")"), HasSubstr(bare)) << parameters;
    const auto responder = Post(kChatPath, kHello + tools + R"(,"tool_choice":"required"})");
    ++num_sent_;
    EXPECT_EQ(
        Text(*responder, {"choices", "0", "message", "tool_calls", "0", "function", "arguments"}),
        R"({"a": 1})")
        << parameters;
  }
  const std::string xml = R"("content":"qwen_xml")";
  for (const char* parameters :
       {R"({"properties":{"a":{}},"required":["a"],"additionalProperties":false})", "{}"}) {
    EXPECT_THAT(SentGrammar(ToolF(parameters) + R"(,"tool_choice":"required")"), HasSubstr(xml))
        << parameters;
  }
}

std::string Allowed(const std::string& mode, const std::string& tools) {
  return R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":")" + mode +
         R"(","tools":[)" + tools + "]}}";
}

// The prompt has all tools, so that a prefix cache holds for each choice of some.
TEST_F(ToolsTest, OnlyAllowedToolsAreCalled) {
  AnswerWith(kCall);
  const std::string all = PromptOf(Sent(kTools));
  EXPECT_THAT(all, HasSubstr("weather"));
  const GenerateRequest required = Sent(kTools + Allowed("required", kClock));
  EXPECT_EQ(PromptOf(required), all);
  ASSERT_NE(required.sampling.grammar, nullptr);
  EXPECT_THAT(required.sampling.grammar->text, HasSubstr(R"("at_least_one":true,"max_tags":16)"));
  EXPECT_THAT(required.sampling.grammar->text, HasSubstr("clock"));
  EXPECT_THAT(required.sampling.grammar->text, Not(HasSubstr("weather")));
  for (const std::string& source : {kHermes, kXml}) {
    submitter_.served = {ModelWith(source)};
    const std::string may = SentGrammar(kTools + Allowed("auto", kClock));
    EXPECT_THAT(may, HasSubstr(R"("triggers":["<tool_call>"])")) << source;
    EXPECT_THAT(may, Not(HasSubstr("weather"))) << source;
  }
  submitter_.served = {ModelWith(kHermes)};
  EXPECT_EQ(SentGrammar(kTools + Allowed("auto", kClock + "," + kCity)), "") << "all are allowed";
  // A form of JSON leaves room for calls of the allowed ones alone.
  const GenerateRequest beside =
      Sent(kTools + Allowed("auto", kClock) +
           R"(,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{}}})");
  EXPECT_THAT(beside.sampling.grammar->text, HasSubstr("clock"));
  EXPECT_THAT(beside.sampling.grammar->text, Not(HasSubstr("weather")));
  // No tool at all: as "none".
  EXPECT_EQ(SentGrammar(kTools + Allowed("auto", "")), "");
}

// Where no grammar keeps the model from a call that is not allowed, the call is dropped.
TEST_F(ToolsTest, ACallThatIsNotAllowedIsDropped) {
  for (const auto& [source, call] :
       {std::pair(kLlama, R"({"name": "weather", "parameters": {}})"),
        std::pair(kTurns, R"({"name": "weather", "arguments": {}})")}) {
    submitter_.served = {ModelWith(source)};
    AnswerWith(call);
    auto responder = Post(kChatPath, kHello + kTools + Allowed("auto", kCity) + "}");
    EXPECT_EQ(Text(*responder, {"choices", "0", "finish_reason"}), "tool_calls") << source;
    responder = Post(kChatPath, kHello + kTools + Allowed("auto", kClock) + "}");
    EXPECT_EQ(responder->status, 200) << responder->body;
    EXPECT_EQ(Text(*responder, {"choices", "0", "message", "tool_calls"}), "<absent>") << source;
    EXPECT_EQ(Text(*responder, {"choices", "0", "finish_reason"}), "stop") << source;
  }
}

TEST_F(ToolsTest, AFormOfTextLeavesADemandedCallAlone) {
  AnswerWith(kCall);
  for (const std::string& choice : {std::string(R"(,"tool_choice":"required")"), kNamed}) {
    const std::string alone = SentGrammar(kTools + choice);
    EXPECT_NE(alone, "");
    for (const char* form : {R"(,"response_format":{"type":"json_object"})",
                             R"(,"response_format":{"type":"json_schema","json_schema":)"
                             R"({"name":"a","strict":true,"schema":{"type":"object"}}})"}) {
      EXPECT_EQ(SentGrammar(kTools + choice + form), alone) << form;
    }
  }
}

TEST_F(ToolsTest, AModelMayCallBesideAFormOfJson) {
  const std::string form = R"(,"response_format":{"type":"json_schema","json_schema":{"name":"a",)"
                           R"("schema":{"$defs":{"d":{"type":"integer"}},)"
                           R"("properties":{"n":{"$ref":"#/$defs/d"}}}}})";
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f","strict":true,)"
                            R"("parameters":{"properties":{"s":{"$ref":"#"}}}}},)" +
                            kClock + "]";
  AnswerWith(R"({"name": "clock", "arguments": {}})");
  auto responder = Post(kChatPath, kHello + tools + form + "}");
  ASSERT_EQ(responder->status, 200) << responder->body;
  EXPECT_EQ(Text(*responder, {"choices", "0", "message", "tool_calls", "0", "function", "name"}),
            "clock");
  EXPECT_EQ(Text(*responder, {"choices", "0", "finish_reason"}), "tool_calls");
  const wire::SharedGrammar grammar = submitter_.WaitSubmitted(0).request.sampling.grammar;
  EXPECT_EQ(grammar->kind, GrammarKind::kSchemaLoose);
  EXPECT_EQ(grammar->text,
            R"({"anyOf":[{"$defs":{"d":{"type":"integer"}},)"
            R"("properties":{"n":{"$ref":"#/anyOf/0/$defs/d"}}},)"
            R"({"type":"object","properties":{"name":{"const":"f"},"arguments":)"
            R"({"properties":{"s":{"$ref":"#/anyOf/1/properties/arguments"}},"type":"object",)"
            R"("additionalProperties":false}},"required":["name","arguments"],)"
            R"("additionalProperties":false},)"
            R"({"type":"object","properties":{"name":{"const":"clock"},"arguments":)"
            R"({"type":"object"}},"required":["name","arguments"],)"
            R"("additionalProperties":false}]})");
  AnswerWith(R"({"n": 1})");
  responder = Post(kChatPath, kHello + tools + form + "}");
  EXPECT_EQ(Text(*responder, {"choices", "0", "message", "content"}), R"({"n": 1})");
  EXPECT_EQ(Text(*responder, {"choices", "0", "finish_reason"}), "stop");
  // A form without blanks stays so.
  const std::string no_blanks = R"(,"structured_outputs":{"json":{"type":"array"},)"
                                R"("disable_any_whitespace":true})";
  responder = Post(kChatPath, kHello + tools + no_blanks + "}");
  ASSERT_EQ(responder->status, 200) << responder->body;
  EXPECT_THAT(submitter_.WaitSubmitted(2).request.sampling.grammar->text,
              ::testing::EndsWith(R"(],"x-guidance":{"whitespace_flexible":false}})"));
  // Other forms hold for the whole answer.
  responder = Post(kChatPath, kHello + tools + R"(,"guided_regex":"a+"})");
  EXPECT_EQ(submitter_.WaitSubmitted(3).request.sampling.grammar->kind, GrammarKind::kRegex);
}

TEST_F(ToolsTest, AStrictFunctionIsEnforcedWhereTagsAllowIt) {
  AnswerWith("x");
  const std::string strict =
      R"(,"tools":[{"type":"function","function":{"name":"clock","strict":true}}])";
  EXPECT_THAT(SentGrammar(strict), HasSubstr(R"("triggers":["<tool_call>"])"));
  submitter_.served = {ModelWith(kLlama)};
  const auto responder = Post(kChatPath, kHello + strict + "}");
  EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"), "tools[0].function.strict");
}

// Whether the call is forced or not, and whatever the style.
TEST_F(ToolsTest, AStrictFunctionHasOnlyKeywordsThatCanBeEnforced) {
  AnswerWith("x");
  const auto tool = [](const char* strict) {
    return std::string(R"(,"tools":[{"type":"function","function":{"name":"f",)") + strict +
           R"("parameters":{"properties":{"a":{"type":"array","uniqueItems":true}}}}}])";
  };
  const std::string place = "tools[0].function.parameters.properties.a.uniqueItems";
  const std::string form = R"(,"response_format":{"type":"json_schema","json_schema":{"name":"a",)"
                           R"("schema":{"type":"object"}}})";
  for (const std::string& source : {kHermes, kLlama, kTurns}) {
    submitter_.served = {ModelWith(source)};
    for (const std::string& rest : {std::string(), std::string(R"(,"tool_choice":"required")"),
                                    form, std::string(R"(,"guided_regex":"a")")}) {
      const auto refused = Post(kChatPath, kHello + tool(R"("strict":true,)") + rest + "}");
      EXPECT_EQ(refused->status, 400) << source << rest;
      EXPECT_EQ(Text(*refused, {"error", "param"}), place) << source << rest;
      EXPECT_EQ(Text(*refused, {"error", "code"}), "invalid_value");
    }
    for (const char* strict : {"", R"("strict":false,)"}) {
      const auto forced = Post(kChatPath, kHello + tool(strict) + R"(,"tool_choice":"required"})");
      EXPECT_EQ(forced->status, 200) << source << forced->body;
      EXPECT_THAT(forced->Header("X-Baton-Ignored-Fields"), HasSubstr(place)) << source;
    }
  }
}

// The header names some keywords of loose functions; their number is no reason to take a strict
// one.
TEST_F(ToolsTest, AStrictFunctionAfterManyIgnoredKeywordsIsRefusedToo) {
  submitter_.served = {ModelWith("{% if tools %}<tool_call>{\"name\": n}{% endif %}" + kTurns)};
  std::string properties;
  for (int i = 0; i < 20; ++i) {
    properties += (i == 0 ? "\"p" : ",\"p") + std::to_string(i) + R"(":{"uniqueItems":true})";
  }
  const auto tool = [&](const std::string& name, const std::string& of) {
    return R"({"type":"function","function":{"name":")" + name +
           R"(","parameters":{"properties":{)" + of + "}}";
  };
  const std::string tools = R"(,"tools":[)" + tool("g", properties) + "}}," +
                            tool("f", R"("a":{"uniqueItems":true})") + R"(,"strict":true}}])";
  const auto refused = Post(kChatPath, kHello + tools + R"(,"tool_choice":"required"})");
  EXPECT_EQ(refused->status, 400) << refused->body;
  EXPECT_EQ(Text(*refused, {"error", "param"}),
            "tools[1].function.parameters.properties.a.uniqueItems");
}

TEST_F(ToolsTest, ATemplateWithoutToolsGetsThemInTheMessages) {
  submitter_.served = {
      ModelWith("{% for m in messages %}<user>{{ m.role[0] }}:{{ m.content }}"
                "{% endfor %}<assistant>")};
  AnswerWith(R"({"name": "weather", "arguments": {"city": "Rome"}})");
  const std::string prompt = PromptOf(Sent(kTools));
  EXPECT_THAT(prompt, HasSubstr(R"({"name":"weather","description":"of a city",)"));
  EXPECT_THAT(prompt, HasSubstr(R"({"name": "...", "arguments": {...}})"));
  EXPECT_TRUE(prompt.ends_with("u:hello")) << prompt;
  const auto responder = Post(kChatPath, kHello + kTools + "}");
  ++num_sent_;
  EXPECT_EQ(
      Text(*responder, {"choices", "0", "message", "tool_calls", "0", "function", "arguments"}),
      R"({"city": "Rome"})");
  EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"), "");

  const std::string history =
      R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Q"},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",)"
      R"("function":{"name":"weather","arguments":"{\"city\":\"Rome\"}"}}]},)"
      R"({"role":"tool","tool_call_id":"c1","content":"sunny"},)"
      R"({"role":"tool","tool_call_id":"c2","content":"late"}])" +
      kTools + "}";
  ASSERT_EQ(Post(kChatPath, history)->status, 200);
  const std::string round = PromptOf(submitter_.WaitSubmitted(num_sent_++).request);
  EXPECT_TRUE(round.starts_with("s:Be brief.\n\nYou can call functions.")) << round;
  EXPECT_TRUE(round.ends_with(R"(u:Qa:{"name": "weather", "arguments": {"city":"Rome"}})"
                              "u:Result of weather:\nsunny\n\nResult:\nlate"))
      << round;
}

// Hermes: its default template knows no tools, and the one named "tool_use" does.
TEST_F(ToolsTest, ATemplateForToolsWritesRequestsWithTools) {
  auto model = std::make_shared<ModelInfo>(*ModelWith("plain:{{ messages[0].content }}"));
  model->tool_template = ModelWith(kHermes)->chat_template;
  submitter_.served = {model};
  AnswerWith(kCall);
  const std::string prompt = PromptOf(Sent(kTools));
  EXPECT_TRUE(prompt.starts_with(R"([{"type": "function", "function": {"name": "weather")"))
      << prompt;
  EXPECT_THAT(prompt, testing::Not(HasSubstr("You can call functions")));
  const auto responder = Post(kChatPath, kHello + kTools + "}");
  ++num_sent_;
  // The style of calls is that of the same template.
  EXPECT_EQ(
      Text(*responder, {"choices", "0", "message", "tool_calls", "0", "function", "arguments"}),
      R"({"city": "Paris"})");
  EXPECT_EQ(PromptOf(Sent("")), "plain:hello");
  EXPECT_EQ(PromptOf(Sent(kTools + R"(,"tool_choice":"none")")), "plain:hello");
}

// Agents leave the tools out of the last step, once all have been used.
TEST_F(ToolsTest, CallsOfAConversationStayWhereNoToolsAreSent) {
  const std::string history =
      R"({"messages":[{"role":"user","content":"Q"},)"
      R"({"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function",)"
      R"("function":{"name":"weather","arguments":"{\"city\":\"Rome\"}"}}]},)"
      R"({"role":"tool","tool_call_id":"c1","content":"sunny"}]})";
  const std::string turns =
      "{% for m in messages %}<user>{{ m.role[0] }}:{{ m.content }}{% endfor %}<assistant>";
  AnswerWith("x");
  submitter_.served = {ModelWith(turns)};
  ASSERT_EQ(Post(kChatPath, history)->status, 200);
  EXPECT_EQ(PromptOf(submitter_.WaitSubmitted(0).request),
            R"(u:Qa:{"name": "weather", "arguments": {"city":"Rome"}})"
            "u:Result of weather:\nsunny");
  submitter_.served = {ModelWith(kTurns)};  // prints the calls itself
  ASSERT_EQ(Post(kChatPath, history)->status, 200);
  EXPECT_EQ(PromptOf(submitter_.WaitSubmitted(1).request),
            R"(u:Qa:[weather {"city": "Rome"}]t:sunny)");
}

TEST_F(ToolsTest, HistoryGoesThroughATemplateThatKnowsTools) {
  AnswerWith("x");
  const std::string body =
      R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":"",)"
      R"("tool_calls":[{"id":"c1","type":"function","function":{"name":"clock",)"
      R"("arguments":"{\"a\": 1}"}}]},{"role":"tool","tool_call_id":"c1","content":"now"}])" +
      kTools + "}";
  ASSERT_EQ(Post(kChatPath, body)->status, 200);
  const std::string prompt = PromptOf(submitter_.WaitSubmitted(0).request);
  EXPECT_TRUE(prompt.ends_with(R"(u:Qa:[clock {"a": 1}]t:now)")) << prompt;
}

// A refusal is what the assistant said in its turn, as a part or in the place of the content.
TEST_F(ToolsTest, RefusalsAreTextsOfTheAssistant) {
  AnswerWith("x");
  const std::string by_parts =
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for p in m.content %}{{ p.type }}={{ p.text }};{% endfor %}{% endif %}|{% endfor %}";
  const std::string ask = R"({"messages":[{"role":"user","content":"Q"},)";
  const std::string parts = R"({"role":"assistant","content":[{"type":"text","text":"a"},)"
                            R"({"type":"refusal","refusal":"No."}]}]})";
  for (const auto& [source, prompt] :
       {std::pair(kTurns, "a:a\nNo."), std::pair(by_parts, "Q|text=a;text=No.;|")}) {
    submitter_.served = {ModelWith(source)};
    const auto responder = Post(kChatPath, ask + parts);
    ASSERT_EQ(responder->status, 200) << responder->body;
    EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"), "");
    EXPECT_THAT(PromptOf(submitter_.WaitSubmitted(num_sent_++).request),
                ::testing::EndsWith(prompt));
  }
  submitter_.served = {ModelWith(kTurns)};
  for (const char* content : {"", R"("content":null,)"}) {
    const auto responder =
        Post(kChatPath, ask + R"({"role":"assistant",)" + content + R"("refusal":"No."}]})");
    ASSERT_EQ(responder->status, 200) << responder->body;
    EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"), "");
    EXPECT_THAT(PromptOf(submitter_.WaitSubmitted(num_sent_++).request),
                ::testing::EndsWith("a:No."));
  }
  // Beside content it has no place.
  const auto beside =
      Post(kChatPath, ask + R"({"role":"assistant","content":"a","refusal":"No."}]})");
  EXPECT_EQ(beside->Header("X-Baton-Ignored-Fields"), "messages[1].refusal");
  // Users and tools refuse nothing.
  const auto wrong = Post(kChatPath, R"({"messages":[{"role":"user","content":)"
                                     R"([{"type":"refusal","refusal":"No."}]}]})");
  EXPECT_EQ(Text(*wrong, {"error", "param"}), "messages[0].content[0]");
  EXPECT_EQ(Text(*wrong, {"error", "code"}), "unsupported_parameter");
}

TEST_F(ToolsTest, BadToolsAreNamed) {
  struct Case {
    std::string fields;
    const char* param;
    const char* code;
  };
  const auto tool = [](const std::string& function) {
    return R"(,"tools":[{"type":"function","function":)" + function + "}]";
  };
  const std::string strict = R"({"name":"f","strict":true,"parameters":{"properties":)"
                             R"({"a":{"type":"array","uniqueItems":true}}}})";
  for (const Case& c : {
           Case{R"(,"tools":{})", "tools", "invalid_type"},
           Case{R"(,"tools":[5])", "tools[0]", "invalid_type"},
           Case{R"(,"tools":[{}])", "tools[0].type", "missing_required_parameter"},
           Case{R"(,"tools":[{"type":1}])", "tools[0].type", "invalid_type"},
           Case{R"(,"tools":[{"type":"web_search"}])", "tools[0].type", "unsupported_parameter"},
           Case{R"(,"tools":[{"type":"function"}])", "tools[0].function",
                "missing_required_parameter"},
           Case{R"(,"tools":[{"type":"function","function":[]}])", "tools[0].function",
                "invalid_type"},
           Case{tool("{}"), "tools[0].function.name", "missing_required_parameter"},
           Case{tool(R"({"name":1})"), "tools[0].function.name", "invalid_type"},
           Case{tool(R"({"name":"a b"})"), "tools[0].function.name", "invalid_value"},
           Case{tool(R"({"name":")" + std::string(129, 'a') + "\"}"), "tools[0].function.name",
                "invalid_value"},
           Case{R"(,"tools":[)" + kClock + "," + kClock + "]", "tools[1].function.name",
                "invalid_value"},
           Case{tool(R"({"name":"f","parameters":[]})"), "tools[0].function.parameters",
                "invalid_type"},
           Case{tool(R"({"name":"f","parameters":{"type":"array"}})"),
                "tools[0].function.parameters.type", "invalid_value"},
           Case{tool(R"({"name":"f","description":5})"), "tools[0].function.description",
                "invalid_type"},
           Case{tool(R"({"name":"f","strict":"yes"})"), "tools[0].function.strict", "invalid_type"},
           Case{tool(strict), "tools[0].function.parameters.properties.a.uniqueItems",
                "invalid_value"},
           Case{tool(R"({"name":"f","parameters":{"properties":{"a":{"type":"text"}}}})") + kNamed,
                "tool_choice", "invalid_value"},
           Case{kTools + R"(,"parallel_tool_calls":"no")", "parallel_tool_calls", "invalid_type"},
           Case{kTools + R"(,"tool_parser":"best")", "tool_parser", "invalid_value"},
           Case{kTools + kNamed + R"(,"tool_parser":"none")", "tool_choice", "invalid_combination"},
           Case{R"(,"tool_choice":"required")", "tool_choice", "invalid_combination"},
           Case{kNamed, "tool_choice", "invalid_combination"},
           Case{kTools + Allowed("required", ""), "tool_choice", "invalid_combination"},
           Case{kTools + Allowed("any", kClock), "tool_choice.allowed_tools.mode", "invalid_value"},
           Case{kTools + Allowed("auto", R"({"type":"mcp"})"), "tool_choice.allowed_tools.tools[0]",
                "invalid_type"},
           Case{kTools + Allowed("auto", kClock + R"(,{"type":"function","function":)"
                                                  R"({"name":"none"}})"),
                "tool_choice.allowed_tools.tools[1]", "invalid_value"},
           Case{kTools + Allowed("auto", R"({"type":"function","function":{"name":"z"}},)"
                                         R"({"type":"function","function":{"name":"a"}})"),
                "tool_choice.allowed_tools.tools[0]", "invalid_value"},
           Case{kTools + R"(,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[]})",
                "tool_choice.allowed_tools", "missing_required_parameter"},
       }) {
    const auto responder = Post(kChatPath, kHello + c.fields + "}");
    EXPECT_EQ(responder->status, 400) << c.fields;
    EXPECT_EQ(Text(*responder, {"error", "param"}), c.param) << c.fields;
    EXPECT_EQ(Text(*responder, {"error", "code"}), c.code) << c.fields;
  }
  const auto responder =
      Post(kChatPath,
           kHello + tool(R"({"name":"f","parameters":{"properties":{"a":{"type":"text"}}}})") +
               R"(,"tool_choice":"required"})");
  EXPECT_EQ(responder->status, 400);
  EXPECT_EQ(Text(*responder, {"error", "param"}), "tools[0].function.parameters.properties.a.type");
  EXPECT_THAT(Text(*responder, {"error", "message"}), HasSubstr("#/properties/a/type"));
}

TEST_F(ToolsTest, ABadToolBesideAFormIsNamed) {
  const std::string form =
      R"(,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{}}}})";
  const std::string wrong = R"(,"tools":[{"type":"function","function":{"name":"f","strict":true,)"
                            R"("parameters":{"properties":{"a":{"type":"text"}}}}}])";
  const auto beside = Post(kChatPath, kHello + wrong + form);
  EXPECT_EQ(beside->status, 400) << beside->body;
  EXPECT_EQ(Text(*beside, {"error", "param"}), "tools[0].function.parameters.properties.a.type");
}

// It is found with the whole tag of calls, which has no place of its own.
TEST_F(ToolsTest, ASchemaThatNothingSatisfiesIsNamed) {
  const std::string impossible =
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"required":["a"],)"
      R"("properties":{"a":{"type":"integer","minimum":5,"maximum":4}}}}}])";
  const auto refused = Post(kChatPath, kHello + impossible + R"(,"tool_choice":"required"})");
  EXPECT_EQ(refused->status, 400) << refused->body;
  EXPECT_EQ(Text(*refused, {"error", "param"}), "tools[0].function.parameters.properties.a");
}

TEST_F(ToolsTest, ChannelsAreThoughtsContentAndCalls) {
  submitter_.served = {ModelWith("<|channel|>functions.{{ tools | tojson }}" + kTurns)};
  AnswerWith(
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final"
      "<|message|>Yes.");
  auto responder = Post(kChatPath, kHello + "}");
  EXPECT_EQ(Text(*responder, {"choices", "0", "message", "reasoning_content"}), "Hm.");
  EXPECT_EQ(Text(*responder, {"choices", "0", "message", "content"}), "Yes.");
  AnswerWith(
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.clock <|constrain|>json<|message|>{}");
  responder = Post(kChatPath, kHello + kTools + "}");
  EXPECT_EQ(Text(*responder, {"choices", "0", "message", "reasoning_content"}), "Hm.");
  EXPECT_EQ(Text(*responder, {"choices", "0", "message", "tool_calls", "0", "function", "name"}),
            "clock");
  EXPECT_EQ(Text(*responder, {"choices", "0", "finish_reason"}), "tool_calls");
}

TEST_F(ToolsTest, MarksOfControlTokensKeepTheirText) {
  text::TokenizerSpec spec = router::TestSpec();
  spec.tokens.emplace_back("[TOOL_CALLS]");
  spec.token_types.push_back(static_cast<int32_t>(text::TokenType::kControl));
  auto info = std::make_shared<ModelInfo>(*ModelWith("{{ tools | tojson }}[TOOL_CALLS]" + kTurns));
  info->tokenizer = text::Tokenizer::Create(spec).value();
  info->vocab_size = router::kTestVocab + 1;
  submitter_.served = {info};
  AnswerWith("x");
  EXPECT_EQ(Sent(kTools).shown_tokens, std::vector<TokenId>{router::kTestVocab});
  EXPECT_TRUE(Sent(kTools + R"(,"tool_choice":"none")").shown_tokens.empty());
}

TEST(ToolCallIdTest, IdsAreThoseOfTheAnswer) {
  const std::string id = ToolCallId("chatcmpl-1", 0, 0, text::ToolStyle::kHermes);
  EXPECT_EQ(id, ToolCallId("chatcmpl-1", 0, 0, text::ToolStyle::kHermes));
  EXPECT_NE(id, ToolCallId("chatcmpl-1", 0, 1, text::ToolStyle::kHermes));
  EXPECT_NE(id, ToolCallId("chatcmpl-1", 1, 0, text::ToolStyle::kHermes));
  EXPECT_NE(id, ToolCallId("chatcmpl-2", 0, 0, text::ToolStyle::kHermes));
  EXPECT_EQ(id.size(), 29u);
  EXPECT_EQ(ToolCallId("chatcmpl-1", 0, 0, text::ToolStyle::kMistral).size(), 9u);
}

}  // namespace
}  // namespace baton::api
