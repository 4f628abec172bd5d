#include "src/api/tool_messages.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"

namespace baton::api {

using text::ChatMessage;
using text::ChatTemplate;

namespace {

constexpr std::string_view kBeforeTools =
    "You can call functions. Each of these lines describes one as JSON:\n";
constexpr std::string_view kAfterTools =
    "To call a function, answer with nothing but a JSON object of its name and its arguments: "
    "{\"name\": \"...\", \"arguments\": {...}}";

std::string TextOf(const JsonValue* value) {
  const std::string* text = value == nullptr ? nullptr : value->AsString();
  return text == nullptr ? "" : *text;
}

// The functions as they were sent, one a line.
std::string ToolLines(const ApiParams& params) {
  std::string text(kBeforeTools);
  const JsonValue* tools = FindMember(params.template_variables, "tools");
  if (tools == nullptr || tools->AsArray() == nullptr) return text;
  for (const JsonValue& tool : *tools->AsArray()) {
    const JsonValue* function = tool.Find("function");
    if (function == nullptr) continue;
    AppendJson(*function, &text);
    text.push_back('\n');
  }
  return text.append(kAfterTools);
}

// The function that each call called, by the call's id; of equal ids the last.
using CallNames = std::map<std::string, std::string>;

// The calls of an assistant's turn in its text.
ChatMessage WithCalls(const ChatMessage& turn, const JsonValue::Array& calls, CallNames* names) {
  ChatMessage out{.role = turn.role, .content = turn.content};
  for (const JsonValue& call : calls) {
    const JsonValue* function = call.Find("function");
    if (function == nullptr) continue;
    const std::string name = TextOf(function->Find("name"));
    names->insert_or_assign(TextOf(call.Find("id")), name);
    if (!out.content.empty()) out.content.push_back('\n');
    out.content.append("{\"name\": ");
    AppendJsonString(name, &out.content);
    out.content.append(", \"arguments\": ");
    const JsonValue* arguments = function->Find("arguments");
    AppendJson(arguments == nullptr ? JsonValue(JsonValue::Object()) : *arguments, &out.content);
    out.content.push_back('}');
  }
  return out;
}

std::string ResultText(const ChatMessage& turn, const CallNames& names) {
  std::string name = TextOf(FindMember(turn.members, "name"));
  const std::string id = TextOf(FindMember(turn.members, "tool_call_id"));
  const auto call = names.find(id);
  if (!id.empty() && call != names.end()) name = call->second;
  if (name.empty()) return fmt::format("Result:\n{}", turn.content);
  return fmt::format("Result of {}:\n{}", name, turn.content);
}

bool HasCalls(const ChatMessage& turn) {
  const JsonValue* calls = FindMember(turn.members, "tool_calls");
  return calls != nullptr && calls->AsArray() != nullptr && !calls->AsArray()->empty();
}

}  // namespace

bool NeedsToolMessages(const ChatTemplate& chat_template, const ApiParams& params) {
  if (chat_template.Reads("tools")) return false;
  if (!params.tools.functions.empty()) return true;
  return chat_template.source().find("tool_calls") == std::string::npos &&
         std::any_of(params.messages.begin(), params.messages.end(), HasCalls);
}

std::vector<ChatMessage> MessagesWithTools(const ApiParams& params) {
  std::vector<ChatMessage> out;
  CallNames names;
  bool follows_result = false;
  if (params.tools.may_call()) {
    const bool has_system =
        !params.messages.empty() &&
        (params.messages.front().role == "system" || params.messages.front().role == "developer");
    out.push_back({.role = "system", .content = ""});
    if (has_system) out.back().content = params.messages.front().content + "\n\n";
    out.back().content += ToolLines(params);
  }
  for (const ChatMessage& turn : params.messages) {
    const bool is_merged = &turn == &params.messages.front() && !out.empty() &&
                           (turn.role == "system" || turn.role == "developer");
    if (is_merged) continue;
    const bool is_result = turn.role == "tool";
    if (is_result && follows_result) {
      out.back().content += "\n\n" + ResultText(turn, names);
    } else if (is_result) {
      out.push_back({.role = "user", .content = ResultText(turn, names)});
    } else if (HasCalls(turn)) {
      out.push_back(WithCalls(turn, *FindMember(turn.members, "tool_calls")->AsArray(), &names));
    } else {
      out.push_back(turn);
    }
    follows_result = is_result;
  }
  return out;
}

}  // namespace baton::api
