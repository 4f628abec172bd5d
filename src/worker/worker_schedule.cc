#include "src/worker/worker_schedule.h"

#include <algorithm>

#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/engine/first_step_cost.h"

namespace baton::worker {

using device::Accelerator;
using device::DeviceKind;
using engine::FirstStepCost;
using engine::OfOneRank;
using engine::OutputRowTokens;
using engine::RooflineModelOf;
using limits::kMaxBatchTokens;
using scheduler::RooflineModel;
using scheduler::SchedulerConfig;
using scheduler::StepWeights;

SchedulerConfig SchedulerLimits(const WorkerConfig& config) {
  SchedulerConfig limits;
  limits.max_batch_tokens = kMaxBatchTokens;
  const bool prefills = config.role == WorkerRole::kPrefill;
  limits.role = config.role;
  limits.max_running = config.max_batch;
  limits.itl_objective_us = config.itl_objective_us;
  if (prefills) limits.max_prefilling = std::min(limits.max_prefilling, config.max_batch);
  return limits;
}

SchedulerConfig SchedulerOf(const WorkerConfig& config, const WorkerModel& model) {
  SchedulerConfig limits = SchedulerLimits(config);
  limits.block_size = model.loaded->layout().block_size;
  limits.output_row_tokens = OutputRowTokens(model.loaded->config());
  // Kernels of devices are not proved to read nothing before a window.
  if (model.device.accelerator == nullptr) limits.window = model.loaded->config().window_of_all();
  return limits;
}

void EstimateSteps(const WorkerModel& model, SchedulerConfig* scheduler) {
  const Accelerator* const gpu = model.device.accelerator.get();
  if (gpu == nullptr || gpu->kind() != DeviceKind::kCuda) return;
  RooflineModel roofline =
      RooflineModelOf(model.loaded->config(), model.loaded->bytes_read_per_step());
  roofline.kv_bytes_per_token = model.loaded->layout().BytesPerToken();
  const auto num_devices = static_cast<uint32_t>(model.device.accelerators().size());
  roofline = OfOneRank(roofline, model.loaded->config(), num_devices);
  const StatusOr<StepWeights> cost = FirstStepCost(gpu->product(), roofline);
  if (cost.ok()) {
    scheduler->first_cost = *cost;
  } else {
    BATON_LOG_INFO("{}; the first steps are small", std::string(cost.status().message()));
  }
}

}  // namespace baton::worker
