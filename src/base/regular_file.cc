#include "src/base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "src/base/unique_fd.h"

namespace baton {

StatusOr<std::string> ReadRegularFile(const std::string& path, size_t max_bytes) {
  // O_NONBLOCK: opening a FIFO must fail below, not wait for a writer.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && (errno == ENOENT || errno == ENOTDIR)) return NotFound("there is no such file");
  if (!fd) return Unavailable("cannot open: {}", std::strerror(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return Unavailable("cannot stat: {}", std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return InvalidArgument("no regular file");
  const auto size = static_cast<size_t>(info.st_size);
  if (size > max_bytes) return InvalidArgument("{} bytes, more than {}", size, max_bytes);
  std::string text(size, '\0');
  for (size_t done = 0; done < size;) {
    const ssize_t count = ::read(fd.get(), text.data() + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Unavailable("cannot read: {}", std::strerror(errno));
    if (count == 0) return Unavailable("ended after {} of {} bytes", done, size);
    done += static_cast<size_t>(count);
  }
  return text;
}

}  // namespace baton
