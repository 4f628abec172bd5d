// A chat at standard input and output, as `run` and `chat` hold it.
#ifndef BATON_CLI_CONVERSATION_H_
#define BATON_CLI_CONVERSATION_H_

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/cli/chat_line.h"
#include "src/cli/chat_session.h"
#include "src/cli/line_editor.h"

namespace baton::cli {

// Prints answers to standard output. One thread.
class AnswerPrinter {
 public:
  virtual ~AnswerPrinter() = default;

  virtual void OnThought(std::string_view text) = 0;
  virtual void OnText(std::string_view text) = 0;
  // The answer has ended; no `stats`: it failed or was stopped. `screen`: where the line about it
  // goes; null = nowhere.
  virtual void OnEnd(const std::optional<AnswerStats>& stats, std::FILE* screen) = 0;
};

// Text: as it comes, thoughts dim and only at a terminal, then one line about the answer. JSON: one
// line for each answer that came whole.
std::unique_ptr<AnswerPrinter> MakeAnswerPrinter(bool json);

// `screen`: as of OnEnd, where the session shows that line.
Status AskAndPrint(ChatSession& session, AnswerPrinter& printer, const std::string& question,
                   std::FILE* screen);

// The questions of standard input, one after the other.
class Conversation {
 public:
  // All outlive this.
  Conversation(std::string_view command, ChatSession& session, AnswerPrinter& printer);

  // Until the user ends it; the exit code.
  int Hold();

 private:
  void Greet();
  void OnInterrupt(bool had_text);
  void OnLine(const std::string& line);
  void OnEnd();
  void Ask(const std::string& question);

  const std::string_view command_;
  ChatSession& session_;
  AnswerPrinter& printer_;
  QuotedQuestion question_;
  LineEditor editor_;
  std::optional<InterruptCounter> interrupts_;
  bool was_hinted_ = false;  // Ctrl-C at the prompt
  bool is_over_ = false;
  bool failed_ = false;
};

}  // namespace baton::cli

#endif  // BATON_CLI_CONVERSATION_H_
