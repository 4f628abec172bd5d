// The words about a child of `serve` that could not start: the last line of its log.
#include "src/cli/child_process.h"

#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

// A log file in a folder for one test, gone with it.
class ChildProcessTest : public testing::Test {
 protected:
  ChildProcessTest() {
    std::string folder = testing::TempDir() + "/child_process_XXXXXX";
    folder_ = ::mkdtemp(folder.data());
    path_ = folder_ + "/child.log";
  }
  ~ChildProcessTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  std::string path_;
};

TEST_F(ChildProcessTest, TheLastLogLineIsOfThisRun) {
  const std::string earlier = "error of an earlier run\n";
  std::ofstream(path_) << earlier;
  const auto begin = static_cast<off_t>(earlier.size());
  EXPECT_EQ(LastLogLine(path_, 0), "error of an earlier run");
  EXPECT_EQ(LastLogLine(path_, begin), "");
  std::ofstream(path_, std::ios::app) << "error of this run\n\n";
  EXPECT_EQ(LastLogLine(path_, begin), "error of this run");
}

TEST_F(ChildProcessTest, AFileThatWasTruncatedCountsFromItsBeginning) {
  std::ofstream(path_) << "error of an earlier run\nfirst line of this run\n";
  const auto begin = static_cast<off_t>(std::filesystem::file_size(path_));
  std::filesystem::resize_file(path_, 0);
  EXPECT_EQ(LastLogLine(path_, begin), "");
  std::ofstream(path_, std::ios::app) << "error of this run\n";
  EXPECT_EQ(LastLogLine(path_, begin), "error of this run");
  EXPECT_EQ(LastLogLine(path_ + ".gone", begin), "");
}

TEST_F(ChildProcessTest, AProgramThatCannotBeExecutedSaysWhyInItsLog) {
  std::ofstream(path_) << "of an earlier run\n";
  ChildSpec spec = {.role = "router", .name = "router-0", .log_file = path_};
  // Linux takes at most 128 KiB in one argument.
  spec.args = {std::string(size_t{1} << 20, 'x')};
  const StatusOr<ChildProcess> child = ChildProcess::Start(spec);
  ASSERT_TRUE(child.ok()) << child.status();
  int wait_status = 0;
  ASSERT_EQ(::waitpid(child->pid(), &wait_status, 0), child->pid());
  ASSERT_TRUE(WIFEXITED(wait_status));
  EXPECT_EQ(WEXITSTATUS(wait_status), 127);
  EXPECT_EQ(child->LastLogLine(), "cannot execute /proc/self/exe: Argument list too long");
}

}  // namespace
}  // namespace baton::cli
