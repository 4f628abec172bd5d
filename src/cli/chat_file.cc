#include "src/cli/chat_file.h"

#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

#include "src/base/quoted_text.h"
#include "src/base/regular_file.h"
#include "src/cli/json_fields.h"
#include "src/cli/replace_file.h"

namespace baton::cli {
namespace {

using nlohmann::json;

constexpr const char* kVersionKey = "baton_chat";
constexpr int64_t kVersion = 1;

std::string WithHome(const std::string& path) {
  const char* const home = std::getenv("HOME");
  return path.starts_with("~/") && home != nullptr ? home + path.substr(1) : path;
}

// A saved conversation, its keys unchecked but for the version.
StatusOr<json> ReadChatFile(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path, kMaxChatFileBytes));
  json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object() || !file.contains(kVersionKey)) {
    return InvalidArgument("it is no conversation that /save wrote");
  }
  if (SignedOf(file, kVersionKey) != kVersion) {
    return InvalidArgument("\"{}\" is not {}: another release wrote it", kVersionKey, kVersion);
  }
  return file;
}

StatusOr<std::vector<SessionMessage>> MessagesOf(const json& file) {
  const auto rows = file.find("messages");
  if (rows == file.end() || !rows->is_array()) {
    return InvalidArgument("\"messages\" is missing or no list");
  }
  std::vector<SessionMessage> messages;
  for (const json& row : *rows) {
    const std::string place = fmt::format("messages[{}]", messages.size());
    if (!row.is_object()) return InvalidArgument("{} is no object", place);
    SessionMessage message{TextOf(row, "role"), TextOf(row, "content")};
    const std::string_view expected = messages.size() % 2 == 0 ? "user" : "assistant";
    if (message.role != expected) {
      return InvalidArgument(
          "{}: \"role\" is not \"{}\": the messages are questions of \"user\" and "
          "answers of \"assistant\", in turns",
          place, expected);
    }
    const auto content = row.find("content");
    if (content == row.end() || !content->is_string()) {
      return InvalidArgument("{}: \"content\" is missing or no text", place);
    }
    messages.push_back(std::move(message));
  }
  if (messages.size() % 2 != 0) {
    return InvalidArgument("messages[{}] is a question without an answer", messages.size() - 1);
  }
  return messages;
}

// "" = the template's own; a file may leave it out.
StatusOr<std::string> SystemOf(const json& file) {
  const auto system = file.find("system");
  if (system == file.end()) return std::string();
  if (!system->is_string()) return InvalidArgument("\"system\" is no text");
  return system->get<std::string>();
}

}  // namespace

Status SaveChat(const std::string& path, const ChatSession& session) {
  const std::string real_path = WithHome(path);
  std::error_code ignored;
  if (std::filesystem::exists(real_path, ignored) && !ReadChatFile(real_path).ok()) {
    return AlreadyExists("{} exists and is no saved conversation; it stays as it is",
                         QuotedForMessage(path));
  }
  json messages = json::array();
  for (const SessionMessage& message : session.messages()) {
    messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  const ChatOptions& options = session.options();
  const std::string model =
      options.model.empty() && session.last().has_value() ? session.last()->model : options.model;
  const json file = {{kVersionKey, kVersion},
                     {"model", model},
                     {"system", options.system},
                     {"messages", std::move(messages)}};
  const std::string text = file.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
  if (text.size() > kMaxChatFileBytes) {
    return InvalidArgument("the conversation has {} bytes; a file holds {}", text.size(),
                           kMaxChatFileBytes);
  }
  return WithPrefix(ReplaceFile(real_path, text, 0600), QuotedForMessage(path));
}

Status LoadChat(const std::string& path, ChatSession& session) {
  const StatusOr<json> file = ReadChatFile(WithHome(path));
  if (!file.ok()) return WithPrefix(file.status(), QuotedForMessage(path));
  StatusOr<std::vector<SessionMessage>> messages = MessagesOf(*file);
  if (!messages.ok()) return WithPrefix(messages.status(), QuotedForMessage(path));
  StatusOr<std::string> system = SystemOf(*file);
  if (!system.ok()) return WithPrefix(system.status(), QuotedForMessage(path));
  session.options().system = *std::move(system);
  session.SetMessages(*std::move(messages));
  return OkStatus();
}

}  // namespace baton::cli
