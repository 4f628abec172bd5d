// Checks of our own invariants: a failure prints the place, the condition and the values, and
// aborts. Any thread. Never for anything that a user, a peer or a file can send: that is a Status.
#ifndef BATON_BASE_CHECK_H_
#define BATON_BASE_CHECK_H_

#include <string_view>

#include "fmt/format.h"

namespace baton::internal {

// Writes "file:line: check failed: condition: message" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);

[[noreturn]] inline void CheckFailedFormat(const char* file, int line, const char* condition) {
  CheckFailed(file, line, condition, {});
}

template <typename... Args>
[[noreturn]] void CheckFailedFormat(const char* file, int line, const char* condition,
                                    fmt::format_string<Args...> format, Args&&... args) {
  CheckFailed(file, line, condition, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace baton::internal

// BATON_CHECK(free + used == total, "free {} used {} total {}", free, used, total);
#define BATON_CHECK(condition, ...)                                                \
  do {                                                                             \
    if (!(condition)) [[unlikely]] {                                               \
      ::baton::internal::CheckFailedFormat(__FILE__, __LINE__,                     \
                                           #condition __VA_OPT__(, ) __VA_ARGS__); \
    }                                                                              \
  } while (false)

// As BATON_CHECK, compiled in with -DBATON_DCHECKS=1 (all presets but release). The condition is
// always compiled, so it cannot rot.
#if defined(BATON_DCHECKS)
#define BATON_DCHECK(condition, ...) BATON_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#else
#define BATON_DCHECK(condition, ...)                              \
  do {                                                            \
    if (false) BATON_CHECK(condition __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
#endif

#endif  // BATON_BASE_CHECK_H_
