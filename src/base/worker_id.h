// The names of workers. Pure; any thread.
#ifndef BATON_BASE_WORKER_ID_H_
#define BATON_BASE_WORKER_ID_H_

#include <string_view>

#include "src/base/limits.h"

namespace baton {

// True for 1 to kMaxWorkerIdBytes of [a-z0-9-].
inline bool IsWorkerId(std::string_view id) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyz0123456789-";
  return !id.empty() && id.size() <= limits::kMaxWorkerIdBytes &&
         id.find_first_not_of(kAllowed) == std::string_view::npos;
}

}  // namespace baton

#endif  // BATON_BASE_WORKER_ID_H_
