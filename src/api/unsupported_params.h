// Fields of other servers' APIs that would change an answer or a promise and are not implemented
// here. A request that has one with another than its neutral value is refused by name: whoever asks
// for a constrained answer must not take a free one for it. Pure; any thread.
#ifndef BATON_API_UNSUPPORTED_PARAMS_H_
#define BATON_API_UNSUPPORTED_PARAMS_H_

#include <string_view>

#include "src/api/json_value.h"
#include "src/api/params.h"
#include "src/router/request_error.h"

namespace baton::api {

// True for a field of the table: a value of it that is not refused has no effect, so it is not
// named among the ignored fields. It is in no row of ParamTable() at `endpoint`.
bool IsUnsupportedParam(Endpoint endpoint, std::string_view name);

// False when a member of the object `root` asks for what is not implemented: `error` is
// unsupported_parameter and says what the field must be, and what does the same.
bool CheckUnsupportedParams(const JsonValue& root, Endpoint endpoint, router::RequestError* error);

// CheckUnsupported for the message `turn` of a chat, which stands at `path` ("messages[3]").
bool CheckUnsupportedOfTurn(const JsonValue& turn, std::string_view path,
                            router::RequestError* error);

// As IsUnsupported and CheckUnsupported, for a request for embeddings: other values of these fields
// would give another vector.
bool IsUnsupportedOfEmbedding(std::string_view name);
bool CheckUnsupportedOfEmbedding(const JsonValue& root, router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_UNSUPPORTED_PARAMS_H_
