// The name of one registration of one worker. Plain value; any thread.
#ifndef BATON_ROUTER_LEASE_ID_H_
#define BATON_ROUTER_LEASE_ID_H_

#include <cstdint>

#include "src/base/ids.h"

namespace baton::router {

// One registration of one worker, from hello to end of stream; made by the router, never reused.
using LeaseId = StrongInt<struct LeaseIdTag, uint64_t>;

}  // namespace baton::router

#endif  // BATON_ROUTER_LEASE_ID_H_
