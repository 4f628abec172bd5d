// How many blocks sequences need, and whether the pool has them.
#include <algorithm>

#include "scheduler/scheduler.h"

namespace baton::scheduler {

uint32_t Scheduler::BlocksToReserve(uint32_t num_tokens, uint32_t num_choices) const {
  return BlocksFor(num_tokens) - config_.NumUnseenBlocks(num_tokens) +
         num_choices * (1 + config_.state_blocks);
}

uint32_t Scheduler::NumSpares(const SequenceSpec& spec) const {
  // Choices are divided at prompt end and must not fail then; a single one grows block by block.
  if (config_.role == WorkerRole::kPrefill || spec.num_choices == 1) return 0;
  return spec.num_choices + (spec.num_choices - 1) * config_.state_blocks;
}

uint32_t Scheduler::NumPlaces(const SequenceSpec& spec) const {
  return BlocksFor(static_cast<uint32_t>(spec.tokens.size())) + NumSpares(spec);
}

uint32_t Scheduler::MaxPromptBlocks(const SequenceSpec& spec) const {
  const uint32_t most = config_.MaxHeldBlocks();
  return std::min(NumPlaces(spec), most == UINT32_MAX ? most : most + NumSpares(spec));
}

uint32_t Scheduler::PlacesToHave(const SequenceSpec& spec, uint32_t num_released) const {
  return std::min(NumPlaces(spec), num_released + MaxPromptBlocks(spec));
}

Status Scheduler::CheckFits(const SequenceSpec& spec) const {
  const uint64_t num_tokens = spec.tokens.size();
  if (num_tokens == 0 || spec.num_prompt_tokens == 0 || spec.num_prompt_tokens > num_tokens) {
    return InvalidArgument("{} prompt tokens of {} tokens", spec.num_prompt_tokens, num_tokens);
  }
  const uint32_t max_total = spec.limits.MaxTotalTokens(spec.num_prompt_tokens);
  if (num_tokens >= max_total) {
    return OutOfRange("{} tokens leave no room to generate: the sequence may have {} (context {})",
                      num_tokens, max_total, spec.limits.max_context);
  }
  uint32_t need = MaxPromptBlocks(spec) + config_.state_blocks;
  if (config_.role != WorkerRole::kPrefill) {
    const uint32_t most = std::min(BlocksFor(max_total - 1), config_.MaxHeldBlocks());
    need = std::max(need, most + config_.state_blocks);
    need = std::max(need, BlocksToReserve(static_cast<uint32_t>(num_tokens), spec.num_choices));
  }
  if (need > pool_->num_usable()) {
    return OutOfRange("the sequence may need {} KV blocks of {} tokens, the pool has {}", need,
                      config_.block_size, pool_->num_usable());
  }
  // Whoever is taken has to fit for good, also if the system has no memory for the other blocks.
  if (need > pool_->ready().num_ready) {
    return ResourceExhausted("the sequence may need {} KV blocks, only {} have their memory yet",
                             need, pool_->ready().num_ready);
  }
  return OkStatus();
}

uint32_t Scheduler::GrowthReserve() const {
  // With 16 tokens a block one sequence in 16 grows in a step: a quarter covers four steps.
  return (static_cast<uint32_t>(decoding_.size()) + 3) / 4;
}

Status Scheduler::CanReserve(const SequenceSpec& spec, uint32_t num_held) const {
  BATON_RETURN_IF_ERROR(CheckFits(spec));
  const uint32_t need =
      BlocksToReserve(static_cast<uint32_t>(spec.tokens.size()), spec.num_choices) - num_held;
  const Sequence* const first = FirstWaiting();
  const bool owed = first != nullptr && (blocked_ || first->preempted);
  if (owed) {
    return ResourceExhausted("sequence {} waits for KV blocks", first->id());
  }
  if (pool_->num_available() < need + GrowthReserve()) {
    return ResourceExhausted("the request needs {} KV blocks, {} are free, {} are kept to decode",
                             need, pool_->num_available(), GrowthReserve());
  }
  return OkStatus();
}

}  // namespace baton::scheduler
