// Memory files (memfd) whose pages other processes may map to read: made and given their memory,
// sealed by who writes them, and judged by who gets the descriptor of another's.
//
// A sealed file has its size and its pages for good, and only the mapping that was made before the
// seals can write. It may still get pages. Whoever maps one that CheckMemoryFile took can therefore
// read every byte without a fault (no SIGBUS) and without using memory of its own, whatever the
// other side does.
//
// Any thread.
#ifndef BATON_BASE_MEMORY_FILE_H_
#define BATON_BASE_MEMORY_FILE_H_

#include <cstdint>
#include <string_view>

#include "src/base/status.h"
#include "src/base/unique_fd.h"

namespace baton {

// A file of `size_bytes` without pages yet. Unavailable when the system has no such files,
// ResourceExhausted for the size.
StatusOr<UniqueFd> CreateMemoryFile(const char* name, uint64_t size_bytes);
// Gives the pages of [offset, offset + size_bytes) memory, about 0.3 s a GiB. ResourceExhausted
// without a signal.
Status AllocateMemoryFile(int fd, uint64_t offset, uint64_t size_bytes);
// No other size, and no new mapping that can write, from now on. Unavailable before Linux 5.1.
Status SealMemoryFile(int fd);
// FailedPrecondition naming `what` and what is wrong unless `fd` is a sealed file of exactly
// `size_bytes`.
Status CheckSealedFile(int fd, uint64_t size_bytes, std::string_view what);
// Bytes of the file that have memory; 0 if that cannot be told.
uint64_t AllocatedBytes(int fd);
// CheckSealedFile of a file whose pages all have memory.
Status CheckMemoryFile(int fd, uint64_t size_bytes, std::string_view what);

}  // namespace baton

#endif  // BATON_BASE_MEMORY_FILE_H_
