// CheckToyPlan: what every plan of a scheduler must be, whatever its sequences are.
#ifndef BATON_TESTS_SCHEDULER_TOY_PLAN_H_
#define BATON_TESTS_SCHEDULER_TOY_PLAN_H_

#include <cstdint>
#include <utility>

#include "gtest/gtest.h"

#include "scheduler/scheduler.h"
#include "src/base/limits.h"

namespace baton::scheduler {

// Fails the test where `plan`, which `scheduler` has just made, is not what its limits allow.
inline void CheckToyPlan(const Scheduler& scheduler, const BatchPlan& plan) {
  const SchedulerConfig& config = scheduler.config();
  EXPECT_LE(plan.num_tokens(), config.max_batch_tokens);
  EXPECT_LE(plan.num_decode_items(), config.max_running);
  StepShape shape;
  uint32_t running = 0;
  uint32_t num_log_rows = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const BatchItem& item = plan.items[i];
    if (item.is_decode) {
      EXPECT_EQ(item.num_tokens, 1u);
      EXPECT_EQ(i, shape.decode_rows) << "decode rows come first";
      shape.AddDecode(item.first_pos);
      ++running;
    } else {
      EXPECT_GE(item.num_tokens, 1u);
      EXPECT_LE(item.num_tokens, config.max_chunk);
      EXPECT_EQ(item.first_pos % config.block_size, 0u) << "chunks end at block boundaries";
      shape.AddPrefill(item.first_pos, item.num_tokens);
    }
    EXPECT_EQ(item.first_pos, item.sequence->num_computed);
    const bool ends = item.first_pos + item.num_tokens == item.sequence->num_tokens();
    if (item.logs_prompt) {
      shape.logit_rows += item.num_tokens;
      num_log_rows += item.num_tokens;
    } else if (ends && !item.is_decode) {
      ++shape.logit_rows;
    }
    EXPECT_EQ(item.wants_logits, ends);
  }
  EXPECT_EQ(plan.shape, shape);
  EXPECT_EQ(plan.num_log_rows, num_log_rows);
  EXPECT_LE(num_log_rows, limits::kMaxPromptLogRows);
  scheduler.ForEachSequence([&](const Sequence& sequence) {
    if (sequence.state == SequenceState::kRunning) --running;
  });
  EXPECT_EQ(running, 0u) << "every running sequence decodes in every step";
  for (const SequenceId id : plan.preempted) {
    const Sequence* victim = scheduler.Find(id);
    for (const BatchItem& item : plan.items) {
      if (!item.is_decode) continue;
      EXPECT_LT(std::pair(item.sequence->arrival_us, item.id), std::pair(victim->arrival_us, id))
          << "an older sequence lost its blocks to a younger one";
    }
  }
}

}  // namespace baton::scheduler

#endif  // BATON_TESTS_SCHEDULER_TOY_PLAN_H_
