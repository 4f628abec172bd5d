// Files as text, and inputs that need not be files. Any thread.
#ifndef BATON_BASE_REGULAR_FILE_H_
#define BATON_BASE_REGULAR_FILE_H_

#include <cstddef>
#include <optional>
#include <string>

#include "src/base/status.h"
#include "src/base/unique_fd.h"

namespace baton {

// True when a folder has an entry of this name, of whatever kind: also a link to nothing.
bool HasEntry(const std::string& path);

// The bytes of a regular file. NotFound when there is nothing at `path`; InvalidArgument when it is
// of another kind (a FIFO is not waited for) or has more than `max_bytes`; Unavailable when it
// cannot be read, or is a link to nothing. Messages do not name the path: the caller knows what the
// user called it.
StatusOr<std::string> ReadRegularFile(const std::string& path, size_t max_bytes);

// The text of a file of the kernel (/proc, /sys), whose size nobody knows before it is read;
// nullopt when it cannot be opened.
std::optional<std::string> ReadSystemFile(const std::string& path);

// Opens what a user named as an input: a file, or what a shell puts in the place of one (a pipe
// that it holds open: `<(command)`, /dev/stdin). A FIFO by its name is refused, because reading it
// waits for a writer who may never come. Codes and messages as above.
StatusOr<UniqueFd> OpenInput(const std::string& path);
// All bytes of such an input.
StatusOr<std::string> ReadInput(const std::string& path, size_t max_bytes);

}  // namespace baton

#endif  // BATON_BASE_REGULAR_FILE_H_
