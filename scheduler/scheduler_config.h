// SchedulerConfig and SchedulerLoad: what a Scheduler is given once, and the numbers it tells.
#ifndef BATON_SCHEDULER_SCHEDULER_CONFIG_H_
#define BATON_SCHEDULER_SCHEDULER_CONFIG_H_

#include <algorithm>
#include <cstdint>

#include "kvcache/kv_window.h"
#include "scheduler/itl_objective.h"
#include "scheduler/step_cost.h"
#include "src/base/limits.h"
#include "src/base/worker_role.h"

namespace baton::scheduler {

// Blocks before its window that a stream keeps: a router that moves it to another worker may know
// of some tokens less, and the rows after those see up to this many blocks more.
inline constexpr uint32_t kUnseenBlocksKept = 2;

// Limits and targets; constant after construction.
struct SchedulerConfig {
  WorkerRole role = WorkerRole::kDecode;
  uint32_t block_size = 16;
  uint32_t state_blocks = 0;  // of each sequence (KvLayout)
  // With states and an index: the state is kept at multiples of it; whole blocks. 0 = only that of
  // prompts' ends is kept.
  uint32_t checkpoint_tokens = 0;
  // Tokens that a row sees in every layer, its own included: blocks that no row of a sequence sees
  // any more are released. A prefill worker releases none: hand-offs need them. 0 = some layer sees
  // all.
  uint32_t window = 0;
  uint32_t max_batch_tokens = limits::kMaxBatchTokens;  // tokens of one step
  uint32_t max_chunk = limits::kMaxChunkTokens;         // tokens of one prompt in one step
  uint32_t max_running = limits::kMaxRunning;           // decode rows
  uint32_t max_prefilling = limits::kMaxPrefilling;     // prompts that hold blocks and are not done
  uint32_t max_waiting = limits::kMaxWaiting;           // sequences without blocks
  int64_t target_step_us = limits::kTargetStepUs;
  // While something decodes, without itl_objective_us: bounds the gaps that prompts cause.
  int64_t target_mixed_step_us = 25'000;
  // A waiting prompt gains on newer ones as if it were this much shorter a second.
  uint32_t aging_tokens_per_s = 500;
  // How long steps take, until some were measured.
  StepWeights first_cost;
  // The output layer's work of one row, in tokens of a prompt in all other layers: of the model.
  double output_row_tokens = 0;
  // The longest gap between tokens that is wanted; 0 = none is. It bounds chunks beside decode rows
  // and the streams that routers are told to send (SchedulerLoad::batch_limit), but not the rows of
  // a step.
  int64_t itl_objective_us = 0;

  // Blocks at the front of a sequence that none of its rows from position `num_tokens` >= 1 on
  // sees.
  uint32_t NumUnseenBlocks(uint32_t num_tokens) const {
    return kv::KvWindow{window, block_size}.NumUnseen(num_tokens);
  }
  // Blocks that a sequence has released by then: the last kUnseenBlocksKept unseen ones stay.
  uint32_t NumBlocksToRelease(uint32_t num_tokens) const {
    const uint32_t num_unseen = role == WorkerRole::kPrefill ? 0 : NumUnseenBlocks(num_tokens);
    return num_unseen - std::min(num_unseen, kUnseenBlocksKept);
  }
  // Blocks that a sequence's tokens take at most: those that the rows of a chunk see, and those
  // that stay. UINT32_MAX = the blocks of all its tokens.
  uint32_t MaxHeldBlocks() const {
    if (window == 0 || role == WorkerRole::kPrefill) return UINT32_MAX;
    return kv::KvWindow{window, block_size}.MaxSeen(max_chunk) + kUnseenBlocksKept;
  }
  // As workers tell it: 0 = the blocks of all its tokens.
  uint32_t WindowBlocks() const {
    const uint32_t most = MaxHeldBlocks();
    return most == UINT32_MAX ? 0 : most;
  }
  // The time that a step with decode rows and a chunk may take.
  int64_t MixedStepUs() const {
    if (itl_objective_us == 0) return target_mixed_step_us;
    return std::min(ChunksObjectiveUs(itl_objective_us), target_step_us);
  }
};

// Numbers for load reports and metrics.
struct SchedulerLoad {
  uint32_t num_waiting = 0;      // without blocks
  uint32_t num_prefilling = 0;   // prompts being computed
  uint32_t num_prompt_done = 0;  // computed, waiting for their hand-off
  uint32_t num_running = 0;      // ready or decoding
  uint32_t num_awaiting = 0;     // of all: their next token cannot be sampled yet
  uint64_t backlog_tokens = 0;   // tokens accepted and not computed
  int64_t backlog_us = 0;        // predicted time to compute them
  uint64_t num_preemptions = 0;  // since the start
  // Streams beyond which more of them add no throughput (batch_limit.h): routers send no more. 0 =
  // a prefill worker, where nothing decodes.
  uint32_t batch_limit = 0;
};

}  // namespace baton::scheduler

#endif  // BATON_SCHEDULER_SCHEDULER_CONFIG_H_
