#include "src/base/open_files.h"

#include <sys/resource.h>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(OpenFilesTest, TheSoftLimitIsRaisedToTheHardOne) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{.rlim_cur = 64, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(OpenFilesLimit(), 64u);
  RaiseOpenFilesLimit();
  EXPECT_EQ(OpenFilesLimit(), MaxOpenFiles());
  EXPECT_GE(MaxOpenFiles(), 64u);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(OpenFilesTest, TooFewAreRefusedInOneLine) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit enough{.rlim_cur = kMinOpenFiles, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &enough), 0);
  EXPECT_EQ(CheckOpenFilesLimit(), OkStatus());
  const rlimit low{.rlim_cur = kMinOpenFiles - 1, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(
      CheckOpenFilesLimit(),
      FailedPrecondition("this process may have 31 open files (ulimit -n) and needs 32 or more; "
                         "raise the limit"));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace baton
