#include "src/api/responses_input.h"

#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "fmt/format.h"

#include "src/api/json_fields.h"
#include "src/api/read_json.h"
#include "src/base/limits.h"

namespace baton::api {

using router::ErrorCode;
using router::RequestError;

namespace {

constexpr std::string_view kExpectedItem =
    "\"message\", \"function_call\", \"function_call_output\", \"reasoning\" or "
    "\"item_reference\"";
constexpr std::string_view kExpectedReference =
    "the id of an item that this router still keeps; clients that ask with \"store\": false send "
    "the items themselves";
constexpr std::string_view kExpectedContent =
    "a string or an array of parts {\"type\":\"input_text\",\"text\":string}";
constexpr std::string_view kExpectedPart =
    "a part {\"type\":\"input_text\",\"text\":string}, or output_text for the assistant's; images, "
    "audio and files are not read";
constexpr std::string_view kExpectedRole =
    "one of \"system\", \"developer\", \"user\", \"assistant\"";

// The member `name` of an item, which must be a text. Null: `error` says so.
const std::string* RequiredText(const JsonValue& item, const std::string& at, std::string_view name,
                                RequestError* error) {
  const JsonValue* value = item.Find(name);
  const std::string field = fmt::format("{}.{}", at, name);
  if (value == nullptr || value->is_null()) {
    Fail(error, ErrorCode::kMissingField, field, "a string");
    return nullptr;
  }
  if (value->AsString() == nullptr) Fail(error, ErrorCode::kInvalidType, field, "a string");
  return value->AsString();
}

// Where the reader of a part puts what it finds besides the text.
struct PartNotes {
  std::vector<std::string>* ignored;
  RequestError* error;
};

// The text of a part of a message, of an output or of thoughts. Null: the error names the part.
const std::string* TextOfPart(const JsonValue& part, const std::string& at,
                              const PartNotes& notes) {
  RequestError* const error = notes.error;
  const JsonValue* type = part.Find("type");
  if (type == nullptr || type->AsString() == nullptr) {
    Fail(error, ErrorCode::kInvalidType, at, kExpectedPart);
    return nullptr;
  }
  const std::string& name = *type->AsString();
  const bool is_refusal = name == "refusal";
  const bool is_text = name == "input_text" || name == "output_text" || name == "text" ||
                       name == "reasoning_text" || name == "summary_text";
  if (!is_refusal && !is_text) {
    Fail(error, ErrorCode::kUnsupported, at, kExpectedPart);
    return nullptr;
  }
  const std::string_view member = is_refusal ? "refusal" : "text";
  NameUnknownMembers(part, at, {"type", member, "annotations", "logprobs"}, notes.ignored);
  return RequiredText(part, at, member, error);
}

// A text, or an array of parts: one part is its text, several are a chat's text parts.
bool ReadContent(const JsonValue* value, const std::string& at, JsonValue* content,
                 const PartNotes& notes) {
  RequestError* const error = notes.error;
  if (value == nullptr || value->is_null()) {
    return Fail(error, ErrorCode::kMissingField, at, kExpectedContent);
  }
  *content = *value;
  if (value->AsString() != nullptr) return true;
  const JsonValue::Array* parts = value->AsArray();
  if (parts == nullptr) return Fail(error, ErrorCode::kInvalidType, at, kExpectedContent);
  JsonValue::Array texts;
  for (size_t i = 0; i < parts->size(); ++i) {
    const std::string* text = TextOfPart((*parts)[i], fmt::format("{}[{}]", at, i), notes);
    if (text == nullptr) return false;
    if (parts->size() == 1) {
      *content = JsonText(*text);
      return true;
    }
    JsonValue::Object part;
    part.emplace_back("type", JsonText("text"));
    part.emplace_back("text", JsonText(*text));
    texts.emplace_back(std::move(part));
  }
  *content = texts.empty() ? JsonText("") : JsonValue(std::move(texts));
  return true;
}

// The texts of an array of parts, joined; an absent array has none.
bool ReadThoughts(const JsonValue* value, const std::string& at, std::string* thoughts,
                  const PartNotes& notes) {
  if (value == nullptr || value->is_null()) return true;
  const JsonValue::Array* parts = value->AsArray();
  if (parts == nullptr) {
    return Fail(notes.error, ErrorCode::kInvalidType, at, "an array of parts with type and text");
  }
  for (size_t i = 0; i < parts->size(); ++i) {
    const std::string* text = TextOfPart((*parts)[i], fmt::format("{}[{}]", at, i), notes);
    if (text == nullptr) return false;
    if (i > 0) thoughts->push_back('\n');
    thoughts->append(*text);
  }
  return true;
}

// Turns items into messages, front to back.
class ItemReader {
 public:
  ItemReader(const StoredItems* items, ResponsesInput* input, RequestError* error)
      : items_(items), input_(input), error_(error) {}

  bool Read(const JsonValue& item, size_t idx) {
    at_ = fmt::format("input[{}]", idx);
    if (item.AsObject() == nullptr) return Fail(ErrorCode::kInvalidType, "", kExpectedInput);
    const JsonValue* type = item.Find("type");
    const bool has_type = type != nullptr && !type->is_null();
    if (has_type && type->AsString() == nullptr) {
      return Fail(ErrorCode::kInvalidType, ".type", kExpectedItem);
    }
    const std::string name = has_type ? *type->AsString() : "message";
    if (name == "message") return ReadMessage(item);
    if (name == "reasoning") return ReadReasoning(item);
    if (name == "function_call") return ReadCall(item);
    if (name == "function_call_output") return ReadOutput(item);
    if (name == "item_reference") return ReadReference(item, idx);
    return Fail(ErrorCode::kUnsupported, ".type", kExpectedItem);
  }

  // The assistant's last turn ends.
  void Flush() {
    if (!turn_.has_value()) return;
    JsonValue::Object message;
    message.emplace_back("role", JsonText("assistant"));
    if (!turn_->thoughts.empty())
      message.emplace_back("reasoning_content", JsonText(turn_->thoughts));
    const bool has_calls = !turn_->calls.empty();
    if (turn_->content.has_value()) {
      message.emplace_back("content", *std::move(turn_->content));
    } else {
      message.emplace_back("content", has_calls ? JsonValue() : JsonText(""));
    }
    if (has_calls) message.emplace_back("tool_calls", JsonValue(std::move(turn_->calls)));
    Push(std::move(message), std::move(turn_->origin));
    turn_.reset();
  }

 private:
  // Thoughts, text and calls of the assistant before another part of the conversation came.
  struct Turn {
    std::string thoughts;
    std::optional<JsonValue> content;
    JsonValue::Array calls;
    ResponsesInput::Origin origin;
  };

  bool Fail(ErrorCode code, std::string_view member, std::string_view expected) const {
    return api::Fail(error_, code, at_ + std::string(member), expected);
  }

  PartNotes Notes() const { return {&input_->ignored, error_}; }
  void NameUnread(const JsonValue& item, std::initializer_list<std::string_view> known) const {
    NameUnknownMembers(item, at_, known, &input_->ignored);
  }

  void Push(JsonValue::Object message, ResponsesInput::Origin origin) {
    input_->messages.emplace_back(std::move(message));
    input_->origins.push_back(std::move(origin));
  }

  Turn& OpenTurn() {
    if (!turn_.has_value()) turn_.emplace().origin = {at_, true, {}};
    return *turn_;
  }

  bool ReadMessage(const JsonValue& item) {
    const std::string* role = RequiredText(item, at_, "role", error_);
    if (role == nullptr) return false;
    const bool is_assistant = *role == "assistant";
    if (!is_assistant && *role != "user" && *role != "system" && *role != "developer") {
      return Fail(ErrorCode::kInvalidValue, ".role", kExpectedRole);
    }
    JsonValue content;
    if (!ReadContent(item.Find("content"), at_ + ".content", &content, Notes())) return false;
    NameUnread(item, {"type", "id", "status", "role", "content"});
    if (is_assistant) {
      if (turn_.has_value() && (turn_->content.has_value() || !turn_->calls.empty())) Flush();
      OpenTurn().content = std::move(content);
      return true;
    }
    Flush();
    JsonValue::Object message;
    message.emplace_back("role", JsonText(*role));
    message.emplace_back("content", std::move(content));
    Push(std::move(message), {at_, true, {}});
    return true;
  }

  // The kept item takes the place of the reference.
  bool ReadReference(const JsonValue& reference, size_t idx) {
    const std::string* id = RequiredText(reference, at_, "id", error_);
    if (id == nullptr) return false;
    const std::optional<std::string> json = items_ == nullptr ? std::nullopt : items_->Find(*id);
    JsonValue item;
    RequestError unreadable;
    if (!json.has_value() || !ParseJson(*json, &item, &unreadable)) {
      return Fail(ErrorCode::kInvalidValue, ".id", kExpectedReference);
    }
    NameUnread(reference, {"type", "id"});
    num_referred_bytes_ += json->size();
    if (num_referred_bytes_ > limits::kMaxBodyBytes) {
      return Fail(ErrorCode::kInvalidValue, ".id",
                  fmt::format("one of references to items of at most {} bytes together",
                              limits::kMaxBodyBytes));
    }
    return Read(item, idx);
  }

  // encrypted_content is another server's; nothing here reads it.
  bool ReadReasoning(const JsonValue& item) {
    NameUnread(item, {"type", "id", "status", "summary", "content"});
    std::string thoughts;
    if (!ReadThoughts(item.Find("content"), at_ + ".content", &thoughts, Notes())) return false;
    const bool has_own = !thoughts.empty();
    std::string summary;
    if (!ReadThoughts(item.Find("summary"), at_ + ".summary", &summary, Notes())) return false;
    if (!has_own) thoughts = std::move(summary);
    if (thoughts.empty()) return true;
    if (turn_.has_value() && (turn_->content.has_value() || !turn_->calls.empty())) Flush();
    Turn& turn = OpenTurn();
    if (!turn.thoughts.empty()) turn.thoughts.push_back('\n');
    turn.thoughts += thoughts;
    return true;
  }

  bool ReadCall(const JsonValue& item) {
    const std::string* id = RequiredText(item, at_, "call_id", error_);
    const std::string* name = id == nullptr ? nullptr : RequiredText(item, at_, "name", error_);
    const std::string* arguments =
        name == nullptr ? nullptr : RequiredText(item, at_, "arguments", error_);
    if (arguments == nullptr) return false;
    NameUnread(item, {"type", "id", "status", "call_id", "name", "arguments"});
    call_ids_.insert(*id);
    JsonValue::Object function;
    function.emplace_back("name", JsonText(*name));
    function.emplace_back("arguments", JsonText(*arguments));
    JsonValue::Object call;
    call.emplace_back("id", JsonText(*id));
    call.emplace_back("type", JsonText("function"));
    call.emplace_back("function", JsonValue(std::move(function)));
    Turn& turn = OpenTurn();
    turn.calls.emplace_back(std::move(call));
    turn.origin.calls.push_back(at_);
    return true;
  }

  bool ReadOutput(const JsonValue& item) {
    const std::string* id = RequiredText(item, at_, "call_id", error_);
    if (id == nullptr) return false;
    if (!call_ids_.contains(*id)) {
      return Fail(ErrorCode::kInvalidValue, ".call_id",
                  "the call_id of a function_call before it: send the call with its output");
    }
    JsonValue content;
    if (!ReadContent(item.Find("output"), at_ + ".output", &content, Notes())) return false;
    NameUnread(item, {"type", "id", "status", "call_id", "output"});
    Flush();
    JsonValue::Object message;
    message.emplace_back("role", JsonText("tool"));
    message.emplace_back("tool_call_id", JsonText(*id));
    message.emplace_back("content", std::move(content));
    Push(std::move(message), {at_, true, {}});
    return true;
  }

  const StoredItems* const items_;
  ResponsesInput* const input_;
  RequestError* const error_;
  size_t num_referred_bytes_ = 0;
  std::string at_;            // the item that is being read
  std::optional<Turn> turn_;  // none: the last message is no assistant's
  std::set<std::string> call_ids_;
};

void PushText(std::string_view role, const std::string& text, std::string_view field,
              ResponsesInput* input) {
  JsonValue::Object message;
  message.emplace_back("role", JsonText(role));
  message.emplace_back("content", JsonText(text));
  input->messages.emplace_back(std::move(message));
  input->origins.push_back({std::string(field), false, {}});
}

bool ReadInstructions(const JsonValue* value, ResponsesInput* input, RequestError* error) {
  if (value == nullptr || value->is_null()) return true;
  if (value->AsString() == nullptr) {
    return Fail(error, ErrorCode::kInvalidType, "instructions", "a string or absent");
  }
  PushText("system", *value->AsString(), "instructions", input);
  return true;
}

// The number that `text` begins with, and the rest after "]".
bool CutIndex(std::string_view* text, size_t* idx) {
  const auto parsed = std::from_chars(text->data(), text->data() + text->size(), *idx);
  const auto num_digits = static_cast<size_t>(parsed.ptr - text->data());
  if (parsed.ec != std::errc() || num_digits >= text->size() || *parsed.ptr != ']') return false;
  text->remove_prefix(num_digits + 1);
  return true;
}

bool CutPrefix(std::string_view prefix, std::string_view* text) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::string ResponsesInput::FieldOf(std::string_view param) const {
  std::string_view rest = param;
  size_t idx = 0;
  if (!CutPrefix("messages[", &rest) || !CutIndex(&rest, &idx) || idx >= origins.size()) {
    return std::string(param);
  }
  const Origin& origin = origins[idx];
  if (!origin.is_item) return origin.path;
  size_t call = 0;
  std::string_view tail = rest;
  if (CutPrefix(".tool_calls[", &tail) && CutIndex(&tail, &call) && call < origin.calls.size()) {
    CutPrefix(".function", &tail);
    return origin.calls[call] + std::string(tail);
  }
  return origin.path + std::string(rest);
}

bool ReadResponsesInput(const JsonValue& root, const StoredItems* items, ResponsesInput* input,
                        RequestError* error) {
  if (!ReadInstructions(root.Find("instructions"), input, error)) return false;
  const JsonValue* value = root.Find("input");
  if (value == nullptr || value->is_null()) {
    return Fail(error, ErrorCode::kMissingField, "input", kExpectedInput);
  }
  if (const std::string* text = value->AsString()) {
    PushText("user", *text, "input", input);
    return true;
  }
  const JsonValue::Array* list = value->AsArray();
  if (list == nullptr) return Fail(error, ErrorCode::kInvalidType, "input", kExpectedInput);
  // An item is a part of one message at least, so more items than this may still fit; far more not.
  constexpr size_t kMaxItems = 4 * limits::kMaxMessages;
  if (list->empty() || list->size() > kMaxItems) {
    return Fail(error, ErrorCode::kInvalidValue, "input",
                fmt::format("an array of 1 to {} items", kMaxItems));
  }
  ItemReader reader(items, input, error);
  for (size_t i = 0; i < list->size(); ++i) {
    if (!reader.Read((*list)[i], i)) return false;
  }
  reader.Flush();
  return true;
}

}  // namespace baton::api
