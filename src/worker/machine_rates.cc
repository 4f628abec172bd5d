#include "src/worker/machine_rates.h"

#include "kernels/cpu/machine_limits.h"
#include "src/device/thread_pool.h"
#include "src/model/model.h"

namespace baton::worker {

using device::ThreadPool;
using kernels::kQuickLimits;
using kernels::LimitEffort;
using kernels::MachineLimits;
using kernels::MeasureLimits;
using model::LoadedModel;
using model::Model;

MachineRates MeasureRates(const LoadedModel& model, uint32_t num_threads,
                          const std::atomic<bool>& stops) {
  const auto* const on_cpu = dynamic_cast<const Model*>(&model);
  if (on_cpu == nullptr) return {};
  ThreadPool threads(ThreadPool::Options{.num_threads = num_threads});
  LimitEffort effort = kQuickLimits;
  effort.stops = &stops;
  const MachineLimits limits = MeasureLimits(threads, on_cpu->ops().isa, effort);
  const double gop_per_s =
      on_cpu->computes_in_int16() ? limits.int16_gop_per_s : limits.fp32_gflop_per_s;
  return {.read_bytes_per_s = limits.read_gb_per_s * 1e9, .flops_per_s = gop_per_s * 1e9};
}

}  // namespace baton::worker
