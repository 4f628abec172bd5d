// A line of a chat: a question, or a command that begins with "/".
#ifndef BATON_CLI_CHAT_LINE_H_
#define BATON_CLI_CHAT_LINE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/limits.h"
#include "src/cli/chat_session.h"

namespace baton::cli {

// The next step of a chat after one line.
struct ChatStep {
  enum class Kind { kNothing, kAsk, kSay, kComplain, kEnd };
  Kind kind = Kind::kNothing;
  std::string text;  // the question of kAsk, or what to tell the user
};

// Carries out a command on `session`, or gives the question back. A command that is not known is
// named with the nearest one and never asked; "//" at the beginning is a question that begins with
// "/".
ChatStep TakeChatLine(std::string_view line, ChatSession& session);

// Takes the lines of a chat one by one. Those from """ to """ are one question, in which no line is
// a command.
class QuotedQuestion {
 public:
  static constexpr std::string_view kMark = "\"\"\"";
  static constexpr size_t kMaxBytes = limits::kMaxBodyBytes;

  // `session` outlives this.
  explicit QuotedQuestion(ChatSession* session) : session_(session) {}

  // The step after this line; none: the question goes on.
  std::optional<ChatStep> Push(std::string_view line);
  bool is_open() const { return is_open_; }
  // Forgets a question that has begun.
  void Drop();

 private:
  ChatSession* const session_;
  bool is_open_ = false;
  std::string text_;
};

}  // namespace baton::cli

#endif  // BATON_CLI_CHAT_LINE_H_
