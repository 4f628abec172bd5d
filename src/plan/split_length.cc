#include "src/plan/split_length.h"

#include <cmath>

#include "scheduler/path_choice.h"

namespace baton::plan {

using scheduler::LocalTimes;
using scheduler::PairTimes;
using scheduler::ReasonForLocal;

namespace {

constexpr double kSecondsPerUs = 1e-6;

// A decode worker with its streams and no prompt.
LocalTimes IdleDecodeWorker(const PlanInput& input, const ClusterPlan& plan) {
  const uint32_t block = input.memory.block_tokens;
  LocalTimes out;
  out.num_streams = static_cast<uint32_t>(std::lround(plan.decode.mean_batch));
  out.step_s =
      input.steps.StepUs({.decode_rows = out.num_streams, .context = MeanContext(input.load)}) *
      kSecondsPerUs;
  out.block_s = input.steps.PromptUs(block, block, {}) * kSecondsPerUs;
  return out;
}

}  // namespace

SplitLength FindSplitLength(const PlanInput& input, const ClusterPlan& plan, uint32_t max_tokens) {
  SplitLength out;
  out.is_known = input.link_bytes_per_s > 0;
  if (!out.is_known || max_tokens == 0) return out;
  const uint32_t chunk = PlannedChunk(input);
  const auto itl_us = static_cast<int64_t>(input.objective.itl_us);
  LocalTimes local = IdleDecodeWorker(input, plan);
  const auto is_local = [&](uint32_t num_tokens) {
    const double compute_s = input.steps.PromptUs(num_tokens, chunk, {}) * kSecondsPerUs;
    const double cross_s =
        static_cast<double>(input.HandOffBytes(num_tokens)) / input.link_bytes_per_s;
    local.compute_s = compute_s;
    local.at_prefill_s = compute_s;
    const PairTimes pair = {.wait_s = 0, .compute_s = compute_s, .cross_s = cross_s};
    return ReasonForLocal({.pair = pair, .local = local}, itl_us).has_value();
  };
  // From the longest prompt down: the two costs may cross more than once.
  const uint32_t block = input.memory.block_tokens;
  uint32_t num_tokens = max_tokens;
  while (num_tokens > 0 && !is_local(num_tokens)) {
    out.from_tokens = num_tokens;
    num_tokens = (num_tokens - 1) / block * block;
  }
  return out;
}

}  // namespace baton::plan
