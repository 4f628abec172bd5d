// Reads requests of Ollama's API into the fields of a chat or a completion, which the schema table
// knows. Pure; any thread.
#ifndef BATON_API_OLLAMA_PARAMS_H_
#define BATON_API_OLLAMA_PARAMS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/api/json_value.h"
#include "src/api/params.h"
#include "src/api/schema.h"
#include "src/router/request_error.h"
#include "src/router/submit.h"

namespace baton::api {

// The forms of Ollama's generating requests.
enum class OllamaForm : uint8_t {
  kChat,      // /api/chat
  kGenerate,  // /api/generate: a prompt that the chat template renders
  kRaw,       // /api/generate with raw: a prompt as it is
};

// A request as it was read.
struct OllamaRequest {
  ApiParams params;
  std::vector<std::string> ignored;  // as in ReadJsonParams
};

// The fields that the reader knows: fields of every form, fields of one form, and names of a chat's
// fields that pass on unchanged.
std::span<const SurfaceField> OllamaCommonFields();
std::span<const SurfaceField> OllamaFieldsOf(OllamaForm form);
std::span<const std::string_view> OllamaPassedFields();
// The fields of /api/show.
std::span<const SurfaceField> OllamaShowFields();

// False: `error` names the field by Ollama's name for it.
bool ReadOllama(const JsonValue& root, OllamaForm form, OllamaRequest* request,
                router::RequestError* error);

// Refuses a keep_alive that is no duration. Nothing here is unloaded, so a good one changes
// nothing.
bool CheckOllamaKeepAlive(const JsonValue& root, router::RequestError* error);

// True for a request that only loads a model: it has no messages, or no prompt.
bool IsOllamaLoad(const JsonValue& root, OllamaForm form);

// Checks the other fields of such a request. Adds those that change nothing to `ignored`, up to
// kMaxIgnoredNames. False: `error` names a field that another form or another API has.
bool ReadOllamaLoad(const JsonValue& root, OllamaForm form, std::vector<std::string>* ignored,
                    router::RequestError* error);

// True where such a request asks to unload the model: keep_alive is 0.
bool IsOllamaUnload(const JsonValue& root);

// Refuses a request for thoughts where the model has none.
bool CheckOllamaThink(const JsonValue& root, const router::ModelInfo& model,
                      router::RequestError* error);

// Ollama's name for a field of the chat or the completion that a request became: "options.stop".
std::string OllamaField(OllamaForm form, std::string field);
// Gives the fields in an error of such a request Ollama's names.
void NameAsOllama(OllamaForm form, router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_OLLAMA_PARAMS_H_
