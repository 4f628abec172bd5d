#include "src/api/openapi_json.h"

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "src/api/answer_schemas.h"
#include "src/api/api_paths.h"
#include "src/api/embeddings_surface.h"
#include "src/api/json_writer.h"
#include "src/api/ollama_params.h"
#include "src/api/openapi_answers.h"
#include "src/api/read_json.h"
#include "src/api/responses_params.h"
#include "src/api/schema.h"
#include "src/api/tokenize_json.h"
#include "src/base/version.h"
#include "src/http/http_message.h"

namespace baton::api {

using http::LowerCase;

namespace {

// Writes `type` as a name or an array of names; nothing for an empty mask.
void WriteTypes(unsigned types, JsonWriter* json) {
  constexpr auto kNames =
      std::to_array<std::pair<unsigned, std::string_view>>({{kJsonBool, "boolean"},
                                                            {kJsonInteger, "integer"},
                                                            {kJsonNumber, "number"},
                                                            {kJsonString, "string"},
                                                            {kJsonArray, "array"},
                                                            {kJsonObject, "object"}});
  if (types == 0) return;
  json->Key("type").BeginArray();
  for (const auto& [type, name] : kNames) {
    if ((types & type) != 0) json->String(name);
  }
  json->EndArray();
}

unsigned TypesOf(const ParamRow& row, SpecialParam special) {
  switch (special) {
    case SpecialParam::kMessages:
    case SpecialParam::kPromptTokenIds:
    case SpecialParam::kTools:
    case SpecialParam::kDocuments:
      return kJsonArray;
    case SpecialParam::kPrompt:
      return kJsonString | kJsonArray;
    case SpecialParam::kStreamOptions:
    case SpecialParam::kTemplateKwargs:
      return kJsonObject;
    case SpecialParam::kToolChoice:
      return kJsonString | kJsonObject;
    case SpecialParam::kParallelToolCalls:
      return kJsonBool;
    case SpecialParam::kReasoningFormat:
    case SpecialParam::kReasoningEffort:
    case SpecialParam::kPath:
      return kJsonString;
    case SpecialParam::kOfSurface:
      return row.json_types;
    default:
      return 0;  // any: the description says it
  }
}

// The members that say the type of one parameter; `json` stands inside its schema.
class TypeWriter {
 public:
  TypeWriter(const ParamRow& row, JsonWriter* json) : row_(row), json_(json) {}

  void operator()(std::optional<int64_t> ApiParams::* /*target*/) const {
    Type("integer");
    if (row_.max >= 9e18) return;  // any integer of 64 bits
    json_->Key("minimum").Int(static_cast<int64_t>(row_.min));
    json_->Key("maximum").Int(static_cast<int64_t>(row_.max));
  }
  void operator()(std::optional<double> ApiParams::* /*target*/) const {
    Type("number");
    json_->Key(row_.min_exclusive ? "exclusiveMinimum" : "minimum").Double(row_.min);
    json_->Key("maximum").Double(row_.max);
  }
  void operator()(std::optional<bool> ApiParams::* /*target*/) const { Type("boolean"); }
  void operator()(std::string ApiParams::* /*target*/) const { Type("string"); }
  void operator()(std::vector<std::string> ApiParams::* /*target*/) const {
    json_->Key("type").BeginArray().String("string").String("array").EndArray();
    Items("string");
  }
  void operator()(std::vector<int64_t> ApiParams::* /*target*/) const {
    Type("array");
    Items("integer");
  }
  void operator()(LogitBias ApiParams::* /*target*/) const {
    Type("object");
    json_->Key("additionalProperties").BeginObject().Key("type").String("number");
    json_->Key("minimum").Double(row_.min).Key("maximum").Double(row_.max).EndObject();
    json_->Key("maxProperties").Uint(row_.max_items);
  }
  // The description says what stands inside them.
  void operator()(SpecialParam special) const { WriteTypes(TypesOf(row_, special), json_); }

 private:
  void Type(std::string_view type) const { json_->Key("type").String(type); }
  void Items(std::string_view type) const {
    json_->Key("items").BeginObject().Key("type").String(type).EndObject();
    json_->Key("maxItems").Uint(row_.max_items);
  }

  const ParamRow& row_;
  JsonWriter* const json_;
};

void WriteRow(const ParamRow& row, JsonWriter* json) {
  json->Key(row.name).BeginObject();
  std::visit(TypeWriter(row, json), row.target);
  json->Key("description").String(ExpectedOf(row)).EndObject();
}

// Rows of the table for a chat.
void WriteChatRows(std::span<const std::string_view> names, JsonWriter* json) {
  for (const std::string_view name : names) WriteRow(*FindParam(Endpoint::kChat, name), json);
}

// The schema of a body up to its properties; EndBody ends it.
void BeginBody(JsonWriter* json) {
  json->BeginObject().Key("type").String("object").Key("properties").BeginObject();
}
// `required`: the field that the body needs; "" = none.
void EndBody(std::string_view required, JsonWriter* json) {
  json->EndObject();
  if (!required.empty()) json->Key("required").BeginArray().String(required).EndArray();
  json->EndObject();
}

// `needs_length`: the answer's length must be given.
void WriteRequestSchema(Endpoint endpoint, bool needs_length, JsonWriter* json) {
  BeginBody(json);
  for (const ParamRow& row : ParamTable()) {
    if (row.AppliesTo(endpoint)) WriteRow(row, json);
  }
  json->EndObject().Key("required").BeginArray();
  json->String(IsConversation(endpoint) ? "messages" : "prompt");
  if (needs_length) json->String("max_tokens");
  json->EndArray().EndObject();
}

// Writes the fields that are not refused.
void WriteSurfaceFields(std::span<const SurfaceField> fields, JsonWriter* json) {
  for (const SurfaceField& field : fields) {
    if (field.json_types == 0) continue;
    json->Key(field.name).BeginObject();
    WriteTypes(field.json_types, json);
    json->Key("description").String(field.expected).EndObject();
  }
}

// The fields that are Responses' own, and the chat's that it passes on.
void WriteResponsesSchema(JsonWriter* json) {
  BeginBody(json);
  WriteSurfaceFields(ResponsesFields(), json);
  for (const ParamRow& row : ParamTable()) {
    const bool is_own = IsRefusedByResponses(row.name) || HasField(ResponsesFields(), row.name);
    if (row.AppliesTo(Endpoint::kChat) && !is_own) WriteRow(row, json);
  }
  EndBody("input", json);
}

void WriteOllamaSchema(OllamaForm form, JsonWriter* json) {
  BeginBody(json);
  WriteChatRows(OllamaPassedFields(), json);
  WriteSurfaceFields(OllamaFieldsOf(form), json);
  WriteSurfaceFields(OllamaCommonFields(), json);
  EndBody("", json);
}

// `fields`: of the surface, beside those of a completion that it passes on. The first is needed.
void WriteEmbeddingsSchema(std::span<const SurfaceField> fields, JsonWriter* json) {
  BeginBody(json);
  WriteSurfaceFields(fields, json);
  for (const std::string_view name : EmbeddingsPassedFields()) {
    WriteRow(*FindParam(Endpoint::kCompletion, name), json);
  }
  EndBody(fields.front().name, json);
}

// Bodies of the paths that compute no answer.
void WriteTextSchemas(JsonWriter* json) {
  json->Key("TokenizeRequest");
  BeginBody(json);
  WriteSurfaceFields(TokenizeFields(), json);
  WriteChatRows(TemplateFieldNames(), json);
  EndBody("", json);
  json->Key("DetokenizeRequest");
  BeginBody(json);
  WriteSurfaceFields(DetokenizeFields(), json);
  EndBody("tokens", json);
  constexpr std::string_view kModel[] = {"model"};
  json->Key("ApplyTemplateRequest");
  BeginBody(json);
  WriteChatRows(kModel, json);
  WriteChatRows(TemplateFieldNames(), json);
  EndBody("messages", json);
  json->Key("OllamaShowRequest");
  BeginBody(json);
  WriteSurfaceFields(OllamaShowFields(), json);
  EndBody("", json);
}

// A parameter of a path or a header; `json` stands inside the list of parameters.
void WriteParameter(std::string_view name, std::string_view where, std::string_view description,
                    JsonWriter* json) {
  json->BeginObject().Key("name").String(name).Key("in").String(where);
  json->Key("required").Bool(where == "path");
  if (!description.empty()) json->Key("description").String(description);
  json->Key("schema").BeginObject().Key("type").String("string").EndObject();
  json->EndObject();
}

void WriteParameters(const ApiPath& row, JsonWriter* json) {
  json->Key("parameters").BeginArray();
  if (!row.last.empty()) WriteParameter(row.last, "path", "", json);
  if (row.route == ApiRoute::kStream) {
    WriteParameter("Last-Event-ID", "header",
                   "the id of the last event that the client has; absent = from the first event",
                   json);
  }
  if (MayBeResumable(row.route)) {
    WriteParameter("X-Baton-Resumable", "header",
                   "1: the events of a stream have ids, and GET /v1/streams/{stream} resumes it",
                   json);
  }
  json->EndArray();
}

void WritePath(const ApiPath& row, JsonWriter* json) {
  std::string path(row.path);
  if (!row.last.empty()) path += "{" + std::string(row.last) + "}";
  json->Key(path).BeginObject();
  json->Key(LowerCase(row.method)).BeginObject();
  json->Key("summary").String(row.summary);
  if (!row.last.empty() || MayBeResumable(row.route)) WriteParameters(row, json);
  if (row.method == "POST") {
    json->Key("requestBody").BeginObject().Key("required").Bool(true);
    json->Key("content").BeginObject().Key("application/json").BeginObject();
    json->Key("schema").BeginObject();
    if (row.schema.empty()) {
      json->Key("type").String("object");
    } else {
      json->Key("$ref").String("#/components/schemas/" + std::string(row.schema));
    }
    json->EndObject().EndObject().EndObject().EndObject();
  }
  WritePathAnswers(row, json);
  json->EndObject().EndObject();
}

}  // namespace

std::string OpenApiJson() {
  JsonWriter json;
  json.BeginObject().Key("openapi").String("3.1.0");
  json.Key("info").BeginObject().Key("title").String("Baton").Key("version").String(kVersion);
  json.EndObject().Key("paths").BeginObject();
  for (const ApiPath& row : kApiPaths) {
    if (!row.summary.empty()) WritePath(row, &json);
  }
  json.EndObject().Key("components").BeginObject().Key("schemas").BeginObject();
  json.Key("ChatCompletionRequest");
  WriteRequestSchema(Endpoint::kChat, false, &json);
  json.Key("CompletionRequest");
  WriteRequestSchema(Endpoint::kCompletion, false, &json);
  json.Key("MessagesRequest");
  WriteRequestSchema(Endpoint::kMessages, true, &json);
  json.Key("CountTokensRequest");
  WriteRequestSchema(Endpoint::kMessages, false, &json);
  json.Key("ResponsesRequest");
  WriteResponsesSchema(&json);
  json.Key("EmbeddingsRequest");
  WriteEmbeddingsSchema(EmbeddingsFields(), &json);
  json.Key("OllamaEmbedRequest");
  WriteEmbeddingsSchema(OllamaEmbedFields(), &json);
  json.Key("OllamaEmbeddingsRequest");
  WriteEmbeddingsSchema(OllamaEmbeddingsFields(), &json);
  json.Key("OllamaChatRequest");
  WriteOllamaSchema(OllamaForm::kChat, &json);
  json.Key("OllamaGenerateRequest");
  WriteOllamaSchema(OllamaForm::kGenerate, &json);
  WriteTextSchemas(&json);
  WriteAnswerSchemas(&json);
  WriteErrorSchemas(&json);
  json.EndObject();
  WriteErrorAnswers(&json);
  json.EndObject().EndObject();
  return json.Take();
}

}  // namespace baton::api
