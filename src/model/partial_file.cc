#include "src/model/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "fmt/format.h"

#include "src/base/errno_text.h"
#include "src/base/file_lock.h"
#include "src/base/folder_entries.h"
#include "src/base/unique_fd.h"

namespace baton::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartialSuffix = ".partial";

constexpr int64_t kOldQuietS = 60;
constexpr int64_t kUnlockedQuietS = 86'400;

// rename(2) that fails with EEXIST instead of replacing a file; 0 or an errno. Whichever way the
// file system has does it in one step: network file systems have links, FAT has the flag.
int RenameToNew(const std::string& from, const std::string& to) {
  if (::link(from.c_str(), to.c_str()) == 0) return ::unlink(from.c_str()) == 0 ? 0 : errno;
  if (errno == EEXIST) return EEXIST;
  const int link_error = errno;
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  return errno == EINVAL || errno == ENOSYS ? link_error : errno;
}

std::string FolderOf(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// The name by which the system shows an open file.
std::string LinkOf(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

// True when the writer of an unfinished file is dead. The lock tells, except where older releases,
// which wrote their process id into the name, held none: there a minute without a write does; and
// where the file system has no locks a day does.
bool IsLeftover(const std::string& path, bool is_old_name) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  const int64_t quiet_s = std::time(nullptr) - info.st_mtim.tv_sec;
  const LockState lock = TryFileLock(fd.get(), LOCK_EX | LOCK_NB).state;
  if (lock == LockState::kTaken) return !is_old_name || quiet_s >= kOldQuietS;
  return lock != LockState::kHeld && quiet_s >= kUnlockedQuietS;
}

// Removes each "PATH.MARK.partial" that a dead writer left.
void RemoveLeftovers(const std::string& path) {
  const std::string prefix = fs::path(path).filename().string() + ".";
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : FolderEntries(FolderOf(path))) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(kPartialSuffix)) continue;
    if (name.size() <= prefix.size() + kPartialSuffix.size()) continue;
    const std::string mark =
        name.substr(prefix.size(), name.size() - prefix.size() - kPartialSuffix.size());
    if (!std::all_of(mark.begin(), mark.end(), absl::ascii_isalnum)) continue;
    const bool is_old_name = std::all_of(mark.begin(), mark.end(), absl::ascii_isdigit);
    if (IsLeftover(entry.path().string(), is_old_name)) found.push_back(entry.path().string());
  }
  for (const std::string& name : found) (void)::unlink(name.c_str());
}

// Makes the name itself outlast a loss of power; 0 or an errno.
int SyncFolderOf(const std::string& path) {
  const UniqueFd fd(::open(FolderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // A folder that may be written but not read, or a file system whose folders cannot be flushed.
  if (!fd.valid()) return errno == EACCES ? 0 : errno;
  return ::fsync(fd.get()) == 0 || errno == EINVAL ? 0 : errno;
}

}  // namespace

PartialFile::PartialFile(std::string path, Kind kind) : path_(std::move(path)), kind_(kind) {}

PartialFile::~PartialFile() {
  // Before the lock goes with the descriptor.
  if (!partial_.empty()) (void)::unlink(partial_.c_str());
  if (file_ != nullptr) std::fclose(file_);
}

absl::Status PartialFile::Open() {
  std::error_code ignored;
  if (fs::exists(path_, ignored)) return Exists();
  RemoveLeftovers(path_);
  int fd = kind_ == Kind::kUnnamed ? OpenUnnamed() : -1;
  if (fd < 0) fd = OpenNamed();
  if (fd < 0) return Failed("create", errno);
  file_ = ::fdopen(fd, "wb");
  if (file_ != nullptr) return OkStatus();
  const int error = errno;
  (void)::close(fd);
  return Failed("create", error);
}

// A descriptor, or -1 where files without a name cannot be had or cannot get one.
int PartialFile::OpenUnnamed() {
  const int fd = ::open(FolderOf(path_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (fd < 0) return -1;
  if (::access(LinkOf(fd).c_str(), F_OK) == 0) return fd;
  (void)::close(fd);
  return -1;
}

// A descriptor, or -1 with errno.
int PartialFile::OpenNamed() {
  for (;;) {
    std::string name = path_ + ".XXXXXX" + std::string(kPartialSuffix);
    const int fd = ::mkostemps(name.data(), static_cast<int>(kPartialSuffix.size()), O_CLOEXEC);
    if (fd < 0) return -1;
    (void)::flock(fd, LOCK_EX | LOCK_NB);
    // mkostemps makes it for its owner alone.
    const mode_t mask = ::umask(0);
    (void)::umask(mask);
    (void)::fchmod(fd, 0666 & ~mask);
    // Before this process locked the new file, another writer may have taken it for a leftover.
    struct stat info {};
    if (::fstat(fd, &info) == 0 && info.st_nlink > 0) {
      partial_ = name;
      return fd;
    }
    (void)::close(fd);
  }
}

absl::Status PartialFile::Write(std::span<const std::byte> bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size()) return OkStatus();
  return Failed("write", errno);
}

absl::Status PartialFile::Finish() {
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) return Failed("write", errno);
  const int error = GiveName();
  if (error == EEXIST) return Exists();
  if (error != 0) return Failed("finish", error);
  partial_.clear();
  if (std::fclose(std::exchange(file_, nullptr)) != 0) return Failed("write", errno);
  const int folder_error = SyncFolderOf(path_);
  return folder_error == 0 ? OkStatus() : Failed("flush the folder of", folder_error);
}

// 0 or an errno.
int PartialFile::GiveName() {
  if (!partial_.empty()) return RenameToNew(partial_, path_);
  const std::string link = LinkOf(::fileno(file_));
  const int result = ::linkat(AT_FDCWD, link.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW);
  return result == 0 ? 0 : errno;
}

absl::Status PartialFile::Failed(std::string_view what, int error) const {
  const std::string& named = partial_.empty() ? path_ : partial_;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return ResourceExhausted("cannot {} {}: {}", what, named, ErrnoText(error));
  }
  return Unavailable("cannot {} {}: {}", what, named, ErrnoText(error));
}

absl::Status PartialFile::Exists() const {
  return AlreadyExists("{} exists; remove it first", path_);
}

}  // namespace baton::model
