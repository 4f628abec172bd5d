#include "src/api/tool_params.h"

#include <string>

#include "fmt/format.h"

#include "src/api/template_params.h"
#include "src/base/limits.h"

namespace baton::api {

using limits::kMaxTools;
using router::ErrorCode;
using router::FieldError;
using router::RequestError;

namespace {

bool Fail(RequestError* error, ErrorCode code, std::string_view field, std::string_view expected) {
  *error = FieldError(code, field, expected);
  return false;
}

// {"type":"function","function":{"name":TEXT, ..}} with more members or without.
bool IsFunction(const JsonValue& value) {
  const JsonValue* type = value.Find("type");
  const JsonValue* function = value.Find("function");
  const JsonValue* name = function == nullptr ? nullptr : function->Find("name");
  return type != nullptr && type->AsString() != nullptr && *type->AsString() == "function" &&
         name != nullptr && name->AsString() != nullptr && !name->AsString()->empty();
}

}  // namespace

bool StoreTools(const JsonValue& value, ApiParams* params, RequestError* error) {
  const JsonValue::Array* tools = value.AsArray();
  if (tools == nullptr) return Fail(error, ErrorCode::kInvalidType, "tools", kExpectedTools);
  if (tools->size() > kMaxTools) {
    return Fail(error, ErrorCode::kInvalidValue, "tools", kExpectedTools);
  }
  for (size_t i = 0; i < tools->size(); ++i) {
    if (IsFunction((*tools)[i])) continue;
    return Fail(error, ErrorCode::kInvalidType, fmt::format("tools[{}]", i), kExpectedTools);
  }
  params->has_tools = !tools->empty();
  return !params->has_tools || StoreTemplateVariable("tools", "tools", value, params, error);
}

bool StoreToolChoice(const JsonValue& value, ApiParams* params, RequestError* error) {
  if (value.AsObject() != nullptr) {
    if (!IsFunction(value)) {
      return Fail(error, ErrorCode::kInvalidType, "tool_choice", kExpectedToolChoice);
    }
    params->tool_choice = ToolChoice::kCall;
    return true;
  }
  const std::string* choice = value.AsString();
  if (choice == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, "tool_choice", kExpectedToolChoice);
  }
  if (*choice == "none") {
    params->tool_choice = ToolChoice::kNone;
  } else if (*choice == "auto") {
    params->tool_choice = ToolChoice::kAuto;
  } else if (*choice == "required") {
    params->tool_choice = ToolChoice::kCall;
  } else {
    return Fail(error, ErrorCode::kInvalidValue, "tool_choice", kExpectedToolChoice);
  }
  return true;
}

bool CheckTools(const ApiParams& params, RequestError* error) {
  if (!params.has_tools && params.tool_choice == ToolChoice::kCall) {
    return Fail(error, ErrorCode::kConflict, "tool_choice", "it needs tools");
  }
  if (!params.has_tools || params.tool_choice == ToolChoice::kNone) return true;
  if (params.tool_choice == ToolChoice::kCall) {
    return Fail(error, ErrorCode::kUnsupported, "tool_choice",
                "\"none\": the calls of an answer are not read yet");
  }
  return Fail(error, ErrorCode::kUnsupported, "tools",
              "absent, or stand beside tool_choice \"none\": the calls of an answer are not read "
              "yet");
}

}  // namespace baton::api
