#include "src/plan/cluster_plan.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "scheduler/scheduler_config.h"
#include "src/base/size_text.h"
#include "src/plan/queueing.h"

namespace baton::plan {

using scheduler::SchedulerConfig;

namespace {

// The batch that a rate keeps running on one worker.
struct RunningBatch {
  double mean = 0;    // sequences
  uint32_t rows = 1;  // of the step that is counted with
  uint32_t p99 = 1;
};

SchedulerConfig DecodeWorker(const PlanMemory& memory) {
  SchedulerConfig config;
  config.block_size = memory.block_tokens;
  config.window = memory.window;
  return config;
}

double DecodeUs(const PlanInput& input, uint32_t rows) {
  return input.steps.StepUs({.decode_rows = rows, .context = MeanContext(input.load)});
}

Status CheckInput(const PlanInput& input) {
  const PlanLoad& load = input.load;
  if (!(load.rate_per_s > 0) || !std::isfinite(load.rate_per_s)) {
    return InvalidArgument("the rate {} is not above 0", load.rate_per_s);
  }
  if (load.input_tokens == 0 || load.output_tokens == 0) {
    return InvalidArgument("input {} and output {} are at least 1 token", load.input_tokens,
                           load.output_tokens);
  }
  if (!(input.objective.ttft_us > 0) || !(input.objective.itl_us > 0)) {
    return InvalidArgument("the objectives TTFT {} us and ITL {} us are above 0",
                           input.objective.ttft_us, input.objective.itl_us);
  }
  return OkStatus();
}

Status CheckMemory(const PlanInput& input) {
  const PlanMemory& memory = input.memory;
  if (memory.device_bytes == 0) return OkStatus();
  const uint64_t tokens = uint64_t{input.load.input_tokens} + input.load.output_tokens;
  // A prefill worker holds the prompt whole.
  const uint64_t kv_bytes =
      std::max(memory.HeldKvBytes(tokens), memory.KvBytes(input.load.input_tokens + uint64_t{1}));
  const double room = kMemoryShare * static_cast<double>(memory.device_bytes) -
                      static_cast<double>(memory.weight_bytes);
  if (room >= static_cast<double>(kv_bytes)) return OkStatus();
  return FailedPrecondition(
      "the model does not fit: weights of {} and {} of KV for one request of {} tokens need {}, a "
      "worker has {} ({:.0f} % of {})",
      FormatSize(memory.weight_bytes), FormatSize(kv_bytes), tokens,
      FormatSize(memory.weight_bytes + kv_bytes),
      FormatSize(static_cast<uint64_t>(kMemoryShare * static_cast<double>(memory.device_bytes))),
      100 * kMemoryShare, FormatSize(memory.device_bytes));
}

// The first number of workers to try when at least so many are needed; more than the limit is one
// more than it.
uint32_t CountFrom(double least) {
  return static_cast<uint32_t>(std::clamp(least, 1.0, kMaxPlanWorkers + 1.0));
}

PrefillPlan PrefillWith(const PlanInput& input, uint32_t num_workers) {
  PrefillPlan plan;
  plan.num_workers = num_workers;
  plan.chunk = std::min(PlannedChunk(input), input.load.input_tokens);
  plan.prompt_us = input.steps.PromptUs(input.load.input_tokens, plan.chunk, {});
  const FixedServiceQueue queue = {input.load.rate_per_s / num_workers, plan.prompt_us};
  plan.utilization = queue.utilization();
  plan.wait_mean_us = queue.MeanWaitUs();
  plan.ttft_p50_us = queue.WaitUs(0.5) + plan.prompt_us;
  plan.ttft_p99_us = queue.WaitUs(kPlanQuantile) + plan.prompt_us;
  if (!std::isfinite(plan.ttft_p99_us)) return plan;  // more arrives than it can do
  // Little's law at the 99th percentile's time: those waiting hold no blocks, but may come at once.
  const double prompts = std::ceil(queue.arrivals_per_s * plan.ttft_p99_us * 1e-6) + 1;
  plan.kv_bytes =
      static_cast<uint64_t>(prompts) * input.memory.KvBytes(input.load.input_tokens + uint64_t{1});
  return plan;
}

StatusOr<PrefillPlan> PlanPrefill(const PlanInput& input) {
  const double prompt_us = PrefillWith(input, 1).prompt_us;
  if (prompt_us > input.objective.ttft_us) {
    return FailedPrecondition("TTFT {:.4g} ms cannot be met: a prompt of {} tokens takes {:.4g} ms",
                              input.objective.ttft_us / 1e3, input.load.input_tokens,
                              prompt_us / 1e3);
  }
  const double least = std::ceil(input.load.rate_per_s * prompt_us * 1e-6 / kMaxUtilization);
  for (uint32_t n = CountFrom(least); n <= kMaxPlanWorkers; ++n) {
    const PrefillPlan plan = PrefillWith(input, n);
    if (plan.ttft_p99_us <= input.objective.ttft_us) return plan;
  }
  return ResourceExhausted(
      "more than {} prefill workers would be needed: a prompt takes {:.4g} ms of the TTFT of "
      "{:.4g} "
      "ms, at {} a second",
      kMaxPlanWorkers, prompt_us / 1e3, input.objective.ttft_us / 1e3, input.load.rate_per_s);
}

// The largest batch whose step meets the objective; 0 = none.
uint32_t RowsWithin(const PlanInput& input, uint32_t limit) {
  uint32_t low = 0;
  uint32_t high = limit + 1;
  while (high - low > 1) {  // [low meets it, high does not)
    const uint32_t middle = low + (high - low) / 2;
    (DecodeUs(input, middle) <= input.objective.itl_us ? low : high) = middle;
  }
  return low;
}

// The batch that a rate keeps running; nothing when it is above `limit`.
std::optional<RunningBatch> Running(const PlanInput& input, double rate_per_s, uint32_t limit) {
  const double gaps_per_s = rate_per_s * (input.load.output_tokens - 1);
  for (uint32_t rows = 1; rows <= limit; ++rows) {
    const double mean = gaps_per_s * DecodeUs(input, rows) * 1e-6;
    if (mean > rows) continue;
    const uint32_t p99 = std::max(1u, PoissonQuantile(mean, kPlanQuantile));
    if (p99 > limit) return std::nullopt;
    return RunningBatch{mean, rows, p99};
  }
  return std::nullopt;
}

DecodePlan DecodeWith(const PlanInput& input, uint32_t num_workers, const RunningBatch& batch) {
  DecodePlan plan;
  plan.num_workers = num_workers;
  plan.mean_batch = batch.mean;
  plan.batch_p99 = batch.p99;
  plan.itl_p50_us = DecodeUs(input, batch.rows);
  plan.itl_p99_us = DecodeUs(input, std::max(batch.rows, batch.p99));
  plan.kv_bytes = batch.p99 * input.memory.HeldKvBytes(uint64_t{input.load.input_tokens} +
                                                       input.load.output_tokens);
  return plan;
}

StatusOr<DecodePlan> PlanDecode(const PlanInput& input) {
  const uint32_t in_memory = MaxSequences(input);
  const uint32_t max_batch = RowsWithin(input, in_memory);
  if (max_batch == 0) {
    return FailedPrecondition("ITL {:.4g} ms cannot be met: one step takes at least {:.4g} ms",
                              input.objective.itl_us / 1e3, DecodeUs(input, 1) / 1e3);
  }
  const double gaps_per_s = input.load.rate_per_s * (input.load.output_tokens - 1);
  const double most_per_s = kMaxUtilization * max_batch / (DecodeUs(input, max_batch) * 1e-6);
  for (uint32_t n = CountFrom(std::ceil(gaps_per_s / most_per_s)); n <= kMaxPlanWorkers; ++n) {
    const auto batch = Running(input, input.load.rate_per_s / n, max_batch);
    if (!batch) continue;
    DecodePlan plan = DecodeWith(input, n, *batch);
    plan.max_batch = max_batch;
    plan.bound = max_batch < in_memory        ? BatchBound::kObjective
                 : in_memory < kMaxDecodeRows ? BatchBound::kMemory
                                              : BatchBound::kRows;
    return plan;
  }
  return ResourceExhausted(
      "more than {} decode workers would be needed: {:.4g} tokens a second in batches of at most "
      "{}",
      kMaxPlanWorkers, gaps_per_s, max_batch);
}

// The time by which the hand-off is longer than what is computed meanwhile; see the header.
double ExposedUs(const PlanInput& input, const PrefillPlan& prefill) {
  const uint32_t num_tokens = input.load.input_tokens;
  const uint32_t num_last = (num_tokens - 1) % prefill.chunk + 1;
  const double last_layer = 1.0 / std::max(1u, input.num_layers);
  const auto cross_us = [&](uint32_t tokens) {
    return static_cast<double>(input.HandOffBytes(tokens)) / input.link_bytes_per_s * 1e6;
  };
  const double all_us = cross_us(num_tokens);
  const double last_chunk_us =
      input.steps.StepUs({.chunk_tokens = num_last, .first_pos = num_tokens - num_last});
  return std::max({all_us * last_layer, all_us - prefill.prompt_us * (1 - last_layer),
                   cross_us(num_last) - last_chunk_us * (1 - last_layer)});
}

TransferPlan PlanTransfer(const PlanInput& input, const ClusterPlan& plan) {
  TransferPlan out;
  out.bytes_per_request = input.HandOffBytes(input.load.input_tokens);
  out.need_bytes_per_s = input.load.rate_per_s * static_cast<double>(out.bytes_per_request);
  out.link_is_known = input.link_bytes_per_s > 0;
  if (out.link_is_known) {
    const uint32_t num_links = std::min(plan.prefill.num_workers, plan.decode.num_workers);
    out.transfer_us = static_cast<double>(out.bytes_per_request) / input.link_bytes_per_s * 1e6;
    out.exposed_us = ExposedUs(input, plan.prefill);
    out.link_utilization = out.need_bytes_per_s / (input.link_bytes_per_s * num_links);
    out.link_carries = out.link_utilization <= kMaxUtilization;
  }
  out.second_token_us = out.exposed_us + 1.5 * plan.decode.itl_p50_us;
  return out;
}

}  // namespace

uint64_t PlanMemory::HeldBlocks(uint64_t num_tokens) const {
  const uint64_t most = uint64_t{DecodeWorker(*this).MaxHeldBlocks()} + state_blocks;
  return window > 0 ? std::min(BlocksFor(num_tokens), most) : BlocksFor(num_tokens);
}

uint64_t PlanMemory::CrossingBlocks(uint32_t num_tokens) const {
  return BlocksFor(num_tokens) - DecodeWorker(*this).NumUnseenBlocks(num_tokens);
}

uint32_t MeanContext(const PlanLoad& load) { return load.input_tokens + load.output_tokens / 2; }

uint32_t PlannedChunk(const PlanInput& input) {
  const uint32_t block = input.memory.block_tokens;
  uint32_t chunk = std::max(block, kMaxPlanChunk / block * block);
  while (chunk > block && input.steps.StepUs({.chunk_tokens = chunk}) > kChunkTargetUs) {
    chunk -= block;
  }
  return chunk;
}

uint32_t MaxSequences(const PlanInput& input) {
  const PlanMemory& memory = input.memory;
  if (memory.device_bytes == 0) return kMaxDecodeRows;
  const double room = kMemoryShare * static_cast<double>(memory.device_bytes) -
                      static_cast<double>(memory.weight_bytes);
  const uint64_t each =
      memory.HeldKvBytes(uint64_t{input.load.input_tokens} + input.load.output_tokens);
  if (room < static_cast<double>(each)) return 0;
  return static_cast<uint32_t>(std::min<double>(kMaxDecodeRows, room / static_cast<double>(each)));
}

StatusOr<ClusterPlan> PlanCluster(const PlanInput& input) {
  BATON_RETURN_IF_ERROR(CheckInput(input));
  BATON_RETURN_IF_ERROR(CheckMemory(input));
  ClusterPlan plan;
  BATON_ASSIGN_OR_RETURN(plan.prefill, PlanPrefill(input));
  BATON_ASSIGN_OR_RETURN(plan.decode, PlanDecode(input));
  plan.transfer = PlanTransfer(input, plan);
  return plan;
}

}  // namespace baton::plan
