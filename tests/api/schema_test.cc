// The schema table: every parameter with good and bad values, over JSON and over protobuf.
#include "src/api/schema.h"

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

#include "baton/v1/inference.pb.h"
#include "src/api/json_value.h"
#include "src/api/read_json.h"
#include "src/api/read_proto.h"

namespace baton::api {

using router::ErrorCode;
using router::GrpcCodeOf;
using router::HttpStatusOf;
using router::RequestError;

namespace {

// A reader's verdict on one request.
struct Verdict {
  bool ok = false;
  ErrorCode code = ErrorCode::kInternal;
  std::string param;
  std::string message;
};

Verdict ReadJson(Endpoint endpoint, const std::string& fields, ApiParams* params,
                 std::vector<std::string>* ignored = nullptr) {
  JsonValue root;
  RequestError error;
  std::vector<std::string> names;
  Verdict verdict;
  verdict.ok = ParseJson("{" + fields + "}", &root, &error) &&
               ReadJsonParams(root, endpoint, params, &names, &error);
  if (ignored != nullptr) *ignored = names;
  if (!verdict.ok) {
    verdict.code = error.code;
    verdict.param = error.param;
    verdict.message = error.Message();
  }
  return verdict;
}

Verdict ReadJson(Endpoint endpoint, const std::string& fields) {
  ApiParams params;
  return ReadJson(endpoint, fields, &params);
}

Verdict ReadProto(const google::protobuf::Message& message, Endpoint endpoint, ApiParams* params) {
  RequestError error;
  Verdict verdict;
  verdict.ok = ReadProtoParams(message, endpoint, params, &error);
  if (!verdict.ok) {
    verdict.code = error.code;
    verdict.param = error.param;
    verdict.message = error.Message();
  }
  return verdict;
}

std::vector<Endpoint> EndpointsOf(const ParamRow& row) {
  std::vector<Endpoint> endpoints;
  if (row.AppliesTo(Endpoint::kChat)) endpoints.push_back(Endpoint::kChat);
  if (row.AppliesTo(Endpoint::kCompletion)) endpoints.push_back(Endpoint::kCompletion);
  if (row.AppliesTo(Endpoint::kMessages)) endpoints.push_back(Endpoint::kMessages);
  return endpoints;
}

// True for a row whose reader is its surface's, which has tests of its own.
bool IsOfSurface(const ParamRow& row) {
  const auto* special = std::get_if<SpecialParam>(&row.target);
  return special != nullptr && *special == SpecialParam::kOfSurface;
}

std::string Quoted(std::string_view name) { return "\"" + std::string(name) + "\":"; }

using ValuesByName = std::map<std::string, std::vector<std::string>>;

// Values in range, one per row name.

ValuesByName GoodForms() {
  return {
      {"response_format",
       {R"({"type":"text"})", R"({"type":"json_object"})",
        R"({"type":"json_schema","json_schema":{"name":"p","schema":{}}})",
        R"({"type":"json_schema","json_schema":{"schema":{"type":"object"},"strict":true}})",
        R"({"type":"json_schema","json_schema":{"schema":{},"strict":null,"name":null}})",
        R"({"type":"structural_tag","structures":[],"triggers":[]})",
        R"({"type":"structural_tag","format":{"type":"any_text"}})"}},
      {"structured_outputs",
       {R"({"json":{}})", R"({"json":"{}"})", R"({"regex":"a+"})", R"({"choice":["a"]})",
        R"({"grammar":"start: \"a\""})", R"({"json_object":true})",
        R"({"structural_tag":{"structures":[],"triggers":[]}})",
        R"({"json":null,"regex":"a","json_object":false,"disable_any_whitespace":false})",
        R"({"json":{},"disable_any_whitespace":true})"}},
      {"guided_json", {"{}", R"("{}")", R"({"type":"integer"})"}},
      {"guided_regex", {R"("[0-9]+")"}},
      {"guided_choice", {R"(["a","b"])"}},
      {"guided_grammar", {R"("start: \"a\"")"}},
      {"add_generation_prompt", {"true", "false"}},
      {"continue_final_message", {"true", "false"}},
  };
}

ValuesByName GoodBasics() {
  return {
      {"model",
       {"\"default\"", "\"smollm2:135m\"", "\" \"", "\"a\\nb\"",
        "\"" + std::string(257, 'm') + "\""}},
      {"messages",
       {R"([{"role":"user","content":"hi"}])",
        R"([{"role":"system","content":""},{"role":"developer","content":"x"},)"
        R"({"role":"assistant","content":null},{"role":"tool","content":"r"}])",
        R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])",
        R"([{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",)"
        R"("function":{"name":"f","arguments":"{\"a\":1}"}}]},)"
        R"({"role":"tool","tool_call_id":"1","content":"r"}])",
        R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"null"}},)"
        R"({"function":{"name":"f","arguments":""}},{"function":{"name":"f","arguments":null}},)"
        R"({"function":{"name":"f"}}]},{"role":"tool","content":"r"}])"}},
      {"prompt",
       {"\"text\"", "[1,2,3]", "[\"one text\"]", "[\"a\",\"b\"]", "[[1],[2,3]]", "[[1]]"}},
      {"prompt_token_ids", {"[1,2,3]", "[]"}},
      {"max_tokens", {"1", "16", "2147483647", "3.0"}},
      {"max_completion_tokens", {"1", "4096"}},
      {"temperature", {"0", "0.7", "2", "2.5", "100"}},
      {"top_p", {"1e-300", "0.001", "0.9", "1"}},
      {"top_k", {"-1", "0", "40", "1000000"}},
      {"min_p", {"0", "0.05", "1"}},
      {"seed",
       {"0", "-1", "42", "9223372036854775807", "-9223372036854775808", "9223372036854775808",
        "18446744073709551615"}},
      {"n", {"1", "128"}},
      {"best_of", {"1", "128"}},
      {"echo", {"true", "false"}},
      {"stop", {"\"x\"", "[]", "[\"a\",\"b\"]", "\"" + std::string(512, 'x') + "\""}},
      {"stop_sequences", {"[]", "[\"a\",\"b\"]", "[\"" + std::string(512, 'x') + "\"]"}},
      {"stop_token_ids", {"[]", "[0,1,2]"}},
      {"presence_penalty", {"-100", "-2", "0", "2", "100"}},
      {"frequency_penalty", {"-100", "0.5", "100"}},
      {"repetition_penalty", {"0.01", "1", "1.1", "100"}},
      {"logit_bias", {"{}", R"({"1":-100,"2":100,"3":0.5})"}},
      {"logprobs", {}},
      {"top_logprobs", {"0", "20"}},
      {"prompt_logprobs", {"0", "20"}},
      {"priority", {"-1000", "1000"}},
      {"return_progress", {"true", "false"}},
      {"stream", {"true", "false"}},
      {"stream_options",
       {"{}", R"({"include_usage":true})", R"({"include_usage":null})",
        R"({"include_usage":true,"continuous_usage_stats":true})"}},
      {"tools",
       {"[]", R"([{"type":"function","function":{"name":"f"}}])",
        R"([{"type":"function","function":{"name":"f","description":"d","parameters":{},)"
        R"("strict":true}}])"}},
      {"tool_choice",
       {"\"none\"", "\"auto\"", "\"required\"", R"({"type":"function","function":{"name":"f"}})"}},
      {"parallel_tool_calls", {"true", "false"}},
      {"tool_parser", {"\"auto\"", "\"hermes\"", "\"qwen3_coder\"", "\"none\""}},
      {"reasoning_format", {"\"auto\"", "\"deepseek\"", "\"none\""}},
      {"documents", {"[]", R"([{"title":"t","text":"x"}])"}},
      {"reasoning_effort", {"\"none\"", "\"high\""}},
      {"chat_template_kwargs", {"{}", R"({"enable_thinking":false,"mood":"calm","n":[1,{}]})"}},
      {"user",
       {"\"\"", "\"u-1\"", "\"\xc3\xa9\"", "\"a\\tb\\nc\\u0000d\"",
        "\"" + std::string(65'536, 'u') + "\""}},
      {"cache_salt", {"\"s\"", "\"a\\nb\"", "\"" + std::string(1024, 's') + "\""}},
      {"ignore_eos", {"true", "false"}},
      {"min_tokens", {"0", "5"}},
      {"timeout_ms", {"1", "86400000"}},
      {"path", {"\"auto\"", "\"disagg\"", "\"local\""}},
      {"request_id", {"\"\"", "\"abc\""}},
  };
}

const ValuesByName& GoodValues() {
  static const ValuesByName values = [] {
    ValuesByName all = GoodBasics();
    all.merge(GoodForms());
    return all;
  }();
  return values;
}

ValuesByName BadForms() {
  return {
      {"response_format",
       {R"({"type":"json_schema","json_schema":{}})", "{}", R"({"type":5})", "\"text\"",
        R"({"type":"yaml"})", R"({"type":"json_schema"})",
        R"({"type":"json_schema","json_schema":[]})",
        R"({"type":"json_schema","json_schema":{"schema":5}})",
        R"({"type":"json_schema","json_schema":{"schema":""}})",
        R"({"type":"json_object","schema":""})", R"({"type":"json_object","schema":[]})",
        R"({"type":"json_schema","json_schema":{"schema":{},"strict":"yes"}})",
        R"({"type":"json_schema","json_schema":{"schema":{},"name":5}})",
        R"({"type":"json_schema","json_schema":{"schema":{"maximum":1e400}}})"}},
      {"structured_outputs",
       {"{}",
        R"({"json":null})",
        R"({"json_object":false})",
        R"({"json_object":false,"disable_any_whitespace":false})",
        "\"json\"",
        "5",
        "[]",
        "\"\"",
        "false",
        R"({"choice":[]})",
        R"({"regex":""})",
        R"({"grammar":""})",
        R"({"json":""})",
        R"({"structural_tag":""})",
        R"({"json":5})",
        R"({"regex":{}})",
        R"({"choice":"a"})",
        R"({"choice":[1]})",
        R"({"grammar":5})",
        R"({"json_object":"yes"})",
        R"({"structural_tag":5})",
        R"({"lark":"start: x"})",
        R"({"json":{},"regex":"a"})",
        R"({"json":{},"disable_any_whitespace":1})",
        R"({"json":"true","disable_any_whitespace":true})",
        R"({"json":{},"whitespace_pattern":" "})"}},
      {"guided_json", {"5", "[1]", "true", "false", "[]", R"("")"}},
      {"guided_regex", {"5", "{}", "false", R"("")"}},
      {"guided_choice", {R"("a")", "[1]", "{}", "[]"}},
      {"guided_grammar", {"5", "{}", R"("")"}},
  };
}

ValuesByName BadBasics() {
  return {
      {"messages",
       {"[]", "[1]", "[{}]", R"([{"role":"user"}])", R"([{"role":"king","content":"x"}])",
        R"([{"role":"user","content":5}])", R"([{"role":5,"content":"x"}])",
        R"([{"role":"user","content":null}])", R"([{"role":"user","content":[{"type":"text"}]}])",
        R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
        R"([{"role":"assistant","content":null,"tool_calls":[{}]}])"}},
      {"prompt",
       {"[1.5]", "[-1]", "[\"a\",1]", "[[1],\"a\"]", "[[1],[-1]]", "[2147483648]", "[true]"}},
      {"prompt_token_ids", {"[1.5]", "[-1]", "[\"a\"]", "\"text\""}},
      {"stop",
       {"\"\"", "[\"\"]", "[1]", "\"" + std::string(513, 'x') + "\"",
        R"(["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])"}},
      {"stop_sequences", {"[\"\"]", "[1]", "[\"" + std::string(513, 'x') + "\"]"}},
      {"stop_token_ids", {"[-1]", "[1.5]", "[\"1\"]", "[2147483648]"}},
      {"logit_bias",
       {R"({"a":1})", R"({"1":101})", R"({"1":"x"})", R"({"-1":1})", R"({"1":1,"01":2})",
        R"({"1.0":1})", R"({"":1})", R"({"99999999999999999999":1})", R"({"7":2e400})"}},
      {"stream_options", {R"({"include_usage":1})", R"({"continuous_usage_stats":"yes"})"}},
      {"tools",
       {R"([{"type":"function"}])", "[1]", R"([{"type":"function","function":{"name":""}}])",
        R"([{"type":"retrieval","function":{"name":"f"}}])"}},
      {"tool_choice", {"\"sometimes\"", R"({"type":"function"})"}},
      {"tool_parser", {"\"\"", "\"best\"", "\"Hermes\""}},
      {"reasoning_format", {"\"\"", "\"hidden\"", "\"None\""}},
      {"documents", {"{}", "[1]", "[[]]"}},
      {"reasoning_effort", {"\"\"", "\"High\"", "\"some\""}},
      {"chat_template_kwargs",
       {"[]", R"({"messages":[]})", R"({"tools":[]})", R"({"bos_token":"x"})", R"({"a b":1})",
        R"({"":1})", R"({"9a":1})", R"({"a":")" + std::string(70'000, 'x') + R"("})"}},
      {"user", {"\"" + std::string(65'537, 'u') + "\""}},
      {"cache_salt", {"\"\"", "\"" + std::string(1025, 's') + "\""}},
      {"documents", {"{}", "[1]", "[[]]"}},
      {"reasoning_effort", {"\"\"", "\"High\"", "\"some\""}},
      {"chat_template_kwargs",
       {"[]", R"({"messages":[]})", R"({"tools":[]})", R"({"bos_token":"x"})", R"({"a b":1})",
        R"({"":1})", R"({"9a":1})", R"({"a":")" + std::string(70'000, 'x') + R"("})"}},
      {"path", {"\"\"", "\"Local\"", "\"split\""}},
      {"request_id", {"\"" + std::string(129, 'r') + "\"", "\"a\\nb\"", "\"a b\"", "\"\xC3\xA4\""}},
  };
}

// Values that no parameter of that type accepts, beyond the generic ones below.
const ValuesByName& BadValues() {
  static const ValuesByName values = [] {
    ValuesByName all = BadBasics();
    all.merge(BadForms());
    return all;
  }();
  return values;
}

// Generic bad values by target type.
struct WrongValues {
  std::vector<std::string> operator()(std::optional<int64_t> ApiParams::*) const {
    return {"\"5\"", "true", "1.5", "[]", "{}", "1e300", "-1e300", "1e400", "-2e400"};
  }
  std::vector<std::string> operator()(std::optional<double> ApiParams::*) const {
    return {"\"1\"", "true", "[]", "{}", "1e300", "-1e300", "1e400", "-2e400"};
  }
  std::vector<std::string> operator()(std::optional<bool> ApiParams::*) const {
    return {"\"true\"", "1", "0", "[]", "{}"};
  }
  std::vector<std::string> operator()(std::string ApiParams::*) const {
    return {"5", "true", "[]", "{}"};
  }
  std::vector<std::string> operator()(std::vector<std::string> ApiParams::*) const {
    return {"5", "true", "{}", "[[]]"};
  }
  std::vector<std::string> operator()(std::vector<int64_t> ApiParams::*) const {
    return {"5", "true", "\"1\"", "{}"};
  }
  std::vector<std::string> operator()(LogitBias ApiParams::*) const {
    return {"5", "true", "\"1\"", "[]"};
  }
  std::vector<std::string> operator()(SpecialParam) const { return {"5", "true"}; }
};

TEST(SchemaTest, EveryRowHasGoodValuesAndAcceptsThem) {
  for (const ParamRow& row : ParamTable()) {
    if (IsOfSurface(row)) continue;
    const auto it = GoodValues().find(std::string(row.name));
    ASSERT_NE(it, GoodValues().end()) << row.name << " needs good values in this test";
    for (const Endpoint endpoint : EndpointsOf(row)) {
      for (const std::string& value : it->second) {
        const Verdict verdict = ReadJson(endpoint, Quoted(row.name) + value);
        EXPECT_TRUE(verdict.ok) << row.name << " = " << value << ": " << verdict.message;
      }
      EXPECT_TRUE(ReadJson(endpoint, Quoted(row.name) + "null").ok) << row.name << " = null";
    }
  }
}

TEST(SchemaTest, EveryRowRefusesBadValuesByItsName) {
  for (const ParamRow& row : ParamTable()) {
    if (IsOfSurface(row)) continue;
    std::vector<std::string> bad = std::visit(WrongValues{}, row.target);
    const auto it = BadValues().find(std::string(row.name));
    if (it != BadValues().end()) bad.insert(bad.end(), it->second.begin(), it->second.end());
    for (const Endpoint endpoint : EndpointsOf(row)) {
      for (const std::string& value : bad) {
        // Peers take true for 1.
        if (row.name == "logprobs" && value == "true") continue;
        if (row.name == "parallel_tool_calls" && value == "true") continue;
        const Verdict verdict = ReadJson(endpoint, Quoted(row.name) + value);
        ASSERT_FALSE(verdict.ok) << row.name << " = " << value;
        EXPECT_EQ(HttpStatusOf(verdict.code), 400) << row.name << " = " << value;
        EXPECT_EQ(verdict.param.rfind(row.name, 0), 0u) << verdict.param << " for " << value;
        EXPECT_NE(verdict.message.find(verdict.param), std::string::npos) << verdict.message;
      }
    }
  }
}

TEST(SchemaTest, RangesAreExact) {
  for (const ParamRow& row : ParamTable()) {
    const bool is_integer = std::holds_alternative<std::optional<int64_t> ApiParams::*>(row.target);
    const bool is_number = std::holds_alternative<std::optional<double> ApiParams::*>(row.target);
    if ((!is_integer && !is_number) || row.name == "seed") continue;
    const double step = is_integer ? 1.0 : 1e-6;
    const auto read = [&](double value) {
      return ReadJson(EndpointsOf(row)[0], Quoted(row.name) + fmt::format("{}", value));
    };
    EXPECT_TRUE(read(row.max).ok) << row.name;
    EXPECT_EQ(read(row.min).ok, !row.min_exclusive) << row.name;
    for (const double outside : {row.min - step, row.max + step}) {
      const Verdict verdict = read(outside);
      ASSERT_FALSE(verdict.ok) << row.name << " = " << outside;
      EXPECT_EQ(verdict.code, ErrorCode::kInvalidValue);
      EXPECT_EQ(verdict.param, row.name);
      EXPECT_NE(verdict.message.find(ExpectedOf(row)), std::string::npos) << verdict.message;
    }
  }
}

// A number above 0 that no float holds is not 0 for the workers, which compute in float.
TEST(SchemaTest, TheSmallestNumbersStayAboveTheirMinimum) {
  for (const ParamRow& row : ParamTable()) {
    const auto* target = std::get_if<std::optional<double> ApiParams::*>(&row.target);
    if (target == nullptr) continue;
    for (const char* tiny : {"1e-300", "1e-60", "5e-46", "1e-40"}) {
      for (const Endpoint endpoint : EndpointsOf(row)) {
        ApiParams params;
        ASSERT_TRUE(ReadJson(endpoint, Quoted(row.name) + tiny, &params).ok) << row.name << tiny;
        const float sent = static_cast<float>(*(params.**target));
        EXPECT_TRUE(sent > row.min || !row.min_exclusive) << row.name << tiny;
        EXPECT_LT(sent, 1e-37f) << row.name;
      }
    }
  }
}

TEST(SchemaTest, TrueAsksACompletionForOneLogProbability) {
  ApiParams params;
  ASSERT_TRUE(ReadJson(Endpoint::kCompletion, R"("logprobs":true)", &params).ok);
  EXPECT_EQ(params.logprobs_count, 1);
  params = {};
  ASSERT_TRUE(ReadJson(Endpoint::kCompletion, R"("logprobs":false)", &params).ok);
  EXPECT_FALSE(params.logprobs_count.has_value());
}

TEST(SchemaTest, AnEmptyModelIsUnknown) {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    const Verdict verdict = ReadJson(endpoint, R"("model":"")");
    EXPECT_FALSE(verdict.ok);
    EXPECT_EQ(verdict.code, ErrorCode::kModelNotFound);
  }
}

TEST(SchemaTest, ANumberThatNoDoubleHoldsNamesItsField) {
  EXPECT_EQ(ReadJson(Endpoint::kChat, R"("n":1e400)").message,
            "'n' is out of range: it must be an integer from 1 to 128.");
  EXPECT_EQ(ReadJson(Endpoint::kChat, R"("temperature":-123456789e999)").message,
            "'temperature' is out of range: it must be a number from 0 to 100.");
  const Verdict inside =
      ReadJson(Endpoint::kChat, R"("messages":[{"role":"user","content":"a","x":[1e309]}])");
  EXPECT_FALSE(inside.ok);
  EXPECT_EQ(inside.param, "messages[0]");
  EXPECT_TRUE(ReadJson(Endpoint::kChat, R"("nobody_reads_it":1e400)").ok);
}

TEST(SchemaTest, PartsThatAreNoTextAreNotSupported) {
  for (const char* part :
       {R"({"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}})",
        R"({"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}})",
        R"({"type":"file","file":{"file_id":"f"}})", R"({"type":"video_url"})"}) {
    const Verdict verdict = ReadJson(
        Endpoint::kChat,
        fmt::format(R"("messages":[{{"role":"user","content":[{{"type":"text","text":"a"}},{}]}}])",
                    part));
    EXPECT_EQ(verdict.code, ErrorCode::kUnsupported) << part;
    EXPECT_EQ(verdict.param, "messages[0].content[1]");
    EXPECT_NE(verdict.message.find("images, audio"), std::string::npos) << verdict.message;
  }
}

TEST(SchemaTest, MessagesNameFieldAndRange) {
  EXPECT_EQ(ReadJson(Endpoint::kChat, R"("temperature":101)").message,
            "'temperature' is out of range: it must be a number from 0 to 100.");
  EXPECT_EQ(ReadJson(Endpoint::kChat, R"("n":"x")").message,
            "'n' has the wrong type: it must be an integer from 1 to 128.");
  EXPECT_EQ(ReadJson(Endpoint::kChat, R"("repetition_penalty":0)").message,
            "'repetition_penalty' is out of range: it must be a number above 0 and at most 100.");
  EXPECT_EQ(ReadJson(Endpoint::kChat, R"("guided_choice":5)").message,
            "'guided_choice' has the wrong type: it must be an array of strings.");
}

TEST(SchemaTest, UnknownFieldsAreNamedSafely) {
  ApiParams params;
  std::vector<std::string> ignored;
  EXPECT_TRUE(ReadJson(Endpoint::kChat,
                       R"("store":true,"x\r\ny":1,"service_tier":"auto","temperature":1)", &params,
                       &ignored)
                  .ok);
  EXPECT_EQ(ignored, (std::vector<std::string>{"store", "x??y", "service_tier"}));
  std::string many;
  for (int i = 0; i < 100; ++i) many += (i ? ",\"f" : "\"f") + std::to_string(i) + "\":1";
  EXPECT_TRUE(ReadJson(Endpoint::kChat, many, &params, &ignored).ok);
  EXPECT_EQ(ignored.size(), 16u);
}

TEST(SchemaTest, UnknownFieldsOfNestedObjectsAreNamedByTheirPath) {
  ApiParams params;
  std::vector<std::string> ignored;
  const std::string body = R"("stream_options":{"include_usage":true,"foo":{"bar":1}},
      "response_format":{"type":"text","strict":true}, "stream":true, "logit_bias":{"5":1},
      "tool_choice":{"type":"function","function":{"name":"f","x":1},"y":1},
      "messages":[{"role":"user","content":"a","nick":"Ann"},
                  {"role":"assistant","content":"b","tool_calls":[]},
                  {"role":"user","content":[{"type":"text","text":"c"},
                                            {"type":"text","text":"d","cache,x":{"type":1}}]}],
      "top":1)";
  ASSERT_TRUE(ReadJson(Endpoint::kChat, body, &params, &ignored).ok);
  EXPECT_EQ(ignored,
            (std::vector<std::string>{"top", "stream_options.foo", "response_format.strict",
                                      "tool_choice.y", "tool_choice.function.x", "messages[0].nick",
                                      "messages[2].content[1].cache?x"}));
  std::string turns;
  for (int i = 0; i < 100; ++i) {
    turns += std::string(i ? "," : "") + R"({"role":"user","content":"a","nick":"Ann"})";
  }
  ignored.clear();
  ASSERT_TRUE(ReadJson(Endpoint::kChat, "\"messages\":[" + turns + "]", &params, &ignored).ok);
  EXPECT_EQ(ignored.size(), 16u);
  ignored.clear();
  ASSERT_TRUE(ReadJson(Endpoint::kCompletion, R"("prompt":"x","messages":[],"turns":[{"a":1}])",
                       &params, &ignored)
                  .ok);
  EXPECT_EQ(ignored, std::vector<std::string>{"turns"});
}

TEST(SchemaTest, ContentPartsAreJoined) {
  ApiParams params;
  ASSERT_TRUE(
      ReadJson(Endpoint::kChat, Quoted("messages") + GoodValues().at("messages")[2], &params).ok);
  ASSERT_EQ(params.messages.size(), 1u);
  EXPECT_EQ(params.messages[0].content, "a\nb");
}

// Names of the table that only one of the two APIs has, and why.
const std::set<std::string> kJsonOnly = {"stream",        "stream_options",  // the method says it
                                         "guided_json",   "guided_regex",
                                         "guided_choice", "guided_grammar"};  // structured_outputs
const std::set<std::string> kProtoOnly = {"prompts", "prompts_token_ids"};    // JSON: of `prompt`

TEST(SchemaTest, TableAndProtoHaveTheSameFields) {
  const v1::ChatCompletionRequest chat;
  const v1::CompletionRequest completion;
  for (const auto& [endpoint, descriptor] :
       {std::pair{Endpoint::kChat, chat.GetDescriptor()},
        std::pair{Endpoint::kCompletion, completion.GetDescriptor()}}) {
    for (int i = 0; i < descriptor->field_count(); ++i) {
      if (kProtoOnly.count(descriptor->field(i)->name()) > 0) continue;
      EXPECT_NE(FindParam(endpoint, descriptor->field(i)->name()), nullptr)
          << descriptor->field(i)->full_name() << " is in no row";
    }
    for (const ParamRow& row : ParamTable()) {
      if (!row.AppliesTo(endpoint) || kJsonOnly.count(std::string(row.name)) > 0) continue;
      EXPECT_NE(descriptor->FindFieldByName(std::string(row.name)), nullptr)
          << row.name << " is missing in " << descriptor->full_name();
    }
  }
}

// Numbers out of range fail over protobuf with the same words.
TEST(SchemaTest, ProtoAndJsonAgreeOnEveryNumber) {
  for (const ParamRow& row : ParamTable()) {
    const bool is_integer = std::holds_alternative<std::optional<int64_t> ApiParams::*>(row.target);
    const bool is_number = std::holds_alternative<std::optional<double> ApiParams::*>(row.target);
    if ((!is_integer && !is_number) || row.name == "seed") continue;
    for (const Endpoint endpoint : EndpointsOf(row)) {
      if (endpoint == Endpoint::kMessages) continue;  // HTTP only
      v1::ChatCompletionRequest chat;
      v1::CompletionRequest completion;
      google::protobuf::Message* message = &chat;
      if (endpoint == Endpoint::kCompletion) message = &completion;
      const auto* field = message->GetDescriptor()->FindFieldByName(std::string(row.name));
      ASSERT_NE(field, nullptr);
      for (const double value : {row.min, row.max, row.min - 1, row.max + 1}) {
        if (is_integer && (value > 2147483647.0 || value < -2147483648.0)) continue;
        if (is_integer) {
          message->GetReflection()->SetInt32(message, field, static_cast<int32_t>(value));
        } else {
          message->GetReflection()->SetFloat(message, field, static_cast<float>(value));
        }
        ApiParams params;
        const Verdict proto = ReadProto(*message, endpoint, &params);
        const Verdict json = ReadJson(endpoint, Quoted(row.name) + fmt::format("{}", value));
        EXPECT_EQ(proto.ok, json.ok) << row.name << " = " << value;
        EXPECT_EQ(proto.message, json.message) << row.name << " = " << value;
      }
      if (!is_number) continue;
      message->GetReflection()->SetFloat(message, field, std::nanf(""));
      ApiParams params;
      const Verdict nan = ReadProto(*message, endpoint, &params);
      EXPECT_FALSE(nan.ok) << row.name << " = NaN";
      EXPECT_EQ(nan.param, row.name);
    }
  }
}

TEST(SchemaTest, ProtoListsAndSpecialsAreChecked) {
  struct Case {
    const char* param;
    void (*set)(v1::ChatCompletionRequest*);
  };
  const Case cases[] = {
      {"stop", [](v1::ChatCompletionRequest* r) { r->add_stop(""); }},
      {"stop",
       [](v1::ChatCompletionRequest* r) {
         for (int i = 0; i < 17; ++i) r->add_stop("x");
       }},
      {"stop_token_ids", [](v1::ChatCompletionRequest* r) { r->add_stop_token_ids(-1); }},
      {"logit_bias", [](v1::ChatCompletionRequest* r) { (*r->mutable_logit_bias())[1] = 101; }},
      {"logit_bias", [](v1::ChatCompletionRequest* r) { (*r->mutable_logit_bias())[-1] = 1; }},
      {"messages[0].role", [](v1::ChatCompletionRequest* r) { r->add_messages()->set_role("x"); }},
      {"tools[0].function.name", [](v1::ChatCompletionRequest* r) { r->add_tools(); }},
      {"tool_choice", [](v1::ChatCompletionRequest* r) { r->set_tool_choice("sometimes"); }},
      {"tool_choice", [](v1::ChatCompletionRequest* r) { r->set_tool_choice("{\"type\":"); }},
      {"chat_template_kwargs",
       [](v1::ChatCompletionRequest* r) { r->set_chat_template_kwargs("{\"a\":[1e309]}"); }},
      {"documents", [](v1::ChatCompletionRequest* r) { r->set_documents("[{\"a\":-1e309}]"); }},
      {"tool_parser", [](v1::ChatCompletionRequest* r) { r->set_tool_parser("best"); }},
      {"response_format",
       [](v1::ChatCompletionRequest* r) { r->mutable_response_format()->set_type("yaml"); }},
      {"response_format.json_schema.schema",
       [](v1::ChatCompletionRequest* r) { r->mutable_response_format()->set_type("json_schema"); }},
      {"response_format.structural_tag",
       [](v1::ChatCompletionRequest* r) {
         r->mutable_response_format()->set_type("structural_tag");
       }},
      {"structured_outputs", [](v1::ChatCompletionRequest* r) { r->mutable_structured_outputs(); }},
      {"structured_outputs",
       [](v1::ChatCompletionRequest* r) {
         r->mutable_structured_outputs()->set_json_object(false);
       }},
      {"structured_outputs.choice",
       [](v1::ChatCompletionRequest* r) {
         r->mutable_structured_outputs()->set_regex("a");
         r->mutable_structured_outputs()->add_choice("a");
       }},
      {"structured_outputs.json_object",
       [](v1::ChatCompletionRequest* r) {
         r->mutable_response_format()->set_type("json_object");
         r->mutable_structured_outputs()->set_json_object(true);
       }},
      {"reasoning_format", [](v1::ChatCompletionRequest* r) { r->set_reasoning_format("hidden"); }},
      {"path", [](v1::ChatCompletionRequest* r) { r->set_path("split"); }},
      {"user", [](v1::ChatCompletionRequest* r) { r->set_user(std::string(65'537, 'u')); }},
  };
  for (const Case& c : cases) {
    v1::ChatCompletionRequest request;
    c.set(&request);
    ApiParams params;
    const Verdict verdict = ReadProto(request, Endpoint::kChat, &params);
    EXPECT_FALSE(verdict.ok) << c.param;
    EXPECT_EQ(verdict.param, c.param);
    EXPECT_EQ(GrpcCodeOf(verdict.code), 3) << "INVALID_ARGUMENT";
  }
}

// The answer would come without the form.
TEST(SchemaTest, ProtoFormsNeedTheirType) {
  struct Case {
    const char* param;
    const char* type;
    void (*set)(v1::ResponseFormat*);
  };
  const auto set_schema = [](v1::ResponseFormat* f) { f->set_json_schema("{}"); };
  const auto set_tag = [](v1::ResponseFormat* f) { f->set_structural_tag("{}"); };
  const Case cases[] = {
      {"response_format.type", "", set_schema},
      {"response_format.type", "", set_tag},
      {"response_format.type", "", [](v1::ResponseFormat* f) { f->set_strict(true); }},
      {"response_format.json_schema", "json_object", set_schema},
      {"response_format.json_schema", "text", set_schema},
      {"response_format.structural_tag", "text", set_tag},
      {"response_format.structural_tag", "structural_tag",
       [](v1::ResponseFormat* f) { f->set_structural_tag(R"({"type":"text"})"); }},
  };
  for (const Case& c : cases) {
    v1::ChatCompletionRequest request;
    request.mutable_response_format()->set_type(c.type);
    c.set(request.mutable_response_format());
    ApiParams params;
    const Verdict verdict = ReadProto(request, Endpoint::kChat, &params);
    EXPECT_FALSE(verdict.ok) << c.param;
    EXPECT_EQ(verdict.param, c.param);
    EXPECT_EQ(GrpcCodeOf(verdict.code), 3) << "INVALID_ARGUMENT";
  }
}

TEST(SchemaTest, SeveralPromptsAreReadFromProtoAndJson) {
  v1::CompletionRequest texts;
  texts.add_prompts("a");
  texts.add_prompts("b");
  v1::CompletionRequest ids;
  ids.add_prompts_token_ids()->add_ids(1);
  ids.add_prompts_token_ids()->add_ids(2);
  ApiParams of_texts;
  ApiParams of_ids;
  ASSERT_TRUE(ReadProto(texts, Endpoint::kCompletion, &of_texts).ok);
  ASSERT_TRUE(ReadProto(ids, Endpoint::kCompletion, &of_ids).ok);
  ApiParams json_texts;
  ApiParams json_ids;
  ASSERT_TRUE(ReadJson(Endpoint::kCompletion, R"("prompt":["a","b"])", &json_texts).ok);
  ASSERT_TRUE(ReadJson(Endpoint::kCompletion, R"("prompt":[[1],[2]])", &json_ids).ok);
  for (const ApiParams* params : {&of_texts, &json_texts}) {
    ASSERT_EQ(params->prompts.size(), 2u);
    EXPECT_EQ(params->prompts[1].text, "b");
  }
  for (const ApiParams* params : {&of_ids, &json_ids}) {
    ASSERT_EQ(params->prompts.size(), 2u);
    EXPECT_FALSE(params->prompts[1].text.has_value());
    EXPECT_EQ(params->prompts[1].token_ids, std::vector<int64_t>{2});
  }
  ids.add_prompts("a");
  const Verdict both = ReadProto(ids, Endpoint::kCompletion, &of_ids);
  EXPECT_FALSE(both.ok);
  EXPECT_EQ(both.param, "prompt");
}

TEST(SchemaTest, ProtoFillsTheSameParams) {
  v1::ChatCompletionRequest request;
  auto* message = request.add_messages();
  message->set_role("developer");
  message->set_content("hi");
  request.set_temperature(0);
  request.set_seed(-7);
  request.set_max_completion_tokens(5);
  request.add_stop("x");
  request.set_logprobs(true);
  (*request.mutable_logit_bias())[3] = -1.5f;
  ApiParams from_proto;
  ASSERT_TRUE(ReadProto(request, Endpoint::kChat, &from_proto).ok);
  ApiParams from_json;
  ASSERT_TRUE(ReadJson(Endpoint::kChat,
                       R"("messages":[{"role":"developer","content":"hi"}],"temperature":0,)"
                       R"("seed":-7,"max_completion_tokens":5,"stop":"x","logprobs":true,)"
                       R"("logit_bias":{"3":-1.5})",
                       &from_json)
                  .ok);
  for (const ApiParams* params : {&from_proto, &from_json}) {
    ASSERT_EQ(params->messages.size(), 1u);
    EXPECT_EQ(params->messages[0].role, "developer");
    EXPECT_EQ(params->temperature, 0.0) << "an explicit 0 is not a default";
    EXPECT_EQ(params->seed, -7);
    EXPECT_EQ(params->max_completion_tokens, 5);
    EXPECT_EQ(params->stop, std::vector<std::string>{"x"});
    EXPECT_EQ(params->logprobs, true);
    EXPECT_EQ(params->logit_bias, (LogitBias{{3, -1.5}}));
    EXPECT_FALSE(params->top_p.has_value());
  }
}

TEST(SchemaTest, ProtoTextsWithNumbersBeyondADoubleAreToldSo) {
  struct Case {
    const char* param;
    void (*set)(v1::ChatCompletionRequest*);
  };
  static constexpr const char* kHuge = R"({"properties":{"a":{"maximum":1e309}}})";
  const Case cases[] = {
      {"tools[0].function.parameters",
       [](v1::ChatCompletionRequest* r) {
         auto* function = r->add_tools()->mutable_function();
         function->set_name("f");
         function->set_parameters(kHuge);
       }},
      {"response_format.json_schema.schema",
       [](v1::ChatCompletionRequest* r) {
         r->mutable_response_format()->set_type("json_schema");
         r->mutable_response_format()->set_json_schema(kHuge);
       }},
      {"response_format",
       [](v1::ChatCompletionRequest* r) {
         r->mutable_response_format()->set_type("structural_tag");
         r->mutable_response_format()->set_structural_tag(kHuge);
       }},
      {"structured_outputs.json",
       [](v1::ChatCompletionRequest* r) { r->mutable_structured_outputs()->set_json(kHuge); }},
      {"structured_outputs.structural_tag",
       [](v1::ChatCompletionRequest* r) {
         r->mutable_structured_outputs()->set_structural_tag(kHuge);
       }},
  };
  for (const Case& c : cases) {
    v1::ChatCompletionRequest request;
    c.set(&request);
    ApiParams params;
    const Verdict verdict = ReadProto(request, Endpoint::kChat, &params);
    EXPECT_FALSE(verdict.ok) << c.param;
    EXPECT_EQ(verdict.param, c.param);
    EXPECT_NE(verdict.message.find(kExpectedNumbers), std::string::npos) << verdict.message;
  }
}

}  // namespace
}  // namespace baton::api
