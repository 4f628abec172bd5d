#include "kvcache/block_pool.h"

#include <algorithm>
#include <numeric>

#include "src/base/block_state_names.h"
#include "src/base/check.h"

namespace baton::kv {
namespace {

// Phases that an owner may choose between while it holds the block, as pairs from -> to. P is the
// prefill worker, D the decode worker.
//   computing -> exported   P: a slice of it is offered to D
//   computing -> bound      the prompt was computed where it is decoded
//   exported  -> bound      P keeps the block for itself after all (its own decode)
//   bound     -> exported   D: the KV of a sequence moves to another decode worker
//   reserved  -> receiving  D: slices may arrive
//   reserved  -> bound      D: a spare block that a choice grows into
//   receiving -> bound      D: verified
// Free and draining are never set: they follow from the references. Quarantined is set by SetReady.
struct Transition {
  BlockState from;
  BlockState to;
};
constexpr Transition kTransitions[] = {
    {BlockState::kComputing, BlockState::kExported}, {BlockState::kComputing, BlockState::kBound},
    {BlockState::kExported, BlockState::kBound},     {BlockState::kBound, BlockState::kExported},
    {BlockState::kReserved, BlockState::kReceiving}, {BlockState::kReserved, BlockState::kBound},
    {BlockState::kReceiving, BlockState::kBound},
};

static_assert(kBlockStateNames.size() == kNumBlockStates);

// Far above any real number of holders; a count that reaches it is a leak in a loop.
constexpr uint32_t kMaxRefs = 1u << 30;

}  // namespace

std::string_view BlockStateName(BlockState state) {
  return kBlockStateNames[static_cast<size_t>(state)];
}

bool IsAllowedTransition(BlockState from, BlockState to) {
  return std::any_of(std::begin(kTransitions), std::end(kTransitions),
                     [&](const Transition& t) { return t.from == from && t.to == to; });
}

BlockPool::BlockPool(uint32_t num_blocks, const ReadyBlocks& ready)
    : blocks_(num_blocks),
      free_(num_blocks),
      cached_(num_blocks),
      ready_{.num_ready = 0, .limit = num_blocks} {
  BATON_CHECK(num_blocks >= 1 && num_blocks <= 1u << 31, "a pool of {} blocks", num_blocks);
  // The top of the stack is the lowest index, so a fresh pool hands out 0, 1, 2, ...
  std::iota(free_.rbegin(), free_.rend(), 0u);
  counts_.total = num_blocks;
  counts_.by_state[static_cast<size_t>(BlockState::kFree)] = num_blocks;
  SetReady(ready);
}

BlockState BlockPool::Label(const Block& block) {
  if (block.request_refs > 0) return block.phase;
  if (block.transfer_refs > 0) return BlockState::kDraining;
  if (block.kept) return BlockState::kCached;
  return block.phase == BlockState::kQuarantined ? BlockState::kQuarantined : BlockState::kFree;
}

bool BlockPool::IsHeld(const Block& block) {
  const BlockState label = Label(block);
  return label != BlockState::kFree && label != BlockState::kQuarantined;
}

const BlockPool::Block& BlockPool::Use(BlockHandle handle) const {
  BATON_CHECK(handle.index.value() < blocks_.size(), "block {} of a pool of {}",
              handle.index.value(), blocks_.size());
  const Block& block = blocks_[handle.index.value()];
  BATON_CHECK(block.generation == handle.generation && IsHeld(block),
              "block {}: handle of generation {}, block of generation {} is {}",
              handle.index.value(), handle.generation, block.generation,
              BlockStateName(Label(block)));
  return block;
}

BlockPool::Block& BlockPool::Use(BlockHandle handle) {
  return const_cast<Block&>(static_cast<const BlockPool*>(this)->Use(handle));
}

void BlockPool::CheckConservation() const {
  uint32_t sum = 0;
  for (const uint32_t count : counts_.by_state) sum += count;
  BATON_CHECK(sum == counts_.total && counts_.of(BlockState::kFree) == free_.size() &&
                  counts_.of(BlockState::kCached) == cached_.size(),
              "labels sum to {} of {} blocks, {} labelled free, {} in the free list, {} labelled "
              "cached, {} to be evicted",
              sum, counts_.total, counts_.of(BlockState::kFree), free_.size(),
              counts_.of(BlockState::kCached), cached_.size());
}

void BlockPool::Settle(BlockHandle handle, BlockState before) {
  Block& block = blocks_[handle.index.value()];
  const BlockState after = Label(block);
  if (after == before) return;
  --counts_.by_state[static_cast<size_t>(before)];
  ++counts_.by_state[static_cast<size_t>(after)];
  if (before == BlockState::kCached) cached_.Remove(handle.index.value());
  if (after == BlockState::kCached) cached_.Add(handle.index.value());
  if (after == BlockState::kFree) {
    block.phase = BlockState::kFree;
    free_.push_back(handle.index.value());  // within the capacity taken at construction
  }
  CheckConservation();
}

bool BlockPool::Allocate(uint32_t num_blocks, BlockState phase, const RequestUid& owner,
                         std::vector<BlockHandle>* out) {
  BATON_CHECK(phase == BlockState::kComputing || phase == BlockState::kReserved ||
                  phase == BlockState::kBound,
              "blocks are not allocated as {}", BlockStateName(phase));
  if (num_blocks > num_available()) return false;
  while (num_ready_free() < num_blocks) EvictOne();
  for (uint32_t i = 0; i < num_blocks; ++i) {
    const uint32_t index = free_.back();
    free_.pop_back();
    Block& block = blocks_[index];
    BATON_CHECK(block.request_refs == 0 && block.transfer_refs == 0,
                "free block {} has {} request and {} transfer references", index,
                block.request_refs, block.transfer_refs);
    // Generation 0 means "no block", also after 2^32 allocations.
    if (++block.generation == 0) block.generation = 1;
    block.request_refs = 1;
    block.phase = phase;
    block.owner = owner;
    out->push_back({BlockIndex(index), block.generation});
  }
  counts_.by_state[static_cast<size_t>(BlockState::kFree)] -= num_blocks;
  counts_.by_state[static_cast<size_t>(phase)] += num_blocks;
  CheckConservation();
  return true;
}

void BlockPool::SetReady(const ReadyBlocks& ready) {
  BATON_CHECK(ready_.num_ready <= ready.num_ready && ready.num_ready <= ready.limit &&
                  ready.limit <= ready_.limit,
              "blocks with memory in a pool of {}: {} of {}, then {} of {}", num_blocks(),
              ready_.num_ready, ready_.limit, ready.num_ready, ready.limit);
  for (uint32_t i = ready.limit; i < ready_.limit; ++i) {
    blocks_[i].phase = BlockState::kQuarantined;
  }
  const uint32_t num_lost = ready_.limit - ready.limit;
  free_.erase(free_.begin(), free_.begin() + num_lost);
  counts_.by_state[static_cast<size_t>(BlockState::kFree)] -= num_lost;
  counts_.by_state[static_cast<size_t>(BlockState::kQuarantined)] += num_lost;
  ready_ = ready;
  CheckConservation();
}

void BlockPool::EvictOne() {
  const uint32_t index = cached_.First();
  const BlockHandle handle{BlockIndex(index), blocks_[index].generation};
  blocks_[index].kept = false;
  Settle(handle, BlockState::kCached);
  if (keeper_ != nullptr) keeper_->OnEvicted(handle, cached_.KeyOf(index));
}

void BlockPool::KeepCached(BlockHandle handle, const EvictionKey& key) {
  Block& block = Use(handle);
  BATON_CHECK(block.request_refs > 0 && !block.kept, "block {} is {} and kept: {}",
              handle.index.value(), BlockStateName(Label(block)), block.kept);
  block.kept = true;
  cached_.SetKey(handle.index.value(), key);
}

void BlockPool::StopKeeping(BlockHandle handle) {
  Block& block = Use(handle);
  BATON_CHECK(block.kept, "block {} is not kept", handle.index.value());
  const BlockState before = Label(block);
  block.kept = false;
  Settle(handle, before);
}

void BlockPool::SetEvictionKey(BlockHandle handle, const EvictionKey& key) {
  BATON_CHECK(Use(handle).kept, "block {} is not kept", handle.index.value());
  cached_.SetKey(handle.index.value(), key);
}

const EvictionKey& BlockPool::EvictionKeyOf(BlockHandle handle) const {
  BATON_CHECK(Use(handle).kept, "block {} is not kept", handle.index.value());
  return cached_.KeyOf(handle.index.value());
}

void BlockPool::AcquireCached(BlockHandle handle, BlockState phase, const RequestUid& owner) {
  Block& block = Use(handle);
  BATON_CHECK(block.kept && block.request_refs < kMaxRefs,
              "block {} is {} with {} references and kept: {}", handle.index.value(),
              BlockStateName(Label(block)), block.request_refs, block.kept);
  const BlockState before = Label(block);
  if (block.request_refs++ == 0) {
    block.phase = phase;
    block.owner = owner;
  }
  Settle(handle, before);
}

void BlockPool::AddRequestRef(BlockHandle handle) {
  Block& block = Use(handle);
  BATON_CHECK(block.request_refs > 0, "block {} is {}: nobody is left to share it",
              handle.index.value(), BlockStateName(Label(block)));
  BATON_CHECK(block.request_refs < kMaxRefs, "block {} has {} request references",
              handle.index.value(), block.request_refs);
  ++block.request_refs;
}

void BlockPool::AddTransferRef(BlockHandle handle) {
  Block& block = Use(handle);
  BATON_CHECK(block.request_refs > 0, "block {} is {}: no new transfer may start",
              handle.index.value(), BlockStateName(Label(block)));
  BATON_CHECK(block.transfer_refs < kMaxRefs, "block {} has {} transfer references",
              handle.index.value(), block.transfer_refs);
  ++block.transfer_refs;
}

void BlockPool::DropRequestRef(BlockHandle handle) {
  Block& block = Use(handle);
  BATON_CHECK(block.request_refs > 0, "block {} has no request reference to drop",
              handle.index.value());
  const BlockState before = Label(block);
  --block.request_refs;
  Settle(handle, before);
}

void BlockPool::DropTransferRef(BlockHandle handle) {
  Block& block = Use(handle);
  BATON_CHECK(block.transfer_refs > 0, "block {} has no transfer reference to drop",
              handle.index.value());
  const BlockState before = Label(block);
  --block.transfer_refs;
  Settle(handle, before);
}

void BlockPool::SetState(BlockHandle handle, BlockState to) {
  Block& block = Use(handle);
  const BlockState before = Label(block);
  if (before == to) return;
  BATON_CHECK(IsAllowedTransition(before, to), "block {} of generation {}: {} -> {}",
              handle.index.value(), handle.generation, BlockStateName(before), BlockStateName(to));
  block.phase = to;
  Settle(handle, before);
}

bool BlockPool::IsCurrent(BlockHandle handle) const {
  if (handle.index.value() >= blocks_.size()) return false;
  const Block& block = blocks_[handle.index.value()];
  return block.generation == handle.generation && IsHeld(block);
}

BlockState BlockPool::StateOf(BlockHandle handle) const { return Label(Use(handle)); }

BlockInfo BlockPool::Info(BlockIndex index) const {
  BATON_CHECK(index.value() < blocks_.size(), "block {} of a pool of {}", index.value(),
              blocks_.size());
  const Block& block = blocks_[index.value()];
  return {{index, block.generation}, Label(block), block.request_refs,
          block.transfer_refs,       block.kept,   block.owner};
}

Status BlockPool::Audit() const {
  BlockCounts counts;
  counts.total = num_blocks();
  for (const Block& block : blocks_) ++counts.by_state[static_cast<size_t>(Label(block))];
  for (size_t i = 0; i < kNumBlockStates; ++i) {
    if (counts.by_state[i] == counts_.by_state[i]) continue;
    return Internal("{} blocks are {}, the counter says {}", counts.by_state[i],
                    kBlockStateNames[i], counts_.by_state[i]);
  }
  std::vector<bool> listed(blocks_.size());
  for (const uint32_t index : free_) {
    if (index >= blocks_.size() || listed[index]) {
      return Internal("block {} is in the free list twice or does not exist", index);
    }
    listed[index] = true;
    if (Label(blocks_[index]) != BlockState::kFree) {
      return Internal("block {} is in the free list and {}", index,
                      BlockStateName(Label(blocks_[index])));
    }
  }
  if (free_.size() != counts_.of(BlockState::kFree)) {
    return Internal("{} blocks in the free list, {} counted free", free_.size(),
                    counts_.of(BlockState::kFree));
  }
  for (uint32_t i = 0; i < num_blocks(); ++i) {
    const Block& block = blocks_[i];
    if (cached_.Contains(i) != (Label(block) == BlockState::kCached)) {
      return Internal("block {} is {} and {}to be evicted", i, BlockStateName(Label(block)),
                      cached_.Contains(i) ? "" : "not ");
    }
    if (!IsHeld(block) || block.generation != 0) continue;
    return Internal("block {} is {} and was never allocated", i, BlockStateName(Label(block)));
  }
  return OkStatus();
}

}  // namespace baton::kv
