// The highest rates of this machine. A worker's metrics are shown as a share of them.
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

// Measures the rates for a model on the processor, in about 70 ms. It uses `num_threads` own
// threads, because the threads of the model's pool may be in a step. Other load on the machine
// lowers the result. A model on a device has no rates. Returns soon once `stops` is true.
MachineRates MeasureRates(const model::LoadedModel& model, uint32_t num_threads,
                          const std::atomic<bool>& stops);

}  // namespace baton::worker

#endif  // BATON_WORKER_MACHINE_RATES_H_
