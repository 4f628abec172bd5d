#include "src/cli/conversation.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "nlohmann/json.hpp"

#include "src/base/print.h"
#include "src/cli/flags.h"

namespace baton::cli {
namespace {

using nlohmann::json;

void Write(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Thoughts are dim and have an empty line after them, the answer is plain. Where nobody looks, in a
// pipe, the answer is all.
class TextPrinter final : public AnswerPrinter {
 public:
  void OnThought(std::string_view text) override {
    if (!terminal_) return;
    if (!thinking_) Print("\x1b[2m");
    thinking_ = true;
    Write(text);
  }
  void OnText(std::string_view text) override {
    EndThoughts();
    has_text_ = true;
    Write(text);
  }
  void OnEnd(const std::optional<AnswerStats>& stats, std::FILE* screen) override {
    EndThoughts();
    if (stats.has_value() || has_text_) std::fputc('\n', stdout);
    has_text_ = false;
    std::fflush(stdout);
    if (!stats.has_value() || screen == nullptr) return;
    const bool is_dim = ::isatty(::fileno(screen)) != 0;
    Print(screen, "{}{}{}\n", is_dim ? "\x1b[2m" : "", DescribeAnswer(*stats),
          is_dim ? "\x1b[0m" : "");
    std::fflush(screen);
  }

 private:
  void EndThoughts() {
    if (thinking_) Print("\x1b[0m\n\n");
    thinking_ = false;
  }

  const bool terminal_ = ::isatty(STDOUT_FILENO) != 0;
  bool thinking_ = false;
  bool has_text_ = false;
};

class JsonPrinter final : public AnswerPrinter {
 public:
  void OnThought(std::string_view text) override { thought_ += text; }
  void OnText(std::string_view text) override { text_ += text; }
  void OnEnd(const std::optional<AnswerStats>& stats, std::FILE* /*screen*/) override {
    const std::string text = std::exchange(text_, {});
    const std::string thought = std::exchange(thought_, {});
    if (!stats.has_value()) return;
    json line = {{"request_id", stats->request_id},
                 {"model", stats->model},
                 {"content", text},
                 {"finish_reason", stats->finish_reason},
                 {"ttft_ms", stats->ttft_ms},
                 {"usage", json::parse(stats->usage_json)},
                 {"timings", json::parse(stats->timings_json)}};
    if (!thought.empty()) line["reasoning_content"] = thought;
    Write(line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
  }

 private:
  std::string text_;
  std::string thought_;
};

}  // namespace

std::unique_ptr<AnswerPrinter> MakeAnswerPrinter(bool json) {
  if (json) return std::make_unique<JsonPrinter>();
  return std::make_unique<TextPrinter>();
}

Status AskAndPrint(ChatSession& session, AnswerPrinter& printer, const std::string& question,
                   std::FILE* screen) {
  const StatusOr<AnswerStats> stats =
      session.Ask(question, [&](std::string_view text) { printer.OnText(text); });
  printer.OnEnd(stats.ok() ? std::optional(*stats) : std::nullopt,
                session.options().shows_stats ? screen : nullptr);
  return stats.status();
}

Conversation::Conversation(std::string_view command, ChatSession& session, AnswerPrinter& printer)
    : command_(command), session_(session), printer_(printer), question_(&session) {
  if (editor_.terminal()) interrupts_.emplace();
}

int Conversation::Hold() {
  if (editor_.terminal()) Greet();
  std::string line;
  while (!is_over_) {
    switch (editor_.Read(&line, question_.is_open())) {
      case LineEditor::Event::kLine:
        was_hinted_ = false;
        OnLine(line);
        break;
      case LineEditor::Event::kInterrupt:
        OnInterrupt(!line.empty() || question_.is_open());
        break;
      case LineEditor::Event::kEnd:
        OnEnd();
    }
    if (std::ferror(stdout) != 0) return kExitFailure;
  }
  return failed_ ? kExitFailure : kExitOk;
}

// A server that is away is said before the first question is typed; it may come yet.
void Conversation::Greet() {
  const Status reached = session_.ListModels().status();
  if (!reached.ok()) {
    Print(stderr, "warning: {}: {}\n", session_.options().url.ToString(),
          std::string(reached.message()));
  }
  Print(editor_.screen(), "Ask something. /help lists commands, /exit ends it.\n");
}

// At the prompt: what was typed is dropped. A second one, with nothing typed since, ends the chat.
void Conversation::OnInterrupt(bool had_text) {
  InterruptCounter::Forget();
  question_.Drop();
  Print(editor_.screen(), "\n");
  if (was_hinted_ && !had_text) {
    is_over_ = true;
    return;
  }
  was_hinted_ = true;
  Print(editor_.screen(), "Ctrl-C again, Ctrl-D or /exit ends the chat.\n");
  std::fflush(editor_.screen());
}

void Conversation::OnEnd() {
  if (editor_.terminal()) Print(editor_.screen(), "\n");
  is_over_ = true;
  if (!question_.is_open()) return;
  Print(stderr, "{} is not closed; its question was not asked\n", QuotedQuestion::kMark);
  failed_ = true;
}

void Conversation::OnLine(const std::string& line) {
  const std::optional<ChatStep> step = question_.Push(line);
  if (!step.has_value()) return;
  switch (step->kind) {
    case ChatStep::Kind::kNothing:
      break;
    case ChatStep::Kind::kEnd:
      is_over_ = true;
      break;
    case ChatStep::Kind::kSay:
      Print(editor_.screen(), "{}\n", step->text);
      break;
    case ChatStep::Kind::kComplain:
      Print(stderr, "{}\n", step->text);
      failed_ = failed_ || !editor_.terminal();
      break;
    case ChatStep::Kind::kAsk:
      Ask(step->text);
  }
  std::fflush(stdout);
}

void Conversation::Ask(const std::string& question) {
  InterruptCounter::Forget();
  const Status status = AskAndPrint(session_, printer_, question, editor_.screen());
  if (InterruptCounter::Interrupted()) {
    InterruptCounter::Forget();
    Print(editor_.screen(), "\n(stopped)\n");
    return;
  }
  if (status.ok() || std::ferror(stdout) != 0) return;
  failed_ = true;
  Fail(command_, status);
}

}  // namespace baton::cli
