#include "src/base/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "src/base/errno_text.h"
#include "src/base/size_text.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif

namespace baton {
namespace {

constexpr int kRequiredSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

// It never needs to be executable; kernels before 6.3 do not know that flag.
int CreateAnonymous(const char* name) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
  if (fd >= 0 || errno != EINVAL) return fd;
  return memfd_create(name, flags);
}

}  // namespace

StatusOr<UniqueFd> CreateMemoryFile(const char* name, uint64_t size_bytes) {
  UniqueFd fd(CreateAnonymous(name));
  if (!fd.valid()) return Unavailable("memfd_create failed: {}", ErrnoText(errno));
  if (ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) {
    return ResourceExhausted("a memory file of {} bytes: {}", size_bytes, ErrnoText(errno));
  }
  return fd;
}

Status AllocateMemoryFile(int fd, uint64_t offset, uint64_t size_bytes) {
  int result;
  do {
    result = fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(size_bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return OkStatus();
  return ResourceExhausted("a memory file could not get {} of memory: {}", FormatSize(size_bytes),
                           ErrnoText(errno));
}

Status SealMemoryFile(int fd) {
  if (fcntl(fd, F_ADD_SEALS, kRequiredSeals) != 0) {
    return Unavailable("sealing a memory file needs Linux 5.1: {}", ErrnoText(errno));
  }
  return OkStatus();
}

Status CheckSealedFile(int fd, uint64_t size_bytes, std::string_view what) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) return FailedPrecondition("{} is no memory file: {}", what, ErrnoText(errno));
  // WRITE is the stronger form of FUTURE_WRITE.
  const int effective = (seals & F_SEAL_WRITE) != 0 ? seals | F_SEAL_FUTURE_WRITE : seals;
  if ((effective & kRequiredSeals) != kRequiredSeals) {
    return FailedPrecondition("{} has seals {:#x}, needs {:#x}", what, seals, kRequiredSeals);
  }
  struct stat info;
  if (fstat(fd, &info) != 0) return FailedPrecondition("{}: {}", what, ErrnoText(errno));
  if (static_cast<uint64_t>(info.st_size) != size_bytes) {
    return FailedPrecondition("{} has {} bytes, needs {}", what, info.st_size, size_bytes);
  }
  return OkStatus();
}

uint64_t AllocatedBytes(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 ? static_cast<uint64_t>(info.st_blocks) * 512 : 0;
}

Status CheckMemoryFile(int fd, uint64_t size_bytes, std::string_view what) {
  BATON_RETURN_IF_ERROR(CheckSealedFile(fd, size_bytes, what));
  // A hole would be filled at our cost when we read it. The seals forbid making one later.
  const uint64_t allocated = AllocatedBytes(fd);
  if (allocated < size_bytes) {
    return FailedPrecondition("{} has only {} of its {} bytes allocated", what, allocated,
                              size_bytes);
  }
  return OkStatus();
}

}  // namespace baton
