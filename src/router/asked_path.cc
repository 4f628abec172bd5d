#include "src/router/asked_path.h"

#include <string>
#include <string_view>

namespace baton::router {

using scheduler::RouteReason;

namespace {

std::string_view ClauseOf(RouteReason reason) {
  switch (reason) {
    case RouteReason::kAggregatedMode:
      return "this server runs with --mode aggregated";
    case RouteReason::kNoCompatiblePair:
      return "no prefill worker fits a decode worker";
    case RouteReason::kNoLink:
      return "no data connection from a prefill worker is up";
    case RouteReason::kPromptExceedsPrefill:
      return "no prefill worker has blocks enough for the prompt";
    case RouteReason::kBadLink:
      return "the data connections rest after faults";
    default:
      return "no prefill worker is ready";
  }
}

}  // namespace

RequestError NoPairError(RouteReason reason) {
  return FieldError(ErrorCode::kInvalidValue, "path",
                    "\"auto\" or \"local\", since " + std::string(ClauseOf(reason)));
}

}  // namespace baton::router
