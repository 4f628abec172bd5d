// Request fields that only the chat template reads: what each may be, and where it goes in
// ApiParams. Pure; any thread.
#ifndef BATON_API_TEMPLATE_PARAMS_H_
#define BATON_API_TEMPLATE_PARAMS_H_

#include <cstddef>
#include <string_view>

#include "src/api/params.h"
#include "src/base/json_value.h"
#include "src/base/limits.h"
#include "src/base/numbered_text.h"
#include "src/router/request_error.h"

namespace baton::api {

inline constexpr std::string_view kExpectedDocuments =
    kNumberedText<"an array of at most {} objects", limits::kMaxDocuments>;
inline constexpr std::string_view kExpectedReasoningEffort =
    "one of \"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\", \"max\"";
inline constexpr std::string_view kExpectedTemplateKwargs = kNumberedText<
    "an object of at most {} variables for the chat template, {} KiB of JSON together",
    limits::kMaxTemplateKwargs, (limits::kMaxTemplateKwargsBytes >> 10)>;
inline constexpr std::string_view kExpectedArguments =
    "a JSON object, or the text of one of at most 1 MiB";
inline constexpr std::string_view kExpectedToolCalls =
    "an array of objects {\"id\":string, \"type\":\"function\", \"function\":{\"name\":string, "
    "\"arguments\":text of a JSON object}}";

// Each returns false with `error` set when the value is not what kExpected... says. A variable that
// two fields set to different values is a conflict of the later one.
bool StoreDocuments(const JsonValue& value, ApiParams* params, router::RequestError* error);
bool StoreReasoningEffort(std::string_view field, std::string_view effort, ApiParams* params,
                          router::RequestError* error);
bool StoreTemplateKwargs(const JsonValue& value, ApiParams* params, router::RequestError* error);
// Sets a variable of the template; `field` is the client's own path, here and above.
bool StoreTemplateVariable(std::string_view field, std::string_view name, JsonValue value,
                           ApiParams* params, router::RequestError* error);

// Notes the thoughts of the message `idx`, if it has some, in params->thought_fields.
void AddThoughtField(const text::ChatMessage& message, size_t idx, ApiParams* params);

// The calls of an assistant message as a template reads them: `arguments` is an object even where
// the client sent its text. `at` is the path of the field.
bool ReadToolCalls(const JsonValue& value, std::string_view at, JsonValue* calls,
                   router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_TEMPLATE_PARAMS_H_
