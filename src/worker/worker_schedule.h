// The scheduler's settings of a worker: from its flags, its model and its device. Pure but for a
// line of the log; any thread.
#ifndef BATON_WORKER_WORKER_SCHEDULE_H_
#define BATON_WORKER_WORKER_SCHEDULE_H_

#include "scheduler/scheduler.h"
#include "src/worker/worker_config.h"
#include "src/worker/worker_model.h"

namespace baton::worker {

// By the flags alone.
scheduler::SchedulerConfig SchedulerLimits(const WorkerConfig& config);
// With what the loaded model adds.
scheduler::SchedulerConfig SchedulerOf(const WorkerConfig& config, const WorkerModel& model);
// Estimates the steps of a GPU that `model` has for itself and whose limits are known. Everything
// else is learnt from the first steps.
void EstimateSteps(const WorkerModel& model, scheduler::SchedulerConfig* scheduler);

}  // namespace baton::worker

#endif  // BATON_WORKER_WORKER_SCHEDULE_H_
