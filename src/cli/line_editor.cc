#include "src/cli/line_editor.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <iostream>

#ifdef BATON_HAVE_EDITLINE
#include <histedit.h>
#include <langinfo.h>
#endif

#include "src/base/print.h"

namespace baton {
namespace {

constexpr char kPrompt[] = "> ";

std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");
struct sigaction former_action;

void OnInterrupt(int /*number*/) { interrupted = true; }

}  // namespace

InterruptCounter::InterruptCounter() {
  interrupted = false;
  struct sigaction action {};
  action.sa_handler = OnInterrupt;  // without SA_RESTART: a read of the terminal ends
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &former_action);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGINT);
  ::pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
}

InterruptCounter::~InterruptCounter() { ::sigaction(SIGINT, &former_action, nullptr); }

bool InterruptCounter::Interrupted() { return interrupted; }
void InterruptCounter::Forget() { interrupted = false; }

#ifdef BATON_HAVE_EDITLINE

// libedit's editor and history.
class LineEditor::Editing {
 public:
  Editing() : editor_(::el_init("baton", stdin, stdout, stderr)), history_(::history_init()) {
    HistEvent event;
    ::history(history_, &event, H_SETSIZE, 1000);
    ::history(history_, &event, H_SETUNIQUE, 1);
    ::el_set(editor_, EL_PROMPT, &Prompt);
    ::el_set(editor_, EL_EDITOR, "emacs");
    ::el_set(editor_, EL_SIGNAL, 0);
    ::el_set(editor_, EL_HIST, ::history, history_);
    ::el_set(editor_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  }
  ~Editing() {
    ::history_end(history_);
    ::el_end(editor_);
  }
  Editing(const Editing&) = delete;
  Editing& operator=(const Editing&) = delete;

  bool works() const { return editor_ != nullptr && history_ != nullptr; }

  Event Read(std::string* line) {
    int length = 0;
    const char* text = ::el_gets(editor_, &length);
    if (InterruptCounter::Interrupted()) return Event::kInterrupt;
    if (text == nullptr || length <= 0) return Event::kEnd;
    line->assign(text, static_cast<size_t>(length));
    while (line->ends_with('\n') || line->ends_with('\r')) line->pop_back();
    HistEvent event;
    if (!line->empty()) ::history(history_, &event, H_ENTER, line->c_str());
    return Event::kLine;
  }

 private:
  static char* Prompt(EditLine* /*editor*/) {
    static char prompt[] = "> ";
    return prompt;
  }

  EditLine* editor_;
  History* history_;
};

#else

class LineEditor::Editing {
 public:
  static bool works() { return false; }
  static Event Read(std::string* /*line*/) { return Event::kEnd; }
};

#endif

LineEditor::LineEditor() : terminal_(::isatty(STDIN_FILENO) != 0) {
#ifdef BATON_HAVE_EDITLINE
  const bool shows = terminal_ && ::isatty(STDOUT_FILENO) != 0;
  if (!shows) return;
  // Letters of more than one byte; a minimal container names no locale.
  if (std::setlocale(LC_CTYPE, "") == nullptr ||
      std::strcmp(::nl_langinfo(CODESET), "UTF-8") != 0) {
    (void)std::setlocale(LC_CTYPE, "C.UTF-8");
  }
  editing_ = std::make_unique<Editing>();
  if (!editing_->works()) editing_.reset();
#endif
}

LineEditor::~LineEditor() = default;

LineEditor::Event LineEditor::Read(std::string* line) {
  if (editing_ != nullptr) return editing_->Read(line);
  if (terminal_) {
    Print("{}", kPrompt);
    std::fflush(stdout);
    // A read of std::cin would go on after Ctrl-C.
    pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::poll(&input, 1, -1) < 0 && InterruptCounter::Interrupted()) return Event::kInterrupt;
  }
  if (std::getline(std::cin, *line)) return Event::kLine;
  return InterruptCounter::Interrupted() ? Event::kInterrupt : Event::kEnd;
}

}  // namespace baton
