// RoleSignals: the end of a process that something keeps waiting.
#include "src/cli/role_signals.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/cli/child_process.h"

namespace baton::cli {
namespace {

TEST(RoleSignalsDeathTest, WhatDoesNotLetGoDoesNotKeepTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang = [] {
    RoleSignals signals;
    signals.SetStarted();
    signals.LimitEnd(std::chrono::milliseconds(1), 5);
    for (;;) ::pause();
  };
  EXPECT_EXIT(hang(), testing::ExitedWithCode(5), "does not let go");
}

TEST(RoleSignalsDeathTest, WhoEndsInTimeEndsAsItWould) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto end = [] {
    {
      RoleSignals signals;
      signals.SetStarted();
      signals.LimitEnd(std::chrono::hours(1), 5);
    }
    ::_exit(7);
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(7), "");
}

// Whether a role stops at once after a signal from each of `senders` in turn: SIGTERM of its parent
// ('p') or another process ('o'), or SIGHUP of another process ('h').
bool StopsNow(bool supervised, std::string_view senders) {
  int answers[2];
  EXPECT_EQ(::pipe(answers), 0);
  const pid_t role = ::fork();
  if (role == 0) {
    if (supervised) ::setenv(kReportFdVariable, "9", 1);
    RoleSignals signals;
    signals.SetStarted();
    // One byte when it is ready, and one for each signal.
    for (int num_told = -1;; ::usleep(1000)) {
      for (; num_told < signals.num_signals(); ++num_told) {
        (void)!::write(answers[1], signals.stop_now()->load() ? "1" : "0", 1);
      }
    }
  }
  ::close(answers[1]);  // a role that died answers with the end of the pipe
  char answer = 0;
  EXPECT_EQ(::read(answers[0], &answer, 1), 1);
  for (const char sender : senders) {
    if (sender == 'p') {
      ::kill(role, SIGTERM);
    } else if (const pid_t other = ::fork(); other == 0) {
      ::kill(role, sender == 'h' ? SIGHUP : SIGTERM);
      ::_exit(0);
    } else {
      ::waitpid(other, nullptr, 0);
    }
    EXPECT_EQ(::read(answers[0], &answer, 1), 1) << senders;
  }
  ::kill(role, SIGKILL);
  ::waitpid(role, nullptr, 0);
  ::close(answers[0]);
  return answer == '1';
}

// Whoever ends every process of a service also ends the supervisor, which passes its own signal on.
TEST(RoleSignalsTest, WhatTheSupervisorPassesOnIsNoSecondWish) {
  for (const char* once : {"o", "p", "op", "po", "pp"}) EXPECT_FALSE(StopsNow(true, once)) << once;
  for (const char* twice : {"oo", "opo", "poo"}) EXPECT_TRUE(StopsNow(true, twice)) << twice;
  EXPECT_FALSE(StopsNow(false, "p"));
  for (const char* twice : {"pp", "op"}) EXPECT_TRUE(StopsNow(false, twice)) << twice;
}

// A terminal that closes sends two, its shell's and the kernel's; systemd may send one beside its
// SIGTERM, which is read after it.
TEST(RoleSignalsTest, AHangUpDrainsAndIsNoSecondWish) {
  for (const bool supervised : {false, true}) {
    for (const char* once : {"h", "hh", "oh", "ho", "hho", "hoh"}) {
      EXPECT_FALSE(StopsNow(supervised, once)) << once;
    }
    for (const char* twice : {"oho", "hoo"}) EXPECT_TRUE(StopsNow(supervised, twice)) << twice;
  }
  EXPECT_FALSE(StopsNow(true, "hp"));
}

// As nohup(1) starts a program. A signal that is blocked waits, even if it is ignored.
TEST(RoleSignalsTest, AHangUpThatIsIgnoredIsNotTaken) {
  for (const bool is_ignored : {false, true}) {
    const auto before = ::signal(SIGHUP, is_ignored ? SIG_IGN : SIG_DFL);
    sigset_t mask;
    sigset_t mask_before;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask_before);
    {
      RoleSignals signals;
      ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    }
    EXPECT_EQ(sigismember(&mask, SIGHUP), is_ignored ? 0 : 1);
    ::pthread_sigmask(SIG_SETMASK, &mask_before, nullptr);
    (void)::signal(SIGHUP, before);
  }
}

}  // namespace
}  // namespace baton::cli
