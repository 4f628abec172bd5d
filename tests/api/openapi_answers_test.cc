// The answers that the API gives, against their descriptions in /openapi.json.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"

#include "src/api/answer_schemas.h"
#include "src/api/api_paths.h"
#include "src/http/http_message.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using router::GenerateRequest;
using router::ModelInfo;
using router::RequestError;
using router::ResponseSink;
using router::TestModel;
using scheduler::FinishReason;

namespace {

constexpr std::string_view kRefPrefix = "#/components/schemas/";

bool IsOfType(const JsonValue& value, std::string_view type) {
  int64_t integer = 0;
  if (type == "string") return value.AsString() != nullptr;
  if (type == "integer") return value.GetInteger(&integer);
  if (type == "number") return value.IsNumber();
  if (type == "boolean") return value.AsBool() != nullptr;
  if (type == "null") return value.is_null();
  if (type == "object") return value.AsObject() != nullptr;
  return type == "array" && value.AsArray() != nullptr;
}

// Holds values against schemas of the document.
class SchemaCheck {
 public:
  // `schemas`: the components' schemas; outlives this.
  explicit SchemaCheck(const JsonValue& schemas) : schemas_(schemas) {}

  // The fault of `value`, by its path; "" = it fits.
  std::string FaultOf(const JsonValue& schema, const JsonValue& value,
                      const std::string& path) const {
    if (const JsonValue* ref = schema.Find("$ref")) {
      const std::string name = ref->AsString()->substr(kRefPrefix.size());
      const JsonValue* target = schemas_.Find(name);
      return target == nullptr ? "no schema " + name : FaultOf(*target, value, path);
    }
    if (const JsonValue* any = schema.Find("anyOf")) return FaultOfAll(*any, value, path);
    if (const JsonValue* only = schema.Find("const")) {
      const bool fits = value.AsString() != nullptr && *value.AsString() == *only->AsString();
      return fits ? "" : path + ": not " + *only->AsString();
    }
    if (const JsonValue* type = schema.Find("type"); type != nullptr && !FitsType(*type, value)) {
      return path + ": wrong type";
    }
    return FaultWithin(schema, value, path);
  }

 private:
  static bool FitsType(const JsonValue& type, const JsonValue& value) {
    if (type.AsString() != nullptr) return IsOfType(value, *type.AsString());
    const JsonValue::Array& names = *type.AsArray();
    return std::any_of(names.begin(), names.end(), [&value](const JsonValue& name) {
      return IsOfType(value, *name.AsString());
    });
  }

  std::string FaultOfAll(const JsonValue& any, const JsonValue& value,
                         const std::string& path) const {
    std::string faults;
    for (const JsonValue& branch : *any.AsArray()) {
      const std::string fault = FaultOf(branch, value, path);
      if (fault.empty()) return "";
      faults += fault + "; ";
    }
    return faults;
  }

  std::string FaultWithin(const JsonValue& schema, const JsonValue& value,
                          const std::string& path) const {
    const JsonValue* items = schema.Find("items");
    if (items != nullptr && value.AsArray() != nullptr) {
      for (size_t i = 0; i < value.AsArray()->size(); ++i) {
        const std::string at = fmt::format("{}[{}]", path, i);
        std::string fault = FaultOf(*items, (*value.AsArray())[i], at);
        if (!fault.empty()) return fault;
      }
    }
    if (value.AsObject() == nullptr) return "";
    if (const JsonValue* required = schema.Find("required")) {
      for (const JsonValue& name : *required->AsArray()) {
        if (value.Find(*name.AsString()) == nullptr) return path + ": no " + *name.AsString();
      }
    }
    const JsonValue* properties = schema.Find("properties");
    const JsonValue* others = schema.Find("additionalProperties");
    for (const auto& [name, member] : *value.AsObject()) {
      const JsonValue* own = properties == nullptr ? nullptr : properties->Find(name);
      const JsonValue* of_member = own != nullptr ? own : others;
      if (of_member == nullptr) continue;
      std::string fault = FaultOf(*of_member, member, path + "." + name);
      if (!fault.empty()) return fault;
    }
    return "";
  }

  const JsonValue& schemas_;
};

class OpenApiAnswersTest : public HttpApiTest {
 protected:
  OpenApiAnswersTest() {
    RequestError error;
    EXPECT_TRUE(ParseJson(Send("GET", "/openapi.json")->body, &document_, &error));
  }

  static JsonValue Parsed(const std::string& text) {
    JsonValue value;
    RequestError error;
    EXPECT_TRUE(ParseJson(text, &value, &error)) << text;
    return value;
  }

  // The schema of a good answer of that media type; null = none is described.
  const JsonValue* SchemaOf(const ApiPath& row, const std::string& media) const {
    std::string path(row.path);
    if (!row.last.empty()) path += "{" + std::string(row.last) + "}";
    return At(document_, {"paths", path, http::LowerCase(row.method), "responses", "200", "content",
                          media, "schema"});
  }

  std::string FaultOf(const JsonValue& schema, const JsonValue& value) const {
    return SchemaCheck(*At(document_, {"components", "schemas"})).FaultOf(schema, value, "$");
  }

  // Holds the answer against its description: JSON, events or lines, as its header says.
  void Check(const std::string& path, const FakeResponder& responder) const {
    ASSERT_EQ(responder.status, 200) << path << responder.body;
    const std::string media(responder.Header("Content-Type"));
    const JsonValue* schema = SchemaOf(*FindApiPath(path), media);
    ASSERT_NE(schema, nullptr) << path << " " << media;
    if (media == "application/json") {
      EXPECT_EQ(FaultOf(*schema, Parsed(responder.body)), "") << path << responder.body;
      return;
    }
    const bool has_lines = media == "application/x-ndjson";
    const JsonValue* event = schema->Find("items");
    ASSERT_NE(event, nullptr) << path;
    if (!has_lines) event = At(*event, {"properties", "data", "contentSchema"});
    ASSERT_NE(event, nullptr) << path;
    size_t num_events = 0;
    for (const std::string& json : Payloads(responder.body, has_lines)) {
      if (json == "[DONE]") continue;
      ++num_events;
      EXPECT_EQ(FaultOf(*event, Parsed(json)), "") << path << json;
    }
    EXPECT_GT(num_events, 1u) << path << responder.body;
  }

  // The lines of a stream of lines, or the data of a stream of events.
  static std::vector<std::string> Payloads(const std::string& body, bool has_lines) {
    std::vector<std::string> payloads;
    constexpr std::string_view kData = "data: ";
    size_t begin = 0;
    while (begin < body.size()) {
      const size_t end = std::min(body.find('\n', begin), body.size());
      std::string line = body.substr(begin, end - begin);
      begin = end + 1;
      if (has_lines && !line.empty()) payloads.push_back(std::move(line));
      if (!has_lines && line.starts_with(kData)) payloads.push_back(line.substr(kData.size()));
    }
    return payloads;
  }

  JsonValue document_;
};

TEST_F(OpenApiAnswersTest, EachOperationDescribesItsGoodAnswer) {
  for (const ApiPath& row : kApiPaths) {
    if (row.summary.empty()) continue;
    const RouteAnswer& answer = RouteAnswerOf(row);
    size_t num_schemas = 0;
    for (const char* media : {"application/json", "text/event-stream", "application/x-ndjson"}) {
      const JsonValue* schema = SchemaOf(row, media);
      if (schema == nullptr) continue;
      ++num_schemas;
      ASSERT_NE(schema->AsObject(), nullptr) << row.path << media;
      EXPECT_FALSE(schema->AsObject()->empty()) << row.path << media;
    }
    const size_t num_forms = (answer.whole.empty() ? 0 : 1) + (answer.event.empty() ? 0 : 1);
    EXPECT_EQ(num_schemas, num_forms) << row.path;
    EXPECT_GT(num_forms, 0u) << row.path;
  }
}

TEST(RouteAnswerDeathTest, TheAnswerOfAPageForPeopleIsNotDescribed) {
  EXPECT_DEATH((void)RouteAnswerOf(*FindApiPath("/ui")), "/ui is for people");
}

// Every reference of the value names a schema of the document.
void CheckReferences(const JsonValue& value, const JsonValue& document) {
  if (const JsonValue::Array* array = value.AsArray()) {
    for (const JsonValue& item : *array) CheckReferences(item, document);
  }
  if (value.AsObject() == nullptr) return;
  for (const auto& [name, member] : *value.AsObject()) {
    if (name != "$ref" || member.AsString() == nullptr) {
      CheckReferences(member, document);
      continue;
    }
    const std::string& ref = *member.AsString();
    const bool is_schema = ref.starts_with(kRefPrefix);
    const std::string folder = is_schema ? "schemas" : "responses";
    const std::string target = ref.substr(ref.rfind('/') + 1);
    const JsonValue* components = document.Find("components");
    EXPECT_NE(components->Find(folder)->Find(target), nullptr) << ref;
  }
}

TEST_F(OpenApiAnswersTest, EachReferenceIsDescribed) { CheckReferences(document_, document_); }

TEST_F(OpenApiAnswersTest, AnswersOfWhatOnlyReadsFit) {
  for (const char* path :
       {"/v1/models", "/v1/models/toy", "/api/tags", "/api/ps", "/api/version", "/tokenizer_info",
        "/health", "/v1/topology", "/version", "/openapi.json"}) {
    const auto responder = Send("GET", path);
    ASSERT_TRUE(responder->Wait());
    Check(path, *responder);
  }
  for (const char* path : {"/v1/models", "/v1/models/toy"}) {
    const auto responder = Send("GET", path, "", {{"anthropic-version", "2023-06-01"}});
    ASSERT_TRUE(responder->Wait());
    Check(path, *responder);
  }
}

// A path, a body without its closing brace, and whether it may stream.
struct Asked {
  const char* path;
  std::string body;
  bool streams = false;
};

TEST_F(OpenApiAnswersTest, AnswersOfOneTextFit) {
  const std::string claude = R"({"max_tokens":64,)" + kHello.substr(1);
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  const std::vector<Asked> all = {
      {"/v1/chat/completions", kHello, true},
      {"/v1/chat/completions", kHello + R"(,"n":2,"logprobs":true,"top_logprobs":2)", true},
      {"/v1/chat/completions", kHello + tools, true},
      {"/v1/completions", R"({"prompt":["hello","a"],"n":2)", true},
      {"/v1/completions", R"({"prompt":"hello","logprobs":2,"echo":true)"},
      {"/v1/completions", R"({"prompt":"hello","logprobs":2)", true},
      {"/v1/messages", claude, true},
      {"/v1/messages/count_tokens", kHello},
      {"/v1/responses", R"({"input":"hello","metadata":{"a":"b"},"tool_choice":"auto")", true},
      {"/v1/responses", R"({"input":"x","include":["message.output_text.logprobs"])", true},
      {"/v1/responses/input_tokens", R"({"input":"x")"},
      {"/api/chat", kHello, true},
      {"/api/chat", R"({"messages":[])"},
      {"/api/generate", R"({"prompt":"hello","logprobs":true)", true},
      {"/api/generate", R"({"prompt":"")"},
      {"/api/show", "{\"model\":\"toy\""},
      {"/tokenize", R"({"content":"hello")"},
      {"/tokenize", R"({"content":"hello","with_pieces":true)"},
      {"/tokenize", R"({"prompt":"hello","return_token_strs":true)"},
      {"/tokenize", kHello},
      {"/detokenize", R"({"tokens":[104,105])"},
      {"/apply-template", kHello},
  };
  AnswerWith("Hi");
  for (const Asked& asked : all) {
    Check(asked.path, *Post(asked.path, asked.body + R"(,"stream":false})"));
    if (!asked.streams) continue;
    const bool has_options = std::string_view(asked.path).ends_with("completions");
    const char* options = has_options ? R"(,"stream_options":{"include_usage":true})" : "";
    Check(asked.path, *Post(asked.path, asked.body + R"(,"stream":true)" + options + "}"));
  }
}

TEST_F(OpenApiAnswersTest, AnswersThatCallAndAreCutFit) {
  const std::string claude = R"({"max_tokens":64,)" + kHello.substr(1) +
                             R"(,"tools":[{"name":"f","input_schema":{"type":"object"}}])";
  const std::string function = R"({"name":"f","parameters":{"type":"object"}})";
  const std::string tools = R"(,"tools":[{"type":"function","function":)" + function + "}]";
  const std::vector<Asked> all = {
      {"/v1/chat/completions", kHello + tools},
      {"/v1/messages", claude},
      {"/v1/responses",
       R"({"input":"hello","tools":[{"type":"function",)" + function.substr(1) + "]"},
      {"/api/chat", kHello + tools},
  };
  for (const FinishReason finish : {FinishReason::kStop, FinishReason::kLength}) {
    AnswerWith(R"({"name": "f", "arguments": {"city": "Bern"}})", finish);
    for (const Asked& asked : all) {
      for (const char* stream : {"false", "true"}) {
        Check(asked.path, *Post(asked.path, asked.body + R"(,"stream":)" + stream + "}"));
      }
    }
  }
}

TEST_F(OpenApiAnswersTest, ThoughtsAndVectorsFit) {
  auto model = std::make_shared<ModelInfo>(*TestModel());
  model->embedding_size = 3;
  model->chat_template = std::make_shared<const text::ChatTemplate>(
      text::ChatTemplate::Create(
          "{% for m in messages %}<user>{{ m.content.split('</think>')[-1] }}{% endfor %}"
          "<assistant>",
          "", "<eos>")
          .value());
  submitter_.served = {model};
  AnswerWith("<think>a</think>b");
  const std::string claude = R"({"max_tokens":64,)" + kHello.substr(1);
  const std::vector<Asked> all = {{"/v1/chat/completions", kHello},
                                  {"/v1/messages", claude},
                                  {"/v1/responses", R"({"input":"x")"},
                                  {"/api/chat", kHello}};
  for (const Asked& asked : all) {
    for (const char* stream : {"false", "true"}) {
      Check(asked.path, *Post(asked.path, asked.body + R"(,"stream":)" + stream + "}"));
    }
  }
  submitter_.answer = [](const GenerateRequest& request, ResponseSink& sink) {
    sink.OnEmbedding({1.0f, 0.5f, -0.25f});
    PlayText(sink, "x", 0, FinishReason::kLength, true);
    sink.OnFinished(TestResult(static_cast<uint32_t>(request.prompt.size()), 0));
  };
  Check("/v1/embeddings", *Post("/v1/embeddings", R"({"input":["a","b"]})"));
  Check("/v1/embeddings", *Post("/v1/embeddings", R"({"input":"a","encoding_format":"base64"})"));
  Check("/api/embed", *Post("/api/embed", R"({"input":"a"})"));
  Check("/api/embeddings", *Post("/api/embeddings", R"({"prompt":"a"})"));
}

TEST_F(OpenApiAnswersTest, WhatDoesNotFitIsTold) {
  const auto* chat = At(document_, {"components", "schemas", "ChatMessage"});
  EXPECT_EQ(FaultOf(*chat, Parsed(R"({"role":"assistant","content":null,"more":1})")), "");
  EXPECT_EQ(FaultOf(*chat, Parsed(R"({"role":"assistant"})")), "$: no content");
  EXPECT_EQ(FaultOf(*chat, Parsed(R"({"role":"user","content":""})")), "$.role: not assistant");
  EXPECT_EQ(FaultOf(*chat, Parsed(R"({"role":"assistant","content":1})")), "$.content: wrong type");
}

}  // namespace
}  // namespace baton::api
