#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/file_lock.h"
#include "src/base/folder_entries.h"
#include "src/base/regular_file.h"
#include "src/base/unique_fd.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

TEST(RegularFileTest, GivesAllBytesOrSaysWhyNot) {
  const std::string folder = ::testing::TempDir() + "/regular_file_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const std::string path = folder + "/file";
  const std::string bytes("a\0b\n", 4);
  std::ofstream(path, std::ios::binary) << bytes;
  fs::create_symlink(path, folder + "/link");
  EXPECT_EQ(ReadRegularFile(path, 4).value(), bytes);
  EXPECT_EQ(ReadRegularFile(folder + "/link", 4).value(), bytes);
  const Status large = ReadRegularFile(path, 3).status();
  EXPECT_EQ(large.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(large.message(), "4 bytes, more than 3");
  fs::resize_file(path, 0);
  EXPECT_EQ(ReadRegularFile(path, 4).value(), "");

  // Nobody writes into it: reading it would wait for ever.
  ASSERT_EQ(::mkfifo((folder + "/fifo").c_str(), 0600), 0);
  for (const std::string& other : {folder, folder + "/fifo", std::string("/dev/zero")}) {
    const Status status = ReadRegularFile(other, 100).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << other;
    EXPECT_EQ(status.message(), "no regular file") << other;
  }
  for (const std::string& missing : {folder + "/none", path + "/below"}) {
    EXPECT_EQ(ReadRegularFile(missing, 100).status().code(), StatusCode::kNotFound) << missing;
    EXPECT_FALSE(HasEntry(missing)) << missing;
  }
  // It is there, so its reader may not go on as without it.
  fs::create_symlink("none", folder + "/broken");
  EXPECT_TRUE(HasEntry(folder + "/broken"));
  EXPECT_EQ(ReadRegularFile(folder + "/broken", 100).status(),
            Unavailable("a link to a file that is not there"));
  fs::remove_all(folder);
}

// An input that a user names may be a pipe that somebody holds open. It may never be a FIFO,
// because nobody may ever write to it.
TEST(SystemFileTest, AFileWithoutASizeIsReadWhole) {
  const std::optional<std::string> status = ReadSystemFile("/proc/self/status");
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(status->starts_with("Name:"));
  EXPECT_TRUE(status->ends_with('\n'));
  EXPECT_EQ(ReadSystemFile("/proc/self/no_such_file"), std::nullopt);
}

TEST(InputTest, TakesFilesAndOpenPipesAndNoFifos) {
  const std::string folder = ::testing::TempDir() + "/input_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const std::string path = folder + "/file";
  const std::string bytes = std::string(100'000, 'x') + std::string("\0y", 2);
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(ReadInput(path, bytes.size()).value(), bytes);
  EXPECT_EQ(ReadInput(path, bytes.size() - 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadInput("/dev/null", 10).value(), "");
  EXPECT_EQ(ReadInput("/dev/zero", 1 << 20).status().message(), "has more than 1048576 bytes");
  EXPECT_EQ(ReadInput(folder, 10).status().message(), "is a folder");
  EXPECT_EQ(ReadInput(folder + "/none", 10).status().code(), StatusCode::kNotFound);
  ASSERT_EQ(::mkfifo((folder + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(ReadInput(folder + "/fifo", 10).status().code(), StatusCode::kInvalidArgument);

  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  // A writer that takes its time is waited for.
  std::thread writer([&] {
    for (const char* piece : {"slow", "ly"}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_GT(::write(ends[1], piece, std::strlen(piece)), 0);
    }
    ::close(ends[1]);
  });
  EXPECT_EQ(ReadInput("/dev/fd/" + std::to_string(ends[0]), 10).value(), "slowly");
  writer.join();
  ::close(ends[0]);
}

TEST(FolderEntriesTest, WhatCannotBeReadIsPassedOver) {
  const std::string folder = ::testing::TempDir() + "/folder_entries_test";
  fs::remove_all(folder);
  fs::create_directories(folder + "/b/closed");
  fs::create_directories(folder + "/c");
  for (const char* file : {"/a", "/b/closed/x", "/b/y", "/c/z"})
    std::ofstream(folder + file) << "x";
  fs::create_symlink(folder, folder + "/c/link");
  fs::permissions(folder + "/b/closed", fs::perms::none);
  const bool is_root = ::geteuid() == 0;  // root reads every folder
  if (is_root) {
    ASSERT_EQ(::seteuid(12345), 0);
  }
  std::vector<std::string> walked;
  WalkFolder(folder, [&](const fs::directory_entry& entry) {
    walked.push_back(entry.path().string().substr(folder.size()));
    return true;
  });
  std::error_code closed_error;
  const size_t num_in_closed = FolderEntries(folder + "/b/closed", &closed_error).size();
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  fs::permissions(folder + "/b/closed", fs::perms::owner_all);
  EXPECT_EQ(walked,
            (std::vector<std::string>{"/a", "/b", "/b/closed", "/b/y", "/c", "/c/link", "/c/z"}));
  EXPECT_EQ(num_in_closed, 0u);
  EXPECT_EQ(closed_error, std::errc::permission_denied);
  std::error_code error;
  EXPECT_TRUE(FolderEntries(folder + "/nowhere", &error).empty());
  EXPECT_EQ(error, std::errc::no_such_file_or_directory);
  EXPECT_TRUE(FolderEntries(folder + "/a", &error).empty());
  EXPECT_EQ(error, std::errc::not_a_directory);
  EXPECT_EQ(FolderEntries(folder, &error).size(), 3u);
  EXPECT_FALSE(error);
  fs::remove_all(folder);
}

TEST(FileLockTest, OnlyAnotherHolderIsHeld) {
  const std::string path = ::testing::TempDir() + "/file_lock_test";
  std::ofstream(path) << "x";
  const UniqueFd one(::open(path.c_str(), O_RDWR));
  const UniqueFd another(::open(path.c_str(), O_RDONLY));
  EXPECT_EQ(TryFileLock(one.get(), LOCK_EX | LOCK_NB).state, LockState::kTaken);
  EXPECT_EQ(TryFileLock(another.get(), LOCK_SH | LOCK_NB).state, LockState::kHeld);
  EXPECT_EQ(TryFileLock(one.get(), LOCK_UN).state, LockState::kTaken);
  EXPECT_EQ(TryFileLock(another.get(), LOCK_SH | LOCK_NB).state, LockState::kTaken);
  const LockTry closed = TryFileLock(-1, LOCK_EX | LOCK_NB);
  EXPECT_EQ(closed.state, LockState::kFailed);
  EXPECT_EQ(closed.error, EBADF);
  // An operation that the kernel does not know stands for a file system without locks.
  EXPECT_EQ(TryFileLock(one.get(), 0).state, LockState::kNoLocks);
  fs::remove(path);
}

}  // namespace
}  // namespace baton
