#include "src/api/read_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "fmt/format.h"

#include "src/api/answer_form.h"
#include "src/api/json_fields.h"
#include "src/api/schema.h"
#include "src/api/template_params.h"
#include "src/api/tool_params.h"
#include "src/api/unsupported_params.h"
#include "src/base/ascii_text.h"
#include "src/base/limits.h"

namespace baton::api {

using router::ErrorCode;
using router::RequestError;
using text::ChatMessage;
using text::ContentForm;

namespace {

bool WrongType(std::string_view field, std::string_view expected, RequestError* error) {
  return Fail(error, ErrorCode::kInvalidType, field, expected);
}

bool Missing(std::string_view field, std::string_view expected, RequestError* error) {
  return Fail(error, ErrorCode::kMissingField, field, expected);
}

// Reads one value into the place that a row names.
class RowReader {
 public:
  RowReader(const ParamRow& row, const JsonValue& value, ApiParams* params, RequestError* error)
      : row_(row), value_(value), params_(params), error_(error) {}

  bool Read() { return std::visit(*this, row_.target); }

  bool operator()(std::optional<int64_t> ApiParams::*target) const {
    int64_t number = 0;
    if (target == &ApiParams::logprobs_count && value_.AsBool() != nullptr) return ReadLogprobs();
    if (value_.GetInteger(&number)) return StoreInteger(row_, number, params_, error_);
    uint64_t large = 0;
    if (target == &ApiParams::seed && value_.GetUnsigned(&large)) {
      params_->seed = static_cast<int64_t>(large);
      return true;
    }
    // 1e300 has the right type; it is only too large.
    double real = 0;
    const bool is_huge = value_.GetNumber(&real) && std::abs(real) > 9e15;
    if (!is_huge) return Wrong();
    return Fail(error_, ErrorCode::kInvalidValue, row_.name, ExpectedOf(row_));
  }
  bool operator()(std::optional<double> ApiParams::* /*target*/) const {
    double number = 0;
    return value_.GetNumber(&number) ? StoreNumber(row_, number, params_, error_) : Wrong();
  }
  bool operator()(std::optional<bool> ApiParams::* /*target*/) const {
    const bool* flag = value_.AsBool();
    return flag != nullptr ? StoreBool(row_, *flag, params_, error_) : Wrong();
  }
  bool operator()(std::string ApiParams::*target) const {
    const std::string* text = value_.AsString();
    if (text == nullptr) return Wrong();
    if (target == &ApiParams::model && text->empty()) {
      return Fail(error_, ErrorCode::kModelNotFound, row_.name, "");
    }
    return StoreString(row_, *text, params_, error_);
  }
  bool operator()(std::vector<std::string> ApiParams::* /*target*/) const {
    if (const std::string* text = value_.AsString()) {
      return StoreStrings(row_, {*text}, params_, error_);
    }
    const JsonValue::Array* array = value_.AsArray();
    if (array == nullptr) return Wrong();
    std::vector<std::string> texts;
    for (const JsonValue& item : *array) {
      const std::string* text = item.AsString();
      if (text == nullptr) return Wrong();
      texts.push_back(*text);
    }
    return StoreStrings(row_, std::move(texts), params_, error_);
  }
  bool operator()(std::vector<int64_t> ApiParams::* /*target*/) const {
    std::vector<int64_t> numbers;
    if (!ReadJsonTokens(value_, row_.name, &numbers, error_)) return Wrong();
    return StoreIntegers(row_, std::move(numbers), params_, error_);
  }
  bool operator()(LogitBias ApiParams::* /*target*/) const {
    const JsonValue::Object* object = value_.AsObject();
    if (object == nullptr) return Wrong();
    LogitBias bias;
    for (const auto& [key, item] : *object) {
      int64_t token = 0;
      double number = 0;
      const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token);
      const bool is_id = parsed.ec == std::errc() && parsed.ptr == key.data() + key.size();
      if (!is_id || !item.GetNumber(&number)) return Wrong();
      bias.emplace_back(token, number);
    }
    return StoreBias(row_, std::move(bias), params_, error_);
  }
  bool operator()(SpecialParam special) const {
    switch (special) {
      case SpecialParam::kMessages:
        return ReadJsonMessages(value_, params_, error_);
      case SpecialParam::kPrompt:
        return ReadPrompt();
      case SpecialParam::kPromptTokenIds:
        return ReadPromptTokens(value_);
      case SpecialParam::kStreamOptions:
        return ReadStreamOptions();
      case SpecialParam::kResponseFormat:
        return StoreResponseFormat(value_, params_, error_);
      case SpecialParam::kStructuredOutputs:
        return StoreStructuredOutputs(value_, params_, error_);
      case SpecialParam::kGuided:
        return StoreGuided(row_.name, value_, params_, error_);
      case SpecialParam::kTools:
        return StoreTools(value_, params_, error_);
      case SpecialParam::kToolChoice:
        return StoreToolChoice(value_, params_, error_);
      case SpecialParam::kParallelToolCalls: {
        const bool* parallel = value_.AsBool();
        return parallel != nullptr ? StoreParallelToolCalls(*parallel, params_) : Wrong();
      }
      case SpecialParam::kToolParser: {
        const std::string* parser = value_.AsString();
        return parser != nullptr ? StoreToolParser(*parser, params_, error_) : Wrong();
      }
      case SpecialParam::kReasoningFormat:
        return ReadReasoningFormat();
      case SpecialParam::kReasoningEffort:
        return ReadReasoningEffort();
      case SpecialParam::kDocuments:
        return StoreDocuments(value_, params_, error_);
      case SpecialParam::kTemplateKwargs:
        return StoreTemplateKwargs(value_, params_, error_);
      case SpecialParam::kOfSurface:
        return true;
      case SpecialParam::kPath:
        return ReadPath();
    }
    return false;
  }

 private:
  // Completions: true is 1, as peers take it, and false asks for none.
  bool ReadLogprobs() const { return !*value_.AsBool() || StoreInteger(row_, 1, params_, error_); }
  bool Wrong() const { return WrongType(row_.name, ExpectedOf(row_), error_); }

  bool ReadPrompt() const {
    if (const std::string* text = value_.AsString()) {
      params_->prompt = *text;
      return true;
    }
    const JsonValue::Array* array = value_.AsArray();
    const JsonValue* first = array == nullptr || array->empty() ? nullptr : &array->front();
    const bool is_list =
        first != nullptr && (first->AsString() != nullptr || first->AsArray() != nullptr);
    if (!is_list) return ReadPromptTokens(value_);
    if (array->size() > 1) return ReadPrompts(*array);
    if (first->AsString() == nullptr) return ReadPromptTokens(*first);
    params_->prompt = *first->AsString();
    return true;
  }
  // Prompts of one request. They are all texts or all ids, as the first one is.
  bool ReadPrompts(const JsonValue::Array& array) const {
    if (!CheckPromptCount(array.size(), error_)) return false;
    const bool are_texts = array.front().AsString() != nullptr;
    std::vector<ApiPrompt> prompts(array.size());
    for (size_t i = 0; i < array.size(); ++i) {
      const std::string field = fmt::format("{}[{}]", row_.name, i);
      const std::string* text = array[i].AsString();
      if (are_texts && text == nullptr) {
        return WrongType(field, "a string, as the prompts before it are", error_);
      }
      if (are_texts) {
        prompts[i].text = *text;
      } else if (!ReadJsonTokens(array[i], field, &prompts[i].token_ids, error_)) {
        return false;
      }
    }
    return StorePrompts(std::move(prompts), params_, error_);
  }
  bool ReadPromptTokens(const JsonValue& value) const {
    std::vector<int64_t> tokens;
    if (!ReadJsonTokens(value, row_.name, &tokens, error_)) return Wrong();
    return StorePromptTokens(row_.name, std::move(tokens), params_, error_);
  }
  bool ReadStreamOptions() const {
    if (value_.AsObject() == nullptr) return Wrong();
    params_->has_stream_options = true;
    return ReadStreamOption("include_usage", &params_->include_usage) &&
           ReadStreamOption("continuous_usage_stats", &params_->continuous_usage_stats);
  }
  bool ReadStreamOption(std::string_view name, std::optional<bool>* option) const {
    const JsonValue* value = value_.Find(name);
    if (value == nullptr || value->is_null()) return true;
    if (value->AsBool() == nullptr) {
      return WrongType(fmt::format("stream_options.{}", name), "true or false", error_);
    }
    *option = *value->AsBool();
    return true;
  }
  bool ReadReasoningFormat() const {
    const std::string* format = value_.AsString();
    return format != nullptr ? StoreReasoningFormat(*format, params_, error_) : Wrong();
  }
  bool ReadPath() const {
    const std::string* path = value_.AsString();
    return path != nullptr ? StorePath(*path, params_, error_) : Wrong();
  }
  bool ReadReasoningEffort() const {
    const std::string* effort = value_.AsString();
    return effort != nullptr ? StoreReasoningEffort(row_.name, *effort, params_, error_) : Wrong();
  }

  const ParamRow& row_;
  const JsonValue& value_;
  ApiParams* const params_;
  RequestError* const error_;
};

// A part {"type":"refusal","refusal":TEXT}: what the assistant said instead of an answer.
const JsonValue* TextOfRefusal(const JsonValue& part) {
  return IsJsonText(part.Find("type"), "refusal") ? part.Find("refusal") : nullptr;
}

// A string, or an array of text parts, joined with a newline as vLLM and llama.cpp do.
// `may_refuse`: parts may be refusals.
bool ReadContent(const JsonValue* value, const std::string& field, bool may_refuse,
                 std::string* content, RequestError* error) {
  if (value == nullptr || value->is_null()) return true;  // an assistant turn may have none
  if (const std::string* text = value->AsString()) {
    *content = *text;
    return true;
  }
  const JsonValue::Array* parts = value->AsArray();
  if (parts == nullptr) return WrongType(field, kExpectedContent, error);
  for (size_t i = 0; i < parts->size(); ++i) {
    const JsonValue& part = (*parts)[i];
    const JsonValue* type = part.Find("type");
    const JsonValue* refusal = may_refuse ? TextOfRefusal(part) : nullptr;
    const JsonValue* text = refusal != nullptr ? refusal : part.Find("text");
    const std::string* name = type == nullptr ? nullptr : type->AsString();
    if (name != nullptr && *name != "text" && refusal == nullptr) {
      // An image, a sound, a file: a part that clients know, and nothing here reads.
      return Fail(error, ErrorCode::kUnsupported, fmt::format("{}[{}]", field, i), kExpectedPart);
    }
    const bool is_text = name != nullptr && text != nullptr && text->AsString() != nullptr;
    if (!is_text) return WrongType(field, kExpectedContent, error);
    if (&part != &parts->front()) content->push_back('\n');
    content->append(*text->AsString());
  }
  return true;
}

// Members that are texts where they are given.
bool CheckTurnTexts(const JsonValue& turn, const std::string& at, RequestError* error) {
  for (const char* name : {"name", "tool_call_id", "reasoning_content", "reasoning", "thinking"}) {
    const JsonValue* value = turn.Find(name);
    const bool is_text = value == nullptr || value->is_null() || value->AsString() != nullptr;
    if (!is_text) return WrongType(fmt::format("{}.{}", at, name), "a string or absent", error);
  }
  return true;
}

// The text of an assistant's turn that refuses in the place of its content; null = it does not.
const std::string* RefusalOf(const JsonValue& turn) {
  const JsonValue* refusal = turn.Find("refusal");
  const bool is_free =
      IsJsonText(turn.Find("role"), "assistant") && GivenMember(turn, "content") == nullptr;
  return is_free && refusal != nullptr ? refusal->AsString() : nullptr;
}

// Content in parts for a template, which knows text parts alone.
JsonValue TextParts(const JsonValue& content) {
  JsonValue parts = content;
  for (JsonValue& part : *parts.AsArray()) {
    const JsonValue* text = TextOfRefusal(part);
    if (text == nullptr) continue;
    part = JsonValue(JsonValue::Object{{"type", JsonText("text")}, {"text", *text}});
  }
  return parts;
}

// The members of a turn for the template, which may read any of them.
bool ReadTurnMembers(const JsonValue& value, const std::string& at, ChatMessage* turn,
                     RequestError* error) {
  bool has_calls = false;
  for (const auto& [name, member] : *value.AsObject()) {
    if (name == "role" || (name == "content" && member.AsArray() == nullptr)) {
      turn->members.emplace_back(name, JsonValue());
    } else if (name == "content") {
      turn->members.emplace_back(name, TextParts(member));
    } else if (name == "tool_calls" && !member.is_null()) {
      JsonValue calls;
      if (!ReadToolCalls(member, at + ".tool_calls", &calls, error)) return false;
      has_calls = !calls.AsArray()->empty();
      turn->members.emplace_back(name, std::move(calls));
    } else {
      turn->members.emplace_back(name, member);
    }
  }
  const JsonValue* content = value.Find("content");
  // A turn without text and calls has always been an empty text.
  const bool is_bare = has_calls && turn->content.empty();
  if (is_bare && content == nullptr) turn->form = ContentForm::kAbsent;
  if (is_bare && content != nullptr && content->is_null()) turn->form = ContentForm::kNull;
  if (!is_bare && content == nullptr) turn->members.emplace_back("content", JsonValue());
  return true;
}

bool ReadTurn(const JsonValue& value, size_t idx, ChatMessage* turn, RequestError* error) {
  const std::string at = fmt::format("messages[{}]", idx);
  if (value.AsObject() == nullptr) return WrongType(at, "an object with role and content", error);
  const JsonValue* role = value.Find("role");
  if (role == nullptr) return Missing(at + ".role", kExpectedRole, error);
  if (role->AsString() == nullptr) return WrongType(at + ".role", kExpectedRole, error);
  turn->role = *role->AsString();
  if (!CheckUnsupportedOfTurn(value, at, error)) return false;
  if (HasHugeNumber(value)) return Fail(error, ErrorCode::kInvalidValue, at, kExpectedNumbers);
  const JsonValue* content = value.Find("content");
  if (turn->role != "assistant") {
    if (content == nullptr) return Missing(at + ".content", kExpectedContent, error);
    if (content->is_null()) return WrongType(at + ".content", kExpectedContent, error);
  }
  if (const std::string* refusal = RefusalOf(value)) turn->content = *refusal;
  return ReadContent(content, at + ".content", turn->role == "assistant", &turn->content, error) &&
         CheckTurnTexts(value, at, error) && ReadTurnMembers(value, at, turn, error);
}

// Numbers within fields whose members have no range, such as messages and tools.
bool CheckNumbers(const JsonValue& root, Endpoint endpoint, RequestError* error) {
  for (const auto& [name, value] : *root.AsObject()) {
    const ParamRow* row = FindParam(endpoint, name);
    if (row == nullptr || !HasHugeNumber(value)) continue;
    return Fail(error, ErrorCode::kInvalidValue, row->name, kExpectedNumbers);
  }
  return true;
}

// The members of a request that nothing reads, by their path.
class IgnoredNames {
 public:
  explicit IgnoredNames(std::vector<std::string>* names) : names_(names) {}

  // Members of `value`, if it is an object, for which `is_known` is false; null is none.
  template <typename IsKnown>
  void AddUnknown(const JsonValue* value, const std::string& path, const IsKnown& is_known) {
    const JsonValue::Object* object = value == nullptr ? nullptr : value->AsObject();
    if (object == nullptr) return;
    for (const auto& [name, member] : *object) {
      if (full()) return;
      if (!is_known(name) && !member.is_null()) names_->push_back(path + HeaderSafe(name));
    }
  }
  // As above for an object that has the members `known`.
  void AddUnknown(const JsonValue* value, const std::string& path,
                  std::initializer_list<std::string_view> known) {
    AddUnknown(value, path, [known](std::string_view name) {
      return std::find(known.begin(), known.end(), name) != known.end();
    });
  }
  void AddUnknownOfTurn(const JsonValue& turn, const std::string& path) {
    const bool refuses = RefusalOf(turn) != nullptr;
    constexpr auto kKnown =
        std::to_array<std::string_view>({"role", "content", "tool_calls", "tool_call_id", "name",
                                         "reasoning_content", "reasoning", "thinking"});
    AddUnknown(&turn, path + ".", [refuses, &kKnown](std::string_view name) {
      return (refuses && name == "refusal") ||
             std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end();
    });
    const JsonValue* content = turn.Find("content");
    const JsonValue::Array* parts = content == nullptr ? nullptr : content->AsArray();
    for (size_t i = 0; parts != nullptr && i < parts->size() && !full(); ++i) {
      const JsonValue& part = (*parts)[i];
      const std::string_view text = TextOfRefusal(part) != nullptr ? "refusal" : "text";
      AddUnknown(&part, fmt::format("{}.content[{}].", path, i), {"type", text});
    }
  }
  bool full() const { return names_->size() >= kMaxIgnoredNames; }

 private:
  std::vector<std::string>* const names_;
};

// Adds the names that ReadTurn skips in the turns of `messages`.
void AddIgnoredOfTurns(const JsonValue& root, IgnoredNames* names) {
  const JsonValue* messages = root.Find("messages");
  const JsonValue::Array* turns = messages == nullptr ? nullptr : messages->AsArray();
  for (size_t i = 0; turns != nullptr && i < turns->size() && !names->full(); ++i) {
    names->AddUnknownOfTurn((*turns)[i], fmt::format("messages[{}]", i));
  }
}

// Adds the names that StoreTools (tool_params.h) skips in `tools`.
void AddIgnoredOfTools(const JsonValue& root, IgnoredNames* names) {
  const JsonValue* value = root.Find("tools");
  const JsonValue::Array* tools = value == nullptr ? nullptr : value->AsArray();
  for (size_t i = 0; tools != nullptr && i < tools->size() && !names->full(); ++i) {
    const JsonValue& tool = (*tools)[i];
    names->AddUnknown(&tool, fmt::format("tools[{}].", i), {"type", "function"});
    names->AddUnknown(tool.Find("function"), fmt::format("tools[{}].function.", i),
                      {"name", "description", "parameters", "strict"});
  }
}

// Names what the readers above skip, outer members first.
void FindIgnored(const JsonValue& root, Endpoint endpoint, std::vector<std::string>* ignored) {
  IgnoredNames names(ignored);
  names.AddUnknown(&root, "", [endpoint](std::string_view name) {
    return FindParam(endpoint, name) != nullptr || IsUnsupportedParam(endpoint, name);
  });
  names.AddUnknown(root.Find("stream_options"), "stream_options.",
                   {"include_usage", "continuous_usage_stats"});
  if (const JsonValue* format = root.Find("response_format")) {
    // The compiler of a structural tag refuses what it does not read.
    if (!IsJsonText(format->Find("type"), "structural_tag")) {
      names.AddUnknown(format, "response_format.", {"type", "json_schema", "schema"});
    }
    names.AddUnknown(format->Find("json_schema"), "response_format.json_schema.",
                     {"name", "description", "schema", "strict"});
  }
  if (endpoint == Endpoint::kMessages) {
    names.AddUnknown(root.Find("output_config"), "output_config.", {"effort", "format"});
    names.AddUnknown(root.Find("thinking"), "thinking.", {"type", "budget_tokens", "display"});
  }
  if (endpoint != Endpoint::kChat) return;
  if (const JsonValue* choice = root.Find("tool_choice")) {
    names.AddUnknown(choice, "tool_choice.", {"type", "function", "allowed_tools"});
    names.AddUnknown(choice->Find("function"), "tool_choice.function.", {"name"});
    names.AddUnknown(choice->Find("allowed_tools"), "tool_choice.allowed_tools.",
                     {"mode", "tools"});
  }
  AddIgnoredOfTools(root, &names);
  AddIgnoredOfTurns(root, &names);
}

}  // namespace

std::string HeaderSafe(std::string_view name, size_t max_bytes) {
  std::string safe(name.substr(0, max_bytes));
  for (char& c : safe) {
    if (!IsNameByte(c)) c = '?';
  }
  return safe;
}

bool ReadJsonParams(const JsonValue& root, Endpoint endpoint, ApiParams* params,
                    std::vector<std::string>* ignored, RequestError* error) {
  if (root.AsObject() == nullptr) {
    *error = RequestError{ErrorCode::kInvalidJson};
    return false;
  }
  for (const ParamRow& row : ParamTable()) {
    if (!row.AppliesTo(endpoint)) continue;
    const JsonValue* value = root.Find(row.name);
    if (value == nullptr || value->is_null()) continue;
    if (!RowReader(row, *value, params, error).Read()) return false;
  }
  if (!CloseBlanks(params, error)) return false;
  if (!CheckUnsupportedParams(root, endpoint, error)) return false;
  if (!CheckNumbers(root, endpoint, error)) return false;
  FindIgnored(root, endpoint, ignored);
  return true;
}

std::vector<std::string> IgnoredJsonFields(const JsonValue& root,
                                           std::initializer_list<std::string_view> known) {
  std::vector<std::string> ignored;
  IgnoredNames names(&ignored);
  const auto is_known = [known](std::string_view name) {
    return std::find(known.begin(), known.end(), name) != known.end();
  };
  const bool is_chat = is_known("messages");
  names.AddUnknown(&root, "", [&](std::string_view name) {
    return is_known(name) || (is_chat && IsUnsupportedParam(Endpoint::kChat, name));
  });
  if (is_chat) AddIgnoredOfTools(root, &names);
  if (is_chat) AddIgnoredOfTurns(root, &names);
  return ignored;
}

void NameUnknownMembers(const JsonValue& value, std::string_view path,
                        std::initializer_list<std::string_view> known,
                        std::vector<std::string>* ignored) {
  IgnoredNames(ignored).AddUnknown(&value, fmt::format("{}.", path), known);
}

void AddUnread(const std::vector<std::string>& unread, std::vector<std::string>* ignored) {
  for (const std::string& name : unread) {
    const bool is_named = std::find(ignored->begin(), ignored->end(), name) != ignored->end();
    if (!is_named && ignored->size() < kMaxIgnoredNames) ignored->push_back(name);
  }
}

bool ReadJsonMessages(const JsonValue& value, ApiParams* params, RequestError* error) {
  const JsonValue::Array* array = value.AsArray();
  if (array == nullptr) return WrongType("messages", kExpectedMessages, error);
  std::vector<ChatMessage> turns(std::min(array->size(), limits::kMaxMessages + 1));
  for (size_t i = 0; i < turns.size(); ++i) {
    if (!ReadTurn((*array)[i], i, &turns[i], error)) return false;
    AddThoughtField(turns[i], i, params);
  }
  return StoreMessages(std::move(turns), params, error);
}

std::span<const std::string_view> TemplateFieldNames() {
  static constexpr std::string_view kNames[] = {
      "messages",
      "documents",
      "reasoning_effort",
      "chat_template_kwargs",
      "add_generation_prompt",
      "continue_final_message",
      "tools",
  };
  return kNames;
}

bool ReadJsonTemplateParams(const JsonValue& root, ApiParams* params, RequestError* error) {
  for (const std::string_view name : TemplateFieldNames()) {
    const JsonValue* value = root.Find(name);
    if (value == nullptr || value->is_null()) continue;
    if (!RowReader(*FindParam(Endpoint::kChat, name), *value, params, error).Read()) return false;
  }
  if (params->messages.empty()) return Missing("messages", kExpectedMessages, error);
  return CheckUnsupportedParams(root, Endpoint::kChat, error) &&
         CheckNumbers(root, Endpoint::kChat, error);
}

bool ReadJsonTokens(const JsonValue& value, std::string_view field, std::vector<int64_t>* tokens,
                    RequestError* error) {
  const JsonValue::Array* array = value.AsArray();
  if (array == nullptr) return WrongType(field, "an array of token ids", error);
  tokens->reserve(array->size());
  for (const JsonValue& item : *array) {
    int64_t token = 0;
    if (!item.GetInteger(&token)) return WrongType(field, "an array of token ids", error);
    tokens->push_back(token);
  }
  return true;
}

}  // namespace baton::api
