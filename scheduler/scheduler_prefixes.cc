// Sequences and the prefix index: the blocks that they find there, and those that they leave.
#include <algorithm>
#include <span>

#include "scheduler/scheduler.h"
#include "src/base/check.h"

namespace baton::scheduler {

using kv::BlockHandle;
using kv::BlockState;
using kv::ChainLink;
using kv::PrefixQuery;

void Scheduler::TakeState(Sequence* sequence, bool copies) {
  if (!copies) {
    index_->ForgetState(sequence->query(), sequence->table.size());
    for (const BlockHandle block : state_hits_) sequence->state_table.Append(block);
    return;
  }
  const bool grown = sequence->state_table.Grow(pool_, config_.state_blocks, BlockState::kComputing,
                                                sequence->spec.uid);
  BATON_CHECK(grown, "{} blocks are free, a state of {} is not to be had", pool_->num_available(),
              config_.state_blocks);
  // A sequence that gets a checkpoint's blocks within this plan writes them after these copies.
  for (size_t i = 0; i < state_hits_.size(); ++i) {
    plan_.copies.push_back(
        {state_hits_[i].index.value(), sequence->state_table.indices()[i], config_.block_size});
    pool_->DropRequestRef(state_hits_[i]);
  }
}

uint32_t Scheduler::MaxHits(const Sequence& sequence) const {
  // The last token is always computed: its logits are wanted.
  return (sequence.num_tokens() - 1) / config_.block_size;
}

PrefixHits Scheduler::FindHits(const Sequence& sequence) const {
  if (index_ == nullptr || sequence.spec.logs_prompt) return {};
  const PrefixQuery query = sequence.query();
  const uint32_t num_blocks = index_->MatchWhole(query, MaxHits(sequence));
  const uint32_t first = config_.NumBlocksToRelease(num_blocks * config_.block_size);
  return {num_blocks, index_->CountIdle(query, first, num_blocks)};
}

void Scheduler::TakeHits(Sequence* sequence, uint32_t num_blocks) {
  state_hits_.clear();
  if (num_blocks == 0) return;
  hits_.clear();
  const PrefixQuery query = sequence->query();
  const RequestUid& uid = sequence->spec.uid;
  index_->Acquire(query, num_blocks, BlockState::kComputing, uid, &hits_);
  for (const BlockHandle block : hits_) sequence->table.Append(block);
  sequence->table.ReleaseFront(pool_, config_.NumBlocksToRelease(num_blocks * config_.block_size));
  if (config_.state_blocks == 0) return;
  index_->AcquireState(query, num_blocks, BlockState::kComputing, uid, &state_hits_);
}

bool Scheduler::MayFit(const Sequence& sequence) {
  if (refused_.id != sequence.id()) return true;
  const int64_t room = int64_t{pool_->num_available()} - GrowthReserve();
  if (room > refused_.room) return true;
  refused_.room = room;
  if (index_ == nullptr) return false;
  if (index_->stats().num_changes() != refused_.num_changes) return true;
  // Without a fixed state each block that is inserted after its hits is one more.
  const uint32_t num_hits = refused_.num_hits;
  return config_.state_blocks == 0 && num_hits < MaxHits(sequence) &&
         index_->Contains(sequence.chain.full_links()[num_hits]);
}

bool Scheduler::KeepsStates(const Sequence& sequence) const {
  return index_ != nullptr && config_.state_blocks > 0 && sequence.spec.is_cacheable;
}

void Scheduler::KeepFullBlocks(Sequence* sequence) {
  if (sequence->num_kept_blocks < sequence->num_computed / config_.block_size) Offer(sequence);
}

void Scheduler::Offer(Sequence* sequence) {
  if (index_ == nullptr || !sequence->spec.is_cacheable) return;
  const uint32_t block_size = config_.block_size;
  const std::span<const ChainLink> links = sequence->chain.full_links();
  const std::span<const TokenId> tokens = sequence->spec.tokens;
  uint32_t& i = sequence->num_kept_blocks;
  // An equal prompt may have filled the first blocks before. Once nobody holds those they are given
  // up, and what goes on from them leaves the index too. Then the sequence offers its own.
  if (i > 0 && !index_->Contains(links[i - 1])) i = sequence->table.num_released();
  for (; i < sequence->num_computed / block_size; ++i) {
    index_->Insert({.link = links[i],
                    .parent = i > 0 ? links[i - 1] : ChainLink{},
                    .ordinal = i,
                    .tokens = tokens.subspan(size_t{i} * block_size, block_size),
                    .block = sequence->table.handles()[i]});
  }
}

void Scheduler::ReleaseUnseen(Sequence* sequence) {
  uint32_t num_blocks = config_.NumBlocksToRelease(sequence->num_computed);
  if (index_ != nullptr && sequence->spec.is_cacheable) {
    num_blocks = std::min(num_blocks, sequence->num_kept_blocks);
  }
  sequence->table.ReleaseFront(pool_, num_blocks);
}

bool Scheduler::SlideWindow(Sequence* sequence, uint32_t num_tokens) {
  ReleaseUnseen(sequence);
  const uint32_t num_new =
      PlacesToHave(sequence->spec, sequence->table.num_released()) - sequence->table.size();
  if (sequence->table.Grow(pool_, num_new, BlockState::kComputing, sequence->spec.uid)) return true;
  // The last chunk needs the blocks of the choices too.
  const bool is_last = num_tokens == sequence->num_remaining();
  const uint32_t end = sequence->num_computed + num_tokens;
  return !is_last && sequence->table.size() >= BlocksFor(end);
}

uint32_t Scheduler::TokensToSecondCheckpoint(const Sequence& sequence) const {
  const uint32_t step = config_.checkpoint_tokens;
  const uint32_t first = (sequence.num_computed / step + 1) * step;
  const uint32_t last = MaxHits(sequence) * config_.block_size;
  if (first >= last) return UINT32_MAX;
  return std::min(first + step, last) - sequence.num_computed;
}

uint32_t Scheduler::CheckpointOf(const BatchItem& item) const {
  const Sequence& sequence = *item.sequence;
  const uint32_t end = item.first_pos + item.num_tokens;
  if (!item.is_decode) {
    // An equal prompt finds this checkpoint again, and so does a longer one.
    const uint32_t of_prompt = MaxHits(sequence) * config_.block_size;
    if (of_prompt > item.first_pos && of_prompt <= end) return of_prompt;
  } else if (sequence.num_received_tokens > 0) {
    // The prompt's state came as it was after its last token, so none of its own borders has one
    // here.
    const uint32_t border = sequence.num_received_tokens / config_.block_size + 1;
    if (end == border * config_.block_size) return end;
  }
  if (config_.checkpoint_tokens == 0) return 0;
  const uint32_t multiple = end / config_.checkpoint_tokens * config_.checkpoint_tokens;
  return multiple > item.first_pos ? multiple : 0;
}

void Scheduler::PlanCheckpoints() {
  if (index_ == nullptr || config_.state_blocks == 0) return;
  for (uint32_t i = 0; i < plan_.items.size(); ++i) {
    BatchItem& item = plan_.items[i];
    const Sequence& sequence = *item.sequence;
    if (!KeepsStates(sequence)) continue;
    const uint32_t num_tokens = CheckpointOf(item);
    if (num_tokens == 0) continue;
    if (index_->HasState(sequence.query(), num_tokens / config_.block_size)) continue;
    const auto first = static_cast<uint32_t>(plan_.checkpoint_blocks.size());
    const bool has_room = index_->AllocateState(sequence.spec.uid, plan_.checkpoints.size(),
                                                &plan_.checkpoint_blocks);
    if (!has_room) continue;
    item.checkpoint = static_cast<uint32_t>(plan_.checkpoints.size());
    plan_.checkpoints.push_back({i, num_tokens, first});
  }
}

void Scheduler::KeepState(const BatchItem& item, Sequence* sequence) {
  if (item.checkpoint == kNoCheckpoint) return;
  const CheckpointPlan& checkpoint = plan_.checkpoints[item.checkpoint];
  const uint32_t num_blocks = checkpoint.num_tokens / config_.block_size;
  const bool is_kept = index_->InsertState(
      sequence->query(), num_blocks,
      std::span(plan_.checkpoint_blocks).subspan(checkpoint.first_block, config_.state_blocks));
  if (is_kept) sequence->num_good_blocks = num_blocks;
}

void Scheduler::ForgetKept(Sequence* sequence) {
  if (index_ == nullptr) return;
  for (uint32_t i = sequence->num_good_blocks; i < sequence->num_kept_blocks; ++i) {
    index_->Drop(sequence->table.handles()[i]);
  }
  sequence->spec.is_cacheable = false;
}

void Scheduler::ReleaseBlocks(Sequence* sequence) {
  Offer(sequence);
  sequence->state_table.Release(pool_);
  sequence->table.Release(pool_);
}

void Scheduler::ForgetComputed(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found != sequences_.end()) ForgetKept(found->second.get());
}

}  // namespace baton::scheduler
