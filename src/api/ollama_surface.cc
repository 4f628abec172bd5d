#include "src/api/ollama_surface.h"

#include <string>
#include <utility>

#include "src/api/ollama_json.h"
#include "src/api/ollama_params.h"

namespace baton::api {

using router::RequestError;

namespace {

template <OllamaForm kForm>
bool Read(const SurfaceCall& call, SurfaceRequest* request, RequestError* error) {
  OllamaRequest read;
  if (!ReadOllama(call.body, kForm, &read, error)) return false;
  request->params = std::move(read.params);
  request->ignored = std::move(read.ignored);
  std::string model = request->params.model;
  request->make_writer = [model = std::move(model)](AnswerPlan plan) {
    return MakeOllamaWriter(std::move(plan), kForm, model);
  };
  return true;
}

template <OllamaForm kForm>
std::string ErrorBody(const RequestError& error, std::string_view /*request_id*/) {
  RequestError named = error;
  NameAsOllama(kForm, &named);
  return OllamaErrorJson(named);
}

template <OllamaForm kForm>
std::string FieldOf(std::string field) {
  return OllamaField(kForm, std::move(field));
}

// Clients read every line of a stream as JSON, so a silent one gets no filler.
template <OllamaForm kForm>
constexpr Surface MakeSurface() {
  return {.endpoint = kForm == OllamaForm::kRaw ? Endpoint::kCompletion : Endpoint::kChat,
          .answer_id_prefix = "ollama-",
          .stream_type = "application/x-ndjson",
          .ping = "",
          .may_have_tag = true,
          .read = &Read<kForm>,
          .name_field = &FieldOf<kForm>,
          .error_body = &ErrorBody<kForm>};
}

}  // namespace

constexpr Surface kOllamaChatSurface = MakeSurface<OllamaForm::kChat>();
constexpr Surface kOllamaGenerateSurface = MakeSurface<OllamaForm::kGenerate>();
constexpr Surface kOllamaRawSurface = MakeSurface<OllamaForm::kRaw>();

}  // namespace baton::api
