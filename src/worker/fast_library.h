// Where a worker's fast mode comes from: the flags, and what this machine has. Any thread.
#ifndef BATON_WORKER_FAST_LIBRARY_H_
#define BATON_WORKER_FAST_LIBRARY_H_

#include "src/base/status.h"
#include "src/device/device.h"
#include "src/model/fast_products.h"
#include "src/worker/worker_config.h"

namespace baton::worker {

// By whom a model on a device of that kind multiplies many rows: our own kernels alone with
// --deterministic, and on the runner unless a library is named. On a GPU also, with one line of the
// log that says why, when none is found. Which models cannot use it DeviceModel says. NotFound or
// FailedPrecondition when one cannot be loaded that the flag names, or on a GPU the environment.
StatusOr<model::FastMode> FindFastMode(const WorkerConfig& config, device::DeviceKind kind);

}  // namespace baton::worker

#endif  // BATON_WORKER_FAST_LIBRARY_H_
