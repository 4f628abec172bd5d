// Short words for readers that turn one JSON form of a request into another. Pure; any thread.
#ifndef BATON_API_JSON_FIELDS_H_
#define BATON_API_JSON_FIELDS_H_

#include <string>
#include <string_view>
#include <utility>

#include "src/base/json_value.h"
#include "src/router/request_error.h"

namespace baton::api {

inline JsonValue JsonText(std::string_view text) { return JsonValue(std::string(text)); }

inline std::string JsonOf(const JsonValue& value) {
  std::string text;
  AppendJson(value, &text);
  return text;
}

// A function as chats have it: {"type":"function","function":{"name":TEXT, ..}}.
inline JsonValue ChatFunction(JsonValue::Object function) {
  return JsonValue(JsonValue::Object{{"type", JsonText("function")},
                                     {"function", JsonValue(std::move(function))}});
}

// The member of that name; null where it is absent or null, or where `object` is none.
inline const JsonValue* GivenMember(const JsonValue& object, std::string_view name) {
  const JsonValue* value = object.Find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

inline bool IsJsonText(const JsonValue* value, std::string_view text) {
  return value != nullptr && value->AsString() != nullptr && *value->AsString() == text;
}

// A field that a surface does not serve, and what to use instead.
struct RefusedField {
  std::string_view name;
  std::string_view way;
};

// False, with `error` about the field.
inline bool Fail(router::RequestError* error, router::ErrorCode code, std::string_view field,
                 std::string_view expected) {
  *error = router::FieldError(code, field, expected);
  return false;
}

}  // namespace baton::api

#endif  // BATON_API_JSON_FIELDS_H_
