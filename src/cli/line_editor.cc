#include "src/cli/line_editor.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <iostream>
#include <optional>
#include <string_view>

#ifdef BATON_HAVE_EDITLINE
#include <histedit.h>
#include <langinfo.h>
#endif

#include "src/base/print.h"

namespace baton::cli {
namespace {

constexpr char kPrompt[] = "> ";
constexpr char kContinuedPrompt[] = "... ";

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

constexpr wchar_t kReplacementCharacter = 0xfffd;
constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // the same in UTF-8

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
    ::el_set(editor_, EL_CLIENTDATA, this);
    ::el_set(editor_, EL_GETCFN, &Reader);
  }
  ~Editing() {
    ::history_end(history_);
    ::el_end(editor_);
  }
  Editing(const Editing&) = delete;
  Editing& operator=(const Editing&) = delete;

  bool works() const { return editor_ != nullptr && history_ != nullptr; }

  Event Read(std::string* line, bool continues) {
    int length = 0;
    broken_ = 0;
    continues_ = continues;
    const char* text = ::el_gets(editor_, &length);
    if (InterruptCounter::Interrupted()) {
      const LineInfo* typed = ::el_line(editor_);
      line->assign(typed->buffer, typed->lastchar);
      return Event::kInterrupt;
    }
    if (text == nullptr || length <= 0) return Event::kEnd;
    line->assign(text, static_cast<size_t>(length));
    while (line->ends_with('\n') || line->ends_with('\r')) line->pop_back();
    // Whoever takes the line is to see that it is no UTF-8.
    const size_t at = broken_ == 0 ? line->npos : line->find(kReplacement);
    if (at != line->npos) {
      line->replace(at, kReplacement.size(), 1, broken_);
      return Event::kLine;
    }
    HistEvent event;
    if (!line->empty()) ::history(history_, &event, H_ENTER, line->c_str());
    return Event::kLine;
  }

 private:
  static char* Prompt(EditLine* editor) {
    static char prompt[sizeof(kPrompt)];
    static char continued[sizeof(kContinuedPrompt)];
    std::memcpy(prompt, kPrompt, sizeof(kPrompt));
    std::memcpy(continued, kContinuedPrompt, sizeof(kContinuedPrompt));
    void* self = nullptr;
    ::el_get(editor, EL_CLIENTDATA, &self);
    return self != nullptr && static_cast<Editing*>(self)->continues_ ? continued : prompt;
  }

  // libedit's own reader passes over bytes that are no character of the locale. This one gives
  // U+FFFD for them and keeps the first.
  static int Reader(EditLine* editor, wchar_t* out) {
    void* self = nullptr;
    ::el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<Editing*>(self)->ReadCharacter(out);
  }

  // False: Ctrl-C came. It may come at any time: SIGINT stays blocked between the look at the
  // counter and the wait, or a wait without an end would miss it.
  static bool WaitForInput() {
    sigset_t interrupt, former;
    ::sigemptyset(&interrupt);
    ::sigaddset(&interrupt, SIGINT);
    ::pthread_sigmask(SIG_BLOCK, &interrupt, &former);
    pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    bool has_input = false;
    while (!has_input && !InterruptCounter::Interrupted()) {
      has_input = ::ppoll(&input, 1, nullptr, &former) > 0;  // else a signal came
    }
    ::pthread_sigmask(SIG_SETMASK, &former, nullptr);
    return has_input;
  }

  int ReadCharacter(wchar_t* out) {
    std::mbstate_t state{};
    char lead = 0;
    for (bool is_first = true;; is_first = false) {
      char byte = 0;
      if (held_) {
        byte = *held_;
        held_.reset();
      } else if (!WaitForInput()) {
        return -1;
      } else if (const ssize_t n = ::read(STDIN_FILENO, &byte, 1); n <= 0) {
        return static_cast<int>(n);
      }
      if (is_first) lead = byte;
      const size_t size = std::mbrtowc(out, &byte, 1, &state);
      if (size == static_cast<size_t>(-2)) continue;
      if (size != static_cast<size_t>(-1)) return 1;
      if (!is_first) held_ = byte;  // it may begin a character of its own
      if (broken_ == 0) broken_ = lead;
      *out = kReplacementCharacter;
      return 1;
    }
  }

  EditLine* editor_;
  History* history_;
  bool continues_ = false;
  char broken_ = 0;           // first byte of the line that is no UTF-8; 0 = none
  std::optional<char> held_;  // read, but not taken yet
};

#else

class LineEditor::Editing {
 public:
  static bool works() { return false; }
  static Event Read(std::string* /*line*/, bool /*continues*/) { return Event::kEnd; }
};

#endif

LineEditor::LineEditor()
    : terminal_(::isatty(STDIN_FILENO) != 0),
      screen_(terminal_ && ::isatty(STDOUT_FILENO) != 0 ? stdout : stderr) {
#ifdef BATON_HAVE_EDITLINE
  if (screen_ != stdout) return;
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

LineEditor::Event LineEditor::Read(std::string* line, bool continues) {
  line->clear();
  if (editing_ != nullptr) return editing_->Read(line, continues);
  if (terminal_) {
    Print(screen_, "{}", continues ? kContinuedPrompt : kPrompt);
    std::fflush(screen_);
    // A read of std::cin would go on after Ctrl-C.
    pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::poll(&input, 1, -1) < 0 && InterruptCounter::Interrupted()) return Event::kInterrupt;
  }
  if (std::getline(std::cin, *line)) return Event::kLine;
  return InterruptCounter::Interrupted() ? Event::kInterrupt : Event::kEnd;
}

}  // namespace baton::cli
