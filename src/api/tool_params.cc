#include "src/api/tool_params.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"

#include "src/api/json_fields.h"
#include "src/api/template_params.h"
#include "src/base/ascii_text.h"
#include "src/base/limits.h"

namespace baton::api {

using limits::kMaxToolNameBytes;
using limits::kMaxTools;
using router::ErrorCode;
using router::RequestError;
using text::FindToolStyle;

namespace {

// {"type":"function","function":{"name":TEXT, ..}} with more members or without.
bool IsFunction(const JsonValue& value) {
  const JsonValue* type = value.Find("type");
  const JsonValue* function = value.Find("function");
  const JsonValue* name = function == nullptr ? nullptr : function->Find("name");
  return type != nullptr && type->AsString() != nullptr && *type->AsString() == "function" &&
         name != nullptr && name->AsString() != nullptr;
}

bool IsToolName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::all_of(name.begin(), name.end(), IsNameByte);
}

bool ReadParameters(const JsonValue& function, const std::string& at, JsonValue* parameters,
                    RequestError* error) {
  const JsonValue* schema = function.Find("parameters");
  if (schema == nullptr || schema->is_null()) return true;
  if (schema->AsObject() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, at + ".parameters", kExpectedParameters);
  }
  const JsonValue* type = schema->Find("type");
  const std::string* name = type == nullptr ? nullptr : type->AsString();
  const bool is_object = type == nullptr || type->is_null() ||
                         (name != nullptr && *name == "object") || type->AsArray() != nullptr;
  if (!is_object) {
    return Fail(error, ErrorCode::kInvalidValue, at + ".parameters.type", "\"object\" or absent");
  }
  *parameters = *schema;
  return true;
}

// False: `error` names the member by which the value is no function with a name.
bool CheckFunction(const JsonValue& value, const std::string& at, RequestError* error) {
  constexpr std::string_view kExpectedType =
      "\"function\": custom tools, and tools that a server runs, are not here";
  constexpr std::string_view kExpectedFunction = "an object with name, description and parameters";
  if (value.AsObject() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, at, kExpectedTools);
  }
  const JsonValue* type = GivenMember(value, "type");
  if (type == nullptr) return Fail(error, ErrorCode::kMissingField, at + ".type", kExpectedType);
  if (!IsJsonText(type, "function")) {
    const bool is_other = type->AsString() != nullptr;
    return Fail(error, is_other ? ErrorCode::kUnsupported : ErrorCode::kInvalidType, at + ".type",
                kExpectedType);
  }
  const std::string place = at + ".function";
  const JsonValue* function = GivenMember(value, "function");
  if (function == nullptr) return Fail(error, ErrorCode::kMissingField, place, kExpectedFunction);
  if (function->AsObject() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, place, kExpectedFunction);
  }
  const JsonValue* name = GivenMember(*function, "name");
  if (name == nullptr) {
    return Fail(error, ErrorCode::kMissingField, place + ".name", kExpectedToolName);
  }
  return name->AsString() != nullptr ||
         Fail(error, ErrorCode::kInvalidType, place + ".name", kExpectedToolName);
}

// One tool, at the place `at` of the request.
bool ReadFunction(const JsonValue& value, const std::string& at, ToolFunction* function,
                  RequestError* error) {
  if (!CheckFunction(value, at, error)) return false;
  const JsonValue& inner = *value.Find("function");
  const std::string place = at + ".function";
  function->name = *inner.Find("name")->AsString();
  if (!IsToolName(function->name)) {
    return Fail(error, ErrorCode::kInvalidValue, place + ".name", kExpectedToolName);
  }
  const JsonValue* about = inner.Find("description");
  if (about != nullptr && !about->is_null() && about->AsString() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, place + ".description", "a string or absent");
  }
  const JsonValue* strict = inner.Find("strict");
  if (strict != nullptr && !strict->is_null()) {
    if (strict->AsBool() == nullptr) {
      return Fail(error, ErrorCode::kInvalidType, place + ".strict", "true or false");
    }
    function->strict = *strict->AsBool();
  }
  return ReadParameters(inner, place, &function->parameters, error);
}

}  // namespace

bool StoreTools(const JsonValue& value, ApiParams* params, RequestError* error) {
  const JsonValue::Array* tools = value.AsArray();
  if (tools == nullptr) return Fail(error, ErrorCode::kInvalidType, "tools", kExpectedTools);
  if (tools->size() > kMaxTools) {
    return Fail(error, ErrorCode::kInvalidValue, "tools", kExpectedTools);
  }
  std::vector<ToolFunction> functions(tools->size());
  std::set<std::string_view> names;
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string at = fmt::format("tools[{}]", i);
    if (!ReadFunction((*tools)[i], at, &functions[i], error)) return false;
    if (!names.insert(functions[i].name).second) {
      return Fail(error, ErrorCode::kInvalidValue, at + ".function.name",
                  "another name than those of the tools before it");
    }
  }
  params->tools.functions = std::move(functions);
  return tools->empty() || StoreTemplateVariable("tools", "tools", value, params, error);
}

namespace {

constexpr std::string_view kAllowedField = "tool_choice.allowed_tools";

// {"mode":"auto" or "required","tools":[FUNCTION ..]}, where a function is as IsFunction has it.
bool StoreAllowedTools(const JsonValue& value, ToolParams* tools, RequestError* error) {
  const std::string at(kAllowedField);
  const JsonValue* allowed = GivenMember(value, "allowed_tools");
  if (allowed == nullptr) {
    return Fail(error, ErrorCode::kMissingField, at, "an object with mode and tools");
  }
  const JsonValue* mode = GivenMember(*allowed, "mode");
  const bool must_call = IsJsonText(mode, "required");
  if (!must_call && !IsJsonText(mode, "auto")) {
    return Fail(error, mode == nullptr ? ErrorCode::kMissingField : ErrorCode::kInvalidValue,
                at + ".mode", "\"auto\" or \"required\"");
  }
  const JsonValue* list = GivenMember(*allowed, "tools");
  if (list == nullptr || list->AsArray() == nullptr) {
    return Fail(error, list == nullptr ? ErrorCode::kMissingField : ErrorCode::kInvalidType,
                at + ".tools", kExpectedAllowed);
  }
  if (list->AsArray()->size() > kMaxTools) {
    return Fail(error, ErrorCode::kInvalidValue, at + ".tools", kExpectedAllowed);
  }
  for (size_t i = 0; i < list->AsArray()->size(); ++i) {
    const JsonValue& function = (*list->AsArray())[i];
    if (!IsFunction(function)) {
      return Fail(error, ErrorCode::kInvalidType, fmt::format("{}.tools[{}]", at, i),
                  kExpectedAllowed);
    }
    tools->allowed.try_emplace(*function.Find("function")->Find("name")->AsString(), i);
  }
  if (tools->allowed.empty() && must_call) {
    return Fail(error, ErrorCode::kConflict, "tool_choice", "\"required\" needs an allowed tool");
  }
  tools->choice = must_call ? ToolChoice::kRequired : ToolChoice::kAuto;
  if (tools->allowed.empty()) tools->choice = ToolChoice::kNone;
  return true;
}

}  // namespace

bool StoreToolChoice(const JsonValue& value, ApiParams* params, RequestError* error) {
  ToolParams& tools = params->tools;
  tools.allowed.clear();
  if (value.AsObject() != nullptr) {
    if (IsJsonText(value.Find("type"), "allowed_tools")) {
      return StoreAllowedTools(value, &tools, error);
    }
    if (!IsFunction(value)) {
      return Fail(error, ErrorCode::kInvalidType, "tool_choice", kExpectedToolChoice);
    }
    tools.choice = ToolChoice::kNamed;
    tools.allowed = {{*value.Find("function")->Find("name")->AsString(), 0}};
    return true;
  }
  const std::string* choice = value.AsString();
  if (choice == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, "tool_choice", kExpectedToolChoice);
  }
  if (*choice == "none") {
    tools.choice = ToolChoice::kNone;
  } else if (*choice == "auto") {
    tools.choice = ToolChoice::kAuto;
  } else if (*choice == "required") {
    tools.choice = ToolChoice::kRequired;
  } else {
    return Fail(error, ErrorCode::kInvalidValue, "tool_choice", kExpectedToolChoice);
  }
  return true;
}

bool StoreParallelToolCalls(bool parallel, ApiParams* params) {
  params->tools.parallel = parallel;
  return true;
}

bool StoreToolParser(std::string_view name, ApiParams* params, RequestError* error) {
  params->tools.style = FindToolStyle(name);
  if (params->tools.style.has_value() || name == "auto") return true;
  return Fail(error, ErrorCode::kInvalidValue, "tool_parser", kExpectedToolParser);
}

bool CheckTools(const ApiParams& params, RequestError* error) {
  const ToolParams& tools = params.tools;
  if (!tools.must_call() && tools.allowed.empty()) return true;
  if (tools.functions.empty()) {
    return Fail(error, ErrorCode::kConflict, "tool_choice", "it needs tools");
  }
  std::set<std::string_view> offered;
  for (const ToolFunction& tool : tools.functions) offered.insert(tool.name);
  size_t first_missing = SIZE_MAX;
  for (const auto& [name, place] : tools.allowed) {
    if (!offered.contains(name)) first_missing = std::min(first_missing, place);
  }
  if (first_missing == SIZE_MAX) return true;
  if (tools.choice == ToolChoice::kNamed) {
    return Fail(error, ErrorCode::kInvalidValue, "tool_choice",
                "\"none\", \"auto\", \"required\" or the name of one of tools");
  }
  return Fail(error, ErrorCode::kInvalidValue,
              fmt::format("{}.tools[{}]", kAllowedField, first_missing), kExpectedAllowed);
}

}  // namespace baton::api
