#include "src/api/tool_shapes.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "src/api/json_fields.h"

namespace baton::api {

using text::ToolShape;

namespace {

uint8_t TypeBit(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, uint8_t>, 7> kBits = {{
      {"string", text::kJsonText},
      {"number", text::kJsonNumber},
      {"integer", text::kJsonNumber},
      {"boolean", text::kJsonBool},
      {"null", text::kJsonNull},
      {"object", text::kJsonObject},
      {"array", text::kJsonArray},
  }};
  for (const auto& [known, bit] : kBits) {
    if (known == name) return bit;
  }
  return 0;
}

// The types that a schema names, as bits; 0 = it names none that is understood.
uint8_t TypesOf(const JsonValue& schema) {
  uint8_t types = 0;
  const JsonValue* type = schema.Find("type");
  if (type != nullptr && type->AsString() != nullptr) types |= TypeBit(*type->AsString());
  if (type != nullptr && type->AsArray() != nullptr) {
    for (const JsonValue& one : *type->AsArray()) {
      if (one.AsString() != nullptr) types |= TypeBit(*one.AsString());
    }
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const JsonValue* list = schema.Find(key);
    if (list == nullptr || list->AsArray() == nullptr) continue;
    for (const JsonValue& branch : *list->AsArray()) {
      const uint8_t of_branch = TypesOf(branch);
      if (of_branch == 0) return 0;
      types |= of_branch;
    }
  }
  return types;
}

bool HasAny(const JsonValue& schema, std::initializer_list<std::string_view> keys) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](std::string_view key) { return schema.Find(key) != nullptr; });
}

// Whether all values of `key`, if it stands in the schema, are texts.
bool HasTextsAlone(const JsonValue& schema, std::string_view key) {
  const JsonValue* values = schema.Find(key);
  if (values == nullptr) return true;
  if (values->AsArray() == nullptr) return values->AsString() != nullptr;
  return std::all_of(values->AsArray()->begin(), values->AsArray()->end(),
                     [](const JsonValue& value) { return value.AsString() != nullptr; });
}

bool IsPlainText(const JsonValue& schema) {
  return IsJsonText(schema.Find("type"), "string") &&
         !HasAny(schema, {"pattern", "format", "$ref", "anyOf", "oneOf", "allOf"}) &&
         HasTextsAlone(schema, "enum") && HasTextsAlone(schema, "const");
}

// Whether a grammar writes the values of a schema as they are: plain texts, or those and null. The
// rule is that of `text_branch` in text/hf/src/grammar/structural.rs.
bool IsWrittenAsIs(const JsonValue& schema) {
  if (IsPlainText(schema)) return true;
  const JsonValue* type = schema.Find("type");
  if (type != nullptr && type->AsArray() != nullptr) {
    const JsonValue::Array& types = *type->AsArray();
    const auto are = [&](std::string_view one, std::string_view other) {
      return IsJsonText(&types[0], one) && IsJsonText(&types[1], other);
    };
    return types.size() == 2 && (are("string", "null") || are("null", "string")) &&
           !HasAny(schema,
                   {"enum", "const", "pattern", "format", "$ref", "anyOf", "oneOf", "allOf"});
  }
  const bool is_any = schema.Find("anyOf") != nullptr;
  const JsonValue* list = schema.Find(is_any ? "anyOf" : "oneOf");
  if (list == nullptr || list->AsArray() == nullptr || list->AsArray()->size() != 2) return false;
  const JsonValue& one = list->AsArray()->front();
  const JsonValue& other = list->AsArray()->back();
  const bool is_nullable = (IsPlainText(one) && IsJsonText(other.Find("type"), "null")) ||
                           (IsPlainText(other) && IsJsonText(one.Find("type"), "null"));
  return is_nullable &&
         !HasAny(schema, {is_any ? "oneOf" : "anyOf", "allOf", "type", "enum", "const", "pattern",
                          "format", "minLength", "maxLength", "$ref"});
}

}  // namespace

bool DemandsUndeclared(const JsonValue& schema) {
  const JsonValue* properties = schema.Find("properties");
  if (properties == nullptr && schema.Find("minProperties") != nullptr) return true;
  const JsonValue* required = schema.Find("required");
  if (required == nullptr || required->AsArray() == nullptr) return false;
  return std::any_of(
      required->AsArray()->begin(), required->AsArray()->end(), [&](const JsonValue& name) {
        return name.AsString() != nullptr &&
               (properties == nullptr || properties->Find(*name.AsString()) == nullptr);
      });
}

bool FitsParameters(const JsonValue& schema) {
  const bool says_more =
      HasAny(schema, {"$ref", "anyOf", "oneOf", "allOf", "enum", "const", "patternProperties",
                      "propertyNames", "minProperties", "maxProperties"});
  if (says_more) return false;
  const JsonValue* others = schema.Find("additionalProperties");
  if (others != nullptr && (others->AsBool() == nullptr || *others->AsBool())) return false;
  const JsonValue* properties = schema.Find("properties");
  if (properties != nullptr && properties->AsObject() != nullptr) {
    for (const auto& [name, unused] : *properties->AsObject()) {
      if (name.find('>') != std::string::npos) return false;  // it ends the mark of its own tag
    }
  }
  return !DemandsUndeclared(schema);
}

ToolShape ShapeOf(const ToolFunction& function, bool is_allowed, ParameterWriter writer) {
  ToolShape shape{.name = function.name, .parameters = {}, .is_allowed = is_allowed};
  const JsonValue* properties = function.parameters.Find("properties");
  if (properties == nullptr || properties->AsObject() == nullptr) return shape;
  for (const auto& [name, schema] : *properties->AsObject()) {
    uint8_t types = TypesOf(schema);
    const bool is_json = writer == ParameterWriter::kGrammar && !IsWrittenAsIs(schema);
    if (is_json && (types & text::kJsonText) != 0) types = 0;  // a quoted text is JSON
    shape.parameters.emplace_back(name, types);
  }
  return shape;
}

}  // namespace baton::api
