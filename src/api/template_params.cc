#include "src/api/template_params.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "fmt/format.h"

#include "src/api/json_fields.h"
#include "src/api/json_value.h"
#include "src/api/read_json.h"
#include "src/base/limits.h"

namespace baton::api {

using limits::kMaxDocuments;
using limits::kMaxTemplateKwargs;
using limits::kMaxTemplateKwargsBytes;
using router::ErrorCode;
using router::RequestError;
using text::ChatMessage;
using text::IsReservedVariable;

namespace {

constexpr size_t kMaxArgumentsBytes = size_t{1} << 20;
// Variables that have a field of their own.
constexpr std::array<std::string_view, 2> kOwnFields = {"tools", "documents"};

// A Jinja name: a letter or '_', then letters, digits and '_'.
bool IsVariableName(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !name.empty() && name.size() <= 64 && is_letter(name.front()) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

// The arguments of a call as an object; an absent or empty text is no arguments, as is "null",
// which models write for functions without any.
bool ReadArguments(const JsonValue* value, const std::string& at, JsonValue* arguments,
                   RequestError* error) {
  *arguments = JsonValue(JsonValue::Object());
  if (value == nullptr || value->is_null()) return true;
  if (value->AsObject() != nullptr) {
    *arguments = *value;
    return true;
  }
  const std::string* text = value->AsString();
  if (text == nullptr) return Fail(error, ErrorCode::kInvalidType, at, kExpectedArguments);
  if (text->empty()) return true;
  RequestError ignored;
  const bool is_object =
      text->size() <= kMaxArgumentsBytes && ParseJson(*text, arguments, &ignored) &&
      (arguments->AsObject() != nullptr || arguments->is_null()) && !HasHugeNumber(*arguments);
  if (is_object && arguments->is_null()) *arguments = JsonValue(JsonValue::Object());
  return is_object || Fail(error, ErrorCode::kInvalidValue, at, kExpectedArguments);
}

bool ReadFunction(const JsonValue* value, const std::string& at, JsonValue* function,
                  RequestError* error) {
  const JsonValue* name = value == nullptr ? nullptr : value->Find("name");
  if (name == nullptr || name->AsString() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, at, "an object with the string \"name\"");
  }
  JsonValue arguments;
  if (!ReadArguments(value->Find("arguments"), at + ".arguments", &arguments, error)) return false;
  JsonValue::Object members;
  for (const auto& [key, member] : *value->AsObject()) {
    members.emplace_back(key, key == "arguments" ? arguments : member);
  }
  if (value->Find("arguments") == nullptr) members.emplace_back("arguments", std::move(arguments));
  *function = JsonValue(std::move(members));
  return true;
}

}  // namespace

bool StoreTemplateVariable(std::string_view field, std::string_view name, JsonValue value,
                           ApiParams* params, RequestError* error) {
  for (const auto& [present, other] : params->template_variables) {
    if (present != name) continue;
    if (JsonOf(other) == JsonOf(value)) return true;
    return Fail(error, ErrorCode::kConflict, field,
                fmt::format("another field gives the template's variable {} another value", name));
  }
  params->template_variables.emplace_back(std::string(name), std::move(value));
  params->variable_fields.emplace_back(field);
  return true;
}

bool StoreDocuments(const JsonValue& value, ApiParams* params, RequestError* error) {
  const JsonValue::Array* documents = value.AsArray();
  const bool are_objects =
      documents != nullptr &&
      std::all_of(documents->begin(), documents->end(),
                  [](const JsonValue& document) { return document.AsObject() != nullptr; });
  if (!are_objects) return Fail(error, ErrorCode::kInvalidType, "documents", kExpectedDocuments);
  if (documents->size() > kMaxDocuments) {
    return Fail(error, ErrorCode::kInvalidValue, "documents", kExpectedDocuments);
  }
  return StoreTemplateVariable("documents", "documents", value, params, error);
}

bool StoreReasoningEffort(std::string_view field, std::string_view effort, ApiParams* params,
                          RequestError* error) {
  constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                        "high", "xhigh",   "max"};
  if (std::find(kEfforts.begin(), kEfforts.end(), effort) == kEfforts.end()) {
    return Fail(error, ErrorCode::kInvalidValue, field, kExpectedReasoningEffort);
  }
  return StoreTemplateVariable(field, "reasoning_effort", JsonValue(std::string(effort)), params,
                               error);
}

bool StoreTemplateKwargs(const JsonValue& value, ApiParams* params, RequestError* error) {
  constexpr std::string_view kField = "chat_template_kwargs";
  const JsonValue::Object* variables = value.AsObject();
  if (variables == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, kField, kExpectedTemplateKwargs);
  }
  if (variables->size() > kMaxTemplateKwargs || JsonOf(value).size() > kMaxTemplateKwargsBytes) {
    return Fail(error, ErrorCode::kInvalidValue, kField, kExpectedTemplateKwargs);
  }
  for (const auto& [name, variable] : *variables) {
    if (!IsVariableName(name)) {
      return Fail(error, ErrorCode::kInvalidValue, kField,
                  "an object whose names are letters, digits and '_', at most 64 of them");
    }
    const std::string at = fmt::format("{}.{}", kField, name);
    const bool has_own_field =
        std::find(kOwnFields.begin(), kOwnFields.end(), name) != kOwnFields.end();
    if (IsReservedVariable(name) || has_own_field) {
      return Fail(error, ErrorCode::kUnsupported, at,
                  "absent: the server sets this variable itself or from a field of this name");
    }
    if (!StoreTemplateVariable(at, name, variable, params, error)) return false;
  }
  return true;
}

void AddThoughtField(const ChatMessage& message, size_t idx, ApiParams* params) {
  for (const auto& [name, value] : message.members) {
    if (name != "reasoning_content" && name != "reasoning" && name != "thinking") continue;
    const std::string* thoughts = value.AsString();
    if (thoughts == nullptr || thoughts->empty()) continue;
    if (params->thought_fields.size() == kMaxIgnoredNames) return;
    params->thought_fields.push_back(fmt::format("messages[{}].{}", idx, name));
  }
}

bool ReadToolCalls(const JsonValue& value, std::string_view at, JsonValue* calls,
                   RequestError* error) {
  const JsonValue::Array* array = value.AsArray();
  if (array == nullptr) return Fail(error, ErrorCode::kInvalidType, at, kExpectedToolCalls);
  JsonValue::Array read;
  read.reserve(array->size());
  for (size_t i = 0; i < array->size(); ++i) {
    const std::string place = fmt::format("{}[{}]", at, i);
    const JsonValue& call = (*array)[i];
    const JsonValue* type = call.Find("type");
    const bool is_function = type == nullptr || type->is_null() ||
                             (type->AsString() != nullptr && *type->AsString() == "function");
    if (call.AsObject() == nullptr || !is_function) {
      return Fail(error, ErrorCode::kInvalidType, place, kExpectedToolCalls);
    }
    JsonValue function;
    if (!ReadFunction(call.Find("function"), place + ".function", &function, error)) return false;
    JsonValue::Object members;
    for (const auto& [key, member] : *call.AsObject()) {
      members.emplace_back(key, key == "function" ? function : member);
    }
    read.emplace_back(std::move(members));
  }
  *calls = JsonValue(std::move(read));
  return true;
}

}  // namespace baton::api
