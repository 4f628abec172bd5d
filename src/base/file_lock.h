// Advisory locks on whole files (flock). Any thread.
#ifndef BATON_BASE_FILE_LOCK_H_
#define BATON_BASE_FILE_LOCK_H_

#include <cstdint>

namespace baton {

// The answer to one try for a lock.
enum class LockState : uint8_t {
  kTaken = 0,    // this descriptor has it now
  kHeld = 1,     // another open file has it
  kNoLocks = 2,  // the file system has no locks: nothing is known about other processes
  kFailed = 3,   // anything else; LockTry::error says what
};

// State, and the errno of kNoLocks and kFailed.
struct LockTry {
  LockState state = LockState::kFailed;
  int error = 0;
};

// flock(fd, operation), again after each signal. `operation` is LOCK_EX or LOCK_SH, with LOCK_NB
// where the call may not wait for another holder.
LockTry TryFileLock(int fd, int operation);

}  // namespace baton

#endif  // BATON_BASE_FILE_LOCK_H_
