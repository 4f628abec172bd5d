// The path that a client asks for, and the error where there is none. Pure values; any thread.
#ifndef BATON_ROUTER_ASKED_PATH_H_
#define BATON_ROUTER_ASKED_PATH_H_

#include <cstdint>

#include "scheduler/route_policy.h"
#include "src/router/request_error.h"

namespace baton::router {

// The request field `path`. It holds for the first placement: after a fault the router takes what
// there is.
enum class AskedPath : uint8_t {
  kAuto,    // as --mode says
  kDisagg,  // a prefill worker computes the prompt
  kLocal,   // the decode worker computes it
};

// A prefill worker was asked for, and `reason` is why there is none.
RequestError NoPairError(scheduler::RouteReason reason);

}  // namespace baton::router

#endif  // BATON_ROUTER_ASKED_PATH_H_
