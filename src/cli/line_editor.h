// Lines that a user types, with editing and history at a terminal, and Ctrl-C as an event instead
// of the end.
#ifndef BATON_CLI_LINE_EDITOR_H_
#define BATON_CLI_LINE_EDITOR_H_

#include <cstdio>
#include <memory>
#include <string>

namespace baton::cli {

// Counts Ctrl-C (SIGINT) of this process while it lives, in the thread that made it; one at a time.
// Another thread must not read SIGINT from a signalfd meanwhile.
class InterruptCounter {
 public:
  InterruptCounter();
  ~InterruptCounter();
  InterruptCounter(const InterruptCounter&) = delete;
  InterruptCounter& operator=(const InterruptCounter&) = delete;

  // Whether there was one since the last Forget. Any thread.
  static bool Interrupted();
  static void Forget();
};

// Reads lines of standard input: at a terminal with libedit's editing and a history that ends with
// the process (nothing is written to disk), where this build has it; else as they come. One thread.
class LineEditor {
 public:
  enum class Event { kLine, kInterrupt, kEnd };

  LineEditor();
  ~LineEditor();

  // The next line, without its end, in `line`. kInterrupt: Ctrl-C took it away (only with an
  // InterruptCounter), and `line` is what was typed, where an editor knows it. kEnd: Ctrl-D, or no
  // more input. `continues`: the line goes on with what was read before, and the prompt shows it.
  Event Read(std::string* line, bool continues = false);
  // True when a user sits there.
  bool terminal() const { return terminal_; }
  // Where that user is spoken to. Standard output only where it is a terminal too: a file or pipe
  // there gets answers alone.
  std::FILE* screen() const { return screen_; }

 private:
  class Editing;

  bool terminal_;
  std::FILE* screen_;
  std::unique_ptr<Editing> editing_;  // null: plain lines
};

}  // namespace baton::cli

#endif  // BATON_CLI_LINE_EDITOR_H_
