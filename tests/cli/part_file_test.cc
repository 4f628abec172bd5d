#include "src/cli/part_file.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

class PartFileTest : public ::testing::Test {
 protected:
  PartFileTest() { fs::create_directories(folder_); }
  ~PartFileTest() override { fs::remove_all(folder_); }

  StatusOr<PartFile> Take(int64_t wait_s) {
    return PartFile::Take(target_,
                          {.wait_s = wait_s, .is_done = [this] { return fs::exists(target_); }});
  }

  const std::string folder_ = ::testing::TempDir() + "baton_part_file_test";
  const std::string target_ = folder_ + "/m.gguf";
};

TEST_F(PartFileTest, OneHasItAndTheNextIsLate) {
  const StatusOr<PartFile> first = Take(0);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(first->is_done());
  const Status late = Take(0).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  EXPECT_NE(std::string(late.message()).find("m.gguf.part after 0 s"), std::string::npos) << late;
}

TEST_F(PartFileTest, WhoWaitsTakesTheResult) {
  StatusOr<PartFile> first = Take(0);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(first->Append("whole").ok());
  std::atomic<bool> is_done = false;
  std::thread waiter([&] {
    const StatusOr<PartFile> second = Take(60);
    is_done = second.ok() && second->is_done();
  });
  ASSERT_TRUE(first->Publish(target_).ok());
  waiter.join();
  EXPECT_TRUE(is_done);
  EXPECT_EQ(fs::file_size(target_), 5u);
  EXPECT_FALSE(fs::exists(target_ + ".part"));
}

TEST_F(PartFileTest, WhatADeadProcessWroteIsTaken) {
  int said[2];
  ASSERT_EQ(::pipe(said), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    StatusOr<PartFile> part = Take(0);
    const bool is_written = part.ok() && part->Append("half").ok();
    (void)!::write(said[1], is_written ? "1" : "0", 1);
    for (;;) ::pause();
  }
  char answer = '0';
  ASSERT_EQ(::read(said[0], &answer, 1), 1);
  EXPECT_EQ(answer, '1');
  EXPECT_FALSE(Take(0).ok());
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  const StatusOr<PartFile> next = Take(0);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->size(), 4u);
  ::close(said[0]);
  ::close(said[1]);
}

TEST_F(PartFileTest, ADroppedFileBeginsAnew) {
  StatusOr<PartFile> first = Take(0);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(first->Append("wrong bytes").ok());
  first->Drop();
  // The lock of the removed file says nothing about the new one.
  const StatusOr<PartFile> next = Take(0);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->size(), 0u);
}

TEST_F(PartFileTest, TheOriginStaysWithThePartAndGoesWithIt) {
  {
    StatusOr<PartFile> part = Take(0);
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->Origin(), "");
    ASSERT_TRUE(part->SetOrigin("etag \"1\"").ok());
    ASSERT_TRUE(part->Append("half").ok());
  }
  StatusOr<PartFile> next = Take(0);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->Origin(), "etag \"1\"");
  ASSERT_TRUE(next->Publish(target_).ok());
  EXPECT_FALSE(fs::exists(target_ + ".part.from"));
  fs::remove(target_);
  StatusOr<PartFile> another = Take(0);
  ASSERT_TRUE(another.ok()) << another.status();
  ASSERT_TRUE(another->SetOrigin("x").ok());
  ASSERT_TRUE(another->SetOrigin("").ok());
  EXPECT_EQ(another->Origin(), "");
  ASSERT_TRUE(another->SetOrigin("y").ok());
  another->Drop();
  EXPECT_FALSE(fs::exists(target_ + ".part.from"));
}

TEST_F(PartFileTest, TheSizeOfTheWholeFileStaysToo) {
  StatusOr<PartFile> part = Take(0);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(PartTotal(part->path()), 0u);
  for (const std::string origin : {"etag \"1\"", ""}) {
    ASSERT_TRUE(part->SetOrigin(origin, 42).ok());
    EXPECT_EQ(part->Origin(), origin);
    EXPECT_EQ(PartTotal(part->path()), 42u);
  }
  std::ofstream(target_ + ".part.from") << "etag of an older release\n";
  EXPECT_EQ(PartTotal(part->path()), 0u);
  ASSERT_TRUE(part->SetOrigin("").ok());
  EXPECT_FALSE(fs::exists(target_ + ".part.from"));
}

TEST_F(PartFileTest, ALinkIsNotFollowed) {
  std::ofstream(folder_ + "/other") << "another's";
  fs::create_symlink("other", target_ + ".part");
  EXPECT_EQ(Take(0).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(fs::file_size(folder_ + "/other"), 9u);
}

}  // namespace
}  // namespace baton::cli
