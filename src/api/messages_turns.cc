#include "src/api/messages_turns.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "fmt/format.h"

#include "src/api/json_fields.h"
#include "src/api/read_json.h"
#include "src/api/schema.h"
#include "src/base/limits.h"

namespace baton::api {

using router::ErrorCode;
using router::RequestError;
using text::ChatMessage;
using text::ContentForm;

namespace {

constexpr std::string_view kBillingLine = "x-anthropic-billing-header:";
constexpr std::string_view kExpectedId = "a string that is not empty";
// Types of blocks that clients know and nothing here reads.
constexpr auto kForeignBlocks = std::to_array<std::string_view>(
    {"image", "document", "search_result", "tool_reference", "server_tool_use",
     "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
     "bash_code_execution_tool_result", "text_editor_code_execution_tool_result",
     "tool_search_tool_result", "mcp_tool_use", "mcp_tool_result", "container_upload", "compaction",
     "browser_state", "audio", "video"});

// The text of the member `name`; null when it is none.
const std::string* TextOf(const JsonValue& value, std::string_view name) {
  const JsonValue* member = value.Find(name);
  return member == nullptr ? nullptr : member->AsString();
}

// A block of a type that stands at no such place: known ones are named.
bool RefuseBlock(std::string_view type, const std::string& at, std::string_view expected,
                 RequestError* error) {
  const auto* const known = std::find(kForeignBlocks.begin(), kForeignBlocks.end(), type);
  if (known == kForeignBlocks.end()) return Fail(error, ErrorCode::kInvalidValue, at, expected);
  return Fail(error, ErrorCode::kUnsupported, at,
              fmt::format("{}; blocks of type {} are not read", expected, *known));
}

// The text of a block of type text; null: `error` says what else it is. Every prefix is cached,
// with cache_control or without.
const std::string* TextOfBlock(const JsonValue& block, const std::string& at,
                               std::vector<std::string>* ignored, RequestError* error) {
  const std::string* type = TextOf(block, "type");
  if (type == nullptr) {
    Fail(error, ErrorCode::kInvalidType, at, kExpectedSystem);
    return nullptr;
  }
  if (*type != "text") {
    RefuseBlock(*type, at, "a block of type text", error);
    return nullptr;
  }
  NameUnknownMembers(block, at, {"type", "text", "cache_control"}, ignored);
  const std::string* text = TextOf(block, "text");
  if (text == nullptr) Fail(error, ErrorCode::kInvalidType, at + ".text", "a string");
  return text;
}

// A string, or an array of text blocks joined with newlines.
bool ReadTexts(const JsonValue& value, const std::string& at, std::string* out,
               std::vector<std::string>* ignored, RequestError* error) {
  if (const std::string* text = value.AsString()) {
    *out = *text;
    return true;
  }
  const JsonValue::Array* blocks = value.AsArray();
  if (blocks == nullptr) return Fail(error, ErrorCode::kInvalidType, at, kExpectedSystem);
  for (size_t i = 0; i < blocks->size(); ++i) {
    const std::string place = fmt::format("{}[{}]", at, i);
    const std::string* text = TextOfBlock((*blocks)[i], place, ignored, error);
    if (text == nullptr) return false;
    if (i > 0) out->push_back('\n');
    out->append(*text);
  }
  return true;
}

// Reads the messages run by run: messages of one role that follow each other are one turn.
class TurnReader {
 public:
  TurnReader(std::vector<std::string>* ignored, RequestError* error)
      : ignored_(ignored), error_(error) {}

  bool ReadSystem(const JsonValue& system);
  bool ReadMessages(const JsonValue::Array& messages);
  // True where the last turn is the assistant's, which the answer continues.
  bool continues() const { return continues_; }
  std::vector<ChatMessage> Take() { return std::move(turns_); }
  // The paths of the blocks that have thoughts, at most kMaxIgnoredNames.
  std::vector<std::string> TakeThoughtFields() { return std::move(thought_fields_); }

 private:
  // A call that waits for its result; views of the request.
  struct Call {
    std::string_view name;
    std::string at;  // path of its block
    bool answered = false;
  };
  // Parts that the messages of one role have brought so far.
  struct Run {
    std::string role;
    std::string text;
    bool has_text = false;
    std::string thoughts;
    JsonValue::Array calls;
    std::vector<ChatMessage> results;
  };

  bool ReadMessage(const JsonValue& message, const std::string& at);
  bool ReadBlock(const JsonValue& block, const std::string& at);
  bool ReadText(const JsonValue& block, const std::string& at);
  bool ReadThoughts(const JsonValue& block, const std::string& at);
  bool ReadToolUse(const JsonValue& block, const std::string& at);
  bool ReadToolResult(const JsonValue& block, const std::string& at);
  void AddText(std::string_view text);
  // Ends the run of one role.
  bool EndRun();
  bool EndUser();
  bool EndAssistant();
  // False: a call has no result.
  bool CheckAnswered();

  std::vector<std::string>* const ignored_;
  RequestError* const error_;
  std::vector<ChatMessage> turns_;
  std::vector<std::string> thought_fields_;
  Run run_;
  std::vector<Call> calls_;  // of the assistant's last turn
  std::unordered_map<std::string_view, size_t> call_of_id_;
  bool continues_ = false;
};

bool TurnReader::ReadSystem(const JsonValue& system) {
  std::string text;
  if (const JsonValue::Array* blocks = system.AsArray()) {
    for (size_t i = 0; i < blocks->size(); ++i) {
      const std::string at = fmt::format("system[{}]", i);
      const std::string* block = TextOfBlock((*blocks)[i], at, ignored_, error_);
      if (block == nullptr) return false;
      const std::string_view kept = WithoutBillingLine(*block);
      if (kept.empty()) continue;
      if (!text.empty()) text.push_back('\n');
      text.append(kept);
    }
  } else {
    std::string whole;
    if (!ReadTexts(system, "system", &whole, ignored_, error_)) return false;
    text = WithoutBillingLine(whole);
  }
  if (!text.empty()) turns_.push_back({.role = "system", .content = std::move(text)});
  return true;
}

bool TurnReader::ReadMessages(const JsonValue::Array& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!ReadMessage(messages[i], fmt::format("messages[{}]", i))) return false;
  }
  const bool is_assistant = run_.role == "assistant";
  continues_ = is_assistant && (run_.has_text || !run_.thoughts.empty());
  if (is_assistant && !continues_ && run_.calls.empty()) run_ = {};  // an answer that begins
  return EndRun() && CheckAnswered();
}

bool TurnReader::ReadMessage(const JsonValue& message, const std::string& at) {
  constexpr std::string_view kExpectedTurn = "an object with role and content";
  if (message.AsObject() == nullptr)
    return Fail(error_, ErrorCode::kInvalidType, at, kExpectedTurn);
  const std::string* role = TextOf(message, "role");
  const bool is_known =
      role != nullptr && (*role == "user" || *role == "assistant" || *role == "system");
  if (!is_known) {
    return Fail(error_, role == nullptr ? ErrorCode::kInvalidType : ErrorCode::kInvalidValue,
                at + ".role", "\"user\", \"assistant\" or \"system\"");
  }
  const JsonValue* content = message.Find("content");
  if (content == nullptr) {
    return Fail(error_, ErrorCode::kMissingField, at + ".content", kExpectedBlocks);
  }
  NameUnknownMembers(message, at, {"role", "content"}, ignored_);
  if (*role != run_.role && !EndRun()) return false;
  if (*role == "system") {
    std::string text;
    if (!ReadTexts(*content, at + ".content", &text, ignored_, error_)) return false;
    turns_.push_back({.role = "system", .content = std::move(text)});
    return true;
  }
  run_.role = *role;
  if (const std::string* text = content->AsString()) {
    AddText(*text);
    return true;
  }
  const JsonValue::Array* blocks = content->AsArray();
  if (blocks == nullptr) {
    return Fail(error_, ErrorCode::kInvalidType, at + ".content", kExpectedBlocks);
  }
  for (size_t i = 0; i < blocks->size(); ++i) {
    if (!ReadBlock((*blocks)[i], fmt::format("{}.content[{}]", at, i))) return false;
  }
  return true;
}

bool TurnReader::ReadBlock(const JsonValue& block, const std::string& at) {
  const std::string* type = TextOf(block, "type");
  if (type == nullptr) {
    return Fail(error_, ErrorCode::kInvalidType, at, "an object with the string \"type\"");
  }
  if (*type == "text") return ReadText(block, at);
  if (run_.role == "user") {
    if (*type == "tool_result") return ReadToolResult(block, at);
    return RefuseBlock(*type, at, "a block of type text or tool_result, as users send them",
                       error_);
  }
  if (*type == "tool_use") return ReadToolUse(block, at);
  if (*type == "thinking") return ReadThoughts(block, at);
  if (*type == "redacted_thinking") {
    // Only the service that wrote it can read it.
    AddUnread({at}, ignored_);
    return true;
  }
  return RefuseBlock(
      *type, at, "a block of type text, tool_use or thinking, as the assistant sends them", error_);
}

void TurnReader::AddText(std::string_view text) {
  // An answer in several blocks was one text; a user's blocks are parts.
  if (run_.has_text && run_.role == "user") run_.text.push_back('\n');
  run_.text.append(text);
  run_.has_text = run_.has_text || run_.role == "user" || !text.empty();
}

bool TurnReader::ReadText(const JsonValue& block, const std::string& at) {
  const std::string* text = TextOfBlock(block, at, ignored_, error_);
  if (text == nullptr) return false;
  AddText(*text);
  return true;
}

bool TurnReader::ReadThoughts(const JsonValue& block, const std::string& at) {
  const std::string* text = TextOf(block, "thinking");
  if (text == nullptr) return Fail(error_, ErrorCode::kInvalidType, at + ".thinking", "a string");
  NameUnknownMembers(block, at, {"type", "thinking", "signature", "cache_control"}, ignored_);
  run_.thoughts.append(*text);
  if (!text->empty() && thought_fields_.size() < kMaxIgnoredNames) thought_fields_.push_back(at);
  return true;
}

bool TurnReader::ReadToolUse(const JsonValue& block, const std::string& at) {
  const std::string* id = TextOf(block, "id");
  if (id == nullptr || id->empty()) {
    return Fail(error_, ErrorCode::kInvalidType, at + ".id", kExpectedId);
  }
  const std::string* name = TextOf(block, "name");
  if (name == nullptr || name->empty()) {
    return Fail(error_, ErrorCode::kInvalidType, at + ".name", kExpectedId);
  }
  const JsonValue* input = block.Find("input");
  if (input == nullptr || input->AsObject() == nullptr) {
    return Fail(error_, ErrorCode::kInvalidType, at + ".input", "an object");
  }
  NameUnknownMembers(block, at, {"type", "id", "name", "input", "cache_control"}, ignored_);
  if (run_.calls.empty() && !CheckAnswered()) return false;
  if (!call_of_id_.emplace(*id, calls_.size()).second) {
    return Fail(error_, ErrorCode::kConflict, at + ".id", "each tool_use of a turn has its own id");
  }
  calls_.push_back({*name, at});
  const JsonValue::Object function = {{"name", JsonValue(*name)}, {"arguments", *input}};
  run_.calls.emplace_back(JsonValue::Object{
      {"id", JsonValue(*id)}, {"type", JsonText("function")}, {"function", JsonValue(function)}});
  return true;
}

bool TurnReader::ReadToolResult(const JsonValue& block, const std::string& at) {
  const std::string* id = TextOf(block, "tool_use_id");
  if (id == nullptr || id->empty()) {
    return Fail(error_, ErrorCode::kInvalidType, at + ".tool_use_id", kExpectedId);
  }
  const auto known = call_of_id_.find(*id);
  Call* const call = known == call_of_id_.end() ? nullptr : &calls_[known->second];
  if (call == nullptr || call->answered) {
    return Fail(error_, ErrorCode::kConflict, at + ".tool_use_id",
                "it must be the id of one tool_use in the assistant's turn before, and each has "
                "one tool_result");
  }
  call->answered = true;
  const JsonValue* content = block.Find("content");
  ChatMessage result;
  result.role = "tool";
  if (content != nullptr && !content->is_null() &&
      !ReadTexts(*content, at + ".content", &result.content, ignored_, error_)) {
    return false;
  }
  NameUnknownMembers(block, at, {"type", "tool_use_id", "content", "is_error", "cache_control"},
                     ignored_);
  result.members = {{"role", JsonValue()},
                    {"tool_call_id", JsonValue(*id)},
                    {"name", JsonValue(std::string(call->name))},
                    {"content", JsonValue()}};
  const JsonValue* failed = block.Find("is_error");
  if (failed != nullptr && !failed->is_null()) {
    if (failed->AsBool() == nullptr) {
      return Fail(error_, ErrorCode::kInvalidType, at + ".is_error", "true or false");
    }
    if (*failed->AsBool()) result.members.emplace_back("is_error", *failed);
  }
  run_.results.push_back(std::move(result));
  return true;
}

bool TurnReader::CheckAnswered() {
  for (const Call& call : calls_) {
    if (call.answered) continue;
    return Fail(error_, ErrorCode::kConflict, call.at,
                "each tool_use needs a tool_result with its id in the user's next message");
  }
  calls_.clear();
  call_of_id_.clear();
  return true;
}

bool TurnReader::EndRun() {
  if (run_.role == "user" && !EndUser()) return false;
  if (run_.role == "assistant" && !EndAssistant()) return false;
  run_ = {};
  return true;
}

bool TurnReader::EndUser() {
  if (!CheckAnswered()) return false;
  const bool has_results = !run_.results.empty();
  for (ChatMessage& result : run_.results) turns_.push_back(std::move(result));
  if (run_.has_text || !has_results) {
    turns_.push_back({.role = "user", .content = std::move(run_.text)});
  }
  return true;
}

bool TurnReader::EndAssistant() {
  if (run_.calls.empty() && !CheckAnswered()) return false;
  ChatMessage turn{.role = "assistant", .content = std::move(run_.text)};
  turn.members = {{"role", JsonValue()}, {"content", JsonValue()}};
  if (!run_.thoughts.empty()) {
    turn.members.emplace_back("reasoning_content", JsonValue(std::move(run_.thoughts)));
  }
  if (!run_.calls.empty()) {
    if (!run_.has_text) turn.form = ContentForm::kNull;
    turn.members.emplace_back("tool_calls", JsonValue(std::move(run_.calls)));
  }
  turns_.push_back(std::move(turn));
  return true;
}

}  // namespace

std::string_view WithoutBillingLine(std::string_view system) {
  const size_t begin = std::min(system.find_first_not_of(" \t\r\n"), system.size());
  if (!system.substr(begin).starts_with(kBillingLine)) return system;
  const size_t end = system.find('\n', begin);
  return end == std::string_view::npos ? std::string_view() : system.substr(end + 1);
}

bool ReadMessagesTurns(const JsonValue& body, ApiParams* params, std::vector<std::string>* ignored,
                       RequestError* error) {
  TurnReader reader(ignored, error);
  const JsonValue* system = body.Find("system");
  if (system != nullptr && !system->is_null() && !reader.ReadSystem(*system)) return false;
  const JsonValue* messages = body.Find("messages");
  if (messages == nullptr || messages->is_null()) {
    return Fail(error, ErrorCode::kMissingField, "messages", kExpectedMessages);
  }
  const JsonValue::Array* array = messages->AsArray();
  if (array == nullptr) return Fail(error, ErrorCode::kInvalidType, "messages", kExpectedMessages);
  if (array->empty() || array->size() > limits::kMaxMessages) {
    return Fail(error, ErrorCode::kInvalidValue, "messages", kExpectedMessages);
  }
  if (!reader.ReadMessages(*array)) return false;
  if (reader.continues()) params->continue_final_message = true;
  params->thought_fields = reader.TakeThoughtFields();
  return StoreMessages(reader.Take(), params, error);
}

}  // namespace baton::api
