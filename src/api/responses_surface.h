// OpenAI's Responses API as a surface, and its count of tokens. The surface keeps no answers: every
// request brings its whole conversation, and no client can fetch an answer again.
#ifndef BATON_API_RESPONSES_SURFACE_H_
#define BATON_API_RESPONSES_SURFACE_H_

#include "src/api/surface.h"
#include "src/api/tokenize_json.h"
#include "src/router/request_error.h"

namespace baton::api {

extern const Surface kResponsesSurface;

// {"object","input_tokens"}: the tokens of the prompt that /v1/responses would make of the same
// body. False: `error` names the field.
bool AnswerInputTokens(const TextCall& call, TextAnswer* answer, router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_RESPONSES_SURFACE_H_
