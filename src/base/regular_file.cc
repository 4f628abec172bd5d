#include "src/base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string_view>

#include "src/base/errno_text.h"

namespace baton {
namespace {

// True when `fd` is a pipe without a name, which somebody opened for us.
bool IsAnonymousPipe(int fd) {
  char target[64] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(link.c_str(), target, sizeof(target));
  return size > 0 && std::string_view(target, static_cast<size_t>(size)).substr(0, 6) == "pipe:[";
}

}  // namespace

bool HasEntry(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0;
}

StatusOr<std::string> ReadRegularFile(const std::string& path, size_t max_bytes) {
  // O_NONBLOCK: opening a FIFO must fail below, not wait for a writer.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const bool is_missing = !fd && (errno == ENOENT || errno == ENOTDIR);
  if (is_missing && !HasEntry(path)) return NotFound("there is no such file");
  if (is_missing) return Unavailable("a link to a file that is not there");
  if (!fd) return Unavailable("cannot open: {}", ErrnoText(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return Unavailable("cannot stat: {}", ErrnoText(errno));
  if (!S_ISREG(info.st_mode)) return InvalidArgument("no regular file");
  const auto size = static_cast<size_t>(info.st_size);
  if (size > max_bytes) return InvalidArgument("{} bytes, more than {}", size, max_bytes);
  std::string text(size, '\0');
  for (size_t done = 0; done < size;) {
    const ssize_t count = ::read(fd.get(), text.data() + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Unavailable("cannot read: {}", ErrnoText(errno));
    if (count == 0) return Unavailable("ended after {} of {} bytes", done, size);
    done += static_cast<size_t>(count);
  }
  return text;
}

std::optional<std::string> ReadSystemFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

StatusOr<UniqueFd> OpenInput(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && (errno == ENOENT || errno == ENOTDIR)) return NotFound("there is no such file");
  if (!fd) return Unavailable("cannot open: {}", ErrnoText(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return Unavailable("cannot stat: {}", ErrnoText(errno));
  if (S_ISDIR(info.st_mode)) return InvalidArgument("is a folder");
  if (S_ISFIFO(info.st_mode) && !IsAnonymousPipe(fd.get())) {
    return InvalidArgument("is a FIFO, which is not waited for; give a file or <(command)");
  }
  // From here on a pipe is waited for.
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) {
    return Unavailable("cannot be read: {}", ErrnoText(errno));
  }
  return fd;
}

StatusOr<std::string> ReadInput(const std::string& path, size_t max_bytes) {
  BATON_ASSIGN_OR_RETURN(const UniqueFd fd, OpenInput(path));
  std::string text;
  constexpr size_t kPieceBytes = size_t{1} << 16;
  while (text.size() <= max_bytes) {
    const size_t done = text.size();
    text.resize(done + std::min(kPieceBytes, max_bytes + 1 - done));
    const ssize_t count = ::read(fd.get(), text.data() + done, text.size() - done);
    text.resize(done + static_cast<size_t>(std::max<ssize_t>(0, count)));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Unavailable("cannot read: {}", ErrnoText(errno));
    if (count == 0) return text;
  }
  return InvalidArgument("has more than {} bytes", max_bytes);
}

}  // namespace baton
