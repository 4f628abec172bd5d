// The endpoints of Ollama's API; see http_api.h.

#include "src/api/http_api.h"
#include "src/api/json_fields.h"
#include "src/api/ollama_json.h"
#include "src/api/ollama_params.h"
#include "src/api/ollama_surface.h"
#include "src/api/read_json.h"

namespace baton::api {

using router::RequestError;

namespace {

constexpr std::string_view kJsonType = "application/json";

}  // namespace

void HttpApi::PostOllamaChat(Exchange& exchange, const JsonValue& body) {
  PostOllama(exchange, body, OllamaForm::kChat);
}

void HttpApi::PostOllamaGenerate(Exchange& exchange, const JsonValue& body) {
  const JsonValue* raw = GivenMember(body, "raw");
  const bool is_raw = raw != nullptr && raw->AsBool() != nullptr && *raw->AsBool();
  if (is_raw) exchange.surface = &kOllamaRawSurface;
  PostOllama(exchange, body, is_raw ? OllamaForm::kRaw : OllamaForm::kGenerate);
}

void HttpApi::PostOllama(Exchange& exchange, const JsonValue& body, OllamaForm form) {
  const auto model = ModelOf(exchange, body);
  if (model == nullptr) return;
  RequestError error;
  if (!CheckOllamaKeepAlive(body, &error)) return Refuse(exchange, error);
  if (IsOllamaLoad(body, form)) {
    const JsonValue* name = GivenMember(body, "model");
    if (!ReadOllamaLoad(body, form, &exchange.ignored, &error)) return Refuse(exchange, error);
    return Send(
        exchange,
        OllamaLoadJson(form, name == nullptr ? model->name() : *name->AsString(),
                       IsOllamaUnload(body) ? "unload" : "load", exchange.arrival.wall_unix_ms),
        kJsonType);
  }
  if (!CheckOllamaThink(body, *model, &error)) return Refuse(exchange, error);
  Generate(exchange, body);
}

void HttpApi::PostOllamaShow(Exchange& exchange, const JsonValue& body) {
  const bool is_older =
      GivenMember(body, "model") == nullptr && GivenMember(body, "name") != nullptr;
  const auto model = ModelOf(exchange, body, is_older ? "name" : "model");
  if (model == nullptr) return;
  exchange.ignored = IgnoredJsonFields(body, {"model", "name"});
  Send(exchange, OllamaShowJson(*model), kJsonType);
}

}  // namespace baton::api
