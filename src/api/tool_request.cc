#include "src/api/tool_request.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "fmt/format.h"

#include "src/api/answer_form.h"
#include "src/api/form_or_call.h"
#include "src/api/json_fields.h"
#include "src/api/read_json.h"
#include "src/api/tool_shapes.h"
#include "src/base/limits.h"
#include "src/text/special_tokens.h"
#include "src/text/tokenizer.h"
#include "src/text/tools/tool_parser.h"

namespace baton::api {

using limits::kMaxGrammarBytes;
using limits::kMaxStopTokens;
using router::ErrorCode;
using router::FieldError;
using router::ModelInfo;
using router::RequestError;
using text::SpecialMatch;
using text::SpecialScope;
using text::Tokenizer;
using text::ToolStyle;
using text::ToolStyleOf;
using wire::AnswerGrammar;
using wire::GrammarKind;

namespace {

// The control tokens of the vocabulary with these texts.
std::vector<TokenId> ControlTokens(const Tokenizer& tokenizer,
                                   std::span<const std::string_view> texts) {
  std::vector<TokenId> ids;
  for (const std::string_view text : texts) {
    const std::optional<SpecialMatch> match =
        tokenizer.special_tokens().FindNext(text, 0, SpecialScope::kAll);
    const bool is_whole = match.has_value() && match->begin == 0 && match->end == text.size();
    if (is_whole && tokenizer.IsSpecial(match->id)) ids.push_back(match->id);
  }
  return ids;
}

std::string SchemaField(size_t tool) { return fmt::format("tools[{}].function.parameters", tool); }

}  // namespace

std::vector<size_t> CallableOf(const ToolParams& tools) {
  std::vector<size_t> callable;
  for (size_t i = 0; i < tools.functions.size(); ++i) {
    if (tools.is_allowed(tools.functions[i].name)) callable.push_back(i);
  }
  return callable;
}

RequestError ParametersError(size_t idx, std::string_view fault) {
  const size_t end = fault.find(": ");
  const bool has_place = end != std::string_view::npos;
  const std::string member = has_place ? NameOfPlace(fault.substr(0, end)) : "";
  return FieldError(ErrorCode::kInvalidValue, SchemaField(idx) + member,
                    fmt::format("a JSON Schema; #{}", fault));
}

JsonValue ArgumentsSchema(const ToolFunction& function) {
  JsonValue::Object schema;
  bool is_open = DemandsUndeclared(function.parameters);
  if (const JsonValue::Object* members = function.parameters.AsObject()) {
    for (const JsonValue::Member& member : *members) {
      const std::string_view key = member.first;
      if (key != "type") schema.push_back(member);
      is_open |= key == "additionalProperties" || key == "patternProperties" ||
                 key == "propertyNames" || key == "unevaluatedProperties" || key == "$ref" ||
                 key == "anyOf" || key == "oneOf" || key == "allOf";
    }
  }
  schema.emplace_back("type", JsonText("object"));
  if (!is_open) schema.emplace_back("additionalProperties", JsonValue(false));
  return JsonValue(std::move(schema));
}

namespace {

// How a style writes one call around its arguments.
struct CallMarkup {
  std::string begin;
  std::string end;
};

CallMarkup MarkupOf(ToolStyle style, const std::string& name) {
  if (style == ToolStyle::kHermes) {
    return {"<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": ", "}\n</tool_call>"};
  }
  if (style == ToolStyle::kQwen3Coder) {
    return {"<tool_call>\n<function=" + name + ">\n", "</function>\n</tool_call>"};
  }
  const std::string_view key = style == ToolStyle::kLlama3 ? "parameters" : "arguments";
  return {fmt::format("{{\"name\": \"{}\", \"{}\": ", name, key), "}"};
}

bool HasStrict(const ToolParams& tools) {
  return std::any_of(tools.functions.begin(), tools.functions.end(),
                     [](const ToolFunction& function) { return function.strict; });
}

bool FitParameters(const ToolParams& tools, const std::vector<size_t>& callable) {
  return std::all_of(callable.begin(), callable.end(),
                     [&](size_t i) { return FitsParameters(tools.functions[i].parameters); });
}

// Grammars write the text of tokens, and most styles mark calls with control tokens, which have
// none there. A forced call of such a model is bare JSON, and so is one whose schema says more than
// a list of parameters can.
bool ForcesOwnMarkup(const ToolParams& tools, ToolStyle style) {
  if (style == ToolStyle::kQwen3Coder) return FitParameters(tools, CallableOf(tools));
  return style == ToolStyle::kHermes || style == ToolStyle::kLlama3;
}

// A structural tag of calls. Where a call is demanded nothing else may stand in the answer.
std::string TagOf(const ToolParams& tools, ToolStyle style, const std::vector<size_t>& callable) {
  JsonValue::Array structures;
  for (const size_t i : callable) {
    const ToolFunction& function = tools.functions[i];
    const CallMarkup markup = MarkupOf(style, function.name);
    JsonValue::Object structure;
    structure.emplace_back("begin", JsonText(markup.begin));
    structure.emplace_back("schema", ArgumentsSchema(function));
    structure.emplace_back("end", JsonText(markup.end));
    if (style == ToolStyle::kQwen3Coder) {
      structure.emplace_back("content", JsonText("qwen_xml"));
    }
    structures.emplace_back(std::move(structure));
  }
  JsonValue::Object tag;
  tag.emplace_back("structures", JsonValue(std::move(structures)));
  if (tools.must_call()) {
    // Llama 3's templates show one call a turn.
    const bool is_single =
        !tools.parallel || tools.choice == ToolChoice::kNamed || style == ToolStyle::kLlama3;
    const size_t max_calls = is_single ? 1 : kMaxForcedCalls;
    tag.emplace_back("at_least_one", JsonValue(true));
    tag.emplace_back("max_tags", JsonValue(static_cast<int64_t>(max_calls)));
    tag.emplace_back("separator", JsonText("\n"));
  } else {
    tag.emplace_back("triggers", JsonValue(JsonValue::Array{JsonText("<tool_call>")}));
    // Readers of this style take a call without "<tool_call>" before it too.
    if (style == ToolStyle::kQwen3Coder) {
      tag.emplace_back("excludes", JsonValue(JsonValue::Array{JsonText("<function=")}));
    }
  }
  return JsonOf(JsonValue(std::move(tag)));
}

constexpr std::string_view kPlace = "#/structures/";

// The tool that a place "#/structures/K/schema.." or a name "tools.structures.K.schema.." speaks
// of. Sets `rest` to what follows the schema; nothing = it speaks of no schema.
std::optional<size_t> ToolAt(std::string_view place, const std::vector<size_t>& callable,
                             std::string_view* rest) {
  constexpr std::string_view kName = "structures";
  const size_t at = place.find(kName);
  if (at == std::string_view::npos) return std::nullopt;
  place.remove_prefix(at + kName.size() + 1);
  size_t idx = 0;
  const auto parsed = std::from_chars(place.data(), place.data() + place.size(), idx);
  place.remove_prefix(static_cast<size_t>(parsed.ptr - place.data()));
  constexpr std::string_view kSchema = "/schema";
  const bool is_schema = parsed.ec == std::errc() && idx < callable.size() &&
                         place.size() >= kSchema.size() &&
                         place.substr(1).starts_with(kSchema.substr(1));
  if (!is_schema) return std::nullopt;
  *rest = place.substr(kSchema.size());
  return callable[idx];
}

// Compiles the grammar. Errors and dropped keywords are told by the tool's own names.
bool CheckTag(const ToolParams& tools, const std::vector<size_t>& callable,
              const AnswerGrammar& grammar, BuiltRequest* built, RequestError* error) {
  if (grammar.text.size() > kMaxGrammarBytes) {
    return Fail(error, ErrorCode::kInvalidValue, "tools",
                fmt::format("schemas of at most {} bytes together", kMaxGrammarBytes));
  }
  std::vector<std::string> ignored;
  std::string_view rest;
  if (!CheckGrammar(*built->plan.model, "tools", grammar, &ignored, error)) {
    const size_t at = error->expected.find(kPlace);
    if (at != std::string::npos) {
      const std::string place = error->expected.substr(at);
      const std::optional<size_t> tool = ToolAt(place, callable, &rest);
      if (tool.has_value()) *error = ParametersError(*tool, rest);
    }
    return false;
  }
  for (const std::string& name : ignored) {
    const std::optional<size_t> tool = ToolAt(name, callable, &rest);
    const std::string field = tool.has_value() ? SchemaField(*tool).append(rest) : name;
    if (tool.has_value() && tools.functions[*tool].strict) {
      return Fail(error, ErrorCode::kInvalidValue, field, kExpectedStrict);
    }
    AddUnread({field}, &built->unread);
  }
  return true;
}

// Names the functions whose `strict` nothing enforces in this answer. False: one has a keyword that
// no grammar enforces. A client finds out at once, not with the model that it uses next.
bool NameUnenforced(const ToolParams& tools, BuiltRequest* built, RequestError* error) {
  std::vector<size_t> strict;
  for (size_t i = 0; i < tools.functions.size(); ++i) {
    if (tools.functions[i].strict) strict.push_back(i);
  }
  AnswerGrammar unused;
  unused.kind = GrammarKind::kStructuralTag;
  unused.text = TagOf(tools, ToolStyle::kHermes, strict);
  const bool is_checked = built->plan.model->grammars != nullptr;
  if (is_checked && !CheckTag(tools, strict, unused, built, error)) return false;
  for (const size_t i : strict) {
    AddUnread({fmt::format("tools[{}].function.strict", i)}, &built->unread);
  }
  return true;
}

// Whether a grammar of tags keeps calls to the schemas of the functions that may be called. Calls
// that need not be are constrained in styles whose calls begin with a text of their own alone.
bool HasTags(const ApiParams& params, ToolStyle style) {
  const ToolParams& tools = params.tools;
  if (tools.must_call()) return style != ToolStyle::kNone;
  const std::vector<size_t> callable = CallableOf(tools);
  const bool is_limited = callable.size() < tools.functions.size();
  const bool is_strict = HasStrict(tools);
  if (params.form || (!is_strict && !is_limited)) return false;
  return style == ToolStyle::kHermes ||
         (style == ToolStyle::kQwen3Coder && is_limited && FitParameters(tools, callable));
}

}  // namespace

void SetToolReading(const ApiParams& params, std::optional<ToolStyle> routers,
                    BuiltRequest* built) {
  AnswerPlan& plan = built->plan;
  const ModelInfo& model = *plan.model;
  if (!IsConversation(plan.endpoint) || model.chat_template == nullptr) return;
  const ToolParams& tools = params.tools;
  const std::optional<ToolStyle> chosen = tools.style.has_value() ? tools.style : routers;
  ToolStyle style = chosen.value_or(ToolStyleOf(model.TemplateFor(tools.may_call())->source()));
  const bool has_channels = style == ToolStyle::kHarmony && plan.splits_reasoning;
  if (!tools.may_call() && !has_channels) return;
  const bool is_unknown = style == ToolStyle::kNone && !chosen.has_value();
  if (is_unknown) style = ToolStyle::kGeneric;

  auto reading = std::make_shared<ToolReading>();
  reading->id_style = style;
  reading->demands_call = tools.must_call();
  const bool is_bare =
      (tools.must_call() && !ForcesOwnMarkup(tools, style)) || MayCallBesideForm(params);
  reading->style = is_bare && style != ToolStyle::kNone ? ToolStyle::kGeneric : style;
  if (tools.may_call()) {
    const ParameterWriter writer =
        HasTags(params, reading->style) ? ParameterWriter::kGrammar : ParameterWriter::kModel;
    for (const ToolFunction& function : tools.functions) {
      const bool is_allowed = tools.is_allowed(function.name);
      reading->rules.functions.push_back(ShapeOf(function, is_allowed, writer));
    }
    const bool is_single = !tools.parallel || tools.choice == ToolChoice::kNamed;
    reading->rules.max_calls = is_single ? 1 : UINT32_MAX;
  } else {
    reading->rules.max_calls = 0;
  }
  built->request.shown_tokens = ControlTokens(*model.tokenizer, ToolMarks(reading->style));
  std::vector<TokenId>& stops = built->request.sampling.stop_token_ids;
  for (const TokenId id : ControlTokens(*model.tokenizer, ToolStops(reading->style))) {
    if (stops.size() < kMaxStopTokens) stops.push_back(id);
  }
  plan.tools = std::move(reading);
}

bool SetToolGrammar(const ApiParams& params, BuiltRequest* built, RequestError* error) {
  const ToolParams& tools = params.tools;
  if (built->plan.tools == nullptr || !tools.may_call()) return true;
  const ToolStyle style = built->plan.tools->style;
  if (tools.must_call()) {
    if (style == ToolStyle::kNone) {
      return Fail(error, ErrorCode::kConflict, "tool_choice",
                  "a call that is demanded needs a tool_parser other than \"none\"");
    }
  } else {
    const bool is_bare = style != ToolStyle::kNone && MayCallBesideForm(params);
    const bool has_schema = is_bare && params.form->kind != GrammarKind::kJsonObject;
    if (has_schema) return SetFormOrCall(params, built, error);
    if (!HasTags(params, style)) return !HasStrict(tools) || NameUnenforced(tools, built, error);
  }
  const std::vector<size_t> callable = CallableOf(tools);
  auto grammar = std::make_shared<AnswerGrammar>();
  grammar->kind = GrammarKind::kStructuralTag;
  grammar->start = built->grammar_start;
  grammar->text = TagOf(tools, style, callable);
  if (!CheckTag(tools, callable, *grammar, built, error)) return false;
  built->request.sampling.grammar = std::move(grammar);
  built->request.fields.grammar = "tools";
  built->plan.is_constrained = tools.must_call();
  return true;
}

}  // namespace baton::api
