// The choice of the experts that serve a row of a mixture of experts. All instruction sets share
// it, since a selection of a few among some hundred logits is far below a row's multiplications.
// The scalar exp of math.h gives the same bits everywhere. Reached through Ops.
#ifndef BATON_KERNELS_ROUTE_H_
#define BATON_KERNELS_ROUTE_H_

#include "kernels/ops.h"

namespace baton {

// Ops::route.
void RouteRows(ThreadPool& pool, const RouteArgs& args);

}  // namespace baton

#endif  // BATON_KERNELS_ROUTE_H_
