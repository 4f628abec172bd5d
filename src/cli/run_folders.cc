#include "src/cli/run_folders.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <vector>

#include "absl/strings/numbers.h"
#include "fmt/format.h"

#include "src/base/unique_fd.h"
#include "src/cli/model_store.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

// True when nobody lives who could still use the folder of `pid`. A process that only has the same
// number keeps it: that costs a folder and no server.
bool IsDead(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

// The newest change of `folder` and of what lies in it, Unix seconds.
int64_t NewestChange(const std::string& folder) {
  struct stat info {};
  int64_t newest = ::lstat(folder.c_str(), &info) == 0 ? info.st_mtim.tv_sec : 0;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (::lstat(entry.path().c_str(), &info) != 0) continue;
    newest = std::max<int64_t>(newest, info.st_mtim.tv_sec);
  }
  return newest;
}

void TidyOne(const std::string& folder, int64_t now_unix_s) {
  struct stat info {};
  const bool is_own =
      ::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
  if (!is_own) return;
  // Of `run PID` the lock is held by its server, a process of another number.
  const UniqueFd lock(::open((folder + "/lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return;
  const int64_t newest = NewestChange(folder);
  std::error_code ignored;
  if (now_unix_s - newest >= kKeepLogsS) {
    fs::remove_all(folder, ignored);
  } else {
    fs::remove(folder + "/cluster-secret", ignored);
  }
}

}  // namespace

std::string RunFolders() { return (fs::path(ModelsFolder()).parent_path() / "run").string(); }

std::string RunFolderOf(pid_t pid) { return fmt::format("{}/{}", RunFolders(), pid); }

void RemoveDeadRunFolders(const std::string& parent, int64_t now_unix_s) {
  std::error_code error;
  std::vector<std::string> dead;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, error)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    const bool is_number = absl::SimpleAtoi(name, &pid) && pid > 0 && std::to_string(pid) == name;
    if (is_number && IsDead(pid)) dead.push_back(entry.path().string());
  }
  for (const std::string& folder : dead) TidyOne(folder, now_unix_s);
}

}  // namespace baton
