#include "src/cli/run_folders.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gtest/gtest.h"

#include "src/base/clock.h"
#include "src/base/unique_fd.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

// The number of a process that has ended.
pid_t DeadPid() {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
  return pid;
}

class RunFoldersTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(parent_);
    fs::create_directories(parent_);
  }

  std::string Folder(const std::string& name) {
    const std::string folder = parent_ + "/" + name;
    fs::create_directories(folder);
    for (const char* file : {"lock", "cluster-secret", "router-0.log"}) {
      std::ofstream(folder + "/" + file) << "x";
    }
    return folder;
  }
  void Tidy(int64_t seconds_later) {
    RemoveDeadRunFolders(parent_, SystemClock().WallUnixMs() / 1000 + seconds_later);
  }

  const std::string parent_ = testing::TempDir() + "/run_folders_test";
};

TEST_F(RunFoldersTest, TheSecretOfTheDeadGoesAtOnceAndTheirLogsAfterADay) {
  const std::string dead = Folder(std::to_string(DeadPid()));
  Tidy(0);
  EXPECT_FALSE(fs::exists(dead + "/cluster-secret"));
  EXPECT_TRUE(fs::exists(dead + "/router-0.log"));
  Tidy(kKeepLogsS - 60);
  EXPECT_TRUE(fs::exists(dead));
  Tidy(kKeepLogsS + 60);
  EXPECT_FALSE(fs::exists(dead));
}

TEST_F(RunFoldersTest, OfManyThatDiedTodayTheNewestStay) {
  std::vector<std::string> dead;
  const auto now = fs::file_time_type::clock::now();
  for (size_t i = 0; i < kMaxKeptRunFolders + 3; ++i) {
    dead.push_back(Folder(fmt::format("s-dead{:02}", i)));
    const auto changed = now - std::chrono::seconds(100 * i);
    for (const char* file : {"lock", "router-0.log"}) {
      fs::last_write_time(dead.back() + "/" + file, changed);
    }
    fs::remove(dead.back() + "/cluster-secret");
    fs::last_write_time(dead.back(), changed);
  }
  const std::string locked = Folder("s-lives1");
  const UniqueFd lock(::open((locked + "/lock").c_str(), O_RDWR));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  Tidy(120);
  for (size_t i = 0; i < dead.size(); ++i) {
    EXPECT_EQ(fs::exists(dead[i]), i < kMaxKeptRunFolders) << i;
  }
  EXPECT_TRUE(fs::exists(locked)) << "the living are not counted";
}

TEST_F(RunFoldersTest, TheLivingAndWhatIsNoRunFolderStay) {
  for (const char* name : {"notes", "12x", "-5", "0", "007", "99999999999999999999", "s-",
                           "s-12345", "s-1234567", "t-123456"}) {
    Folder(name);
  }
  const std::string locked = Folder(std::to_string(DeadPid()));
  const UniqueFd lock(::open((locked + "/lock").c_str(), O_RDWR));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  // Behind a link lies something of somebody else.
  const std::string elsewhere = Folder("elsewhere");
  fs::create_symlink(elsewhere, parent_ + "/" + std::to_string(DeadPid()));
  std::ofstream(parent_ + "/" + std::to_string(DeadPid())) << "a file";
  const auto count = [this] {
    return std::distance(fs::directory_iterator(parent_), fs::directory_iterator());
  };
  const auto before = count();
  Tidy(10 * kKeepLogsS);
  EXPECT_EQ(count(), before);
  for (const std::string& folder : {locked, elsewhere}) {
    EXPECT_TRUE(fs::exists(folder + "/cluster-secret")) << folder;
  }
}

TEST_F(RunFoldersTest, AServerThatStartsIsLeftAloneForAMinute) {
  const std::string starting = Folder("s-start1");
  fs::remove(starting + "/lock");
  Tidy(30);
  EXPECT_TRUE(fs::exists(starting + "/cluster-secret"));
  Tidy(90);
  EXPECT_FALSE(fs::exists(starting + "/cluster-secret"));
}

TEST_F(RunFoldersTest, EveryServerHasAFolderOfItsOwnWhateverItsNumber) {
  const StatusOr<std::string> first = MakeRunFolderIn(parent_);
  const StatusOr<std::string> second = MakeRunFolderIn(parent_);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_NE(*first, *second);
  struct stat info {};
  ASSERT_EQ(::stat(first->c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
}

TEST_F(RunFoldersTest, AParentThatIsAFileIsNamed) {
  std::ofstream(parent_ + "/file") << "x";
  const StatusOr<std::string> made = MakeRunFolderIn(parent_ + "/file/run");
  ASSERT_FALSE(made.ok());
  EXPECT_NE(std::string(made.status().message()).find(parent_ + "/file/run"), std::string::npos);
}

TEST_F(RunFoldersTest, AFolderThatIsNotThereIsNoError) {
  fs::remove_all(parent_);
  Tidy(0);
  EXPECT_FALSE(fs::exists(parent_));
}

}  // namespace
}  // namespace baton::cli
