// RoleSignals: the end of a process that something keeps waiting.
#include "src/cli/role_signals.h"

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
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

}  // namespace
}  // namespace baton
