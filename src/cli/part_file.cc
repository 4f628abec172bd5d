#include "src/cli/part_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "src/base/errno_text.h"
#include "src/base/file_lock.h"
#include "src/base/folder_entries.h"
#include "src/base/print.h"
#include "src/base/size_text.h"
#include "src/cli/replace_file.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;
using SteadyClock = std::chrono::steady_clock;

// Another process's end is seen this soon; a look is one system call.
constexpr std::chrono::milliseconds kLookEvery{200};
// Lines of a wait on stderr.
constexpr std::chrono::seconds kSayEvery{30};
// Leftovers without a lock are removed when nobody wrote them for a day.
constexpr int64_t kLeftoverS = 86'400;
constexpr const char* kOriginSuffix = ".from";

// Says on stderr what is waited for: at once, and then now and again.
class WaitNotice {
 public:
  WaitNotice(const std::string& path, int64_t wait_s) : path_(path), wait_s_(wait_s) {}

  void Say() {
    const auto now = SteadyClock::now();
    if (is_said_ && now - said_ < kSayEvery) return;
    std::error_code error;
    const uintmax_t size = fs::file_size(path_, error);
    Print(stderr, "another process is downloading {} ({} so far); waiting for it, {} s at most\n",
          path_, FormatSize(error ? 0 : size), wait_s_);
    is_said_ = true;
    said_ = now;
  }

 private:
  const std::string& path_;
  const int64_t wait_s_;
  bool is_said_ = false;
  SteadyClock::time_point said_;
};

// Removes "FILE.part-XXXXXX", and what belongs to one, that nobody has written for a day.
void RemoveLeftovers(const std::string& target) {
  const std::string prefix = fs::path(target).filename().string() + ".part-";
  std::vector<std::string> old;
  for (const fs::directory_entry& entry : FolderEntries(fs::path(target).parent_path())) {
    const std::string name = entry.path().filename().string();
    struct stat info {};
    const bool is_leftover = name.starts_with(prefix) &&
                             ::lstat(entry.path().c_str(), &info) == 0 &&
                             std::time(nullptr) - info.st_mtim.tv_sec > kLeftoverS;
    if (is_leftover) old.push_back(entry.path().string());
  }
  std::error_code ignored;
  for (const std::string& path : old) fs::remove_all(path, ignored);
}

}  // namespace

PartFile::~PartFile() {
  if (file_.valid() && size_ == 0) Drop();
}

StatusOr<PartFile> PartFile::Take(const std::string& target, const Turn& turn) {
  const auto end = SteadyClock::now() + std::chrono::seconds(turn.wait_s);
  PartFile part;
  part.path_ = target + ".part";
  WaitNotice notice(part.path_, turn.wait_s);
  for (;;) {
    BATON_ASSIGN_OR_RETURN(const Try tried, part.TryLock());
    if (tried == Try::kGone) continue;
    if (tried == Try::kNoLocks) {
      BATON_RETURN_IF_ERROR(part.TakeOwnName(target));
      return part;
    }
    if (turn.is_done()) {
      // An empty file that this process has just made is of no use to anybody.
      if (tried == Try::kTaken && part.size_ == 0) part.Drop();
      part.file_.reset();
      return part;
    }
    if (tried == Try::kTaken) return part;
    if (SteadyClock::now() >= end) {
      return DeadlineExceeded(
          "another process is still downloading {} after {} s; wait for it, or give a longer "
          "--wait",
          part.path_, turn.wait_s);
    }
    notice.Say();
    std::this_thread::sleep_for(kLookEvery);
  }
}

StatusOr<PartFile::Try> PartFile::TryLock() {
  file_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file_) return Unavailable("cannot write {}: {}", path_, ErrnoText(errno));
  const LockTry lock = TryFileLock(file_.get(), LOCK_EX | LOCK_NB);
  if (lock.state == LockState::kNoLocks) return Try::kNoLocks;
  if (lock.state != LockState::kTaken) file_.reset();
  if (lock.state == LockState::kHeld) return Try::kBusy;
  if (lock.state == LockState::kFailed) {
    return Unavailable("cannot lock {}: {}", path_, ErrnoText(lock.error));
  }
  // The one before may have renamed or removed the file between our open and our lock.
  struct stat locked {};
  struct stat named {};
  if (::fstat(file_.get(), &locked) != 0) {
    return Unavailable("cannot read {}: {}", path_, ErrnoText(errno));
  }
  const bool is_same = ::stat(path_.c_str(), &named) == 0 && named.st_ino == locked.st_ino &&
                       named.st_dev == locked.st_dev;
  if (!is_same) {
    file_.reset();
    return Try::kGone;
  }
  size_ = static_cast<uint64_t>(locked.st_size);
  return Try::kTaken;
}

// The caller has file_ open on the shared name, which no lock protects.
Status PartFile::TakeOwnName(const std::string& target) {
  struct stat info {};
  // The empty file that the try to lock has made.
  if (::fstat(file_.get(), &info) == 0 && info.st_size == 0) (void)::unlink(path_.c_str());
  RemoveLeftovers(target);
  path_ = target + ".part-XXXXXX";
  file_.reset(::mkostemp(path_.data(), O_CLOEXEC));
  if (!file_) return Unavailable("cannot write {}: {}", path_, ErrnoText(errno));
  // mkostemp makes it for its owner alone; a model is for all who share the folder.
  const mode_t mask = ::umask(0);
  (void)::umask(mask);
  (void)::fchmod(file_.get(), 0644 & ~mask);
  size_ = 0;
  Print(stderr,
        "this file system has no locks: other processes that want {} download it too, and a "
        "download that breaks begins anew\n",
        target);
  return OkStatus();
}

Status PartFile::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(size_));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return Unavailable("cannot write {}: {}; run the same command to resume", path_,
                         ErrnoText(errno));
    }
    size_ += static_cast<uint64_t>(written);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return OkStatus();
}

Status PartFile::Cut(uint64_t size) {
  if (::ftruncate(file_.get(), static_cast<off_t>(size)) != 0) {
    return Unavailable("cannot write {}: {}", path_, ErrnoText(errno));
  }
  size_ = size;
  return OkStatus();
}

std::string PartFile::Origin() const {
  std::string origin;
  std::ifstream file(path_ + kOriginSuffix);
  std::getline(file, origin);
  return origin;
}

Status PartFile::SetOrigin(const std::string& origin, uint64_t total) {
  const bool is_resumed_by_none = !path_.ends_with(".part");
  if (is_resumed_by_none) return OkStatus();
  if (!origin.empty() || total > 0) {
    return ReplaceFile(path_ + kOriginSuffix, fmt::format("{}\n{}\n", origin, total), 0644);
  }
  std::error_code error;
  fs::remove(path_ + kOriginSuffix, error);
  return error ? Unavailable("cannot remove {}{}: {}", path_, kOriginSuffix, error.message())
               : OkStatus();
}

Status PartFile::Flush() {
  if (::fsync(file_.get()) != 0 && errno != EINVAL) {
    return Unavailable("cannot write {}: {}", path_, ErrnoText(errno));
  }
  return OkStatus();
}

Status PartFile::Publish(const std::string& target) {
  std::error_code error;
  fs::rename(path_, target, error);
  if (error) return Unavailable("cannot move the download to {}: {}", target, error.message());
  fs::remove(path_ + kOriginSuffix, error);
  file_.reset();
  return OkStatus();
}

uint64_t PartTotal(const std::string& path) {
  std::ifstream file(path + kOriginSuffix);
  std::string origin;
  uint64_t total = 0;
  const bool is_read = std::getline(file, origin) && (file >> total);
  return is_read ? total : 0;
}

void PartFile::Drop() {
  std::error_code ignored;
  fs::remove(path_ + kOriginSuffix, ignored);
  fs::remove(path_, ignored);
  file_.reset();
  size_ = 0;
}

}  // namespace baton::cli
