#include "src/api/responses_params.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <set>
#include <string_view>

#include "fmt/format.h"

#include "src/api/json_fields.h"
#include "src/api/read_json.h"
#include "src/api/responses_input.h"
#include "src/api/schema.h"
#include "src/base/limits.h"
#include "src/base/numbered_text.h"

namespace baton::api {

using router::ErrorCode;
using router::RequestError;

namespace {

constexpr size_t kMaxMetadata = 16;
constexpr size_t kMaxMetadataKeyBytes = 64 * 4;     // 64 characters
constexpr size_t kMaxMetadataValueBytes = 512 * 4;  // 512 characters
constexpr std::string_view kExpectedMetadata =
    "an object of at most 16 names of up to 64 characters with texts of up to 512";
constexpr std::string_view kExpectedTool =
    "an object {\"type\":\"function\", \"name\":string, \"description\":string, "
    "\"parameters\":object}";
constexpr std::string_view kExpectedChoice =
    "\"none\", \"auto\", \"required\", {\"type\":\"function\", \"name\":string} or "
    "{\"type\":\"allowed_tools\", \"mode\":string, \"tools\":array}";
constexpr std::string_view kExpectedFormat =
    "an object whose type is \"text\", \"json_object\" or \"json_schema\"";
constexpr std::string_view kStateless =
    "absent: no answer is stored; send the whole conversation "
    "as input";

// Fields of other surfaces, and fields that need memory of earlier answers.
constexpr auto kRefused = std::to_array<RefusedField>({
    {"previous_response_id", kStateless},
    {"conversation", kStateless},
    {"prompt", "absent: no prompts are stored; send input and instructions"},
    {"moderation", "absent"},
    {"messages", "absent; input is its name here"},
    {"system", "absent; instructions is its name here"},
    {"max_tokens", "absent; max_output_tokens is its name here"},
    {"max_completion_tokens", "absent; max_output_tokens is its name here"},
    {"response_format", "absent; text.format is its place here"},
    {"reasoning_effort", "absent; reasoning.effort is its place here"},
    {"verbosity", "absent; text.verbosity is its place here"},
    {"logprobs", "absent; include with \"message.output_text.logprobs\" asks for it"},
    {"prompt_logprobs", "absent; /v1/chat/completions answers with them"},
});

constexpr std::string_view kExpectedMaxToolCalls = "an integer from 0 on";

// Fields that this file reads. All others go to the chat's table, which knows them, refuses them or
// names them as ignored.
constexpr auto kOwn = std::to_array<SurfaceField>({
    {"input", kJsonString | kJsonArray, kExpectedInput},
    {"instructions", kJsonString, "a string or absent"},
    {"max_output_tokens", kJsonInteger, "an integer from 1 on"},
    {"text", kJsonObject, "an object with format and verbosity"},
    {"tools", kJsonArray, "an array of functions"},
    {"tool_choice", kJsonString | kJsonObject, kExpectedChoice},
    {"reasoning", kJsonObject, "an object with effort and summary"},
    {"include", kJsonArray, "an array of strings"},
    {"metadata", kJsonObject, kExpectedMetadata},
    {"store", kJsonBool, "true or false"},
    {"background", kJsonBool, "true or false"},
    {"truncation", kJsonString, "\"auto\" or \"disabled\""},
    {"stream_options", kJsonObject, "an object with include_obfuscation"},
    {"max_tool_calls", kJsonInteger, kExpectedMaxToolCalls},
    {"context_management", kJsonArray, "absent or []"},
    {"n", kJsonInteger, "1 or absent"},
});

// A field of a chat and its place in a Responses request.
struct Renamed {
  std::string_view chat;
  std::string_view responses;
};
constexpr auto kRenamed = std::to_array<Renamed>({
    {"messages", "input"},
    {"max_tokens", "max_output_tokens"},
    {"response_format.json_schema", "text.format"},
    {"response_format", "text.format"},
    {"reasoning_effort", "reasoning.effort"},
    {"verbosity", "text.verbosity"},
});

// Reads one request.
class Reader {
 public:
  Reader(const JsonValue& root, const StoredItems* items, ResponsesRequest* request,
         RequestError* error)
      : root_(root), items_(items), request_(request), error_(error) {}

  bool Read() {
    if (!CheckRefused() || !ReadResponsesInput(root_, items_, &input_, error_)) return false;
    if (!ReadState() || !ReadText() || !ReadReasoning() || !ReadTools() || !ReadInclude()) {
      return false;
    }
    AddUnread(input_.ignored, &request_->ignored);
    chat_.emplace_back("messages", JsonValue(std::move(input_.messages)));
    Copy("max_output_tokens", "max_tokens");
    for (const auto& [name, value] : *root_.AsObject()) {
      if (!HasField(kOwn, name) && !value.is_null()) chat_.emplace_back(name, value);
    }
    const JsonValue chat(std::move(chat_));
    request_->params.names = {"input", "max_output_tokens", "stop"};
    if (!ReadJsonParams(chat, Endpoint::kChat, &request_->params, &request_->ignored, error_)) {
      // Fields that a request may not have by a chat's name are refused above.
      error_->param = ResponsesField(input_.FieldOf(error_->param));
      return false;
    }
    // Thoughts are an item, or a part of one, whatever the member of a chat's message is called.
    for (std::string& field : request_->params.thought_fields) {
      field = input_.FieldOf(field.substr(0, field.rfind('.')));
    }
    Repeat();
    return true;
  }

 private:
  bool Fail(ErrorCode code, std::string_view field, std::string_view expected) const {
    return api::Fail(error_, code, field, expected);
  }

  void Copy(std::string_view from, std::string_view to) {
    if (const JsonValue* value = GivenMember(root_, from))
      chat_.emplace_back(std::string(to), *value);
  }

  // Names the members of the object `value` at `path` that are not `known`.
  void NameUnread(const JsonValue& value, std::string_view path,
                  std::initializer_list<std::string_view> known) {
    NameUnknownMembers(value, path, known, &request_->ignored);
  }

  bool CheckRefused() const {
    for (const auto& [name, way] : kRefused) {
      const JsonValue* value = GivenMember(root_, name);
      if (value != nullptr) return Fail(ErrorCode::kUnsupported, name, way);
    }
    // The answer repeats them as JSON, which has no such numbers.
    for (const auto& [name, types, expected] : kOwn) {
      const JsonValue* value = GivenMember(root_, name);
      if (value == nullptr || !HasHugeNumber(*value)) continue;
      return Fail(ErrorCode::kInvalidValue, name, kExpectedNumbers);
    }
    const JsonValue* calls = GivenMember(root_, "max_tool_calls");
    int64_t number = 0;
    if (calls != nullptr && !(calls->GetInteger(&number) && number >= 0)) {
      return Fail(calls->IsNumber() ? ErrorCode::kInvalidValue : ErrorCode::kInvalidType,
                  "max_tool_calls", kExpectedMaxToolCalls);
    }
    const JsonValue* count = GivenMember(root_, "n");
    if (count != nullptr && !(count->GetInteger(&number) && number == 1)) {
      return Fail(ErrorCode::kUnsupported, "n", "1 or absent: a response is one answer");
    }
    const JsonValue* compaction = GivenMember(root_, "context_management");
    const bool compacts = compaction != nullptr &&
                          (compaction->AsArray() == nullptr || !compaction->AsArray()->empty());
    if (compacts) {
      return Fail(ErrorCode::kUnsupported, "context_management",
                  "absent: input is not compacted; shorten it yourself");
    }
    return true;
  }

  // The fields about where an answer stays and what happens to a long input.
  bool ReadState() {
    for (const std::string_view name : {"store", "background"}) {
      const JsonValue* value = GivenMember(root_, name);
      if (value == nullptr) continue;
      if (value->AsBool() == nullptr) return Fail(ErrorCode::kInvalidType, name, "true or false");
      if (name == "background" && *value->AsBool()) {
        return Fail(ErrorCode::kUnsupported, name,
                    "false or absent: no answer is stored, so it goes to whoever asks");
      }
      if (name != "store") continue;
      request_->stores = *value->AsBool();
      // The answer says false: no response can be asked for by its id.
      if (request_->stores) request_->ignored.emplace_back(name);
    }
    const JsonValue* truncation = GivenMember(root_, "truncation");
    if (truncation != nullptr && !IsJsonText(truncation, "auto") &&
        !IsJsonText(truncation, "disabled")) {
      return Fail(ErrorCode::kInvalidValue, "truncation", "\"auto\" or \"disabled\"");
    }
    return ReadStreamOptions() && ReadMetadata();
  }

  // Deltas are never padded, so that only `false` is what is done.
  bool ReadStreamOptions() {
    const JsonValue* options = GivenMember(root_, "stream_options");
    if (options == nullptr) return true;
    if (options->AsObject() == nullptr) {
      return Fail(ErrorCode::kInvalidType, "stream_options", "an object with include_obfuscation");
    }
    constexpr std::string_view kPadding = "include_obfuscation";
    const JsonValue* padding = GivenMember(*options, kPadding);
    if (padding == nullptr || (padding->AsBool() != nullptr && !*padding->AsBool())) {
      NameUnread(*options, "stream_options", {kPadding});
    } else if (padding->AsBool() != nullptr) {
      NameUnread(*options, "stream_options", {});
    } else {
      return Fail(ErrorCode::kInvalidType, "stream_options.include_obfuscation", "true or false");
    }
    return true;
  }

  bool ReadMetadata() {
    const JsonValue* metadata = GivenMember(root_, "metadata");
    if (metadata == nullptr) return true;
    const JsonValue::Object* members = metadata->AsObject();
    if (members == nullptr) return Fail(ErrorCode::kInvalidType, "metadata", kExpectedMetadata);
    const bool fits =
        members->size() <= kMaxMetadata &&
        std::all_of(members->begin(), members->end(), [](const JsonValue::Member& member) {
          const std::string* text = member.second.AsString();
          return text != nullptr && member.first.size() <= kMaxMetadataKeyBytes &&
                 text->size() <= kMaxMetadataValueBytes;
        });
    return fits || Fail(ErrorCode::kInvalidValue, "metadata", kExpectedMetadata);
  }

  bool ReadText() {
    const JsonValue* text = GivenMember(root_, "text");
    if (text == nullptr) return true;
    if (text->AsObject() == nullptr) {
      return Fail(ErrorCode::kInvalidType, "text", "an object with format and verbosity");
    }
    NameUnread(*text, "text", {"format", "verbosity"});
    if (const JsonValue* verbosity = GivenMember(*text, "verbosity")) {
      chat_.emplace_back("verbosity", *verbosity);
    }
    const JsonValue* format = GivenMember(*text, "format");
    if (format == nullptr) return true;
    const JsonValue* type = format->Find("type");
    if (type == nullptr || type->AsString() == nullptr) {
      return Fail(ErrorCode::kInvalidType, "text.format", kExpectedFormat);
    }
    JsonValue::Object chat;
    chat.emplace_back("type", *type);
    if (*type->AsString() != "json_schema") {
      if (*type->AsString() != "text" && *type->AsString() != "json_object") {
        return Fail(ErrorCode::kUnsupported, "text.format.type", kExpectedFormat);
      }
      NameUnread(*format, "text.format", {"type"});
      chat_.emplace_back("response_format", JsonValue(std::move(chat)));
      return true;
    }
    const JsonValue* schema = GivenMember(*format, "schema");
    if (schema == nullptr) {
      return Fail(ErrorCode::kMissingField, "text.format.schema", "a JSON Schema");
    }
    NameUnread(*format, "text.format", {"type", "name", "description", "schema", "strict"});
    JsonValue::Object inner;
    inner.emplace_back("name", GivenMember(*format, "name") != nullptr ? *format->Find("name")
                                                                       : JsonText("answer"));
    for (const char* name : {"description", "schema", "strict"}) {
      if (const JsonValue* value = GivenMember(*format, name)) inner.emplace_back(name, *value);
    }
    chat.emplace_back("json_schema", JsonValue(std::move(inner)));
    chat_.emplace_back("response_format", JsonValue(std::move(chat)));
    return true;
  }

  bool ReadReasoning() {
    const JsonValue* reasoning = GivenMember(root_, "reasoning");
    if (reasoning == nullptr) return true;
    if (reasoning->AsObject() == nullptr) {
      return Fail(ErrorCode::kInvalidType, "reasoning", "an object with effort");
    }
    NameUnread(*reasoning, "reasoning", {"effort", "summary", "generate_summary", "mode"});
    if (const JsonValue* effort = GivenMember(*reasoning, "effort")) {
      chat_.emplace_back("reasoning_effort", *effort);
    }
    for (const std::string_view name : {"summary", "generate_summary"}) {
      const JsonValue* value = GivenMember(*reasoning, name);
      if (value == nullptr || IsJsonText(value, "auto") || IsJsonText(value, "concise") ||
          IsJsonText(value, "detailed")) {
        request_->summarizes |= value != nullptr;
        continue;
      }
      return Fail(ErrorCode::kInvalidValue, fmt::format("reasoning.{}", name),
                  "\"auto\", \"concise\" or \"detailed\"");
    }
    const JsonValue* mode = GivenMember(*reasoning, "mode");
    if (mode != nullptr && !IsJsonText(mode, "standard")) {
      return Fail(ErrorCode::kUnsupported, "reasoning.mode", "\"standard\" or absent");
    }
    return true;
  }

  bool ReadTool(const JsonValue& tool, const std::string& at, JsonValue::Array* tools) {
    const JsonValue* type = tool.Find("type");
    if (type == nullptr || type->AsString() == nullptr) {
      return Fail(ErrorCode::kInvalidType, at, kExpectedTool);
    }
    if (*type->AsString() != "function") {
      return Fail(ErrorCode::kUnsupported, at + ".type",
                  "\"function\": custom tools, and tools that a server runs, are not here");
    }
    const JsonValue* name = GivenMember(tool, "name");
    if (name == nullptr) return Fail(ErrorCode::kMissingField, at + ".name", "a string");
    if (name->AsString() == nullptr || name->AsString()->empty()) {
      return Fail(ErrorCode::kInvalidType, at + ".name", "a string that is not empty");
    }
    const JsonValue* parameters = GivenMember(tool, "parameters");
    if (parameters != nullptr && parameters->AsObject() == nullptr) {
      return Fail(ErrorCode::kInvalidType, at + ".parameters", "a JSON Schema or absent");
    }
    NameUnread(tool, at, {"type", "name", "description", "parameters", "strict"});
    JsonValue::Object function;
    for (const char* member : {"name", "description", "parameters", "strict"}) {
      if (const JsonValue* value = GivenMember(tool, member)) function.emplace_back(member, *value);
    }
    tools->push_back(ChatFunction(std::move(function)));
    return true;
  }

  bool ReadTools() {
    JsonValue::Array tools;
    if (const JsonValue* value = GivenMember(root_, "tools")) {
      const JsonValue::Array* array = value->AsArray();
      if (array == nullptr) return Fail(ErrorCode::kInvalidType, "tools", "an array of functions");
      for (size_t i = 0; i < array->size(); ++i) {
        if (!ReadTool((*array)[i], fmt::format("tools[{}]", i), &tools)) return false;
      }
    }
    if (!ReadChoice(tools)) return false;
    if (!tools.empty()) chat_.emplace_back("tools", JsonValue(std::move(tools)));
    return true;
  }

  bool ReadChoice(const JsonValue::Array& tools) {
    const JsonValue* choice = GivenMember(root_, "tool_choice");
    if (choice == nullptr) return true;
    if (choice->AsString() != nullptr) {
      chat_.emplace_back("tool_choice", *choice);
      return true;
    }
    const JsonValue* type = choice->Find("type");
    if (IsJsonText(type, "allowed_tools")) return ReadAllowed(*choice, tools);
    const bool is_other =
        type != nullptr && type->AsString() != nullptr && !IsJsonText(type, "function");
    if (is_other) return Fail(ErrorCode::kUnsupported, "tool_choice.type", kExpectedChoice);
    const JsonValue* name = choice->Find("name");
    if (!IsJsonText(type, "function") || name == nullptr || name->AsString() == nullptr) {
      return Fail(ErrorCode::kInvalidType, "tool_choice", kExpectedChoice);
    }
    NameUnread(*choice, "tool_choice", {"type", "name"});
    chat_.emplace_back("tool_choice", ChatFunction({{"name", *name}}));
    return true;
  }

  // The model may call only some of the tools. All stay in the prompt, as in chats.
  bool ReadAllowed(const JsonValue& choice, const JsonValue::Array& tools) {
    const JsonValue* mode = choice.Find("mode");
    const JsonValue* list = choice.Find("tools");
    const JsonValue::Array* allowed = list == nullptr ? nullptr : list->AsArray();
    if (allowed == nullptr || !(IsJsonText(mode, "auto") || IsJsonText(mode, "required"))) {
      return Fail(ErrorCode::kInvalidType, "tool_choice", kExpectedChoice);
    }
    if (allowed->size() > limits::kMaxTools) {
      return Fail(ErrorCode::kInvalidValue, "tool_choice.tools",
                  kNumberedText<"an array of at most {} functions", limits::kMaxTools>);
    }
    NameUnread(choice, "tool_choice", {"type", "mode", "tools"});
    std::set<std::string_view> offered;
    for (const JsonValue& tool : tools) {
      offered.insert(*tool.Find("function")->Find("name")->AsString());
    }
    JsonValue::Array functions;
    for (size_t i = 0; i < allowed->size(); ++i) {
      NameUnread((*allowed)[i], fmt::format("tool_choice.tools[{}]", i), {"type", "name"});
      const JsonValue* name = (*allowed)[i].Find("name");
      const std::string* text = name == nullptr ? nullptr : name->AsString();
      if (text == nullptr || !offered.contains(*text)) {
        return Fail(ErrorCode::kInvalidValue, fmt::format("tool_choice.tools[{}]", i),
                    "{\"type\":\"function\", \"name\":string} with the name of one of the tools");
      }
      functions.push_back(ChatFunction({{"name", *name}}));
    }
    JsonValue inner(JsonValue::Object{{"mode", *mode}, {"tools", JsonValue(std::move(functions))}});
    chat_.emplace_back("tool_choice",
                       JsonValue(JsonValue::Object{{"type", JsonText("allowed_tools")},
                                                   {"allowed_tools", std::move(inner)}}));
    return true;
  }

  bool ReadInclude() {
    constexpr auto kNames = std::to_array<std::string_view>(
        {"message.output_text.logprobs", "reasoning.encrypted_content", "file_search_call.results",
         "web_search_call.results", "web_search_call.action.sources",
         "message.input_image.image_url", "computer_call_output.output.image_url",
         "code_interpreter_call.outputs"});
    bool has_logprobs = false;
    if (const JsonValue* include = GivenMember(root_, "include")) {
      const JsonValue::Array* names = include->AsArray();
      if (names == nullptr) return Fail(ErrorCode::kInvalidType, "include", "an array of strings");
      for (size_t i = 0; i < names->size(); ++i) {
        const std::string* name = (*names)[i].AsString();
        const bool is_known =
            name != nullptr && std::find(kNames.begin(), kNames.end(), *name) != kNames.end();
        if (!is_known) {
          return Fail(ErrorCode::kInvalidValue, fmt::format("include[{}]", i),
                      "one of OpenAI's names, of which \"message.output_text.logprobs\" adds to "
                      "answers of this server");
        }
        has_logprobs |= *name == kNames.front();
      }
    }
    const JsonValue* top = GivenMember(root_, "top_logprobs");
    int64_t number = 0;
    const bool asks = top != nullptr && top->GetInteger(&number) && number > 0;
    if (has_logprobs || asks) chat_.emplace_back("logprobs", JsonValue(true));
    return true;
  }

  void Add(std::string_view name, std::string json) {
    request_->repeated.emplace_back(name, std::move(json));
  }
  // Repeats the field `name`, or says `absent`.
  void AddField(std::string_view name, std::string_view absent) {
    const JsonValue* value = GivenMember(root_, name);
    Add(name, value == nullptr ? std::string(absent) : JsonOf(*value));
  }
  void AddLarge(std::string_view name, std::string_view absent) {
    AddField(name, absent);
    std::string& json = request_->repeated.back().second;
    if (json.size() > kMaxRepeatedBytes) json = absent;
  }
  void AddNumber(std::string_view name, const std::optional<double>& value) {
    Add(name, JsonOf(JsonValue(value.value_or(1.0))));
  }

  // OpenAI's members, in its order.
  void Repeat() {
    const ApiParams& params = request_->params;
    Add("background", "false");
    AddLarge("instructions", "null");
    AddField("max_output_tokens", "null");
    AddField("max_tool_calls", "null");
    AddField("metadata", "{}");
    AddField("parallel_tool_calls", "true");
    Add("previous_response_id", "null");
    const JsonValue* reasoning = GivenMember(root_, "reasoning");
    const JsonValue* effort = reasoning == nullptr ? nullptr : GivenMember(*reasoning, "effort");
    const JsonValue* summary = reasoning == nullptr ? nullptr : GivenMember(*reasoning, "summary");
    Add("reasoning",
        fmt::format(R"({{"effort":{},"summary":{}}})", effort == nullptr ? "null" : JsonOf(*effort),
                    summary == nullptr ? "null" : JsonOf(*summary)));
    Add("service_tier", R"("default")");
    Add("store", "false");
    AddNumber("temperature", params.temperature);
    const JsonValue* text = GivenMember(root_, "text");
    const JsonValue* format = text == nullptr ? nullptr : GivenMember(*text, "format");
    Add("text", fmt::format(R"({{"format":{},"verbosity":"medium"}})",
                            format == nullptr ? R"({"type":"text"})" : JsonOf(*format)));
    AddField("tool_choice", R"("auto")");
    AddLarge("tools", "[]");
    AddField("top_logprobs", "0");
    AddNumber("top_p", params.top_p);
    Add("truncation", R"("disabled")");
    AddLarge("user", "null");
  }

  const JsonValue& root_;
  const StoredItems* const items_;
  ResponsesRequest* const request_;
  RequestError* const error_;
  ResponsesInput input_;
  JsonValue::Object chat_;  // the request as a chat
};

}  // namespace

std::span<const SurfaceField> ResponsesFields() { return kOwn; }

bool IsRefusedByResponses(std::string_view name) {
  return std::any_of(kRefused.begin(), kRefused.end(),
                     [name](const RefusedField& field) { return field.name == name; });
}

bool ReadResponses(const JsonValue& root, const StoredItems* items, ResponsesRequest* request,
                   RequestError* error) {
  return Reader(root, items, request, error).Read();
}

std::string ResponsesField(std::string field) {
  for (const auto& [chat, responses] : kRenamed) {
    const bool is_name =
        field.starts_with(chat) &&
        (field.size() == chat.size() || field[chat.size()] == '.' || field[chat.size()] == '[');
    if (is_name) return field.replace(0, chat.size(), responses);
  }
  // A function of a chat stands one level deeper.
  constexpr std::string_view kFunction = "].function";
  const size_t at = field.find(kFunction);
  if (field.starts_with("tools[") && at != std::string::npos) {
    field.erase(at + 1, kFunction.size() - 1);
  }
  return field;
}

void NameAsResponses(RequestError* error) {
  // A chat's field that was sent here is named as it was sent.
  if (error->code == ErrorCode::kUnsupported && IsRefusedByResponses(error->param)) return;
  error->param = ResponsesField(std::move(error->param));
}

}  // namespace baton::api
