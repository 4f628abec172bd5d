// The alternative to a split: workers that compute prompts and decode, with chunks of prompts in
// the steps of running streams; and whether the split is worth it. Same load, objectives and rules
// as cluster_plan.h. Pure; any thread.
//
// A worker computes one prompt at a time, a chunk in each step beside all its decode rows. S is the
// time of all chunks of a prompt, and rho = arrivals * S. A share rho of the time goes in mixed
// steps, and the rest goes in steps that only decode. A gap between tokens is one step. The batch
// follows from the mean gap by Little's law. The ttft follows from an M/D/1 queue with service S.
// The model leaves out the rest of the step that runs when a prompt comes, which favours this
// alternative. As many prompts come in a stream's life as sequences run beside it, Poisson
// distributed. The itl may leave out a part of a stream's gaps. Where the 99th percentile of the
// prompts brings more mixed steps than that part, the itl is that of a mixed step.
#ifndef BATON_PLAN_AGGREGATED_PLAN_H_
#define BATON_PLAN_AGGREGATED_PLAN_H_

#include <cstdint>
#include <optional>

#include "src/plan/cluster_plan.h"

namespace baton::plan {

// One way to run: so many workers, chunks of at most so many tokens.
struct AggregatedRun {
  uint32_t num_workers = 0;
  uint32_t chunk = 0;
  // False when more arrives than kMaxUtilization computes or than the KV pool holds; then all below
  // are 0.
  bool carries = false;
  double utilization = 0;  // share of the time in mixed steps
  uint32_t batch_p99 = 0;
  uint32_t mixed_gaps = 0;  // of a stream, 99th percentile
  double ttft_p50_us = 0;
  double ttft_p99_us = 0;
  double itl_p50_us = 0;
  double itl_p99_us = 0;

  bool Meets(const PlanObjective& objective) const {
    return carries && ttft_p99_us <= objective.ttft_us && itl_p99_us <= objective.itl_us;
  }
};

// `num_workers`, `chunk` >= 1.
AggregatedRun AggregatedWith(const PlanInput& input, uint32_t num_workers, uint32_t chunk);

// The run with the largest chunk that keeps the itl; of those, one that keeps the ttft too if any
// does. Nothing when no chunk keeps the itl.
std::optional<AggregatedRun> AggregatedKeepingItl(const PlanInput& input, uint32_t num_workers);

// The runs that a split is compared with, and the result.
struct Comparison {
  // On as many workers as the split has: with whole chunks, which give the best ttft, and with the
  // largest chunk that keeps the itl (none: no chunk does).
  AggregatedRun whole_chunks;
  std::optional<AggregatedRun> keeps_itl;
  // The fewest workers that meet both objectives; 0 = not even twice those of the split.
  uint32_t fewest_workers = 0;
  // The split needs fewer workers than this, and its links carry what must cross.
  bool split_helps = false;
};

Comparison CompareWithAggregated(const PlanInput& input, const ClusterPlan& split);

}  // namespace baton::plan

#endif  // BATON_PLAN_AGGREGATED_PLAN_H_
