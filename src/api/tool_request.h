// Tools of a request: how they change it and the reading of its answer, by the style of calls and
// the grammar that forces one. Pure but for the model's cache of grammars; any thread.
#ifndef BATON_API_TOOL_REQUEST_H_
#define BATON_API_TOOL_REQUEST_H_

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "src/api/build_request.h"
#include "src/api/json_value.h"
#include "src/api/params.h"
#include "src/api/tool_calls.h"
#include "src/router/request_error.h"
#include "src/text/tools/tool_style.h"

namespace baton::api {

// Calls that one answer may have where tool_choice demands any. Without a bound a small model calls
// until its tokens are used up.
inline constexpr size_t kMaxForcedCalls = 16;

// The form that an error wants of a keyword in a strict function's schema.
inline constexpr std::string_view kExpectedStrict =
    "a keyword that can be enforced, since the function is strict";

// The schema of a function's arguments: an object that has the declared properties alone, unless
// the schema says otherwise.
JsonValue ArgumentsSchema(const ToolFunction& function);

// The functions that an answer may call, by their places in the request.
std::vector<size_t> CallableOf(const ToolParams& tools);

// The error about a place in the parameters of the tool `idx`. `fault`: "/properties/a/type: what
// is wrong there".
router::RequestError ParametersError(size_t idx, std::string_view fault);

// Sets how the calls of a chat answer are read, which control tokens show in it and which end it.
// `routers`: the style of requests that name none; nothing = as the template says.
void SetToolReading(const ApiParams& params, std::optional<text::ToolStyle> routers,
                    BuiltRequest* built);

// Sets the grammar of an answer that must be a call, or that may be one of a strict function or of
// some functions alone. Where marks of calls are no text, SetToolReading drops the other calls.
// Follows SetToolReading and the rendering of the prompt. False: `error` names the tool's schema.
bool SetToolGrammar(const ApiParams& params, BuiltRequest* built, router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_TOOL_REQUEST_H_
