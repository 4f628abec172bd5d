// The text of an errno value, from any thread: strerror may write into a buffer of the process.
#ifndef BATON_BASE_ERRNO_TEXT_H_
#define BATON_BASE_ERRNO_TEXT_H_

#include <cstring>

namespace baton {

// "No such file or directory" for ENOENT; constant data, never null.
inline const char* ErrnoText(int error) {
  const char* const text = strerrordesc_np(error);
  return text != nullptr ? text : "unknown error";
}

}  // namespace baton

#endif  // BATON_BASE_ERRNO_TEXT_H_
