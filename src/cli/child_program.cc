#include "src/cli/child_program.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>

namespace baton::cli {
namespace {

// A program's end is seen this soon.
constexpr int kLookEveryMs = 20;

// The child's side: never returns.
[[noreturn]] void Become(const std::vector<char*>& argv, const std::vector<char*>& environment,
                         pid_t parent, const sigset_t& mask) {
  DieWithParent(parent);
  (void)::sigprocmask(SIG_SETMASK, &mask, nullptr);
  const int null_fd = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  (void)::dup2(null_fd, STDOUT_FILENO);
  for (char* variable : environment) (void)::putenv(variable);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

}  // namespace

void DieWithParent(pid_t parent) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before the line above
}

void AddUnlessIgnored(int signal, sigset_t* set) {
  struct sigaction now {};
  if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) {
    (void)sigaddset(set, signal);
  }
}

HeldSignals::HeldSignals() {
  ::sigemptyset(&held_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) AddUnlessIgnored(signal, &held_);
  (void)::pthread_sigmask(SIG_BLOCK, &held_, &before_);
}

HeldSignals::~HeldSignals() {
  if (come_ != 0) (void)::kill(::getpid(), come_);
  (void)::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool HeldSignals::HasCome(int wait_ms) {
  if (come_ != 0) return true;
  const timespec wait = {.tv_sec = wait_ms / 1000, .tv_nsec = (wait_ms % 1000) * 1'000'000L};
  const int signal = ::sigtimedwait(&held_, nullptr, &wait);
  if (signal > 0) come_ = signal;
  return come_ != 0;
}

int RunProgram(const std::vector<std::string>& args, const std::vector<std::string>& environment,
               HeldSignals& signals) {
  std::vector<char*> argv;
  argv.reserve(args.size() + 1);
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> added;
  added.reserve(environment.size());
  for (const std::string& variable : environment) {
    added.push_back(const_cast<char*>(variable.c_str()));
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return kProgramNotStarted;
  if (pid == 0) Become(argv, added, parent, signals.before());
  int status = 0;
  bool is_interrupted = false;
  for (;;) {
    const pid_t ended = ::waitpid(pid, &status, is_interrupted ? 0 : WNOHANG);
    if (ended == pid) break;
    if (ended < 0 && errno != EINTR) return kProgramNotStarted;
    if (!is_interrupted && signals.HasCome(kLookEveryMs)) {
      is_interrupted = true;
      (void)::kill(pid, SIGKILL);
    }
  }
  if (is_interrupted) return kProgramInterrupted;
  return WIFEXITED(status) ? WEXITSTATUS(status) : kProgramNotStarted;
}

}  // namespace baton::cli
