#include "src/api/answer_form.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "fmt/format.h"

#include "src/api/json_fields.h"
#include "src/api/json_value.h"
#include "src/api/read_json.h"
#include "src/api/schema.h"
#include "src/base/clock.h"
#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/quoted_text.h"
#include "src/rpc/line_allowance.h"
#include "src/text/grammar_cache.h"

namespace baton::api {

using limits::kMaxGrammarBytes;
using router::ErrorCode;
using router::ModelInfo;
using router::PlainError;
using router::RequestError;
using text::Grammar;
using wire::AnswerGrammar;
using wire::GrammarKind;

namespace {

// Bytes of a compiler's sentence in an answer, and of an ignored keyword's path.
constexpr size_t kMaxReasonBytes = 512;
// Lines about faults of the server within a time.
constexpr uint32_t kMaxFaultLines = 20;
constexpr int64_t kFaultLinesUs = 60'000'000;
constexpr size_t kMaxPathBytes = 90;

// The fields that a form may come by; static, for later errors.
constexpr std::string_view kFormat = "response_format";
constexpr std::string_view kFormatSchema = "response_format.json_schema.schema";
constexpr std::string_view kObjectSchema = "response_format.schema";
constexpr std::string_view kStructured = "structured_outputs";

// The types of response_format, and the type that reads each member that holds a form.
constexpr std::string_view kFormatTypes[] = {"text", "json_object", "json_schema",
                                             "structural_tag"};
constexpr std::pair<std::string_view, std::string_view> kFormMembers[] = {
    {"schema", "json_object"},
    {"json_schema", "json_schema"},
    {"structures", "structural_tag"},
    {"triggers", "structural_tag"},
    {"format", "structural_tag"}};

// How one field of a form is read.
struct FormRow {
  std::string_view name;  // of the member of structured_outputs
  std::string_view path;
  std::string_view guided;  // vLLM's older name; "" = none
  GrammarKind kind;
  std::string_view expected;
};

constexpr FormRow kForms[] = {
    {"json", "structured_outputs.json", "guided_json", GrammarKind::kSchemaLoose, kExpectedSchema},
    {"regex", "structured_outputs.regex", "guided_regex", GrammarKind::kRegex, kExpectedRegex},
    {"choice", "structured_outputs.choice", "guided_choice", GrammarKind::kChoice, kExpectedChoice},
    {"grammar", "structured_outputs.grammar", "guided_grammar", GrammarKind::kLark, kExpectedLark},
    {"json_object", "structured_outputs.json_object", "", GrammarKind::kJsonObject,
     "true or false"},
    {"structural_tag", "structured_outputs.structural_tag", "", GrammarKind::kStructuralTag,
     "an object {\"structures\":array,\"triggers\":array} or {\"format\":object}, or its text"},
};

// Members of structured_outputs that would change what a form lets through.
constexpr std::string_view kShapers[] = {"disable_additional_properties", "whitespace_pattern"};
constexpr std::string_view kNoBlanks = "disable_any_whitespace";

bool FailWithoutForm(RequestError* error) {
  return Fail(error, ErrorCode::kInvalidValue, kStructured,
              fmt::format("{}; absent or null asks for no form", kExpectedStructuredOutputs));
}

// null and false. An empty text or list is a form that was meant and is missing.
bool IsUnset(const JsonValue& value) {
  const bool* flag = value.AsBool();
  return value.is_null() || (flag != nullptr && !*flag);
}

bool IsEmpty(const JsonValue& value) {
  const std::string* text = value.AsString();
  const JsonValue::Array* array = value.AsArray();
  return (text != nullptr && text->empty()) || (array != nullptr && array->empty());
}

bool SetForm(std::string_view field, AnswerGrammar form, ApiParams* params, RequestError* error) {
  if (form.text.size() > kMaxGrammarBytes) {
    return Fail(error, ErrorCode::kInvalidValue, field,
                fmt::format("at most {} bytes, it has {}", kMaxGrammarBytes, form.text.size()));
  }
  if (params->form) {
    return Fail(error, ErrorCode::kConflict, field,
                fmt::format("{} asks for a form of the answer too, and only one field may",
                            params->form_field));
  }
  params->form = std::make_shared<AnswerGrammar>(std::move(form));
  params->form_field = field;
  return true;
}

bool IsListOfTexts(const JsonValue& value) {
  const JsonValue::Array* list = value.AsArray();
  return list != nullptr && std::all_of(list->begin(), list->end(), [](const JsonValue& item) {
           return item.AsString() != nullptr;
         });
}

// The text of a form of this kind; nothing = the value has another type.
std::optional<std::string> TextOf(GrammarKind kind, const JsonValue& value) {
  const std::string* text = value.AsString();
  switch (kind) {
    case GrammarKind::kJsonObject:
      return value.AsBool() == nullptr ? std::nullopt : std::optional<std::string>("");
    case GrammarKind::kRegex:
    case GrammarKind::kLark:
      return text == nullptr ? std::nullopt : std::optional<std::string>(*text);
    case GrammarKind::kChoice:
      if (!IsListOfTexts(value)) return std::nullopt;
      break;
    case GrammarKind::kSchemaStrict:
    case GrammarKind::kSchemaLoose:
    case GrammarKind::kStructuralTag:
      if (text != nullptr) return *text;
      if (value.AsObject() == nullptr) return std::nullopt;
      break;
  }
  return JsonOf(value);
}

// In the value, or in the JSON that its text is.
bool HoldsHugeNumber(GrammarKind kind, const JsonValue& value) {
  const bool is_json = kind == GrammarKind::kSchemaStrict || kind == GrammarKind::kSchemaLoose ||
                       kind == GrammarKind::kStructuralTag;
  const std::string* text = value.AsString();
  if (text == nullptr || !is_json) return HasHugeNumber(value);
  JsonValue parsed;
  RequestError why;  // of a text that is none: compiling the form says more
  return ParseJson(*text, &parsed, &why) && HasHugeNumber(parsed);
}

bool StoreForm(const FormRow& row, std::string_view field, const JsonValue& value,
               ApiParams* params, RequestError* error) {
  const bool is_off = row.kind == GrammarKind::kJsonObject && IsUnset(value);
  if (value.is_null() || is_off) return true;
  if (HoldsHugeNumber(row.kind, value)) {
    return Fail(error, ErrorCode::kInvalidValue, field, kExpectedNumbers);
  }
  std::optional<std::string> text = TextOf(row.kind, value);
  if (!text.has_value()) return Fail(error, ErrorCode::kInvalidType, field, row.expected);
  if (row.kind != GrammarKind::kJsonObject && IsEmpty(value)) {
    return Fail(error, ErrorCode::kInvalidValue, field,
                fmt::format("{}, and not empty; absent or null asks for no form", row.expected));
  }
  return SetForm(field, {.kind = row.kind, .text = *std::move(text)}, params, error);
}

const FormRow& RowOf(GrammarKind kind) {
  return *std::find_if(std::begin(kForms), std::end(kForms),
                       [kind](const FormRow& row) { return row.kind == kind; });
}

// A form that the type does not read would be missing from the answer, which nothing else says.
bool HasFormOfItsType(const JsonValue& format, std::string_view type, RequestError* error) {
  for (const auto& [member, its_type] : kFormMembers) {
    const JsonValue* form = format.Find(member);
    if (form == nullptr || form->is_null() || type == its_type) continue;
    return Fail(error, ErrorCode::kConflict, fmt::format("{}.{}", kFormat, member),
                fmt::format("it is of the type \"{}\", and the type is \"{}\"", its_type, type));
  }
  return true;
}

// {"type":"json_schema","json_schema":{"name":text,"schema":object,"strict":flag}}
bool StoreJsonSchema(const JsonValue& value, ApiParams* params, RequestError* error) {
  constexpr std::string_view kInner = "response_format.json_schema";
  const JsonValue* inner = value.Find("json_schema");
  if (inner == nullptr || inner->is_null()) {
    return Fail(error, ErrorCode::kMissingField, kInner, "an object with name, schema and strict");
  }
  if (inner->AsObject() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, kInner, "an object with name, schema and strict");
  }
  const JsonValue* name = inner->Find("name");
  if (name != nullptr && !name->is_null() && name->AsString() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, "response_format.json_schema.name", "a string");
  }
  const JsonValue* strict = inner->Find("strict");
  if (strict != nullptr && !strict->is_null() && strict->AsBool() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, "response_format.json_schema.strict",
                "true or false");
  }
  const JsonValue* schema = inner->Find("schema");
  if (schema == nullptr || schema->is_null()) {
    return Fail(error, ErrorCode::kMissingField, kFormatSchema, kExpectedSchema);
  }
  if (schema->AsObject() == nullptr && schema->AsString() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, kFormatSchema, kExpectedSchema);
  }
  FormRow row = RowOf(GrammarKind::kSchemaLoose);
  const bool is_strict = strict != nullptr && strict->AsBool() != nullptr && *strict->AsBool();
  if (is_strict) row.kind = GrammarKind::kSchemaStrict;
  return StoreForm(row, kFormatSchema, *schema, params, error);
}

// `type` is one of kFormatTypes.
bool StoreFormOfType(const JsonValue& value, std::string_view type, ApiParams* params,
                     RequestError* error) {
  if (type == "text") return true;
  if (type == "json_schema") return StoreJsonSchema(value, params, error);
  if (type == "json_object") {
    // llama-server's way to give a schema.
    const JsonValue* schema = value.Find("schema");
    if (schema != nullptr && !schema->is_null()) {
      return StoreForm(RowOf(GrammarKind::kSchemaLoose), kObjectSchema, *schema, params, error);
    }
    return SetForm(kFormat, {.kind = GrammarKind::kJsonObject}, params, error);
  }
  JsonValue::Object tag;
  for (const JsonValue::Member& member : *value.AsObject()) {
    if (member.first != "type") tag.push_back(member);
  }
  return StoreForm(RowOf(GrammarKind::kStructuralTag), kFormat, JsonValue(std::move(tag)), params,
                   error);
}

// Behind the comment, text or regular expression that begins at `at` of a Lark text; at + 1 where
// none begins. A regular expression may go on after a line break.
size_t EndOfLarkPart(std::string_view lark, size_t at) {
  const char first = lark[at];
  const bool is_comment = first == '#' || lark.substr(at).starts_with("//");
  if (is_comment) return std::min(lark.find('\n', at), lark.size());
  if (first != '"' && first != '/') return at + 1;
  size_t end = at + 1;
  while (end < lark.size() && lark[end] != first) end += lark[end] == '\\' ? 2 : 1;
  return end + 1;
}

// Whether a grammar has a schema after %json.
bool HasSchemaInside(std::string_view lark) {
  // GBNF has none, and this within Lark is refused.
  if (lark.find("::=") != std::string_view::npos) return false;
  for (size_t at = 0; at < lark.size(); at = EndOfLarkPart(lark, at)) {
    if (lark.substr(at).starts_with("%json")) return true;
  }
  return false;
}

std::string_view ExpectedOfKind(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kSchemaStrict:
      return "a JSON Schema whose keywords can all be enforced (strict)";
    case GrammarKind::kSchemaLoose:
      return "a JSON Schema";
    case GrammarKind::kRegex:
      return "a regular expression without look-around and back references";
    case GrammarKind::kChoice:
      return "an array of texts that are not empty";
    case GrammarKind::kLark:
      return "a grammar in Lark's form, or in GBNF (root ::= ..)";
    case GrammarKind::kStructuralTag:
      return "an object {\"structures\":[{\"begin\",\"schema\",\"end\"}],\"triggers\":array} or "
             "{\"format\":{\"type\", ..}}";
    case GrammarKind::kJsonObject:
      break;
  }
  return "used with a model that can be constrained";
}

}  // namespace

std::string NameOfPlace(std::string_view place) {
  if (place.starts_with('#')) place.remove_prefix(1);
  std::string name(place);
  std::replace(name.begin(), name.end(), '/', '.');
  return HeaderSafe(name, kMaxPathBytes);
}

bool StoreResponseFormat(const JsonValue& value, ApiParams* params, RequestError* error) {
  const JsonValue* type = value.Find("type");
  const std::string* name = type == nullptr ? nullptr : type->AsString();
  if (name == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, kFormat, kExpectedResponseFormat);
  }
  if (std::ranges::find(kFormatTypes, *name) == std::end(kFormatTypes)) {
    return Fail(error, ErrorCode::kInvalidValue, kFormat, kExpectedResponseFormat);
  }
  return StoreFormOfType(value, *name, params, error) && HasFormOfItsType(value, *name, error);
}

bool StoreStructuredOutputs(const JsonValue& value, ApiParams* params, RequestError* error) {
  const JsonValue::Object* members = value.AsObject();
  if (members == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, kStructured, kExpectedStructuredOutputs);
  }
  for (const std::string_view name : kShapers) {
    const JsonValue* shaper = value.Find(name);
    if (shaper == nullptr || IsUnset(*shaper) || IsEmpty(*shaper)) continue;
    return Fail(error, ErrorCode::kUnsupported, fmt::format("{}.{}", kStructured, name),
                "absent; blanks between JSON tokens are bounded, and a schema says what properties "
                "there are");
  }
  const JsonValue* no_blanks = value.Find(kNoBlanks);
  if (no_blanks != nullptr && !no_blanks->is_null() && no_blanks->AsBool() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, fmt::format("{}.{}", kStructured, kNoBlanks),
                "true or false");
  }
  const bool had_form = params->form != nullptr;
  for (const auto& [name, member] : *members) {
    const bool is_beside = name == "disable_fallback" || name == "backend" || name == "_backend" ||
                           name == "_backend_was_auto" || name == kNoBlanks;
    const bool is_shaper =
        std::find(std::begin(kShapers), std::end(kShapers), name) != std::end(kShapers);
    if (is_beside || is_shaper || member.is_null()) continue;
    const auto* const row =
        std::find_if(std::begin(kForms), std::end(kForms),
                     [&name = name](const FormRow& known) { return known.name == name; });
    // Its meaning is unknown, and it may constrain the answer.
    if (row == std::end(kForms)) {
      return Fail(error, ErrorCode::kUnsupported,
                  fmt::format("{}{}", kStructured, NameOfPlace("/" + name)),
                  fmt::format("absent; {} is {}", kStructured, kExpectedStructuredOutputs));
    }
    if (!StoreForm(*row, row->path, member, params, error)) return false;
  }
  params->forbids_blanks = no_blanks != nullptr && !IsUnset(*no_blanks);
  // The flag may stand beside another field's form: HasFormWithoutBlanks looks when all are read.
  const bool names_form = !had_form && params->form != nullptr;
  if (names_form || params->forbids_blanks) return true;
  return FailWithoutForm(error);
}

bool StoreGuided(std::string_view name, const JsonValue& value, ApiParams* params,
                 RequestError* error) {
  const auto* const row =
      std::find_if(std::begin(kForms), std::end(kForms),
                   [name](const FormRow& known) { return known.guided == name; });
  return StoreForm(*row, row->guided, value, params, error);
}

// A schema says it in llguidance's words. Regular expressions, choices and grammars have the blanks
// that they write; the schemas inside of a structural tag and of a grammar are not changed.
bool CloseBlanks(ApiParams* params, RequestError* error) {
  if (!params->forbids_blanks || params->form == nullptr) return true;
  const std::string flag = fmt::format("{}.{}", kStructured, kNoBlanks);
  const GrammarKind kind = params->form->kind;
  if (kind == GrammarKind::kStructuralTag) {
    return Fail(error, ErrorCode::kConflict, flag, "absent beside a structural tag");
  }
  if (kind == GrammarKind::kLark && HasSchemaInside(params->form->text)) {
    return Fail(error, ErrorCode::kConflict, flag,
                "absent beside a grammar with %json: the schema there may say \"x-guidance\": "
                "{\"whitespace_flexible\": false}");
  }
  const bool is_schema = kind == GrammarKind::kSchemaLoose || kind == GrammarKind::kSchemaStrict;
  if (!is_schema && kind != GrammarKind::kJsonObject) return true;
  JsonValue schema(JsonValue::Object{{"type", JsonText("object")}});
  RequestError why;
  if (is_schema && !ParseJson(params->form->text, &schema, &why)) {
    return Fail(
        error, ErrorCode::kInvalidValue, params->form_field,
        fmt::format("a JSON Schema of at most {} levels beside {}", limits::kMaxJsonDepth, flag));
  }
  JsonValue::Object* members = schema.AsObject();
  if (members == nullptr) {
    return Fail(error, ErrorCode::kConflict, flag, "absent where the schema is no object");
  }
  std::erase_if(*members, [](const auto& member) { return member.first == "x-guidance"; });
  members->emplace_back("x-guidance",
                        JsonValue(JsonValue::Object{{"whitespace_flexible", JsonValue(false)}}));
  AnswerGrammar form{.kind = is_schema ? kind : GrammarKind::kSchemaLoose};
  AppendJson(schema, &form.text);
  params->form = {};
  return SetForm(params->form_field, std::move(form), params, error);
}

bool HasFormWithoutBlanks(const ApiParams& params, RequestError* error) {
  if (!params.forbids_blanks || params.form != nullptr) return true;
  return FailWithoutForm(error);
}

bool IsServerFault(const Status& status, RequestError* error) {
  const bool is_busy = absl::IsUnavailable(status);
  if (!is_busy && !absl::IsInternal(status)) return false;
  // Never destroyed. A client that repeats such a request must not fill the log.
  static auto& lines = *new rpc::LineAllowance(kMaxFaultLines, kFaultLinesUs);
  if (const auto num_held_back = lines.Take(SystemClock().NowUs())) {
    BATON_LOG_ERROR("a request met a fault of the server: {}; {} such lines were held back",
                    LineForMessage(std::string(status.message()), kMaxReasonBytes), *num_held_back);
  }
  *error = PlainError(is_busy ? ErrorCode::kServerBusy : ErrorCode::kInternal);
  return true;
}

bool CheckGrammar(const ModelInfo& model, std::string_view field, const AnswerGrammar& grammar,
                  std::vector<std::string>* ignored, RequestError* error) {
  if (model.grammars == nullptr) {
    return Fail(error, ErrorCode::kUnsupported, field,
                "absent: the model has no vocabulary for it");
  }
  const StatusOr<Grammar> compiled = model.grammars->Compile(grammar.kind, grammar.text);
  if (!compiled.ok()) {
    if (IsServerFault(compiled.status(), error)) return false;
    const std::string reason =
        LineForMessage(std::string(compiled.status().message()), kMaxReasonBytes);
    return Fail(error, ErrorCode::kInvalidValue, field,
                fmt::format("{}; {}", ExpectedOfKind(grammar.kind), reason));
  }
  if (ignored == nullptr) return true;
  for (const std::string& place : compiled->ignored()) {
    ignored->push_back(fmt::format("{}{}", field, NameOfPlace(place)));
  }
  return true;
}

}  // namespace baton::api
