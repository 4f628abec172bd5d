#include "src/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace baton::internal {

void CheckFailed(const char* file, int line, const char* condition, std::string_view message) {
  // stdio and not the log: the log may be what is broken, and this must reach stderr.
  std::fprintf(stderr, "%s:%d: check failed: %s%s%.*s\n", file, line, condition,
               message.empty() ? "" : ": ", static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace baton::internal
