#include "src/plan/aggregated_plan.h"

#include <algorithm>

#include "src/plan/queueing.h"

namespace baton::plan {
namespace {

// The arguments of one run, with what they mean a worker.
class Worker {
 public:
  Worker(const PlanInput& input, uint32_t num_workers, uint32_t chunk)
      : input_(input), chunk_(std::min(chunk, input.load.input_tokens)) {
    rate_per_s_ = input.load.rate_per_s / num_workers;
    const uint32_t tokens = input.load.input_tokens;
    num_chunks_ = (tokens + chunk_ - 1) / chunk_;
  }

  PlannedStep DecodeStep(uint32_t rows) const {
    return {.decode_rows = rows, .context = MeanContext(input_.load)};
  }
  double DecodeUs(uint32_t rows) const { return input_.steps.StepUs(DecodeStep(rows)); }
  // The longest mixed step: a whole chunk at the prompt's end.
  double LongestMixedUs(uint32_t rows) const {
    PlannedStep step = DecodeStep(rows);
    step.chunk_tokens = chunk_;
    step.first_pos = input_.load.input_tokens - chunk_;
    return input_.steps.StepUs(step);
  }
  FixedServiceQueue Queue(uint32_t rows) const {
    return {rate_per_s_, input_.steps.PromptUs(input_.load.input_tokens, chunk_, DecodeStep(rows))};
  }
  // Steps a microsecond that carry a chunk, and that do not.
  double MixedSteps() const { return rate_per_s_ * 1e-6 * num_chunks_; }
  double DecodeSteps(uint32_t rows) const {
    return (1 - Queue(rows).utilization()) / DecodeUs(rows);
  }
  // Sequences that run when a step has so many rows.
  double MeanBatch(uint32_t rows) const {
    const double gap_us = 1 / (MixedSteps() + DecodeSteps(rows));
    return rate_per_s_ * (input_.load.output_tokens - 1) * gap_us * 1e-6;
  }
  uint32_t chunk() const { return chunk_; }
  uint32_t num_chunks() const { return num_chunks_; }

 private:
  const PlanInput& input_;
  uint32_t chunk_;
  uint32_t num_chunks_;
  double rate_per_s_;
};

// Gaps of a stream that may be longer than the itl.
uint32_t GapsLeftOut(const PlanLoad& load) { return (load.output_tokens - 1) / 100; }

// The rows that keep themselves running; 0 = more arrives than is computed.
uint32_t RunningRows(const Worker& worker, uint32_t limit) {
  for (uint32_t rows = 1; rows <= limit; ++rows) {
    if (worker.Queue(rows).utilization() > kMaxUtilization) return 0;
    if (worker.MeanBatch(rows) <= rows) return rows;
  }
  return 0;
}

bool CanMeet(const PlanInput& input, uint32_t num_workers) {
  const auto run = AggregatedKeepingItl(input, num_workers);
  return run && run->Meets(input.objective);
}

uint32_t FewestWorkers(const PlanInput& input, uint32_t limit) {
  if (!CanMeet(input, limit)) return 0;
  uint32_t low = 0;  // [low cannot, high can)
  uint32_t high = limit;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (CanMeet(input, middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace

AggregatedRun AggregatedWith(const PlanInput& input, uint32_t num_workers, uint32_t chunk) {
  const Worker worker(input, num_workers, chunk);
  AggregatedRun run;
  run.num_workers = num_workers;
  run.chunk = worker.chunk();
  const uint32_t limit = MaxSequences(input);
  const uint32_t rows = RunningRows(worker, limit);
  if (rows == 0) return run;
  const uint32_t rows_p99 = std::max(rows, PoissonQuantile(worker.MeanBatch(rows), kPlanQuantile));
  if (rows_p99 > limit) return run;
  run.carries = true;
  run.batch_p99 = rows_p99;
  const FixedServiceQueue queue = worker.Queue(rows);
  run.utilization = queue.utilization();
  run.ttft_p50_us = queue.WaitUs(0.5) + queue.service_us;
  run.ttft_p99_us = queue.WaitUs(kPlanQuantile) + queue.service_us;
  const uint32_t prompts_p99 = PoissonQuantile(worker.MeanBatch(rows), kPlanQuantile);
  run.mixed_gaps = std::min(prompts_p99 * worker.num_chunks(), input.load.output_tokens - 1);
  const bool half_are_mixed = worker.MixedSteps() > worker.DecodeSteps(rows);
  run.itl_p50_us = half_are_mixed ? worker.LongestMixedUs(rows) : worker.DecodeUs(rows);
  run.itl_p99_us = run.mixed_gaps > GapsLeftOut(input.load) ? worker.LongestMixedUs(rows_p99)
                                                            : worker.DecodeUs(rows_p99);
  return run;
}

std::optional<AggregatedRun> AggregatedKeepingItl(const PlanInput& input, uint32_t num_workers) {
  const uint32_t block = input.memory.block_tokens;
  std::optional<AggregatedRun> best;
  for (uint32_t chunk = std::max(block, kMaxPlanChunk / block * block); chunk >= block;
       chunk -= block) {
    const AggregatedRun run = AggregatedWith(input, num_workers, chunk);
    if (!run.carries || run.itl_p99_us > input.objective.itl_us) continue;
    if (run.Meets(input.objective)) return run;
    if (!best) best = run;
  }
  return best;
}

Comparison CompareWithAggregated(const PlanInput& input, const ClusterPlan& split) {
  Comparison out;
  const uint32_t num_workers = split.num_workers();
  out.whole_chunks = AggregatedWith(input, num_workers, kMaxPlanChunk);
  out.keeps_itl = AggregatedKeepingItl(input, num_workers);
  out.fewest_workers = FewestWorkers(input, 2 * num_workers);
  const bool needs_fewer = out.fewest_workers == 0 || out.fewest_workers > num_workers;
  out.split_helps = needs_fewer && split.transfer.link_carries;
  return out;
}

}  // namespace baton::plan
