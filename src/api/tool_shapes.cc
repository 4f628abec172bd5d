#include "src/api/tool_shapes.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <set>
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

uint8_t TypeBitOf(const JsonValue& value) {
  if (value.AsString() != nullptr) return text::kJsonText;
  if (value.AsBool() != nullptr) return text::kJsonBool;
  if (value.AsArray() != nullptr) return text::kJsonArray;
  if (value.AsObject() != nullptr) return text::kJsonObject;
  return value.is_null() ? text::kJsonNull : text::kJsonNumber;
}

// References that are followed in a row at most, and schemas within each other.
constexpr int kMaxDepth = 16;

// The schema at a place "#/a/b" of `root`; null = there is none, or the place is written otherwise,
// or more members stand on the way to it than `looks` has left.
const JsonValue* FindPlace(const JsonValue& root, std::string_view place, int64_t* looks) {
  if (!place.starts_with('#')) return nullptr;
  place.remove_prefix(1);
  const JsonValue* here = &root;
  while (here != nullptr && !place.empty()) {
    const JsonValue::Object* members = here->AsObject();
    if (!place.starts_with('/') || members == nullptr) return nullptr;
    *looks -= static_cast<int64_t>(members->size());
    if (*looks < 0) return nullptr;
    const size_t end = std::min(place.find('/', 1), place.size());
    std::string name;
    for (size_t i = 1; i < end; ++i) {
      const bool is_escaped = place[i] == '~' && i + 1 < end;
      name.push_back(!is_escaped ? place[i] : place[++i] == '1' ? '/' : '~');
    }
    here = here->Find(name);
    place.remove_prefix(end);
  }
  return here;
}

// The types of the schemas within one document, as bits.
class SchemaTypes {
 public:
  // `looks`: schemas and members that may be looked at. References may branch, so that no size of
  // the document bounds them. Beyond it nothing is known.
  SchemaTypes(const JsonValue& root, int64_t looks) : root_(root), looks_(looks) {}

  // 0 = the schema says nothing that is understood.
  uint8_t Of(const JsonValue& schema, int depth = 0) {
    if (depth == kMaxDepth || looks_-- <= 0) return 0;
    uint8_t types = Named(schema);
    const JsonValue* reference = schema.Find("$ref");
    if (reference != nullptr && reference->AsString() != nullptr) {
      const JsonValue* target = FindPlace(root_, *reference->AsString(), &looks_);
      if (target != nullptr) types = Both(types, Of(*target, depth + 1));
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      types = Both(types, OfAny(schema.Find(key), depth + 1));
    }
    const JsonValue* all = schema.Find("allOf");
    if (all != nullptr && all->AsArray() != nullptr) {
      for (const JsonValue& part : *all->AsArray()) types = Both(types, Of(part, depth + 1));
    }
    return types;
  }

 private:
  // Types that two schemas allow which both hold; 0 = nothing is known.
  static uint8_t Both(uint8_t one, uint8_t other) {
    if (one == 0 || other == 0) return one | other;
    return one & other;
  }

  // By `type`, `const` and `enum` of the schema itself.
  static uint8_t Named(const JsonValue& schema) {
    uint8_t types = 0;
    const JsonValue* type = schema.Find("type");
    if (type != nullptr && type->AsString() != nullptr) types |= TypeBit(*type->AsString());
    if (type != nullptr && type->AsArray() != nullptr) {
      for (const JsonValue& one : *type->AsArray()) {
        if (one.AsString() != nullptr) types |= TypeBit(*one.AsString());
      }
    }
    if (types != 0) return types;
    if (const JsonValue* only = schema.Find("const")) return TypeBitOf(*only);
    const JsonValue* values = schema.Find("enum");
    if (values == nullptr || values->AsArray() == nullptr) return 0;
    for (const JsonValue& value : *values->AsArray()) types |= TypeBitOf(value);
    return types;
  }

  // 0 = there is no list of schemas, or one of them says nothing.
  uint8_t OfAny(const JsonValue* list, int depth) {
    uint8_t types = 0;
    if (list == nullptr || list->AsArray() == nullptr) return 0;
    for (const JsonValue& branch : *list->AsArray()) {
      const uint8_t of_branch = Of(branch, depth);
      if (of_branch == 0) return 0;
      types |= of_branch;
    }
    return types;
  }

  const JsonValue& root_;
  int64_t looks_;
};

bool HasAny(const JsonValue& schema, std::initializer_list<std::string_view> keys) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](std::string_view key) { return schema.Find(key) != nullptr; });
}

// Whether a value is a text that can stand in its tag as it is.
bool IsTextForTag(const JsonValue& value) {
  const std::string* text = value.AsString();
  return text != nullptr && text->find("</parameter>") == std::string::npos;
}

// Whether all values of `key`, if it stands in the schema, are such texts.
bool HasTextsAlone(const JsonValue& schema, std::string_view key) {
  const JsonValue* values = schema.Find(key);
  if (values == nullptr) return true;
  if (values->AsArray() == nullptr) return IsTextForTag(*values);
  return std::all_of(values->AsArray()->begin(), values->AsArray()->end(), IsTextForTag);
}

bool IsPlainText(const JsonValue& schema) {
  const int num_kinds = HasAny(schema, {"enum"}) + HasAny(schema, {"const"}) +
                        HasAny(schema, {"minLength", "maxLength"});
  return IsJsonText(schema.Find("type"), "string") && num_kinds <= 1 &&
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
  std::set<std::string_view> declared;
  if (properties != nullptr && properties->AsObject() != nullptr) {
    for (const auto& [name, unused] : *properties->AsObject()) declared.insert(name);
  }
  return std::any_of(required->AsArray()->begin(), required->AsArray()->end(),
                     [&](const JsonValue& name) {
                       return name.AsString() != nullptr && !declared.contains(*name.AsString());
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
  constexpr int64_t kLooks = 4096;
  constexpr int64_t kLooksOfOne = 128;
  const auto num_properties = static_cast<int64_t>(properties->AsObject()->size());
  SchemaTypes types_of(function.parameters, kLooks + kLooksOfOne * num_properties);
  for (const auto& [name, schema] : *properties->AsObject()) {
    uint8_t types = types_of.Of(schema);
    const bool is_json = writer == ParameterWriter::kGrammar && !IsWrittenAsIs(schema);
    if (is_json && (types & text::kJsonText) != 0) types = 0;  // a quoted text is JSON
    shape.parameters.emplace_back(name, types);
  }
  return shape;
}

}  // namespace baton::api
