// ClusterPlan: how many prefill and decode workers carry a load within its objectives, and what a
// request then waits for. Arithmetic of a steady state, no simulation. Pure; any thread.
//
// The load: Poisson arrivals of requests of one length. 99 % of the requests meet the ttft, and the
// itl in 99 % of their gaps (below 100 gaps in all). The gap before the second token is told apart
// and not counted, where the load client counts it: it is what a split costs.
//
// Prefill: each worker is an M/D/1 queue (queueing.h) with an equal share of the arrivals. It works
// at most kMaxUtilization of the time. The router knows the backlogs, so it does better. ttft is
// wait + prompt: the prefill worker itself gives the first token. Whole blocks cross layer by layer
// while later layers compute, and with them the sequence's fixed state, which is final in the last
// chunk. The second token therefore waits only for the time by which a transfer is longer than the
// layers after the first. Two such times are compared: of the whole transfer beside the whole
// prompt's layers, and of the last chunk's transfer with the state beside that chunk's layers. It
// waits for the last layer's transfer at least. Then it waits for the running step to end (half a
// step on average) and for its own first step.
//
// Link: each worker has one, and what must cross fills at most kMaxUtilization of the links of the
// smaller pool. Where it fills more, the plan says so (TransferPlan::link_carries).
//
// Decode: a worker's largest batch is the one whose step stays within the itl, whose sequences fit
// the KV pool with their states at their full length, and kMaxDecodeRows. With a rate r for each
// worker and steps of T(B), Little's law asks for B = r * (output - 1) * T(B). The smallest such B
// runs. How many sequences run is Poisson distributed, and its 99th percentile must not be
// above the largest batch: that is the headroom, beside kMaxUtilization of the largest batch's
// throughput. Rows see contexts of input + output / 2 keys.
//
// Invariants
//  1. A higher rate never needs fewer workers, a looser objective never more.
//  2. Each number of workers is the smallest that meets the objectives under the rules above.
//  3. All results are finite.
#ifndef BATON_PLAN_CLUSTER_PLAN_H_
#define BATON_PLAN_CLUSTER_PLAN_H_

#include <cstdint>

#include "src/base/limits.h"
#include "src/base/status.h"
#include "src/plan/step_model.h"

namespace baton::plan {

// The largest share of a pool's time that a plan fills with work. At 0.8 the wait before a prompt
// is twice the prompt's time on average, at 0.9 it is 4.5 times.
inline constexpr double kMaxUtilization = 0.8;
// The share of a device's memory that weights and KV may fill (the default of vLLM's
// gpu_memory_utilization). The rest is for activations, for the driver and for fragmentation.
inline constexpr double kMemoryShare = 0.9;
inline constexpr double kPlanQuantile = 0.99;
// As SchedulerConfig has them.
inline constexpr uint32_t kMaxDecodeRows = limits::kMaxRunning;
inline constexpr uint32_t kMaxPlanChunk = limits::kMaxChunkTokens;
inline constexpr double kChunkTargetUs = limits::kTargetStepUs;
// The most workers of each role; the Helm chart has the same limit.
inline constexpr uint32_t kMaxPlanWorkers = limits::kMaxWorkers;

// The requests that arrive.
struct PlanLoad {
  double rate_per_s = 0;       // requests of the whole cluster, > 0
  uint32_t input_tokens = 0;   // >= 1
  uint32_t output_tokens = 0;  // >= 1
};

// The times that 99 % of the requests must meet.
struct PlanObjective {
  double ttft_us = 0;
  double itl_us = 0;
};

// The memory of one worker.
struct PlanMemory {
  uint64_t device_bytes = 0;  // 0 = nothing is bounded by memory
  uint64_t weight_bytes = 0;
  uint64_t kv_block_bytes = 1;
  uint32_t block_tokens = 1;
  uint32_t state_blocks = 0;  // of each sequence, for its fixed state
  uint32_t window = 0;        // as SchedulerConfig::window

  uint64_t BlocksFor(uint64_t num_tokens) const {
    return (num_tokens + block_tokens - 1) / block_tokens + state_blocks;
  }
  // Bytes of one sequence in the pool of a prefill worker.
  uint64_t KvBytes(uint64_t num_tokens) const { return BlocksFor(num_tokens) * kv_block_bytes; }
  // Blocks and bytes of one sequence where it decodes, and blocks that cross to there: with a
  // window not all of its tokens'.
  uint64_t HeldBlocks(uint64_t num_tokens) const;
  uint64_t HeldKvBytes(uint64_t num_tokens) const {
    return HeldBlocks(num_tokens) * kv_block_bytes;
  }
  uint64_t CrossingBlocks(uint32_t num_tokens) const;
};

// Everything that a plan follows from.
struct PlanInput {
  PlanLoad load;
  PlanObjective objective;
  StepModel steps;
  PlanMemory memory;
  uint32_t num_layers = 1;  // that store rows: each crosses once it is computed
  uint64_t kv_bytes_per_token = 0;
  double link_bytes_per_s = 0;  // from one prefill to one decode worker; 0 = not known

  // Bytes that cross with a prompt of which the decode worker holds nothing.
  uint64_t HandOffBytes(uint32_t num_tokens) const {
    return memory.CrossingBlocks(num_tokens) * memory.block_tokens * kv_bytes_per_token;
  }
};

// The plan of the prefill workers.
struct PrefillPlan {
  uint32_t num_workers = 0;
  uint32_t chunk = 0;  // tokens of a step
  double prompt_us = 0;
  double utilization = 0;
  double wait_mean_us = 0;
  double ttft_p50_us = 0;
  double ttft_p99_us = 0;
  uint64_t kv_bytes = 0;  // of the prompts that a worker holds, 99th percentile, and one crossing
};

// The limit that stopped the largest batch from being larger.
enum class BatchBound : uint8_t { kObjective = 0, kMemory = 1, kRows = 2 };

// The plan of the decode workers.
struct DecodePlan {
  uint32_t num_workers = 0;
  uint32_t max_batch = 0;
  BatchBound bound = BatchBound::kObjective;
  double mean_batch = 0;
  uint32_t batch_p99 = 0;
  double itl_p50_us = 0;
  double itl_p99_us = 0;
  uint64_t kv_bytes = 0;  // of batch_p99 sequences at full length
};

// The KV that crosses between the pools.
struct TransferPlan {
  uint64_t bytes_per_request = 0;
  double need_bytes_per_s = 0;  // of the whole cluster
  bool link_is_known = false;   // else the next three are 0
  double transfer_us = 0;
  double exposed_us = 0;
  double link_utilization = 0;  // of the links of the smaller pool
  bool link_carries = true;     // it is at most kMaxUtilization
  double second_token_us = 0;   // after the first: exposed + half a step + a step
};

// Both pools.
struct ClusterPlan {
  PrefillPlan prefill;
  DecodePlan decode;
  TransferPlan transfer;

  uint32_t num_workers() const { return prefill.num_workers + decode.num_workers; }
};

// InvalidArgument for a load or objective outside its range; FailedPrecondition when no number of
// workers meets an objective or one request does not fit the memory, with what it takes at least;
// ResourceExhausted above kMaxPlanWorkers.
StatusOr<ClusterPlan> PlanCluster(const PlanInput& input);

// Parts of the plan that the aggregated alternative (aggregated_plan.h) shares.
//
// Tokens of a chunk on a worker that decodes nothing: kChunkTargetUs, whole blocks.
uint32_t PlannedChunk(const PlanInput& input);
// Sequences of full length that fit the KV pool, at most kMaxDecodeRows.
uint32_t MaxSequences(const PlanInput& input);
uint32_t MeanContext(const PlanLoad& load);

}  // namespace baton::plan

#endif  // BATON_PLAN_CLUSTER_PLAN_H_
