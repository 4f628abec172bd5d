// Anthropic's Messages API as a surface (surface.h), and its count of tokens. Pure; any thread.
#ifndef BATON_API_MESSAGES_SURFACE_H_
#define BATON_API_MESSAGES_SURFACE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/api/surface.h"
#include "src/api/tokenize_json.h"
#include "src/router/request_error.h"
#include "src/router/submit.h"

namespace baton::api {

extern const Surface kMessagesSurface;

// {"input_tokens"}: the tokens of the prompt that /v1/messages would make of the same body, which
// needs no max_tokens. False: `error` names the field.
bool AnswerCountTokens(const TextCall& call, TextAnswer* answer, router::RequestError* error);

// The header by which a client of GET /v1/models says that it is Anthropic's.
inline constexpr std::string_view kAnthropicVersionField = "anthropic-version";
// All models on one page, and one of them under one of its names.
std::string MessagesModelsJson(const std::vector<std::shared_ptr<const router::ModelInfo>>& models);
std::string MessagesModelJson(const router::ModelInfo& model, std::string_view name);

}  // namespace baton::api

#endif  // BATON_API_MESSAGES_SURFACE_H_
