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

// Whether a role stops at once after SIGTERM from each of `senders` in turn: its parent ('p') or
// another process ('o').
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
  char answer = 0;
  EXPECT_EQ(::read(answers[0], &answer, 1), 1);
  for (const char sender : senders) {
    if (sender == 'p') {
      ::kill(role, SIGTERM);
    } else if (const pid_t other = ::fork(); other == 0) {
      ::kill(role, SIGTERM);
      ::_exit(0);
    } else {
      ::waitpid(other, nullptr, 0);
    }
    EXPECT_EQ(::read(answers[0], &answer, 1), 1);
  }
  ::kill(role, SIGKILL);
  ::waitpid(role, nullptr, 0);
  ::close(answers[0]);
  ::close(answers[1]);
  return answer == '1';
}

// Whoever ends every process of a service also ends the supervisor, which passes its own signal on.
TEST(RoleSignalsTest, WhatTheSupervisorPassesOnIsNoSecondWish) {
  for (const char* once : {"o", "p", "op", "po", "pp"}) EXPECT_FALSE(StopsNow(true, once)) << once;
  for (const char* twice : {"oo", "opo", "poo"}) EXPECT_TRUE(StopsNow(true, twice)) << twice;
  EXPECT_FALSE(StopsNow(false, "p"));
  for (const char* twice : {"pp", "op"}) EXPECT_TRUE(StopsNow(false, twice)) << twice;
}

}  // namespace
}  // namespace baton::cli
