// Reads the request fields about tools into ApiParams, and says what each may be. Pure; any thread.
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
inline constexpr std::string_view kExpectedToolName =
    kNumberedText<"1 to {} of the characters a-z, A-Z, 0-9, '_', '-' and '.'",
                  limits::kMaxToolNameBytes>;
inline constexpr std::string_view kExpectedParameters =
    "a JSON Schema of an object: an object whose \"type\" is \"object\" or absent";
inline constexpr std::string_view kExpectedToolChoice =
    "\"none\", \"auto\", \"required\", {\"type\":\"function\", \"function\":{\"name\":string}} or "
    "{\"type\":\"allowed_tools\", \"allowed_tools\":{\"mode\":string, \"tools\":array}}";
inline constexpr std::string_view kExpectedAllowed = kNumberedText<
    "an array of at most {} objects {\"type\":\"function\", \"function\":{\"name\":string}} with "
    "names of tools",
    limits::kMaxTools>;
inline constexpr std::string_view kExpectedToolParser =
    "one of \"auto\", \"hermes\", \"qwen3_coder\", \"llama3\", \"gemma\", \"mistral\", "
    "\"harmony\", \"generic\", \"none\"";

// Each returns false with `error` set when the value is not as its kExpected... text says. The chat
// template gets the tools unchanged, as its variable `tools`; an empty array is no tools.
bool StoreTools(const JsonValue& value, ApiParams* params, router::RequestError* error);
bool StoreToolChoice(const JsonValue& value, ApiParams* params, router::RequestError* error);
bool StoreParallelToolCalls(bool parallel, ApiParams* params);
bool StoreToolParser(std::string_view name, ApiParams* params, router::RequestError* error);

// Refuses a tool_choice without tools, or with the name of no tool.
bool CheckTools(const ApiParams& params, router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_TOOL_PARAMS_H_
