// Fields of OpenAI's Responses API as those of a chat, which the schema table knows, and the fields
// that an answer repeats. Pure; any thread.
#ifndef BATON_API_RESPONSES_PARAMS_H_
#define BATON_API_RESPONSES_PARAMS_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/api/json_value.h"
#include "src/api/params.h"
#include "src/api/schema.h"
#include "src/api/stored_items.h"
#include "src/router/request_error.h"

namespace baton::api {

// An answer repeats instructions and tools of at most so many bytes of JSON each; larger ones are
// null and []. A stream repeats them three times, beside its text four times, and the bytes that
// wait for one client have a limit (limits::kMaxUnsentBytes).
inline constexpr size_t kMaxRepeatedBytes = size_t{128} << 10;

// A request as it was read.
struct ResponsesRequest {
  ApiParams params;
  std::vector<std::string> ignored;  // as of ReadJsonParams
  bool stores = true;                // later requests may name the answer's items
  bool summarizes = false;           // thoughts are asked for as a summary
  // Members of the answer that repeat the request, each with its JSON: "temperature" and "0.5".
  std::vector<std::pair<std::string_view, std::string>> repeated;
};

// All fields of its own, which the reader goes through and /openapi.json tells. Every other field
// is the chat's, unless IsRefusedByResponses.
std::span<const SurfaceField> ResponsesFields();
bool IsRefusedByResponses(std::string_view name);

// Reads a body of POST /v1/responses. `items`: what its references name; null = nothing. False:
// `error` names the field by the request's own name.
bool ReadResponses(const JsonValue& root, const StoredItems* items, ResponsesRequest* request,
                   router::RequestError* error);

// The name that Responses have for a field of the chat that a request became: "text.format".
std::string ResponsesField(std::string field);
// Gives an error of that chat the names of Responses.
void NameAsResponses(router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_RESPONSES_PARAMS_H_
