// Errors as values: absl::Status with makers that format the offending values into the message.
// Pure; any thread.
//
// The code tells the caller what to do next. InvalidArgument and OutOfRange = change the request.
// NotFound = name something else. FailedPrecondition = fix the set-up. ResourceExhausted and
// Unavailable = try later. DataLoss = the bytes are damaged. Internal = our bug.
#ifndef BATON_BASE_STATUS_H_
#define BATON_BASE_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fmt/format.h"

namespace baton {

using Status = absl::Status;
using StatusCode = absl::StatusCode;
template <typename T>
using StatusOr = absl::StatusOr<T>;

inline Status OkStatus() { return absl::OkStatus(); }

// Each maker takes a format string checked at compile time and its values:
//   return InvalidArgument("max_tokens {} is outside [1, {}]", value, limit);
#define BATON_DEFINE_STATUS_MAKER(name, code)                                          \
  template <typename... Args>                                                          \
  [[nodiscard]] Status name(fmt::format_string<Args...> format, Args&&... args) {      \
    return Status(StatusCode::code, fmt::format(format, std::forward<Args>(args)...)); \
  }
BATON_DEFINE_STATUS_MAKER(Cancelled, kCancelled)
BATON_DEFINE_STATUS_MAKER(InvalidArgument, kInvalidArgument)
BATON_DEFINE_STATUS_MAKER(DeadlineExceeded, kDeadlineExceeded)
BATON_DEFINE_STATUS_MAKER(NotFound, kNotFound)
BATON_DEFINE_STATUS_MAKER(AlreadyExists, kAlreadyExists)
BATON_DEFINE_STATUS_MAKER(ResourceExhausted, kResourceExhausted)
BATON_DEFINE_STATUS_MAKER(FailedPrecondition, kFailedPrecondition)
BATON_DEFINE_STATUS_MAKER(Aborted, kAborted)
BATON_DEFINE_STATUS_MAKER(OutOfRange, kOutOfRange)
BATON_DEFINE_STATUS_MAKER(Unimplemented, kUnimplemented)
BATON_DEFINE_STATUS_MAKER(Internal, kInternal)
BATON_DEFINE_STATUS_MAKER(Unavailable, kUnavailable)
BATON_DEFINE_STATUS_MAKER(DataLoss, kDataLoss)
BATON_DEFINE_STATUS_MAKER(PermissionDenied, kPermissionDenied)
BATON_DEFINE_STATUS_MAKER(Unauthenticated, kUnauthenticated)
#undef BATON_DEFINE_STATUS_MAKER

// Puts `prefix: ` before the message and keeps the code; OK stays OK.
inline Status WithPrefix(const Status& status, absl::string_view prefix) {
  if (status.ok()) return status;
  return Status(status.code(),
                fmt::format("{}: {}", std::string_view(prefix.data(), prefix.size()),
                            std::string_view(status.message().data(), status.message().size())));
}

}  // namespace baton

// Returns from the enclosing function when `expr` (a Status) is not OK.
#define BATON_RETURN_IF_ERROR(expr)                                    \
  do {                                                                 \
    if (::baton::Status baton_status_ = (expr); !baton_status_.ok()) { \
      return baton_status_;                                            \
    }                                                                  \
  } while (false)

#define BATON_STATUS_CONCAT_INNER(a, b) a##b
#define BATON_STATUS_CONCAT(a, b) BATON_STATUS_CONCAT_INNER(a, b)
#define BATON_ASSIGN_OR_RETURN_INNER(tmp, lhs, ...) \
  auto tmp = (__VA_ARGS__);                         \
  if (!tmp.ok()) return std::move(tmp).status();    \
  lhs = std::move(tmp).value()

// BATON_ASSIGN_OR_RETURN(auto x, F()): x = the value of a StatusOr, or returns its status.
#define BATON_ASSIGN_OR_RETURN(lhs, ...) \
  BATON_ASSIGN_OR_RETURN_INNER(BATON_STATUS_CONCAT(baton_or_, __LINE__), lhs, __VA_ARGS__)

#endif  // BATON_BASE_STATUS_H_
