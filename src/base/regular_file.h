// Small files as text. Any thread.
#ifndef BATON_BASE_REGULAR_FILE_H_
#define BATON_BASE_REGULAR_FILE_H_

#include <cstddef>
#include <string>

#include "src/base/status.h"

namespace baton {

// The bytes of a regular file. NotFound when there is none at `path`; InvalidArgument when it is of
// another kind (a FIFO is not waited for) or has more than `max_bytes`; Unavailable when it cannot
// be read. Messages do not name the path: the caller knows what the user called it.
StatusOr<std::string> ReadRegularFile(const std::string& path, size_t max_bytes);

}  // namespace baton

#endif  // BATON_BASE_REGULAR_FILE_H_
