#include "src/api/messages_read.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"

#include "src/api/answer_form.h"
#include "src/api/json_fields.h"
#include "src/api/messages_turns.h"
#include "src/api/read_json.h"
#include "src/api/template_params.h"
#include "src/api/tool_params.h"

namespace baton::api {

using limits::kMaxTools;
using limits::kMaxUserBytes;
using router::ErrorCode;
using router::RequestError;

namespace {

// Anthropic's least budget of thoughts.
constexpr int64_t kMinThinkingTokens = 1024;
constexpr std::string_view kFormatField = "output_config.format";
constexpr std::string_view kOlderFormatField = "output_format";  // Anthropic's, while it was a beta

// The text of the member `type`; null when there is none.
const std::string* TypeOf(const JsonValue& value) {
  const JsonValue* type = value.Find("type");
  return type == nullptr ? nullptr : type->AsString();
}

// A tool of the client in OpenAI's form, which templates read.
bool ReadTool(const JsonValue& tool, const std::string& at, JsonValue* function,
              std::vector<std::string>* ignored, RequestError* error) {
  if (tool.AsObject() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, at, "an object with name and input_schema");
  }
  const JsonValue* type = GivenMember(tool, "type");
  if (type != nullptr && (type->AsString() == nullptr || *type->AsString() != "custom")) {
    return Fail(error, ErrorCode::kUnsupported, at + ".type",
                "\"custom\" or absent; tools that Anthropic's servers run or define are not here");
  }
  const JsonValue* name = tool.Find("name");
  if (name == nullptr || name->AsString() == nullptr || name->AsString()->empty()) {
    return Fail(error, ErrorCode::kInvalidType, at + ".name", "a string that is not empty");
  }
  const JsonValue* schema = tool.Find("input_schema");
  if (schema == nullptr || schema->AsObject() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, at + ".input_schema",
                "an object: the JSON schema of the tool's input");
  }
  JsonValue::Object members = {{"name", *name}};
  if (const JsonValue* description = GivenMember(tool, "description")) {
    if (description->AsString() == nullptr) {
      return Fail(error, ErrorCode::kInvalidType, at + ".description", "a string");
    }
    members.emplace_back("description", *description);
  }
  members.emplace_back("parameters", *schema);
  if (const JsonValue* strict = GivenMember(tool, "strict")) {
    if (strict->AsBool() == nullptr) {
      return Fail(error, ErrorCode::kInvalidType, at + ".strict", "true or false");
    }
    members.emplace_back("strict", *strict);
  }
  NameUnknownMembers(tool, at,
                     {"type", "name", "description", "input_schema", "strict", "cache_control"},
                     ignored);
  *function = ChatFunction(std::move(members));
  return true;
}

bool ReadTools(const JsonValue& value, ApiParams* params, std::vector<std::string>* ignored,
               RequestError* error) {
  const JsonValue::Array* tools = value.AsArray();
  if (tools == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, "tools", kExpectedMessagesTools);
  }
  if (tools->size() > kMaxTools) {
    return Fail(error, ErrorCode::kInvalidValue, "tools", kExpectedMessagesTools);
  }
  JsonValue::Array functions(tools->size());
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string at = fmt::format("tools[{}]", i);
    if (!ReadTool((*tools)[i], at, &functions[i], ignored, error)) return false;
  }
  return StoreTools(JsonValue(std::move(functions)), params, error);
}

// True where `tools`, which was read, has one of that name.
bool HasTool(const JsonValue* tools, const std::string& name) {
  if (tools == nullptr) return false;
  const JsonValue::Array& array = *tools->AsArray();
  return std::any_of(array.begin(), array.end(),
                     [&](const JsonValue& tool) { return *tool.Find("name")->AsString() == name; });
}

bool ReadToolChoice(const JsonValue& value, const JsonValue* tools, ApiParams* params,
                    std::vector<std::string>* ignored, RequestError* error) {
  const std::string* type = TypeOf(value);
  if (type == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, "tool_choice", kExpectedMessagesToolChoice);
  }
  if (const JsonValue* single = GivenMember(value, "disable_parallel_tool_use")) {
    if (single->AsBool() == nullptr) {
      return Fail(error, ErrorCode::kInvalidType, "tool_choice.disable_parallel_tool_use",
                  "true or false");
    }
    StoreParallelToolCalls(!*single->AsBool(), params);
  }
  NameUnknownMembers(value, "tool_choice", {"type", "name", "disable_parallel_tool_use"}, ignored);
  const auto store = [&](std::string_view choice) {
    return StoreToolChoice(JsonValue(std::string(choice)), params, error);
  };
  if (*type == "auto") return store("auto");
  if (*type == "any") return store("required");
  if (*type == "none") return store("none");
  if (*type != "tool") {
    return Fail(error, ErrorCode::kInvalidValue, "tool_choice.type", kExpectedMessagesToolChoice);
  }
  const JsonValue* name = value.Find("name");
  if (name == nullptr || name->AsString() == nullptr || !HasTool(tools, *name->AsString())) {
    return Fail(error, ErrorCode::kInvalidValue, "tool_choice.name", "the name of one of tools");
  }
  return StoreToolChoice(ChatFunction({{"name", *name}}), params, error);
}

bool CheckBudget(const JsonValue& thinking, const ApiParams& params, RequestError* error) {
  int64_t budget = 0;
  const JsonValue* value = thinking.Find("budget_tokens");
  if (value == nullptr || !value->GetInteger(&budget) || budget < kMinThinkingTokens) {
    return Fail(error, value == nullptr ? ErrorCode::kMissingField : ErrorCode::kInvalidValue,
                "thinking.budget_tokens",
                fmt::format("an integer of {} or more", kMinThinkingTokens));
  }
  if (params.max_tokens.has_value() && budget >= *params.max_tokens) {
    return Fail(error, ErrorCode::kConflict, "thinking.budget_tokens",
                "it must be less than max_tokens");
  }
  return true;
}

// `thinking` sets the template's variable enable_thinking, which most thinking models have.
bool ReadThinking(const JsonValue& value, ApiParams* params, MessagesForm* form,
                  std::vector<std::string>* ignored, RequestError* error) {
  const std::string* type = TypeOf(value);
  if (type == nullptr) return Fail(error, ErrorCode::kInvalidType, "thinking", kExpectedThinking);
  if (const JsonValue* display = GivenMember(value, "display")) {
    const std::string* text = display->AsString();
    if (text == nullptr || (*text != "summarized" && *text != "omitted")) {
      return Fail(error, ErrorCode::kInvalidValue, "thinking.display",
                  "\"summarized\" or \"omitted\"");
    }
    form->omits_thoughts = *text == "omitted";
  }
  if (*type == "adaptive") return true;  // the model's own way
  if (*type == "enabled") {
    if (!CheckBudget(value, *params, error)) return false;
    // No worker counts thoughts while it samples.
    AddUnread({"thinking.budget_tokens"}, ignored);
  } else if (*type != "disabled") {
    return Fail(error, ErrorCode::kInvalidValue, "thinking.type", kExpectedThinking);
  }
  return StoreTemplateVariable("thinking", "enable_thinking", JsonValue(*type == "enabled"), params,
                               error);
}

// {"type":"json_schema","schema":object}: the answer follows the schema, all of it, as Anthropic's
// does.
bool ReadFormat(const JsonValue& format, std::string_view field, ApiParams* params,
                std::vector<std::string>* ignored, RequestError* error) {
  const std::string* type = TypeOf(format);
  const JsonValue* schema = format.Find("schema");
  if (type == nullptr || *type != "json_schema" || schema == nullptr ||
      schema->AsObject() == nullptr) {
    return Fail(error, ErrorCode::kInvalidValue, field, kExpectedOutputFormat);
  }
  NameUnknownMembers(format, field, {"type", "schema"}, ignored);
  const JsonValue inner(JsonValue::Object{{"schema", *schema}, {"strict", JsonValue(true)}});
  const JsonValue asked(JsonValue::Object{{"type", JsonValue(*type)}, {"json_schema", inner}});
  if (!StoreResponseFormat(asked, params, error)) {
    error->param = field;
    return false;
  }
  params->form_field = field;
  return true;
}

// An edit would take parts of the conversation away. One that keeps all thoughts, which coding
// agents send, takes none.
bool ReadContextManagement(const JsonValue& value, std::vector<std::string>* ignored,
                           RequestError* error) {
  constexpr std::string_view kField = "context_management";
  if (value.AsObject() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, kField, kExpectedContextManagement);
  }
  const JsonValue* edits = GivenMember(value, "edits");
  if (edits != nullptr && edits->AsArray() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, "context_management.edits", "an array of objects");
  }
  for (size_t i = 0; edits != nullptr && i < edits->AsArray()->size(); ++i) {
    const JsonValue& edit = (*edits->AsArray())[i];
    const std::string* type = TypeOf(edit);
    const JsonValue* keep = GivenMember(edit, "keep");
    const bool keeps_all =
        type != nullptr && type->starts_with("clear_thinking") && IsJsonText(keep, "all");
    if (keeps_all) continue;
    return Fail(error, ErrorCode::kUnsupported, fmt::format("context_management.edits[{}]", i),
                "absent, or clear_thinking with keep \"all\": nothing is taken out of a "
                "conversation; send a shorter one");
  }
  AddUnread({std::string(kField)}, ignored);
  return true;
}

bool ReadOutputConfig(const JsonValue& value, ApiParams* params, std::vector<std::string>* ignored,
                      RequestError* error) {
  if (value.AsObject() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, "output_config", kExpectedOutputConfig);
  }
  const JsonValue* format = GivenMember(value, "format");
  if (format != nullptr && !ReadFormat(*format, kFormatField, params, ignored, error)) return false;
  const JsonValue* effort = GivenMember(value, "effort");
  if (effort == nullptr) return true;
  if (effort->AsString() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, "output_config.effort", kExpectedReasoningEffort);
  }
  return StoreReasoningEffort("output_config.effort", *effort->AsString(), params, error);
}

bool ReadMetadata(const JsonValue& value, ApiParams* params, std::vector<std::string>* ignored,
                  RequestError* error) {
  if (value.AsObject() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, "metadata", kExpectedMetadata);
  }
  NameUnknownMembers(value, "metadata", {"user_id"}, ignored);
  const JsonValue* user = GivenMember(value, "user_id");
  if (user == nullptr) return true;
  const std::string* text = user->AsString();
  if (text == nullptr || text->size() > kMaxUserBytes) {
    return Fail(error, text == nullptr ? ErrorCode::kInvalidType : ErrorCode::kInvalidValue,
                "metadata.user_id", fmt::format("a string of at most {} bytes", kMaxUserBytes));
  }
  params->user = *text;
  return true;
}

}  // namespace

bool ReadMessages(const JsonValue& body, ApiParams* params, MessagesForm* form,
                  std::vector<std::string>* ignored, RequestError* error) {
  params->names.stop = "stop_sequences";
  if (!ReadJsonParams(body, Endpoint::kMessages, params, ignored, error)) return false;
  form->max_tokens = params->max_tokens.value_or(0);
  const JsonValue* tools = GivenMember(body, "tools");
  const JsonValue* choice = GivenMember(body, "tool_choice");
  const JsonValue* thinking = GivenMember(body, "thinking");
  const JsonValue* output = GivenMember(body, "output_config");
  const JsonValue* older_format = GivenMember(body, kOlderFormatField);
  const JsonValue* context = GivenMember(body, "context_management");
  const JsonValue* metadata = GivenMember(body, "metadata");
  return (tools == nullptr || ReadTools(*tools, params, ignored, error)) &&
         (choice == nullptr || ReadToolChoice(*choice, tools, params, ignored, error)) &&
         (thinking == nullptr || ReadThinking(*thinking, params, form, ignored, error)) &&
         (output == nullptr || ReadOutputConfig(*output, params, ignored, error)) &&
         (older_format == nullptr ||
          ReadFormat(*older_format, kOlderFormatField, params, ignored, error)) &&
         CloseBlanks(params, error) &&
         (context == nullptr || ReadContextManagement(*context, ignored, error)) &&
         (metadata == nullptr || ReadMetadata(*metadata, params, ignored, error)) &&
         ReadMessagesTurns(body, params, ignored, error);
}

}  // namespace baton::api
