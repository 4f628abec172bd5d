#include "src/api/form_or_call.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"

#include "src/api/answer_form.h"
#include "src/api/json_fields.h"
#include "src/api/json_value.h"
#include "src/api/tool_request.h"
#include "src/base/limits.h"

namespace baton::api {

using limits::kMaxGrammarBytes;
using router::ErrorCode;
using router::RequestError;
using wire::AnswerGrammar;
using wire::GrammarKind;

namespace {

constexpr std::string_view kGuidance = "x-guidance";

bool IsOneOf(std::string_view key, std::initializer_list<std::string_view> keys) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// A name of an anchor that no other part has.
JsonValue AnchorAt(std::string_view place, std::string_view name) {
  std::string text(place.substr(2));
  std::replace(text.begin(), text.end(), '/', '.');
  return JsonText(text.append(".").append(name));
}

// The schema becomes the part at `place` of another one: "#/$defs/a" is place + "/$defs/a" there.
// Anchors get the place before their names: two parts may have one of equal names.
void MoveReferences(std::string_view place, JsonValue* schema) {
  if (JsonValue::Array* list = schema->AsArray()) {
    for (JsonValue& item : *list) MoveReferences(place, &item);
    return;
  }
  JsonValue::Object* members = schema->AsObject();
  if (members == nullptr) return;
  for (auto& [key, value] : *members) {
    const std::string* text = value.AsString();
    const bool is_local = text != nullptr && (*text == "#" || text->starts_with("#/"));
    if (key == "$ref" && is_local) {
      value = JsonValue(std::string(place) + text->substr(1));
    } else if (key == "$ref" && text != nullptr && text->starts_with('#')) {
      value = JsonText("#" + *AnchorAt(place, text->substr(1)).AsString());
    } else if (key == "$anchor" && text != nullptr) {
      value = AnchorAt(place, *text);
    } else if (IsOneOf(key, {"properties", "patternProperties", "$defs", "definitions"})) {
      // The names in these objects are no keywords.
      JsonValue::Object* named = value.AsObject();
      if (named == nullptr) continue;
      for (JsonValue::Member& member : *named) MoveReferences(place, &member.second);
    } else if (!IsOneOf(key, {"const", "enum", "default", "examples"})) {
      MoveReferences(place, &value);
    }
  }
}

// The form as the first branch. Its own address and dialect would make it a document of its own.
// `guidance` gets its word on blanks, which is read at the root alone.
bool ReadForm(const ApiParams& params, JsonValue* schema, JsonValue* guidance,
              RequestError* error) {
  JsonValue root;
  if (!ParseJson(params.form->text, &root, error)) {
    return Fail(error, ErrorCode::kInvalidValue, params.form_field,
                fmt::format("a JSON Schema of at most {} levels where there are tools",
                            limits::kMaxJsonDepth));
  }
  JsonValue::Object members;
  if (JsonValue::Object* all = root.AsObject()) {
    for (JsonValue::Member& member : *all) {
      if (member.first == kGuidance) {
        *guidance = std::move(member.second);
      } else if (!IsOneOf(member.first, {"$schema", "$id"})) {
        members.push_back(std::move(member));
      }
    }
  }
  *schema = JsonValue(std::move(members));
  MoveReferences("#/anyOf/0", schema);
  return true;
}

// A call of `function`, which is the branch `idx`.
JsonValue CallSchema(const ToolFunction& function, size_t idx) {
  JsonValue::Object name;
  name.emplace_back("const", JsonText(function.name));
  JsonValue arguments;
  if (function.strict) {
    arguments = ArgumentsSchema(function);
    MoveReferences(fmt::format("#/anyOf/{}/properties/arguments", idx), &arguments);
  } else {
    JsonValue::Object any;
    any.emplace_back("type", JsonText("object"));
    arguments = JsonValue(std::move(any));
  }
  JsonValue::Object properties;
  properties.emplace_back("name", JsonValue(std::move(name)));
  properties.emplace_back("arguments", std::move(arguments));
  JsonValue::Object schema;
  schema.emplace_back("type", JsonText("object"));
  schema.emplace_back("properties", JsonValue(std::move(properties)));
  schema.emplace_back("required",
                      JsonValue(JsonValue::Array{JsonText("name"), JsonText("arguments")}));
  schema.emplace_back("additionalProperties", JsonValue(false));
  return JsonValue(std::move(schema));
}

// An error about a branch of a function, by the function's own names. The form was compiled before.
void NameByTool(const std::vector<size_t>& callable, RequestError* error) {
  constexpr std::string_view kBranch = "#/anyOf/";
  constexpr std::string_view kArguments = "/properties/arguments";
  const size_t at = error->expected.find(kBranch);
  if (at == std::string::npos) return;
  const std::string_view place = std::string_view(error->expected).substr(at + kBranch.size());
  size_t branch = 0;
  std::from_chars(place.data(), place.data() + place.size(), branch);
  const size_t inside = place.find(kArguments);
  const bool is_function = branch > 0 && branch <= callable.size();
  if (!is_function || inside == std::string_view::npos) return;
  *error =
      ParametersError(callable[branch - 1], std::string(place.substr(inside + kArguments.size())));
}

// False: one of the keywords that nothing enforces is that of a strict function. Those of the form
// were named when it was checked.
bool CheckIgnored(const std::vector<std::string>& ignored, const std::vector<size_t>& callable,
                  RequestError* error) {
  constexpr std::string_view kBranch = "tools.anyOf.";
  for (const std::string& name : ignored) {
    if (!name.starts_with(kBranch)) continue;
    size_t branch = 0;
    std::from_chars(name.data() + kBranch.size(), name.data() + name.size(), branch);
    if (branch == 0 || branch > callable.size()) continue;
    constexpr std::string_view kArguments = ".properties.arguments";
    const size_t at = name.find(kArguments);
    const std::string place = at == std::string::npos ? "" : name.substr(at + kArguments.size());
    return Fail(error, ErrorCode::kInvalidValue,
                fmt::format("tools[{}].function.parameters{}", callable[branch - 1], place),
                kExpectedStrict);
  }
  return true;
}

}  // namespace

bool MayCallBesideForm(const ApiParams& params) {
  if (!params.form || !params.tools.may_call() || params.tools.must_call()) return false;
  const GrammarKind kind = params.form->kind;
  return kind == GrammarKind::kSchemaStrict || kind == GrammarKind::kSchemaLoose ||
         kind == GrammarKind::kJsonObject;
}

bool SetFormOrCall(const ApiParams& params, BuiltRequest* built, RequestError* error) {
  JsonValue::Array branches(1);
  JsonValue guidance;
  if (!ReadForm(params, &branches.front(), &guidance, error)) return false;
  const std::vector<size_t> callable = CallableOf(params.tools);
  for (const size_t i : callable) {
    branches.push_back(CallSchema(params.tools.functions[i], branches.size()));
  }
  JsonValue::Object schema;
  schema.emplace_back("anyOf", JsonValue(std::move(branches)));
  if (!guidance.is_null()) schema.emplace_back(kGuidance, std::move(guidance));
  auto grammar = std::make_shared<AnswerGrammar>();
  grammar->kind = GrammarKind::kSchemaLoose;
  grammar->start = built->grammar_start;
  grammar->text = JsonOf(JsonValue(std::move(schema)));
  if (grammar->text.size() > kMaxGrammarBytes) {
    return Fail(
        error, ErrorCode::kInvalidValue, "tools",
        fmt::format("schemas of at most {} bytes together, the form's included", kMaxGrammarBytes));
  }
  std::vector<std::string> ignored;
  if (!CheckGrammar(*built->plan.model, "tools", *grammar, &ignored, error)) {
    NameByTool(callable, error);
    return false;
  }
  if (!CheckIgnored(ignored, callable, error)) return false;
  built->request.sampling.grammar = std::move(grammar);
  return true;
}

}  // namespace baton::api
