#include "src/cli/home_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class HomeFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(base_);
    fs::create_directories(base_ + "/tmp");
    fs::create_directories(base_ + "/user");
    ::unsetenv("BATON_HOME");
    ::setenv("TMPDIR", (base_ + "/tmp").c_str(), 1);
    ::setenv("HOME", (base_ + "/user").c_str(), 1);
  }
  void TearDown() override { fs::remove_all(base_); }

  std::string Private() const { return base_ + "/tmp/baton-" + std::to_string(::geteuid()); }

  const std::string base_ = testing::TempDir() + "/home_folder_test";
};

TEST_F(HomeFolderTest, TheUsersHomeOrTheOneThatIsNamed) {
  EXPECT_EQ(*HomeFolder(), base_ + "/user/.cache/baton");
  EXPECT_FALSE(fs::exists(base_ + "/user/.cache"));  // looking makes nothing
  ::setenv("BATON_HOME", "/models", 1);
  EXPECT_EQ(*HomeFolder(), "/models");
  ::setenv("BATON_HOME", "", 1);
  EXPECT_EQ(*HomeFolder(), base_ + "/user/.cache/baton");
}

TEST_F(HomeFolderTest, WithoutAHomeItIsAFolderOfTheUsersOwn) {
  for (const char* home : {"", "relative", "/dev/null/nowhere", "/proc/nowhere", "/proc"}) {
    ::setenv("HOME", home, 1);
    ASSERT_TRUE(HomeFolder().ok()) << HomeFolder().status();
    EXPECT_EQ(*HomeFolder(), Private()) << home;
  }
  ::unsetenv("HOME");
  EXPECT_EQ(*HomeFolder(), Private());
  struct stat info {};
  ASSERT_EQ(::stat(Private().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
}

TEST_F(HomeFolderTest, RunFoldersGoElsewhereWhenTheNamedHomeCannotBeWritten) {
  ::setenv("BATON_HOME", "/dev/null/models", 1);
  EXPECT_EQ(*HomeFolder(), "/dev/null/models");
  EXPECT_EQ(*WritableHome(), Private());
  ::setenv("BATON_HOME", (base_ + "/new/deep").c_str(), 1);
  EXPECT_EQ(*WritableHome(), base_ + "/new/deep");
}

TEST_F(HomeFolderTest, WhatOthersCouldHaveWrittenIsRefused) {
  ::unsetenv("HOME");
  fs::create_directories(Private());
  ::chmod(Private().c_str(), 0777);
  EXPECT_THAT(std::string(HomeFolder().status().message()), HasSubstr("has mode 0777"));
  ::chmod(Private().c_str(), 0750);
  EXPECT_THAT(std::string(HomeFolder().status().message()), HasSubstr("has mode 0750"));
  fs::remove(Private());
  fs::create_directories(base_ + "/elsewhere");
  ::chmod((base_ + "/elsewhere").c_str(), 0700);
  fs::create_symlink(base_ + "/elsewhere", Private());
  EXPECT_THAT(std::string(HomeFolder().status().message()), HasSubstr("is no folder"));
  fs::remove(Private());
  if (::geteuid() != 0) return;
  fs::create_directories(Private());
  ::chmod(Private().c_str(), 0700);
  ASSERT_EQ(::chown(Private().c_str(), 12345, 12345), 0);
  EXPECT_THAT(std::string(HomeFolder().status().message()), HasSubstr("belongs to user 12345"));
}

}  // namespace
}  // namespace baton::cli
