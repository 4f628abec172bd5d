#include "src/cli/run_folders.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "fmt/format.h"

#include "src/base/clock.h"
#include "src/base/errno_text.h"
#include "src/base/file_lock.h"
#include "src/base/folder_entries.h"
#include "src/base/unique_fd.h"
#include "src/cli/home_folder.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "s-";
constexpr size_t kNumDrawn = 6;  // characters that mkdtemp draws
constexpr int64_t kStartS = 60;

// s-XXXXXX, or the number of a process, as an earlier release named them.
bool IsRunFolder(const std::string& name) {
  if (name.starts_with(kPrefix)) return name.size() == sizeof(kPrefix) - 1 + kNumDrawn;
  pid_t pid = 0;
  return absl::SimpleAtoi(name, &pid) && pid > 0 && std::to_string(pid) == name;
}

// The newest change of `folder` and of what lies in it, Unix seconds.
int64_t NewestChange(const std::string& folder) {
  struct stat info {};
  int64_t newest = ::lstat(folder.c_str(), &info) == 0 ? info.st_mtim.tv_sec : 0;
  for (const fs::directory_entry& entry : FolderEntries(folder)) {
    if (::lstat(entry.path().c_str(), &info) != 0) continue;
    newest = std::max<int64_t>(newest, info.st_mtim.tv_sec);
  }
  return newest;
}

// Its newest change where it is one of the dead and stays; else nothing.
std::optional<int64_t> TidyOne(const std::string& folder, int64_t now_unix_s) {
  struct stat info {};
  const bool is_own =
      ::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
  if (!is_own) return std::nullopt;
  const UniqueFd lock(::open((folder + "/lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  // Where the lock cannot be had a server may live there, also on a file system without locks.
  const bool is_free =
      !lock || TryFileLock(lock.get(), LOCK_EX | LOCK_NB).state == LockState::kTaken;
  if (!is_free) return std::nullopt;
  const int64_t newest = NewestChange(folder);
  if (!lock && now_unix_s - newest < kStartS) return std::nullopt;
  std::error_code ignored;
  if (now_unix_s - newest >= kKeepLogsS) {
    fs::remove_all(folder, ignored);
    return std::nullopt;
  }
  fs::remove(folder + "/cluster-secret", ignored);
  return newest;
}

}  // namespace

StatusOr<std::string> MakeRunFolder() {
  BATON_ASSIGN_OR_RETURN(const std::string home, WritableHome());
  return MakeRunFolderIn(home + "/run");
}

StatusOr<std::string> MakeRunFolderIn(const std::string& parent) {
  std::error_code error;
  fs::create_directories(parent, error);
  if (error) return Unavailable("cannot create {}: {}", parent, error.message());
  RemoveDeadRunFolders(parent, SystemClock().WallUnixMs() / 1000);
  std::string folder = fmt::format("{}/{}{}", parent, kPrefix, std::string(kNumDrawn, 'X'));
  if (::mkdtemp(folder.data()) == nullptr) {
    return Unavailable("cannot create a folder in {}: {}; give --run-dir", parent,
                       ErrnoText(errno));
  }
  return fs::absolute(folder).string();
}

void RemoveDeadRunFolders(const std::string& parent, int64_t now_unix_s) {
  std::vector<std::string> folders;
  for (const fs::directory_entry& entry : FolderEntries(parent)) {
    const std::string name = entry.path().filename().string();
    if (IsRunFolder(name)) folders.push_back(entry.path().string());
  }
  std::vector<std::pair<int64_t, std::string>> kept;  // the dead, by their newest change
  for (const std::string& folder : folders) {
    if (const auto newest = TidyOne(folder, now_unix_s)) kept.emplace_back(*newest, folder);
  }
  if (kept.size() <= kMaxKeptRunFolders) return;
  std::sort(kept.begin(), kept.end(), std::greater<>());
  std::error_code ignored;
  for (size_t i = kMaxKeptRunFolders; i < kept.size(); ++i) {
    fs::remove_all(kept[i].second, ignored);
  }
}

}  // namespace baton::cli
