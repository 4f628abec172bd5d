#include "src/api/openapi_answers.h"

#include <set>
#include <string>
#include <string_view>

#include "src/api/answer_schemas.h"
#include "src/router/request_error.h"

namespace baton::api {

using router::ErrorCode;
using router::HttpStatusOf;
using router::kNumErrorCodes;

namespace {

constexpr std::string_view kOpenAiError = "Error";
constexpr std::string_view kMessagesError = "MessagesError";
constexpr std::string_view kOllamaError = "OllamaError";

std::string_view ErrorFormOf(std::string_view path) {
  if (path.starts_with("/api/")) return kOllamaError;
  return path.starts_with("/v1/messages") ? kMessagesError : kOpenAiError;
}

// No client reads the status of a request that it cancelled.
std::set<int> ErrorStatuses() {
  std::set<int> statuses;
  for (int i = 0; i < kNumErrorCodes; ++i) {
    const auto code = static_cast<ErrorCode>(i);
    if (code != ErrorCode::kCancelled) statuses.insert(HttpStatusOf(code));
  }
  return statuses;
}

void WriteTextMember(std::string_view name, bool may_be_null, JsonWriter* json) {
  json->Key(name).BeginObject().Key("type").BeginArray().String("string");
  if (may_be_null) json->String("null");
  json->EndArray().EndObject();
}

// The schema `name` up to its properties, which the caller writes.
void BeginErrorSchema(std::string_view name, JsonWriter* json) {
  json->Key(name).BeginObject().Key("type").String("object");
  json->Key("properties").BeginObject();
}

void EndErrorSchema(JsonWriter* json) {
  json->EndObject().Key("required").BeginArray().String("error").EndArray().EndObject();
}

// The member `error` up to its properties; the caller ends both objects.
void BeginErrorObject(JsonWriter* json) {
  json->Key("error").BeginObject().Key("type").String("object").Key("properties").BeginObject();
}

// One event of a stream as OpenAPI has it: its fields, whose `data` is JSON of the TYPE.
void WriteEventSchema(std::string_view type, JsonWriter* json) {
  json->BeginObject().Key("type").String("object").Key("properties").BeginObject();
  WriteTextMember("event", false, json);
  WriteTextMember("id", false, json);
  json->Key("data").BeginObject().Key("type").String("string");
  json->Key("description").String("JSON; \"[DONE]\" ends streams of chats and completions");
  json->Key("contentMediaType").String("application/json").Key("contentSchema");
  WriteSchemaOf(type, json);
  json->EndObject().EndObject();
  json->Key("required").BeginArray().String("data").EndArray().EndObject();
}

// The bodies of a good answer by their types. A stream is an array of its events, or lines.
void WriteContent(const ApiPath& row, const RouteAnswer& answer, JsonWriter* json) {
  json->Key("content").BeginObject();
  if (!answer.whole.empty()) {
    json->Key("application/json").BeginObject().Key("schema");
    WriteSchemaOf(answer.whole, json);
    json->EndObject();
  }
  if (!answer.event.empty()) {
    const bool has_lines = row.path.starts_with("/api/");
    json->Key(has_lines ? "application/x-ndjson" : "text/event-stream").BeginObject();
    json->Key("schema").BeginObject().Key("type").String("array").Key("items");
    if (has_lines) {
      WriteSchemaOf(answer.event, json);
    } else {
      WriteEventSchema(answer.event, json);
    }
    json->EndObject().EndObject();
  }
  json->EndObject();
}

}  // namespace

void WritePathAnswers(const ApiPath& row, JsonWriter* json) {
  json->Key("responses").BeginObject();
  json->Key("200").BeginObject().Key("description").String("the answer");
  WriteContent(row, RouteAnswerOf(row), json);
  json->EndObject();
  if (row.route == ApiRoute::kStream) {
    json->Key("204").BeginObject();
    json->Key("description").String("the client has every event of the stream").EndObject();
  }
  const std::string form = "#/components/responses/" + std::string(ErrorFormOf(row.path));
  for (const int status : ErrorStatuses()) {
    json->Key(std::to_string(status)).BeginObject().Key("$ref").String(form).EndObject();
  }
  json->EndObject();
}

void WriteErrorAnswers(JsonWriter* json) {
  json->Key("responses").BeginObject();
  for (const std::string_view name : {kOpenAiError, kMessagesError, kOllamaError}) {
    json->Key(name).BeginObject();
    json->Key("description").String("an error, which names the field and its range");
    json->Key("content").BeginObject().Key("application/json").BeginObject();
    json->Key("schema").BeginObject();
    json->Key("$ref").String("#/components/schemas/" + std::string(name));
    json->EndObject().EndObject().EndObject().EndObject();
  }
  json->EndObject();
}

void WriteErrorSchemas(JsonWriter* json) {
  BeginErrorSchema(kOpenAiError, json);
  BeginErrorObject(json);
  for (const std::string_view name : {"message", "type", "param", "code"}) {
    WriteTextMember(name, name == "param", json);
  }
  json->EndObject().EndObject();
  EndErrorSchema(json);

  BeginErrorSchema(kMessagesError, json);
  WriteTextMember("type", false, json);
  BeginErrorObject(json);
  WriteTextMember("type", false, json);
  WriteTextMember("message", false, json);
  json->EndObject().EndObject();
  EndErrorSchema(json);

  BeginErrorSchema(kOllamaError, json);
  WriteTextMember("error", false, json);
  EndErrorSchema(json);
}

}  // namespace baton::api
