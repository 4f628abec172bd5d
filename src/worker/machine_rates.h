// The best that this machine can do, beside which a worker's use of it is shown.
#ifndef BATON_WORKER_MACHINE_RATES_H_
#define BATON_WORKER_MACHINE_RATES_H_

#include <atomic>
#include <cstdint>

#include "src/model/forward_model.h"

namespace baton::worker {

// Rates of a worker's threads together; 0 = not known.
struct MachineRates {
  double read_bytes_per_s = 0;
  double flops_per_s = 0;
};

// Measures them for a model on the processor: about 70 ms on `num_threads` threads of its own, as
// those of the model's pool may be in a step. Other load on the machine lowers what it finds. A
// model on a device has none. Returns soon once `stops` is true.
MachineRates MeasureRates(const model::LoadedModel& model, uint32_t num_threads,
                          const std::atomic<bool>& stops);

}  // namespace baton::worker

#endif  // BATON_WORKER_MACHINE_RATES_H_
