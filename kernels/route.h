// The choice of the experts that serve a row of a mixture of experts. All instruction sets share
// it, since a selection of a few among some hundred logits is far below a row's multiplications.
// The scalar exp of math.h gives the same bits everywhere. Reached through Ops.
#ifndef BATON_KERNELS_ROUTE_H_
#define BATON_KERNELS_ROUTE_H_

#include "kernels/ops.h"

namespace baton::kernels {

// Ops::route.
void RouteRows(device::ThreadPool& pool, const RouteArgs& args);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_ROUTE_H_
