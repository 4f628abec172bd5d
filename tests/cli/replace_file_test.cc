#include "src/cli/replace_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

std::string Contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A folder for one test, gone with it.
class ReplaceFileTest : public testing::Test {
 protected:
  ReplaceFileTest() {
    std::string folder = testing::TempDir() + "/replace_file_XXXXXX";
    folder_ = ::mkdtemp(folder.data());
    path_ = folder_ + "/file";
  }
  ~ReplaceFileTest() override { fs::remove_all(folder_); }

  size_t NumFiles() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  std::string folder_;
  std::string path_;
};

TEST_F(ReplaceFileTest, TheModeOfAnOlderFileIsNotKept) {
  std::ofstream(path_) << "an older and longer text";
  ASSERT_EQ(::chmod(path_.c_str(), 0644), 0);
  ASSERT_TRUE(ReplaceFile(path_, "secret", 0600).ok());
  EXPECT_EQ(Contents(path_), "secret");
  struct stat status;
  ASSERT_EQ(::lstat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(ReplaceFileTest, AnOutputThatIsNoFileStaysWhatItIs) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const int reader = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  EXPECT_TRUE(WriteOutput(path_, "text", 0600).ok());
  char read[8] = {};
  EXPECT_EQ(::read(reader, read, sizeof(read)), 4);
  EXPECT_EQ(std::string(read), "text");
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(path_));
  EXPECT_FALSE(WriteOutput(folder_, "text", 0600).ok()) << "a folder";
  // The device that is always full.
  EXPECT_FALSE(WriteOutput("/dev/full", "text", 0600).ok());
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  EXPECT_TRUE(WriteOutput(folder_ + "/new", "text", 0600).ok());
  EXPECT_EQ(Contents(folder_ + "/new"), "text");
}

TEST_F(ReplaceFileTest, ManyMayWriteAtOnce) {
  std::vector<std::thread> writers;
  std::atomic<int> num_failed = 0;
  for (char letter = 'a'; letter < 'e'; ++letter) {
    writers.emplace_back([&, letter] {
      for (int i = 0; i < 200; ++i) {
        if (!ReplaceFile(path_, std::string(10'000, letter), 0644).ok()) ++num_failed;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(num_failed, 0);
  const std::string text = Contents(path_);
  EXPECT_EQ(text, std::string(10'000, text[0]));
  EXPECT_EQ(NumFiles(), 1u);
}

TEST_F(ReplaceFileTest, LinksAreNotFollowed) {
  const std::string victim = folder_ + "/victim";
  std::ofstream(victim) << "theirs";
  fs::create_symlink(victim, path_);
  fs::create_symlink(victim, path_ + ".next");
  ASSERT_TRUE(ReplaceFile(path_, "ours", 0600).ok());
  EXPECT_EQ(Contents(victim), "theirs");
  EXPECT_FALSE(fs::is_symlink(path_));
  EXPECT_EQ(Contents(path_), "ours");
}

TEST_F(ReplaceFileTest, WhatCannotBeWrittenWholeLeavesTheOldFile) {
  ASSERT_TRUE(ReplaceFile(path_, "old", 0644).ok());
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {.rlim_cur = 100, .rlim_max = before.rlim_max};
  ::signal(SIGXFSZ, SIG_IGN);  // the write then fails with EFBIG, as with ENOSPC on a full disk
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = ReplaceFile(path_, std::string(1000, 'x'), 0644);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("File too large"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find(path_), absl::string_view::npos) << status;
  EXPECT_EQ(Contents(path_), "old");
  EXPECT_EQ(NumFiles(), 1u);
}

TEST_F(ReplaceFileTest, AFolderThatIsGoneIsNamed) {
  const Status status = ReplaceFile(folder_ + "/gone/file", "x", 0644);
  EXPECT_NE(status.message().find("/gone/file"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace baton::cli
