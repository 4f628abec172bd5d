// How many files this process may have open (RLIMIT_NOFILE); each connection is one. Many systems
// start processes with a soft limit of 1024, for programs that use select(), beside a hard limit of
// hundreds of thousands. Any thread.
#ifndef BATON_BASE_OPEN_FILES_H_
#define BATON_BASE_OPEN_FILES_H_

#include <cstdint>

#include "src/base/status.h"

namespace baton {

inline constexpr uint64_t kNoOpenFilesLimit = UINT64_MAX;

// The number of files that the process may have open now: the soft limit.
uint64_t OpenFilesLimit();
// The number that the process may ask for: the hard limit, which only root raises.
uint64_t MaxOpenFiles();
// Asks for all of it, for this process and its children. For the start of a process that serves.
// Where the system refuses, the soft limit stays.
void RaiseOpenFilesLimit();
// FailedPrecondition where fewer than kMinOpenFiles are allowed: gRPC ends a process that has no
// descriptor for its own threads.
inline constexpr uint64_t kMinOpenFiles = 32;
Status CheckOpenFilesLimit();

}  // namespace baton

#endif  // BATON_BASE_OPEN_FILES_H_
