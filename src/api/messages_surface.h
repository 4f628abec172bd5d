// Anthropic's Messages API as a surface (surface.h), and its count of tokens. Pure; any thread.
#ifndef BATON_API_MESSAGES_SURFACE_H_
#define BATON_API_MESSAGES_SURFACE_H_

#include "src/api/surface.h"
#include "src/api/tokenize_json.h"
#include "src/router/request_error.h"

namespace baton::api {

extern const Surface kMessagesSurface;

// {"input_tokens"}: the tokens of the prompt that /v1/messages would make of the same body, which
// needs no max_tokens. False: `error` names the field.
bool AnswerCountTokens(const TextCall& call, TextAnswer* answer, router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_MESSAGES_SURFACE_H_
