#include "src/cli/mcp/captured_run.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "src/base/clock.h"
#include "src/base/errno_text.h"
#include "src/base/signal_text.h"
#include "src/base/unique_fd.h"
#include "src/cli/child_program.h"

namespace baton::cli {
namespace {

constexpr char kThisProgram[] = "/proc/self/exe";

// Both ends of a pipe.
struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

StatusOr<Pipe> MakePipe() {
  std::array<int, 2> ends = {-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return Unavailable("no pipe: {}", ErrnoText(errno));
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// The child's side: never returns.
[[noreturn]] void Become(const std::vector<char*>& argv, const Pipe& out, const Pipe& error,
                         pid_t parent) {
  DieWithParent(parent);
  const int null_fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  (void)::dup2(null_fd, STDIN_FILENO);
  (void)::dup2(out.write.get(), STDOUT_FILENO);
  (void)::dup2(error.write.get(), STDERR_FILENO);
  ::execv(kThisProgram, argv.data());
  ::_exit(127);
}

// Reads what is there; false once the stream has ended.
bool ReadSome(int fd, std::string* text) {
  std::array<char, 16384> bytes;
  const ssize_t count = ::read(fd, bytes.data(), bytes.size());
  if (count < 0) return errno == EINTR;
  text->append(bytes.data(), static_cast<size_t>(count));
  return count > 0;
}

// Reads both streams until they have ended, or a limit is reached.
Status ReadStreams(Pipe& out, Pipe& error, const CaptureLimits& limits, CapturedRun* run) {
  const int64_t end_us = SystemClock().NowUs() + limits.timeout_ms * 1000;
  while (out.read.valid() || error.read.valid()) {
    const int64_t left_ms = (end_us - SystemClock().NowUs()) / 1000;
    if (left_ms <= 0) return DeadlineExceeded("it took longer than {} ms", limits.timeout_ms);
    // poll passes over a negative descriptor.
    std::array<pollfd, 2> ready = {{{.fd = out.read.get(), .events = POLLIN, .revents = 0},
                                    {.fd = error.read.get(), .events = POLLIN, .revents = 0}}};
    if (::poll(ready.data(), ready.size(), static_cast<int>(left_ms)) < 0) continue;
    if (ready[0].revents != 0 && !ReadSome(out.read.get(), &run->out)) out.read.reset();
    if (ready[1].revents != 0 && !ReadSome(error.read.get(), &run->error)) error.read.reset();
    if (std::max(run->out.size(), run->error.size()) > limits.max_bytes) {
      return ResourceExhausted("it printed more than {} bytes", limits.max_bytes);
    }
  }
  return OkStatus();
}

}  // namespace

StatusOr<CapturedRun> RunCaptured(const std::vector<std::string>& args,
                                  const CaptureLimits& limits) {
  std::vector<char*> argv = {const_cast<char*>("baton")};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  BATON_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  BATON_ASSIGN_OR_RETURN(Pipe error, MakePipe());
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return Unavailable("no process: {}", ErrnoText(errno));
  if (pid == 0) Become(argv, out, error, parent);
  out.write.reset();
  error.write.reset();
  CapturedRun run;
  const Status status = ReadStreams(out, error, limits, &run);
  if (!status.ok()) (void)::kill(pid, SIGKILL);
  int how = 0;
  while (::waitpid(pid, &how, 0) < 0 && errno == EINTR) {
  }
  if (!status.ok()) return status;
  if (!WIFEXITED(how)) return Unavailable("it was ended by {}", SignalText(WTERMSIG(how)));
  run.exit_code = WEXITSTATUS(how);
  return run;
}

}  // namespace baton::cli
