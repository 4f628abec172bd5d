#include "src/cli/role_signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <iterator>

#include "src/base/log.h"
#include "src/cli/child_process.h"
#include "src/cli/child_program.h"

namespace baton::cli {

RoleSignals::RoleSignals() : supervised_(std::getenv(kReportFdVariable) != nullptr) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGTERM);
  sigaddset(&mask, SIGINT);
  AddUnlessIgnored(SIGHUP, &mask);
  ::pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  ::signal(SIGPIPE, SIG_IGN);  // a peer that has gone is an error of a write, not of the process
  signals_.reset(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  quit_.reset(::eventfd(0, EFD_CLOEXEC));
  limit_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
  arrived_.reset(::eventfd(0, EFD_CLOEXEC));
  thread_ = Thread("signals", [this] { Loop(); });
}

RoleSignals::~RoleSignals() {
  const uint64_t one = 1;
  (void)!::write(quit_.get(), &one, sizeof(one));
  thread_.Join();
}

void RoleSignals::Loop() {
  int num_from_outside = 0;
  for (;;) {
    pollfd fds[] = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                    {.fd = quit_.get(), .events = POLLIN, .revents = 0},
                    {.fd = limit_.get(), .events = POLLIN, .revents = 0}};
    (void)::poll(fds, std::size(fds), -1);
    if (fds[1].revents != 0) return;
    if (fds[2].revents != 0) {
      BATON_LOG_ERROR("drained, but something does not let go; the process ends without it");
      FlushLog();
      ::_exit(exit_code_.load());
    }
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      if (!started_.load()) ::_exit(0);
      // A signal that ends all processes of a service (systemd) reaches the supervisor too, which
      // passes it on. The process then hears the same wish twice. The supervisor's own order to end
      // at once is SIGINT.
      const bool is_passed_on = supervised_ && static_cast<pid_t>(info.ssi_pid) == ::getppid();
      // SIGHUP asks for a drain, but never for an end at once: a terminal that closes sends two,
      // and systemd may send one beside its SIGTERM, which is read after it.
      if (!is_passed_on && info.ssi_signo != SIGHUP) ++num_from_outside;
      if (info.ssi_signo == SIGINT || num_from_outside > 1) stop_now_.store(true);
      num_signals_.fetch_add(1);
      const uint64_t one = 1;
      (void)!::write(arrived_.get(), &one, sizeof(one));
    }
  }
}

void RoleSignals::LimitEnd(std::chrono::milliseconds limit, int exit_code) {
  exit_code_.store(exit_code);
  const std::chrono::seconds seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const std::chrono::nanoseconds rest = limit - seconds;
  const itimerspec once{.it_interval = {}, .it_value = {seconds.count(), rest.count()}};
  (void)::timerfd_settime(limit_.get(), 0, &once, nullptr);
}

void RoleSignals::Wait(const std::function<bool()>& also) {
  constexpr int kAskMs = 100;
  while (num_signals_.load() == 0 && !also()) {
    pollfd fd{.fd = arrived_.get(), .events = POLLIN, .revents = 0};
    (void)::poll(&fd, 1, kAskMs);
  }
}

}  // namespace baton::cli
