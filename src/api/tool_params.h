// The request fields `tools` and `tool_choice`: what each may be, and where it goes in ApiParams.
// Pure; any thread.
#ifndef BATON_API_TOOL_PARAMS_H_
#define BATON_API_TOOL_PARAMS_H_

#include <cstddef>
#include <string_view>

#include "src/api/params.h"
#include "src/base/json_value.h"
#include "src/base/limits.h"
#include "src/base/numbered_text.h"
#include "src/router/request_error.h"

namespace baton::api {

inline constexpr std::string_view kExpectedTools = kNumberedText<
    "an array of at most {} objects "
    "{\"type\":\"function\", \"function\":{\"name\":string, ..}}",
    limits::kMaxTools>;
inline constexpr std::string_view kExpectedToolChoice =
    "\"none\", \"auto\", \"required\" or {\"type\":\"function\", \"function\":{\"name\":string}}";

// Each returns false with `error` set when the value is not what kExpected... says. Tools become
// the template's variable of that name; an empty array is none.
bool StoreTools(const JsonValue& value, ApiParams* params, router::RequestError* error);
bool StoreToolChoice(const JsonValue& value, ApiParams* params, router::RequestError* error);

// Refuses what needs a reader of tool calls: tools that the model may call, and a choice that asks
// for a call.
bool CheckTools(const ApiParams& params, router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_TOOL_PARAMS_H_
