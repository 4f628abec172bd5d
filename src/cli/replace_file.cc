#include "src/cli/replace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "fmt/format.h"

#include "src/base/errno_text.h"
#include "src/base/random.h"
#include "src/base/unique_fd.h"

namespace baton::cli {
namespace {

// 0, or the errno of the first failure.
int WriteAll(const std::string& path, std::string_view text, int flags, mode_t mode) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, mode));
  if (!file) return errno;
  while (!text.empty()) {
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

}  // namespace

Status ReplaceFile(const std::string& path, std::string_view text, mode_t mode) {
  // A name of its own, since several processes may write the same path.
  const std::string next = fmt::format("{}.next-{:016x}", path, RandomU64());
  int error = WriteAll(next, text, O_CREAT | O_EXCL | O_NOFOLLOW, mode);
  if (error == 0 && std::rename(next.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return OkStatus();
  (void)::unlink(next.c_str());
  return Unavailable("cannot write {}: {}", path, ErrnoText(error));
}

Status WriteOutput(const std::string& path, std::string_view text, mode_t mode) {
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0 || S_ISREG(now.st_mode)) return ReplaceFile(path, text, mode);
  const int error = S_ISDIR(now.st_mode) ? EISDIR : WriteAll(path, text, /*flags=*/0, mode);
  return error == 0 ? OkStatus() : Unavailable("cannot write {}: {}", path, ErrnoText(error));
}

}  // namespace baton::cli
