#include "kvcache/prefix_index.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"

namespace baton::kv {
namespace {

// Blocks after which the attention of a token costs about as much as all its matrices.
constexpr double kDepthOfEqualCost = 128;

double CostOf(uint32_t ordinal) { return 1 + ordinal / kDepthOfEqualCost; }

// The cost of all blocks up to this one.
double CostUpTo(uint32_t ordinal) {
  const double num_blocks = ordinal + 1.0;
  return num_blocks + num_blocks * ordinal / 2 / kDepthOfEqualCost;
}

}  // namespace

PrefixIndex::PrefixIndex(BlockPool* pool, uint32_t block_size, PrefixListener* listener,
                         const StateLimits& states)
    : pool_(pool),
      listener_(listener),
      block_size_(block_size),
      nodes_(pool->num_blocks()),
      tokens_(size_t{pool->num_blocks()} * block_size),
      states_(states) {
  by_link_.reserve(pool->num_blocks());
  if (states.state_blocks > 0) {
    const uint32_t max_blocks = std::min(states.max_blocks, pool->num_blocks());
    checkpoint_nodes_.assign(max_blocks / states.state_blocks, kNone);
    state_handles_.resize(checkpoint_nodes_.size() * states.state_blocks);
    checkpoint_of_.assign(pool->num_blocks(), kNone);
  }
  pool_->SetCacheKeeper(this);
}

PrefixIndex::~PrefixIndex() { pool_->SetCacheKeeper(nullptr); }

std::optional<uint32_t> PrefixIndex::Find(const PrefixQuery& query, uint32_t ordinal) const {
  const auto found = by_link_.find(query.links[ordinal]);
  if (found == by_link_.end() || nodes_[found->second].ordinal != ordinal) return std::nullopt;
  const std::span<const TokenId> own = TokensOf(found->second);
  const auto wanted = query.tokens.subspan(size_t{ordinal} * block_size_, block_size_);
  if (!std::equal(own.begin(), own.end(), wanted.begin())) return std::nullopt;
  return found->second;
}

uint32_t PrefixIndex::NumToFind(const PrefixQuery& query, uint32_t max_blocks) const {
  return static_cast<uint32_t>(std::min<size_t>(
      {query.links.size(), query.tokens.size() / block_size_, size_t{max_blocks}}));
}

uint32_t PrefixIndex::Match(const PrefixQuery& query, uint32_t max_blocks) const {
  const uint32_t limit = NumToFind(query, max_blocks);
  uint32_t num_blocks = 0;
  while (num_blocks < limit && Find(query, num_blocks)) ++num_blocks;
  return num_blocks;
}

uint32_t PrefixIndex::MatchWhole(const PrefixQuery& query, uint32_t max_blocks) const {
  if (states_.state_blocks == 0) return Match(query, max_blocks);
  const uint32_t limit = NumToFind(query, max_blocks);
  uint32_t num_whole = 0;
  for (uint32_t i = 0; i < limit; ++i) {
    const std::optional<uint32_t> block = Find(query, i);
    if (!block) break;
    if (nodes_[*block].checkpoint != kNone) num_whole = i + 1;
  }
  return num_whole;
}

uint32_t PrefixIndex::CountIdle(const PrefixQuery& query, uint32_t first, uint32_t end) const {
  const auto is_idle = [this](BlockHandle block) {
    return pool_->StateOf(block) == BlockState::kCached;
  };
  uint32_t num_idle = 0;
  uint32_t checkpoint = kNone;
  for (uint32_t i = first; i < end; ++i) {
    const std::optional<uint32_t> block = Find(query, i);
    BATON_CHECK(block.has_value(), "block {} of [{}, {}) is not here", i, first, end);
    num_idle += is_idle(HandleOf(*block)) ? 1 : 0;
    checkpoint = nodes_[*block].checkpoint;
  }
  if (checkpoint == kNone) return num_idle;
  const std::span<const BlockHandle> state(state_handles_);
  const auto blocks =
      state.subspan(size_t{checkpoint} * states_.state_blocks, states_.state_blocks);
  return num_idle + static_cast<uint32_t>(std::ranges::count_if(blocks, is_idle));
}

uint32_t PrefixIndex::Acquire(const PrefixQuery& query, uint32_t max_blocks, BlockState phase,
                              const RequestUid& owner, std::vector<BlockHandle>* out) {
  const uint32_t limit = NumToFind(query, max_blocks);
  uint32_t num_blocks = 0;
  for (; num_blocks < limit; ++num_blocks) {
    const std::optional<uint32_t> block = Find(query, num_blocks);
    if (!block) break;
    const BlockHandle handle = HandleOf(*block);
    pool_->AcquireCached(handle, phase, owner);
    SetKey(*block, inflation_ + CostOf(num_blocks), ++clock_);
    out->push_back(handle);
  }
  stats_.num_acquired += num_blocks;
  return num_blocks;
}

void PrefixIndex::CountQuery(uint32_t num_tokens, uint32_t num_hit_tokens) {
  stats_.queried_tokens += num_tokens;
  stats_.hit_tokens += num_hit_tokens;
}

bool PrefixIndex::Insert(const PrefixEntry& entry) {
  BATON_CHECK(entry.tokens.size() == block_size_, "{} tokens for a block of {}",
              entry.tokens.size(), block_size_);
  const uint32_t block = entry.block.index.value();
  Node& node = nodes_[block];
  if (node.generation == entry.block.generation) return false;
  BATON_CHECK(node.generation == 0, "block {} of generation {} is in the index as {}", block,
              entry.block.generation, node.generation);
  const auto same = by_link_.find(entry.link);
  if (same != by_link_.end()) return TakePlace(same->second, entry);
  const auto parent = entry.ordinal > 0 ? by_link_.find(entry.parent) : by_link_.end();
  const bool has_parent =
      entry.ordinal == 0 ||
      (parent != by_link_.end() && nodes_[parent->second].ordinal + 1 == entry.ordinal);
  if (!has_parent) return false;
  node = {.link = entry.link, .generation = entry.block.generation, .ordinal = entry.ordinal};
  std::copy(entry.tokens.begin(), entry.tokens.end(),
            tokens_.begin() + static_cast<std::ptrdiff_t>(size_t{block} * block_size_));
  if (entry.ordinal > 0) AddChild(parent->second, block);
  by_link_.emplace(entry.link, block);
  if (listener_ != nullptr) listener_->OnPrefixChange({entry.link, true, entry.ordinal});
  pool_->KeepCached(entry.block,
                    {.value = inflation_ + CostOf(entry.ordinal), .last_use = ++clock_});
  ++stats_.num_inserted;
  return true;
}

bool PrefixIndex::TakePlace(uint32_t from, const PrefixEntry& entry) {
  const BlockHandle idle = HandleOf(from);
  const std::span<const TokenId> own = TokensOf(from);
  const bool is_same = nodes_[from].ordinal == entry.ordinal &&
                       std::equal(own.begin(), own.end(), entry.tokens.begin());
  if (!is_same || pool_->StateOf(idle) != BlockState::kCached) return false;
  const uint32_t to = entry.block.index.value();
  const EvictionKey key = pool_->EvictionKeyOf(idle);
  Node& node = nodes_[to];
  node = std::exchange(nodes_[from], {});
  node.generation = entry.block.generation;
  std::copy(own.begin(), own.end(),
            tokens_.begin() + static_cast<std::ptrdiff_t>(size_t{to} * block_size_));
  by_link_[node.link] = to;
  if (node.prev_sibling != kNone) {
    nodes_[node.prev_sibling].next_sibling = to;
  } else if (node.parent != kNone) {
    nodes_[node.parent].first_child = to;
  }
  if (node.next_sibling != kNone) nodes_[node.next_sibling].prev_sibling = to;
  for (uint32_t i = node.first_child; i != kNone; i = nodes_[i].next_sibling) nodes_[i].parent = to;
  if (node.checkpoint != kNone) checkpoint_nodes_[node.checkpoint] = to;
  pool_->StopKeeping(idle);
  pool_->KeepCached(entry.block, key);
  ++stats_.num_moved;
  return true;
}

void PrefixIndex::SetKey(uint32_t block, double value, uint64_t last_use) {
  pool_->SetEvictionKey(HandleOf(block), {nodes_[block].rank(), value, last_use});
}

void PrefixIndex::UpdateKey(uint32_t block) {
  const EvictionKey key = pool_->EvictionKeyOf(HandleOf(block));
  if (key.rank != nodes_[block].rank()) SetKey(block, key.value, key.last_use);
}

void PrefixIndex::AddChild(uint32_t parent, uint32_t block) {
  Node& node = nodes_[block];
  node.parent = parent;
  node.next_sibling = std::exchange(nodes_[parent].first_child, block);
  if (node.next_sibling != kNone) nodes_[node.next_sibling].prev_sibling = block;
  UpdateKey(parent);
}

void PrefixIndex::RemoveChild(uint32_t parent, uint32_t block) {
  const uint32_t prev = nodes_[block].prev_sibling;
  const uint32_t next = nodes_[block].next_sibling;
  if (prev == kNone) {
    nodes_[parent].first_child = next;
  } else {
    nodes_[prev].next_sibling = next;
  }
  if (next != kNone) nodes_[next].prev_sibling = prev;
}

void PrefixIndex::ForgetLeaf(uint32_t block) {
  Node& node = nodes_[block];
  by_link_.erase(node.link);
  if (listener_ != nullptr) listener_->OnPrefixChange({node.link, false, node.ordinal});
  const uint32_t checkpoint = std::exchange(node.checkpoint, kNone);
  if (checkpoint != kNone) DropCheckpoint(checkpoint);
  if (node.parent != kNone) RemoveChild(node.parent, block);
  node = {};
}

uint32_t PrefixIndex::Forget(uint32_t block) {
  uint32_t num_forgotten = 1;
  // From the ends of what goes on from the block back to it.
  uint32_t last = block;
  while (true) {
    while (nodes_[last].first_child != kNone) last = nodes_[last].first_child;
    if (last == block) break;
    const uint32_t parent = nodes_[last].parent;
    const BlockHandle handle = HandleOf(last);
    ForgetLeaf(last);
    pool_->StopKeeping(handle);
    ++num_forgotten;
    last = parent;
  }
  const uint32_t parent = nodes_[block].parent;
  ForgetLeaf(block);
  if (parent != kNone) UpdateKey(parent);
  return num_forgotten;
}

void PrefixIndex::OnEvicted(BlockHandle block, const EvictionKey& key) {
  const uint32_t index = block.index.value();
  inflation_ = std::max(inflation_, key.value);
  if (!checkpoint_of_.empty() && checkpoint_of_[index] != kNone) {
    return DropCheckpoint(checkpoint_of_[index], block);
  }
  BATON_CHECK(nodes_[index].generation == block.generation,
              "block {} of generation {} was evicted, the index has {}", index, block.generation,
              nodes_[index].generation);
  stats_.num_evicted += Forget(index);
}

void PrefixIndex::Drop(BlockHandle block) {
  // A place of a table whose block was never here has generation 0, as a node without a block has.
  if (block.generation == 0) return;
  if (nodes_[block.index.value()].generation != block.generation) return;
  Forget(block.index.value());
  pool_->StopKeeping(block);
}

// ---- Checkpoints.

bool PrefixIndex::HasState(const PrefixQuery& query, uint32_t num_blocks) const {
  const std::optional<uint32_t> block = Find(query, num_blocks - 1);
  return block && nodes_[*block].checkpoint != kNone;
}

void PrefixIndex::AcquireState(const PrefixQuery& query, uint32_t num_blocks, BlockState phase,
                               const RequestUid& owner, std::vector<BlockHandle>* out) {
  const std::optional<uint32_t> block = Find(query, num_blocks - 1);
  BATON_CHECK(block && nodes_[*block].checkpoint != kNone, "no state is kept after {} blocks",
              num_blocks);
  const uint32_t checkpoint = nodes_[*block].checkpoint;
  for (const BlockHandle handle : BlocksOf(checkpoint)) {
    pool_->AcquireCached(handle, phase, owner);
    out->push_back(handle);
  }
  SetStateKey(checkpoint);
}

void PrefixIndex::ForgetState(const PrefixQuery& query, uint32_t num_blocks) {
  const std::optional<uint32_t> block = Find(query, num_blocks - 1);
  if (block && nodes_[*block].checkpoint != kNone) DropCheckpoint(nodes_[*block].checkpoint);
}

bool PrefixIndex::AllocateState(const RequestUid& owner, size_t num_pending,
                                std::vector<BlockHandle>* out) {
  const bool has_room = MakeRoomForState(num_pending) &&
                        pool_->Allocate(states_.state_blocks, BlockState::kComputing, owner, out);
  if (!has_room) ++stats_.checkpoints_skipped;
  return has_room;
}

bool PrefixIndex::InsertState(const PrefixQuery& query, uint32_t num_blocks,
                              std::span<const BlockHandle> blocks) {
  BATON_CHECK(blocks.size() == states_.state_blocks, "{} blocks for a state of {}", blocks.size(),
              states_.state_blocks);
  std::optional<uint32_t> block = Find(query, num_blocks - 1);
  if (!block || nodes_[*block].checkpoint != kNone || !MakeRoomForState(0)) return false;
  const auto free = std::find(checkpoint_nodes_.begin(), checkpoint_nodes_.end(), kNone);
  const auto checkpoint = static_cast<uint32_t>(free - checkpoint_nodes_.begin());
  checkpoint_nodes_[checkpoint] = *block;
  std::copy(blocks.begin(), blocks.end(), BlocksOf(checkpoint).begin());
  for (const BlockHandle handle : blocks) {
    checkpoint_of_[handle.index.value()] = checkpoint;
    pool_->KeepCached(handle, {});
  }
  nodes_[*block].checkpoint = checkpoint;
  TellState(*block, true);
  ++num_checkpoints_;
  ++stats_.checkpoints_kept;
  SetStateKey(checkpoint);
  UpdateKey(*block);
  return true;
}

void PrefixIndex::SetStateKey(uint32_t checkpoint) {
  const uint32_t ordinal = nodes_[checkpoint_nodes_[checkpoint]].ordinal;
  const double value = inflation_ + CostUpTo(ordinal) / states_.state_blocks;
  ++clock_;
  for (const BlockHandle handle : BlocksOf(checkpoint)) {
    pool_->SetEvictionKey(handle, {.value = value, .last_use = clock_});
  }
}

void PrefixIndex::DropCheckpoint(uint32_t checkpoint, BlockHandle evicted) {
  const uint32_t block = std::exchange(checkpoint_nodes_[checkpoint], kNone);
  for (BlockHandle& handle : BlocksOf(checkpoint)) {
    checkpoint_of_[handle.index.value()] = kNone;
    if (handle != evicted) pool_->StopKeeping(handle);
    handle = {};
  }
  TellState(block, false);
  --num_checkpoints_;
  ++stats_.checkpoints_dropped;
  // A block that is being forgotten has let go of its checkpoint already.
  if (nodes_[block].checkpoint != checkpoint) return;
  nodes_[block].checkpoint = kNone;
  UpdateKey(block);
}

void PrefixIndex::TellState(uint32_t block, bool added) {
  if (listener_ == nullptr) return;
  listener_->OnPrefixChange({StateLink(nodes_[block].link), added, nodes_[block].ordinal});
}

bool PrefixIndex::MakeRoomForState(size_t num_pending) {
  const size_t most = checkpoint_nodes_.size();
  if (num_pending >= most) return false;
  while (num_checkpoints_ + num_pending >= most) {
    uint32_t least = kNone;
    for (uint32_t i = 0; i < most; ++i) {
      if (checkpoint_nodes_[i] == kNone) continue;
      const auto key = [this](uint32_t c) { return pool_->EvictionKeyOf(BlocksOf(c).front()); };
      if (least == kNone || key(i) < key(least)) least = i;
    }
    inflation_ = std::max(inflation_, pool_->EvictionKeyOf(BlocksOf(least).front()).value);
    DropCheckpoint(least);
  }
  return true;
}

Status PrefixIndex::Audit() const {
  size_t num_nodes = 0;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.generation == 0) continue;
    ++num_nodes;
    const BlockHandle handle = HandleOf(i);
    if (!pool_->IsCurrent(handle)) return Internal("block {} is indexed and not in use", i);
    const auto found = by_link_.find(node.link);
    if (found == by_link_.end() || found->second != i) {
      return Internal("block {} is not found under its link", i);
    }
    if (pool_->EvictionKeyOf(handle).rank != node.rank()) {
      return Internal("block {} of rank {} has another key", i, node.rank());
    }
    BATON_RETURN_IF_ERROR(AuditParent(i));
    if (node.checkpoint != kNone && checkpoint_nodes_[node.checkpoint] != i) {
      return Internal("block {} has checkpoint {}, which is of block {}", i, node.checkpoint,
                      checkpoint_nodes_[node.checkpoint]);
    }
  }
  BATON_RETURN_IF_ERROR(AuditCheckpoints());
  if (num_nodes != by_link_.size()) {
    return Internal("{} blocks are indexed under {} links", num_nodes, by_link_.size());
  }
  return OkStatus();
}

Status PrefixIndex::AuditParent(uint32_t block) const {
  const Node& node = nodes_[block];
  if (node.parent == kNone) {
    if (node.ordinal == 0) return OkStatus();
    return Internal("block {} of ordinal {} has no parent", block, node.ordinal);
  }
  const Node& parent = nodes_[node.parent];
  if (parent.generation == 0 || parent.ordinal + 1 != node.ordinal) {
    return Internal("block {} of ordinal {} goes on from block {}, which has generation {} and {}",
                    block, node.ordinal, node.parent, parent.generation, parent.ordinal);
  }
  const uint32_t before =
      node.prev_sibling == kNone ? parent.first_child : nodes_[node.prev_sibling].next_sibling;
  if (before == block) return OkStatus();
  return Internal("block {} is not in the list of block {}", block, node.parent);
}

Status PrefixIndex::AuditCheckpoints() const {
  uint32_t num_checkpoints = 0;
  for (uint32_t i = 0; i < checkpoint_nodes_.size(); ++i) {
    const uint32_t block = checkpoint_nodes_[i];
    if (block == kNone) continue;
    ++num_checkpoints;
    if (nodes_[block].generation == 0 || nodes_[block].checkpoint != i) {
      return Internal("checkpoint {} is of block {}, which does not have it", i, block);
    }
    for (uint32_t j = 0; j < states_.state_blocks; ++j) {
      const BlockHandle handle = state_handles_[size_t{i} * states_.state_blocks + j];
      const bool is_kept = pool_->IsCurrent(handle) && pool_->Info(handle.index).kept;
      if (!is_kept || checkpoint_of_[handle.index.value()] != i) {
        return Internal("block {} of checkpoint {} is not kept for it", handle.index.value(), i);
      }
    }
  }
  if (num_checkpoints == num_checkpoints_) return OkStatus();
  return Internal("{} checkpoints are here, the counter says {}", num_checkpoints,
                  num_checkpoints_);
}

}  // namespace baton::kv
