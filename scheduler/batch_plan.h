// BatchPlan: what one step computes, as plain data. The engine lowers it to a ModelBatch, runs it,
// and reports what came out with Scheduler::Finish. Valid until the next Plan. Engine thread.
#ifndef BATON_SCHEDULER_BATCH_PLAN_H_
#define BATON_SCHEDULER_BATCH_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/block_pool.h"
#include "kvcache/block_table.h"
#include "scheduler/sequence.h"
#include "scheduler/step_cost.h"
#include "src/base/ids.h"

namespace baton::scheduler {

inline constexpr uint32_t kNotFed = UINT32_MAX;
inline constexpr uint32_t kNoCheckpoint = UINT32_MAX;

// Tokens [first_pos, first_pos + num_tokens) of one sequence; their blocks are in its table.
struct BatchItem {
  SequenceId id;
  const Sequence* sequence = nullptr;  // lives until Finish
  uint32_t first_pos = 0;
  uint32_t num_tokens = 0;
  bool is_decode = false;     // the last token of a running sequence, and guesses after it
  bool wants_logits = false;  // the last of its tokens is followed by a sampled one
  bool ends_prompt = false;   // the sequence becomes PromptDone (Finish ignores its sampled token)
  bool logs_prompt = false;   // all of its tokens have logits
  // In a plan that was made ahead: the item of the plan before it that gives this item its token.
  uint32_t fed_by = kNotFed;
  // The index in BatchPlan::checkpoints of the copy that is made of its sequence's state.
  uint32_t checkpoint = kNoCheckpoint;
  // The last of its tokens: guesses, in BatchPlan::proposals. Each row that decodes has logits
  // then.
  std::span<const TokenId> proposed;
};

// A copy of a sequence's fixed state as it is after some rows of an item, for the prefix index.
struct CheckpointPlan {
  uint32_t item = 0;         // of BatchPlan::items
  uint32_t num_tokens = 0;   // of the sequence, whole blocks; the last is a token of the item
  uint32_t first_block = 0;  // of BatchPlan::checkpoint_blocks, as many as a state has
};

// One step; see the file comment. Decode items come first.
struct BatchPlan {
  std::vector<BatchItem> items;
  std::vector<SequenceId> started;    // their first chunk is in this plan (not after a preemption)
  std::vector<SequenceId> preempted;  // lost their blocks; they will be computed again
  StepShape shape;                    // what the step costs is measured against
  int64_t predicted_us = 0;
  uint32_t num_log_rows = 0;       // tokens of items that log their prompts
  std::vector<TokenId> proposals;  // of all items
  // Whole blocks, copied in this order before the step; also where the plan has no items.
  std::vector<kv::BlockCopy> copies;
  std::vector<CheckpointPlan> checkpoints;
  std::vector<kv::BlockHandle> checkpoint_blocks;  // held by the scheduler until Finish

  bool empty() const { return items.empty(); }
  uint32_t num_decode_items() const { return shape.decode_rows; }
  uint32_t num_tokens() const { return shape.decode_rows + shape.prefill_tokens; }
};

// The result of one item of the step, parallel to BatchPlan::items. Read only for items that want
// logits and do not end a prompt.
struct ItemResult {
  TokenId token = 0;      // sampled
  bool finished = false;  // by SequenceLimits::After: the sequence is removed
  // No token could be sampled yet. The sequence stays as it was before the step, and awaits.
  bool retry = false;
  uint32_t num_accepted = 0;  // of its proposals: they were sampled, and `token` after them
  // The sequence computed values that are no numbers: the prefix index keeps nothing of them.
  bool no_numbers = false;
};

}  // namespace baton::scheduler

#endif  // BATON_SCHEDULER_BATCH_PLAN_H_
