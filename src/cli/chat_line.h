// A line of a chat: a question, or a command that begins with "/".
#ifndef BATON_CLI_CHAT_LINE_H_
#define BATON_CLI_CHAT_LINE_H_

#include <string>
#include <string_view>

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

}  // namespace baton::cli

#endif  // BATON_CLI_CHAT_LINE_H_
