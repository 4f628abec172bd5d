#include "src/base/file_lock.h"

#include <sys/file.h>

#include <cerrno>

namespace baton {
namespace {

LockState StateOf(int error) {
  switch (error) {
    case EWOULDBLOCK:
      return LockState::kHeld;
    // Answers of NFS without lockd, of FUSE and of other file systems that know no flock.
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
    case EINVAL:
      return LockState::kNoLocks;
    default:
      return LockState::kFailed;
  }
}

}  // namespace

LockTry TryFileLock(int fd, int operation) {
  int result = 0;
  do {
    result = ::flock(fd, operation);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return {.state = LockState::kTaken};
  const int error = errno;
  return {.state = StateOf(error), .error = error};
}

}  // namespace baton
