#include "src/model/partial_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "src/base/errno_text.h"
#include "src/base/unique_fd.h"

namespace baton {
namespace {

// rename(2) that fails with EEXIST instead of replacing a file; 0 or an errno. Whichever way the
// file system has does it in one step: network file systems have links, FAT has the flag.
int RenameToNew(const std::string& from, const std::string& to) {
  if (::link(from.c_str(), to.c_str()) == 0) return ::unlink(from.c_str()) == 0 ? 0 : errno;
  if (errno == EEXIST) return EEXIST;
  const int link_error = errno;
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  return errno == EINVAL || errno == ENOSYS ? link_error : errno;
}

// Makes the name itself outlast a loss of power; 0 or an errno.
int SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const UniqueFd fd(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // A folder that may be written but not read, or a file system whose folders cannot be flushed.
  if (!fd.valid()) return errno == EACCES ? 0 : errno;
  return ::fsync(fd.get()) == 0 || errno == EINVAL ? 0 : errno;
}

}  // namespace

PartialFile::PartialFile(std::string path)
    : path_(std::move(path)), partial_(fmt::format("{}.{}.partial", path_, ::getpid())) {}

PartialFile::~PartialFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (made_) (void)::unlink(partial_.c_str());
}

absl::Status PartialFile::Open() {
  std::error_code ignored;
  if (std::filesystem::exists(path_, ignored)) return Exists();
  const int fd =
      ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0 && errno == EEXIST) {
    return AlreadyExists(
        "{} exists: another run on another machine writes it, or one was killed; "
        "remove it if none does",
        partial_);
  }
  if (fd < 0) return Failed("create", errno);
  made_ = true;
  file_ = ::fdopen(fd, "wb");
  if (file_ != nullptr) return OkStatus();
  const int error = errno;
  (void)::close(fd);
  return Failed("create", error);
}

absl::Status PartialFile::Write(std::span<const std::byte> bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size()) return OkStatus();
  return Failed("write", errno);
}

absl::Status PartialFile::Finish() {
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) return Failed("write", errno);
  if (std::fclose(std::exchange(file_, nullptr)) != 0) return Failed("write", errno);
  const int error = RenameToNew(partial_, path_);
  if (error == EEXIST) return Exists();
  if (error != 0) return Failed("finish", error);
  made_ = false;
  const int folder_error = SyncFolderOf(path_);
  return folder_error == 0 ? OkStatus() : Failed("flush the folder of", folder_error);
}

absl::Status PartialFile::Failed(std::string_view what, int error) const {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return ResourceExhausted("cannot {} {}: {}", what, partial_, ErrnoText(error));
  }
  return Unavailable("cannot {} {}: {}", what, partial_, ErrnoText(error));
}

absl::Status PartialFile::Exists() const {
  return AlreadyExists("{} exists; remove it first", path_);
}

}  // namespace baton
