// A child of `serve`: what it inherits, and the words about one that could not start.
#include "src/cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/unique_fd.h"

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

// The child's side of the next test: it says what the descriptors that it was handed hold.
TEST(ChildSide, DISABLED_ReadsItsTokenizers) {
  const char* const fds = std::getenv(kTokenizerFdsVariable);
  std::string words;
  std::istringstream numbers(fds == nullptr ? "" : fds);
  for (std::string number; numbers >> number;) {
    std::string word;
    std::getline(std::ifstream("/proc/self/fd/" + number), word);
    words += word + ";";
  }
  SendReportToParent({{"words", fds == nullptr ? "none" : words}});
}

TEST_F(ChildProcessTest, AChildGetsTheTokenizersOfItsOwnStart) {
  // As a `serve` that another one started has it.
  ASSERT_EQ(::setenv(kTokenizerFdsVariable, "99", 1), 0);
  std::ofstream(folder_ + "/a") << "first";
  std::ofstream(folder_ + "/b") << "second";
  const UniqueFd a(::open((folder_ + "/a").c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd b(::open((folder_ + "/b").c_str(), O_RDONLY | O_CLOEXEC));
  const auto words_of = [&](std::vector<int> fds) {
    ChildSpec spec = {.role = "router", .name = "router-0", .log_file = path_};
    spec.args = {"--gtest_filter=ChildSide.*", "--gtest_also_run_disabled_tests"};
    spec.tokenizer_fds = std::move(fds);
    StatusOr<ChildProcess> child = ChildProcess::Start(spec);
    EXPECT_TRUE(child.ok()) << child.status();
    pollfd report{child->report_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&report, 1, 60'000), 1) << child->LastLogLine();
    const auto read = child->ReadReport();
    EXPECT_TRUE(read.ok() && read->has_value()) << child->LastLogLine();
    EXPECT_EQ(::waitpid(child->pid(), nullptr, 0), child->pid());
    return read.ok() && read->has_value() ? (*read)->at("words") : "";
  };
  EXPECT_EQ(words_of({b.get(), a.get()}), "second;first;");
  EXPECT_EQ(words_of({}), "none");
  ASSERT_EQ(::unsetenv(kTokenizerFdsVariable), 0);
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
