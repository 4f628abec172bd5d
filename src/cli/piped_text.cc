#include "src/cli/piped_text.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "src/base/clock.h"
#include "src/base/errno_text.h"
#include "src/base/limits.h"
#include "src/base/print.h"
#include "src/cli/chat_session.h"
#include "src/cli/line_editor.h"

namespace baton::cli {
namespace {

// Whether standard input may hold text for a command that has its question.
bool MayHoldText() {
  struct stat info {};
  if (::fstat(STDIN_FILENO, &info) != 0) return false;  // it may be closed
  return S_ISREG(info.st_mode) || S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode);
}

// False: nothing has come by then.
bool WaitForInput(int64_t until_us) {
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  while (true) {
    const int64_t left_ms = std::max<int64_t>(0, (until_us - SystemClock().NowUs()) / 1000);
    const int num_ready = ::poll(&input, 1, static_cast<int>(left_ms));
    if (num_ready > 0) return true;
    if (num_ready == 0 || errno != EINTR || InterruptCounter::Interrupted()) return false;
  }
}

StatusOr<std::string> ReadAll() {
  std::string text;
  char piece[65536];
  while (true) {
    const ssize_t size = ::read(STDIN_FILENO, piece, sizeof(piece));
    if (size < 0 && errno == EINTR && !InterruptCounter::Interrupted()) continue;
    if (size < 0) return Unavailable("cannot read standard input: {}", ErrnoText(errno));
    if (size == 0) return text;
    text.append(piece, static_cast<size_t>(size));
    if (text.size() > limits::kMaxBodyBytes) {
      return InvalidArgument("standard input has more than {} bytes, the most of a request",
                             limits::kMaxBodyBytes);
    }
  }
}

}  // namespace

StatusOr<std::string> WithPipedText(const std::string& prompt, int64_t begun_us) {
  if (!MayHoldText()) return prompt;
  if (!WaitForInput(begun_us + kSilentPipeUs)) {
    Print(stderr, "standard input is a silent pipe and was not read\n");
    return prompt;
  }
  BATON_ASSIGN_OR_RETURN(std::string text, ReadAll());
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (text.empty()) return prompt;
  BATON_RETURN_IF_ERROR(WithPrefix(CheckChatText(text), "standard input"));
  return prompt + "\n\n" + text;
}

}  // namespace baton::cli
