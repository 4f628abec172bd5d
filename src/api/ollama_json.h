// Answers of Ollama's API: lines of JSON, one object, and what it tells of models. Plain; one
// thread at a time.
#ifndef BATON_API_OLLAMA_JSON_H_
#define BATON_API_OLLAMA_JSON_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/api/answer_writer.h"
#include "src/api/build_request.h"
#include "src/api/ollama_params.h"
#include "src/router/request_error.h"
#include "src/router/submit.h"

namespace baton::api {

// The writer of an answer. `model`: the name that the client asked for, "" = the model's own. Every
// line that a stream has adds text, a call or a log-probability; the last one has the counts.
std::unique_ptr<AnswerWriter> MakeOllamaWriter(AnswerPlan plan, OllamaForm form, std::string model);

// {"error": text}.
std::string OllamaErrorJson(const router::RequestError& error);
// The answer to a request that only loads or unloads a model; all stay loaded. `reason`: "load" or
// "unload".
std::string OllamaLoadJson(OllamaForm form, std::string_view model, std::string_view reason,
                           int64_t wall_unix_ms);

using ModelList = std::vector<std::shared_ptr<const router::ModelInfo>>;
// /api/tags, /api/ps, /api/show and /api/version. A router knows neither sizes nor digests.
std::string OllamaTagsJson(const ModelList& models);
std::string OllamaPsJson(const ModelList& models);
std::string OllamaShowJson(const router::ModelInfo& model);
std::string OllamaVersionJson();

}  // namespace baton::api

#endif  // BATON_API_OLLAMA_JSON_H_
