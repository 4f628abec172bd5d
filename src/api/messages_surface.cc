#include "src/api/messages_surface.h"

#include <utility>

#include "fmt/chrono.h"

#include "src/api/json_fields.h"
#include "src/api/json_writer.h"
#include "src/api/messages_json.h"
#include "src/api/messages_read.h"
#include "src/api/read_json.h"
#include "src/api/schema.h"

namespace baton::api {

using router::ErrorCode;
using router::ModelInfo;
using router::RequestError;
using text::ChatPrompt;

namespace {

bool Read(const SurfaceCall& call, SurfaceRequest* request, RequestError* error) {
  MessagesForm form;
  ApiParams& params = request->params;
  if (!ReadMessages(call.body, &params, &form, &request->ignored, error)) return false;
  if (!params.max_tokens.has_value()) {
    return Fail(error, ErrorCode::kMissingField, "max_tokens",
                ExpectedOf(*FindParam(Endpoint::kMessages, "max_tokens")));
  }
  request->make_writer = [form](AnswerPlan plan) {
    return std::make_unique<MessagesWriter>(std::move(plan), form);
  };
  return true;
}

void WriteModel(const ModelInfo& model, std::string_view name, JsonWriter* json) {
  const auto created = static_cast<std::time_t>(model.created_unix_s);
  json->BeginObject().Key("type").String("model").Key("id").String(name);
  json->Key("display_name").String(name);
  json->Key("created_at").String(fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(created)));
  json->Key("lifecycle").String("active");
  json->Key("max_input_tokens").Uint(model.max_context);
  json->Key("max_tokens").Uint(model.max_context);
  json->EndObject();
}

}  // namespace

constexpr Surface kMessagesSurface = {.endpoint = Endpoint::kMessages,
                                      .answer_id_prefix = "msg_",
                                      .ping = kMessagesPing,
                                      .request_id_field = "request-id",
                                      .read = &Read,
                                      .name_field = &MessagesField,
                                      .error_body = &MessagesErrorJson};

bool AnswerCountTokens(const TextCall& call, TextAnswer* answer, RequestError* error) {
  ApiParams params;
  MessagesForm form;
  ChatPrompt prompt;
  if (!ReadMessages(call.body, &params, &form, &answer->ignored, error) ||
      !RenderMessages(call.model, params, call.wall_unix_ms, &prompt, error)) {
    return false;
  }
  AddUnread(UnreadVariables(call.model, params), &answer->ignored);
  JsonWriter json;
  json.BeginObject().Key("input_tokens").Uint(prompt.tokens.size()).EndObject();
  answer->json = json.Take();
  return true;
}

std::string MessagesModelsJson(const std::vector<std::shared_ptr<const ModelInfo>>& models) {
  JsonWriter json;
  std::vector<std::string_view> names;
  json.BeginObject().Key("data").BeginArray();
  for (const auto& model : models) {
    const size_t first = names.size();
    if (model->names.empty()) names.push_back(model->id);
    names.insert(names.end(), model->names.begin(), model->names.end());
    for (size_t i = first; i < names.size(); ++i) WriteModel(*model, names[i], &json);
  }
  json.EndArray().Key("has_more").Bool(false);
  for (const auto& [key, is_first] : {std::pair("first_id", true), std::pair("last_id", false)}) {
    json.Key(key);
    if (names.empty()) {
      json.Null();
    } else {
      json.String(is_first ? names.front() : names.back());
    }
  }
  json.EndObject();
  return json.Take();
}

std::string MessagesModelJson(const ModelInfo& model, std::string_view name) {
  JsonWriter json;
  WriteModel(model, name, &json);
  return json.Take();
}

}  // namespace baton::api
