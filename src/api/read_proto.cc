#include "src/api/read_proto.h"

#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

#include "src/api/answer_form.h"
#include "src/api/json_fields.h"
#include "src/api/json_value.h"
#include "src/api/schema.h"
#include "src/api/template_params.h"
#include "src/api/tool_params.h"

namespace baton::api {

using router::ErrorCode;
using router::RequestError;
using text::ChatMessage;
using text::ContentForm;

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

int64_t IntegerOf(const Message& message, const FieldDescriptor* field) {
  const Reflection* reflection = message.GetReflection();
  return field->cpp_type() == FieldDescriptor::CPPTYPE_INT64
             ? reflection->GetInt64(message, field)
             : int64_t{reflection->GetInt32(message, field)};
}

std::string StringOf(const Message& message, const char* name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  return message.GetReflection()->GetString(message, field);
}

bool BoolOf(const Message& message, const char* name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  return message.GetReflection()->GetBool(message, field);
}

std::vector<int64_t> IntegersOf(const Message& message, const FieldDescriptor* field) {
  const Reflection* reflection = message.GetReflection();
  const int size = reflection->FieldSize(message, field);
  std::vector<int64_t> values;
  values.reserve(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) {
    values.push_back(reflection->GetRepeatedInt32(message, field, i));
  }
  return values;
}

// A member that is absent while it is empty.
void AddText(const Message& message, const char* name, JsonValue::Object* members) {
  std::string text = StringOf(message, name);
  if (!text.empty()) members->emplace_back(name, JsonValue(std::move(text)));
}

// Reads the field of one row. A field without presence counts as absent while it has its zero
// value: the empty string and the empty list mean "not given" in JSON too.
class FieldReader {
 public:
  FieldReader(const ParamRow& row, const Message& message, const FieldDescriptor* field,
              ApiParams* params, RequestError* error)
      : row_(row), message_(message), field_(field), params_(params), error_(error) {}

  bool Read() { return std::visit(*this, row_.target); }

  bool operator()(std::optional<int64_t> ApiParams::* /*target*/) const {
    if (!reflection().HasField(message_, field_)) return true;
    return StoreInteger(row_, IntegerOf(message_, field_), params_, error_);
  }
  bool operator()(std::optional<double> ApiParams::* /*target*/) const {
    if (!reflection().HasField(message_, field_)) return true;
    return StoreNumber(row_, double{reflection().GetFloat(message_, field_)}, params_, error_);
  }
  bool operator()(std::optional<bool> ApiParams::* /*target*/) const {
    if (!reflection().HasField(message_, field_)) return true;
    return StoreBool(row_, reflection().GetBool(message_, field_), params_, error_);
  }
  bool operator()(std::string ApiParams::* /*target*/) const {
    std::string text = reflection().GetString(message_, field_);
    return text.empty() || StoreString(row_, std::move(text), params_, error_);
  }
  bool operator()(std::vector<std::string> ApiParams::* /*target*/) const {
    const int size = reflection().FieldSize(message_, field_);
    std::vector<std::string> texts;
    texts.reserve(static_cast<size_t>(size));
    for (int i = 0; i < size; ++i) {
      texts.push_back(reflection().GetRepeatedString(message_, field_, i));
    }
    return StoreStrings(row_, std::move(texts), params_, error_);
  }
  bool operator()(std::vector<int64_t> ApiParams::* /*target*/) const {
    return StoreIntegers(row_, IntegersOf(message_, field_), params_, error_);
  }
  bool operator()(LogitBias ApiParams::* /*target*/) const {
    LogitBias bias;
    // A map is a repeated field of entries with `key` and `value`.
    for (int i = 0; i < reflection().FieldSize(message_, field_); ++i) {
      const Message& entry = reflection().GetRepeatedMessage(message_, field_, i);
      const auto* type = entry.GetDescriptor();
      bias.emplace_back(IntegerOf(entry, type->map_key()),
                        entry.GetReflection()->GetFloat(entry, type->map_value()));
    }
    return StoreBias(row_, std::move(bias), params_, error_);
  }
  bool operator()(SpecialParam special) const {
    switch (special) {
      case SpecialParam::kMessages:
        // Whether they may be absent is decided where the request is built.
        return reflection().FieldSize(message_, field_) == 0 ||
               ReadProtoMessages(message_, params_, error_);
      case SpecialParam::kPrompt:
        return ReadPrompt();
      case SpecialParam::kPromptTokenIds:
        return ReadPromptTokens();
      case SpecialParam::kStreamOptions:
        return true;  // JSON only
      case SpecialParam::kResponseFormat:
        return ReadResponseFormat();
      case SpecialParam::kStructuredOutputs:
        return ReadStructuredOutputs();
      case SpecialParam::kGuided:
        return true;  // JSON only
      case SpecialParam::kTools:
        return ReadTools();
      case SpecialParam::kToolChoice: {
        const std::string choice = reflection().GetString(message_, field_);
        if (choice.starts_with('{')) return ReadJsonText(StoreToolChoice);
        return choice.empty() || StoreToolChoice(JsonValue(choice), params_, error_);
      }
      case SpecialParam::kParallelToolCalls:
        return !reflection().HasField(message_, field_) ||
               StoreParallelToolCalls(reflection().GetBool(message_, field_), params_);
      case SpecialParam::kToolParser: {
        const std::string parser = reflection().GetString(message_, field_);
        return parser.empty() || StoreToolParser(parser, params_, error_);
      }
      case SpecialParam::kReasoningFormat: {
        const std::string format = reflection().GetString(message_, field_);
        return format.empty() || StoreReasoningFormat(format, params_, error_);
      }
      case SpecialParam::kReasoningEffort: {
        const std::string effort = reflection().GetString(message_, field_);
        return effort.empty() || StoreReasoningEffort(row_.name, effort, params_, error_);
      }
      case SpecialParam::kDocuments:
        return ReadJsonText(StoreDocuments);
      case SpecialParam::kTemplateKwargs:
        return ReadJsonText(StoreTemplateKwargs);
      case SpecialParam::kOfSurface:
        return true;  // HTTP only
      case SpecialParam::kPath: {
        const std::string path = reflection().GetString(message_, field_);
        return path.empty() || StorePath(path, params_, error_);
      }
    }
    return false;
  }

 private:
  const Reflection& reflection() const { return *message_.GetReflection(); }

  bool ReadPrompt() const {
    std::string text = reflection().GetString(message_, field_);
    if (!text.empty()) params_->prompt = std::move(text);
    return ReadPrompts();
  }
  // The two fields of several prompts, which JSON has in `prompt`.
  bool ReadPrompts() const {
    const auto* type = message_.GetDescriptor();
    const FieldDescriptor* texts = type->FindFieldByName("prompts");
    const FieldDescriptor* lists = type->FindFieldByName("prompts_token_ids");
    const int num_texts = reflection().FieldSize(message_, texts);
    const int num_lists = reflection().FieldSize(message_, lists);
    if (num_texts + num_lists == 0) return true;
    if (params_->prompt.has_value() || (num_texts > 0 && num_lists > 0)) {
      return Fail(error_, ErrorCode::kConflict, "prompt",
                  "only one of prompt, prompt_token_ids, prompts and prompts_token_ids "
                  "may be given");
    }
    std::vector<ApiPrompt> prompts;
    for (int i = 0; i < num_texts; ++i) {
      prompts.push_back({reflection().GetRepeatedString(message_, texts, i), {}});
    }
    for (int i = 0; i < num_lists; ++i) {
      const Message& list = reflection().GetRepeatedMessage(message_, lists, i);
      prompts.push_back({std::nullopt, IntegersOf(list, list.GetDescriptor()->field(0))});
    }
    return StorePrompts(std::move(prompts), params_, error_);
  }
  bool ReadPromptTokens() const {
    std::vector<int64_t> tokens = IntegersOf(message_, field_);
    return tokens.empty() || StorePromptTokens(row_.name, std::move(tokens), params_, error_);
  }
  // A field that holds the text of a JSON value.
  bool ReadJsonText(bool (*store)(const JsonValue&, ApiParams*, RequestError*)) const {
    const std::string text = reflection().GetString(message_, field_);
    if (text.empty()) return true;
    JsonValue value;
    return ParseText(text, row_.name, "JSON text: " + ExpectedOf(row_), &value) &&
           store(value, params_, error_);
  }
  // `expected`: what is said of a text that is no JSON.
  bool ParseText(const std::string& text, std::string_view field, std::string_view expected,
                 JsonValue* value) const {
    RequestError why;
    const bool is_json = ParseJson(text, value, &why);
    if (is_json && !HasHugeNumber(*value)) return true;
    return Fail(error_, ErrorCode::kInvalidValue, field, is_json ? kExpectedNumbers : expected);
  }
  // The tools in the shape that the JSON API has.
  bool ReadTools() const {
    JsonValue::Array tools;
    for (int i = 0; i < reflection().FieldSize(message_, field_); ++i) {
      const Message& tool = reflection().GetRepeatedMessage(message_, field_, i);
      const FieldDescriptor* part = tool.GetDescriptor()->FindFieldByName("function");
      const Message& function = tool.GetReflection()->GetMessage(tool, part);
      JsonValue::Object inner;
      for (const char* name : {"name", "description"}) AddText(function, name, &inner);
      const std::string parameters = StringOf(function, "parameters");
      if (!parameters.empty()) {
        const std::string field = fmt::format("tools[{}].function.parameters", i);
        JsonValue schema;
        if (!ParseText(parameters, field, "JSON text", &schema)) return false;
        inner.emplace_back("parameters", std::move(schema));
      }
      if (BoolOf(function, "strict")) inner.emplace_back("strict", JsonValue(true));
      const std::string type = StringOf(tool, "type");
      tools.emplace_back(
          JsonValue::Object{{"type", JsonValue(type.empty() ? std::string("function") : type)},
                            {"function", JsonValue(std::move(inner))}});
    }
    return tools.empty() || StoreTools(JsonValue(std::move(tools)), params_, error_);
  }
  // The form of the answer in the shape that the JSON API has.
  bool ReadResponseFormat() const {
    if (!reflection().HasField(message_, field_)) return true;
    const Message& format = reflection().GetMessage(message_, field_);
    const std::string type = StringOf(format, "type");
    const std::string tag = StringOf(format, "structural_tag");
    const bool has_form = !tag.empty() || !StringOf(format, "json_schema").empty();
    if (type.empty()) {
      if (!has_form && !BoolOf(format, "strict")) return true;
      return Fail(error_, ErrorCode::kMissingField, "response_format.type",
                  "\"text\", \"json_object\", \"json_schema\" or \"structural_tag\"");
    }
    JsonValue::Object members;
    if (type == "structural_tag") {
      JsonValue value;
      RequestError why;
      const bool is_object = ParseJson(tag, &value, &why) && value.AsObject() != nullptr;
      const JsonValue* own_type = value.Find("type");
      if (!is_object || !(own_type == nullptr || IsJsonText(own_type, type))) {
        return Fail(error_, ErrorCode::kInvalidValue, "response_format.structural_tag",
                    "the text of a JSON object, whose type is \"structural_tag\" or absent");
      }
      members = std::move(*value.AsObject());
    }
    members.emplace_back("type", JsonValue(type));
    JsonValue::Object inner;
    AddText(format, "json_schema", &inner);
    if (!inner.empty()) inner.front().first = "schema";
    const bool is_asked = type == "json_schema" || !inner.empty();
    inner.emplace_back("strict", JsonValue(BoolOf(format, "strict")));
    if (is_asked) members.emplace_back("json_schema", JsonValue(std::move(inner)));
    if (!StoreResponseFormat(JsonValue(std::move(members)), params_, error_)) return false;
    if (tag.empty() || type == "structural_tag") return true;
    return Fail(error_, ErrorCode::kConflict, "response_format.structural_tag",
                fmt::format("it is of that type, and the type is \"{}\"", type));
  }
  bool ReadStructuredOutputs() const {
    if (!reflection().HasField(message_, field_)) return true;
    const Message& outputs = reflection().GetMessage(message_, field_);
    JsonValue::Object members;
    for (const char* name : {"json", "regex", "grammar", "structural_tag"}) {
      AddText(outputs, name, &members);
    }
    const FieldDescriptor* choice = outputs.GetDescriptor()->FindFieldByName("choice");
    JsonValue::Array texts;
    for (int i = 0; i < outputs.GetReflection()->FieldSize(outputs, choice); ++i) {
      texts.emplace_back(outputs.GetReflection()->GetRepeatedString(outputs, choice, i));
    }
    if (!texts.empty()) members.emplace_back("choice", JsonValue(std::move(texts)));
    if (BoolOf(outputs, "json_object")) members.emplace_back("json_object", JsonValue(true));
    return StoreStructuredOutputs(JsonValue(std::move(members)), params_, error_);
  }

  const ParamRow& row_;
  const Message& message_;
  const FieldDescriptor* const field_;
  ApiParams* const params_;
  RequestError* const error_;
};

// The calls of a turn in the shape that the JSON API has.
JsonValue::Array CallsOf(const Message& turn) {
  const FieldDescriptor* field = turn.GetDescriptor()->FindFieldByName("tool_calls");
  JsonValue::Array calls;
  for (int i = 0; i < turn.GetReflection()->FieldSize(turn, field); ++i) {
    const Message& call = turn.GetReflection()->GetRepeatedMessage(turn, field, i);
    const FieldDescriptor* part = call.GetDescriptor()->FindFieldByName("function");
    const Message& function = call.GetReflection()->GetMessage(call, part);
    JsonValue::Object inner;
    AddText(function, "name", &inner);
    inner.emplace_back("arguments", JsonValue(StringOf(function, "arguments")));
    JsonValue::Object members;
    AddText(call, "id", &members);
    AddText(call, "type", &members);
    members.emplace_back("function", JsonValue(std::move(inner)));
    calls.emplace_back(std::move(members));
  }
  return calls;
}

bool ReadTurn(const Message& message, const std::string& at, ChatMessage* turn,
              RequestError* error) {
  turn->role = StringOf(message, "role");
  turn->content = StringOf(message, "content");
  turn->members.emplace_back("role", JsonValue());
  turn->members.emplace_back("content", JsonValue());
  for (const char* name : {"name", "reasoning_content", "tool_call_id"}) {
    AddText(message, name, &turn->members);
  }
  JsonValue::Array sent = CallsOf(message);
  if (sent.empty()) return true;
  JsonValue calls;
  const std::string field = at + ".tool_calls";
  if (!ReadToolCalls(JsonValue(std::move(sent)), field, &calls, error)) return false;
  if (turn->content.empty()) turn->form = ContentForm::kNull;
  turn->members.emplace_back("tool_calls", std::move(calls));
  return true;
}

}  // namespace

bool ReadProtoParams(const Message& message, Endpoint endpoint, ApiParams* params,
                     RequestError* error) {
  for (const ParamRow& row : ParamTable()) {
    if (!row.AppliesTo(endpoint)) continue;
    const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(std::string(row.name));
    // `stream` and `stream_options` are said by the choice of method.
    if (field == nullptr) continue;
    if (!FieldReader(row, message, field, params, error).Read()) return false;
  }
  return true;
}

bool ReadProtoMessages(const Message& message, ApiParams* params, RequestError* error) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName("messages");
  const Reflection* reflection = message.GetReflection();
  std::vector<ChatMessage> turns;
  for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
    const Message& turn = reflection->GetRepeatedMessage(message, field, i);
    turns.emplace_back();
    if (!ReadTurn(turn, fmt::format("messages[{}]", i), &turns.back(), error)) return false;
    AddThoughtField(turns.back(), static_cast<size_t>(i), params);
  }
  return StoreMessages(std::move(turns), params, error);
}

}  // namespace baton::api
